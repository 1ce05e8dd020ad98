"""The rules in progress, and a report on those that take long, so that a run is never silent for minutes."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import NamedTuple

from plugwright.conformance.rule import Rule
from plugwright.model import some

__all__ = ["LONG", "RulesInProgress", "Slow", "reporting_slow", "slow_text"]

LONG = 60.0  # seconds without a verdict, or within one rule
_SHOWN = 4  # rules


class Slow(NamedTuple):
    """A rule that is being checked, and for how many seconds; without a rule, the program is started or ended."""

    rule: type[Rule] | None
    seconds: float


class RulesInProgress:
    """The rules that the verifiers of one kubelet version are checking; an instance can check the cause of a rule."""

    def __init__(self) -> None:
        self._began: dict[object, tuple[type[Rule], float]] = {}
        self._quiet_since = time.monotonic()

    @contextmanager
    def checking(self, rule: type[Rule]) -> Iterator[None]:
        check = object()
        self._began[check] = (rule, time.monotonic())
        try:
            yield
        finally:
            del self._began[check]

    def verdict(self) -> None:
        """A verdict was reported."""
        self._quiet_since = time.monotonic()

    def slow(self, longest: float, now: float) -> Sequence[Slow]:
        """The rules that have taken at least that long, longest first; during a silence of that time, all of them."""
        quiet = now - self._quiet_since
        ages: Mapping[type[Rule], float] = {rule: now - began for rule, began in reversed(self._began.values())}
        found = [Slow(rule, age) for rule, age in ages.items() if age >= longest or quiet >= longest]
        if not ages and quiet >= longest:
            return [Slow(None, quiet)]
        return sorted(found, key=lambda one: -one.seconds)


def slow_text(found: Sequence[Slow]) -> str:
    rules = [f"{one.rule.id} for {one.seconds:.0f} s" for one in found if one.rule]
    if rules:
        return f"still checking {some(rules, _SHOWN)}"
    return f"waiting for the program to start or end for {found[0].seconds:.0f} s"


@asynccontextmanager
async def reporting_slow(
    progress: RulesInProgress, report: Callable[[Sequence[Slow]], None], every: float
) -> AsyncIterator[None]:
    """Calls `report` at these intervals, if something takes long."""

    async def work() -> None:
        while True:
            await asyncio.sleep(every)
            if found := progress.slow(every, time.monotonic()):
                report(found)

    working = asyncio.ensure_future(work())
    try:
        yield
    finally:
        working.cancel()
