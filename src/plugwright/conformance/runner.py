"""Runs the checks of a program: for one kubelet version, or for several in parallel."""

import asyncio
import signal
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial

from plugwright.conformance import overlap
from plugwright.conformance.dra.driver_verifier import DriverVerifier
from plugwright.conformance.program import Target
from plugwright.conformance.progress import LONG, RulesInProgress, Slow, reporting_slow
from plugwright.conformance.rule import Rule, Verdict
from plugwright.conformance.rule_checker import Checker
from plugwright.conformance.verifier import Verifier, VerifyOptions

__all__ = ["Watcher", "run", "verdicts", "verify"]


@dataclass(frozen=True, slots=True)
class Watcher:
    """`seen` gets each verdict immediately; `slow` the version and what takes long, at intervals of `every` seconds."""

    seen: Callable[[Verdict], None]
    slow: Callable[[str, Sequence[Slow]], None]
    every: float = LONG


def run(
    target: Target,
    rules: Sequence[type[Rule]],
    options: Sequence[VerifyOptions],
    watcher: Watcher,
    jobs: int,
) -> list[Verdict] | None:
    """The verdicts for each of the options, `jobs` in parallel; None after a signal."""
    try:
        return asyncio.run(_verify_all(target, rules, options, watcher, jobs))
    except asyncio.CancelledError:
        return None


async def _verify_all(
    target: Target,
    rules: Sequence[type[Rule]],
    options: Sequence[VerifyOptions],
    watcher: Watcher,
    jobs: int,
) -> list[Verdict]:
    turn = asyncio.Semaphore(jobs)
    this = asyncio.current_task()
    assert this is not None
    # Ctrl-C cancels automatically; every end of this command must end the programs under test first.
    for number in (signal.SIGTERM, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(number, this.cancel)

    async def verified(option: VerifyOptions) -> list[Verdict]:
        made: list[Verdict] = []
        async with turn:
            progress = RulesInProgress()
            slow = partial(watcher.slow, option.version)
            found = verdicts(target, rules, option, progress)
            async with reporting_slow(progress, slow, watcher.every), aclosing(found):
                async for verdict in found:
                    progress.verdict()
                    watcher.seen(verdict)
                    made.append(verdict)
        order = {rule: number for number, rule in enumerate(rules)}
        return sorted(made, key=lambda verdict: order.get(verdict.rule, -1))

    return [verdict for made in await asyncio.gather(*map(verified, options)) for verdict in made]


async def verify(target: Target, rules: Sequence[type[Rule]], options: VerifyOptions) -> list[Verdict]:
    async with aclosing(verdicts(target, rules, options)) as made:
        return [verdict async for verdict in made]


async def verdicts(
    target: Target, rules: Sequence[type[Rule]], options: VerifyOptions, progress: RulesInProgress | None = None
) -> AsyncGenerator[Verdict, None]:
    """One verdict for each rule: first the rules that overlapping checks prove, then the others, with one instance.

    An unrequested rule has a verdict only if it is the reason why another one could not be checked.
    """
    kind = DriverVerifier if options.dra else Verifier
    progress = progress or RulesInProgress()
    ordered = sorted(rules, key=lambda rule: rule.alone)
    proven: dict[type[Rule], Verdict] = {}
    async with kind(target, options) as verifier:
        await verifier.started()
        if not verifier.failure and _can_overlap(target, rules, options):
            async with aclosing(overlap.proofs(verifier, rules, progress)) as proofs:
                async for verdict in proofs:
                    proven[verdict.rule] = verdict
                    yield verdict
            await verifier.reset()
        if len(proven) < len(rules):
            async for verdict in Checker(verifier, progress, proven).check(ordered):
                yield verdict


def _can_overlap(target: Target, rules: Sequence[type[Rule]], options: VerifyOptions) -> bool:
    """Whether several instances can check these rules: a program in a given directory has no second instance."""
    return options.instances > 1 and not target.attached and not options.directory and len(overlap.groups(rules)) > 1
