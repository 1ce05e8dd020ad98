"""Overlapping checks: several instances of the program prove rules at the same time.

Each instance has its own emulated kubelet and directory, so the waits of one rule do not delay the others. An instance
can disturb another one through a port, a lock or a file outside these directories. Therefore this module only reports
rules that are kept or not applicable. The caller checks all other rules again with a single instance.
"""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Sequence
from contextlib import suppress
from typing import Any

from plugwright.conformance.rule import Rule, Verdict
from plugwright.conformance.rule_checker import Checker
from plugwright.conformance.verifier import Verifier
from plugwright.errors import PluginNotRunning
from plugwright.system.concurrency import unwrapped

__all__ = ["groups", "proofs"]

Group = list[type[Rule]]
Proofs = dict[type[Rule], asyncio.Future[Verdict | None]]


def groups(rules: Sequence[type[Rule]]) -> list[Group]:
    """The rules that one instance checks in sequence: first those that do not wait, then the longest waits."""
    found: dict[str, Group] = {}
    for rule in rules:
        found.setdefault(rule.group(), []).append(rule)
    quick = found.pop("", [])
    longest = sorted(found.values(), key=lambda group: -max(rule.waits for rule in group))
    return [quick, *longest] if quick else longest


async def proofs(verifier: Verifier, rules: Sequence[type[Rule]]) -> AsyncGenerator[Verdict, None]:
    """Yields the verdicts of kept and not applicable rules, in the order of the rules.

    The verifier's program is already registered; further instances are started beside it.
    """
    found: Proofs = {rule: asyncio.get_running_loop().create_future() for rule in rules}
    working = asyncio.ensure_future(_work_together(verifier, groups(rules), found))
    try:
        for rule in rules:
            either: set[asyncio.Future[Any]] = {working, found[rule]}
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if working.done():
                await working  # raises its error
            if verdict := await found[rule]:
                yield verdict
        await working
    finally:
        working.cancel()
        with suppress(asyncio.CancelledError):
            await working


async def _work_together(verifier: Verifier, work: Sequence[Group], found: Proofs) -> None:
    queue = deque(work)
    others = min(verifier.options.instances, len(work)) - 1
    try:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(_work(verifier, queue, found))
            for _ in range(others):
                tasks.create_task(_work_beside(verifier, queue, found))
    except ExceptionGroup as group:
        raise unwrapped(group) from None


async def _work(verifier: Verifier, queue: deque[Group], found: Proofs) -> None:
    checker = Checker(verifier)
    while queue:
        for rule in queue.popleft():
            found[rule].set_result(await checker.proof(rule))


async def _work_beside(first: Verifier, queue: deque[Group], found: Proofs) -> None:
    async with first.another() as verifier:
        try:
            await verifier.running()
        except PluginNotRunning:
            return  # the program cannot run twice on this machine
        await _work(verifier, queue, found)
