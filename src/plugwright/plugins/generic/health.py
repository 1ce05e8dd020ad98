"""When a device counts as broken: not at the first bad word, and not healed by the first good one. Pure.

Runs the checks of a resource's devices, each at its own pace, and keeps what they have led to.

What may be asked is in `checks`. Nothing runs where nothing is to be checked. A check that hangs is not begun again
until it has ended.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Protocol

from plugwright.plugins.generic.hardware import Unit
from plugwright.sdk.sysfs import Host

__all__ = ["Check", "Checking", "Hysteresis", "Question", "Standing"]


@dataclass(frozen=True, slots=True)
class Standing:
    """What a check has led to: `reason` is empty while the device is good, None while nothing is known."""

    reason: str | None = None
    against: int = 0  # results in a row that speak against it


@dataclass(frozen=True, slots=True)
class Hysteresis:
    failures: int = 2
    successes: int = 2

    def after(self, before: Standing, fault: str) -> Standing:
        """The standing after a result: empty if it was good. The first one decides; later ones need company."""
        if before.reason is None:
            return Standing(fault)
        if bool(fault) == bool(before.reason):
            return Standing(fault)  # the newest reason is shown
        needed = self.failures if fault else self.successes
        return Standing(fault) if before.against + 1 >= needed else Standing(before.reason, before.against + 1)


_FIRST_RESULTS = 1.0  # seconds that a list waits for them
_AT_ONCE = 8
_UNKNOWN = "not checked yet"

Key = tuple[str, int]


class Question(Protocol):
    """`stoppable`: cancelling it ends it; a thread that waits for a driver goes on."""

    @property
    def stoppable(self) -> bool: ...

    async def fault(self, host: Host, unit: Unit) -> str | None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    question: Question
    every: float = 10.0
    timeout: float = 5.0
    hysteresis: Hysteresis = field(default_factory=Hysteresis)


class Checking:
    def __init__(self, host: Host, checks: Sequence[Check], news: Callable[[], object]) -> None:
        self._host, self._checks, self._news = host, checks, news
        self._units: dict[str, Unit] = {}
        self._standings: dict[Key, Standing] = {}
        self._running: dict[Key, asyncio.Task[None]] = {}
        self._asking: dict[Key, asyncio.Task[str | None]] = {}
        self._slots = asyncio.Semaphore(_AT_ONCE)

    def reason(self, unit: Unit) -> str:
        """Why a unit is broken; empty while it is not."""
        standings = [self._standings.get((unit.id, place), Standing()) for place in range(len(self._checks))]
        return next((_UNKNOWN if each.reason is None else each.reason for each in standings if each.reason != ""), "")

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        paces = [asyncio.create_task(self._repeat(place)) for place in range(len(self._checks))]
        try:
            yield
        finally:
            ending = [*paces, *self._running.values(), *self._asking.values()]
            for task in ending:
                task.cancel()
            await asyncio.gather(*ending, return_exceptions=True)

    async def take(self, units: Sequence[Unit]) -> None:
        """These are the units now; returns when the new ones have been checked, or after a short while."""
        self._units = {unit.id: unit for unit in units}
        self._standings = {key: each for key, each in self._standings.items() if key[0] in self._units}
        missing = [
            (name, n) for name in self._units for n in range(len(self._checks)) if (name, n) not in self._standings
        ]
        tasks = [self._begin(key) for key in missing]
        if tasks:
            await asyncio.wait(tasks, timeout=_FIRST_RESULTS)

    async def _repeat(self, place: int) -> None:
        while True:
            await asyncio.sleep(self._checks[place].every)
            for name in list(self._units):
                self._begin((name, place))

    def _begin(self, key: Key) -> "asyncio.Task[None]":
        if key not in self._running:
            task = asyncio.create_task(self._check(key))
            self._running[key] = task
            task.add_done_callback(lambda _: self._running.pop(key, None))
        return self._running[key]

    async def _check(self, key: Key) -> None:
        name, place = key
        check = self._checks[place]
        async with self._slots:
            fault = await self._ask(key, self._units[name]) if name in self._units else None
        if name not in self._units:
            return
        before = self._standings.get(key, Standing())
        if fault is None and before.reason is not None:
            return
        # What cannot be told from the first is no fault: a pod may have had the device since before we came.
        self._standings[key] = check.hysteresis.after(before, fault or "")
        if self._standings[key].reason != before.reason:
            self._news()

    async def _ask(self, key: Key, unit: Unit) -> str | None:
        check = self._checks[key[1]]
        asking = self._asking.get(key) or asyncio.create_task(_fault(check, self._host, unit))
        self._asking[key] = asking
        done, _ = await asyncio.wait([asking], timeout=check.timeout)
        if not done and not check.question.stoppable:
            return f"a check has not ended within {check.timeout:g} s"  # left to end; nobody asks again before
        del self._asking[key]
        if done:
            return asking.result()
        asking.cancel()
        await asyncio.wait([asking])
        return f"a check did not end within {check.timeout:g} s"


async def _fault(check: Check, host: Host, unit: Unit) -> str | None:
    """Of a unit, or of its parts: one that is broken breaks the whole, unless one is enough."""
    results = [await check.question.fault(host, each) for each in unit.parts or (unit,)]
    known = [each for each in results if each is not None]
    broken = [each for each in known if each]
    if not known:
        return None
    return broken[0] if broken and not (unit.one_is_enough and len(broken) < len(known)) else ""
