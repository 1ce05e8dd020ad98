"""Overlapping checks: several instances of the program prove rules at the same time.

Each instance has its own emulated kubelet and directory, so the waits of one rule do not delay the others. An instance
can disturb another one through a port, a lock or a file outside these directories. Therefore this module only reports
rules that are kept or not applicable. The caller checks all other rules again with a single instance.
"""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Sequence
from contextlib import suppress

from plugwright.conformance.progress import RulesInProgress
from plugwright.conformance.rule import Rule, Verdict
from plugwright.conformance.rule_checker import Checker
from plugwright.conformance.verifier import Verifier
from plugwright.errors import PluginNotRunning
from plugwright.system.concurrency import unwrapped

__all__ = ["groups", "proofs"]

Group = list[type[Rule]]
Proofs = asyncio.Queue[Verdict | None]  # None at the end


def groups(rules: Sequence[type[Rule]]) -> list[Group]:
    """The rules that one instance checks in sequence: first those that do not wait, then the longest waits."""
    found: dict[str, Group] = {}
    for rule in rules:
        found.setdefault(rule.group(), []).append(rule)
    quick = found.pop("", [])
    longest = sorted(found.values(), key=lambda group: -max(rule.waits for rule in group))
    return [quick, *longest] if quick else longest


async def proofs(
    verifier: Verifier, rules: Sequence[type[Rule]], progress: RulesInProgress
) -> AsyncGenerator[Verdict, None]:
    """Yields the verdicts of kept and not applicable rules, as they end.

    The verifier's program is already registered; further instances are started beside it.
    """
    found: Proofs = asyncio.Queue()
    working = asyncio.ensure_future(_work_together(verifier, deque(groups(rules)), found, progress))
    working.add_done_callback(lambda _: found.put_nowait(None))
    try:
        while verdict := await found.get():
            yield verdict
        await working  # raises its error
    finally:
        working.cancel()
        with suppress(asyncio.CancelledError):
            await working


async def _work_together(verifier: Verifier, work: deque[Group], found: Proofs, progress: RulesInProgress) -> None:
    others = min(verifier.options.instances, len(work)) - 1
    try:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(_work(verifier, work, found, progress))
            for _ in range(others):
                tasks.create_task(_work_beside(verifier, work, found, progress))
    except ExceptionGroup as group:
        raise unwrapped(group) from None


async def _work(verifier: Verifier, work: deque[Group], found: Proofs, progress: RulesInProgress) -> None:
    checker = Checker(verifier, progress)
    while work:
        for rule in work.popleft():
            if verdict := await checker.proof(rule):
                found.put_nowait(verdict)


async def _work_beside(first: Verifier, work: deque[Group], found: Proofs, progress: RulesInProgress) -> None:
    async with first.another() as verifier:
        try:
            await verifier.running()
        except PluginNotRunning:
            return  # the program cannot run twice on this machine
        await _work(verifier, work, found, progress)
