"""Rules of a driver that has nothing to do: the processor, requests to the API server, and ended health streams."""

import asyncio
from contextlib import suppress
from dataclasses import dataclass

from plugwright.conformance.asking import expect
from plugwright.conformance.dra.driver_session import DriverSession
from plugwright.conformance.dra.driver_verifier import DriverRule, DriverVerifier
from plugwright.conformance.dra.rules.reporting import messages, with_health
from plugwright.conformance.measuring import usage
from plugwright.conformance.program import processor_demand
from plugwright.conformance.rule import Level, Rule
from plugwright.conformance.verifier import Verifier
from plugwright.errors import RuleNotApplicable, RuleNotChecked
from plugwright.protocol.dra_health import LEASE
from plugwright.system.concurrency import first

__all__ = ["RULES"]

_CPU = 0.5  # of one core
_REQUESTS = 10  # in a second
_LOOKS = 5  # the work caused by other rules can still be in progress
_STREAMS = 40
_LEFT = _STREAMS // 4  # descriptors that may be open for other reasons
_LOOK = 0.5  # seconds between two counts of descriptors
_THOROUGH_LEASE = 600.0  # seconds; a longer one is not awaited


@dataclass(frozen=True, slots=True)
class IdleDriver:
    """The processor time and the requests of a driver without work, per second: the lowest of several measurements."""

    cpu: float
    requests: float


async def idle_driver(verifier: Verifier) -> IdleDriver:
    assert isinstance(verifier, DriverVerifier)
    session, _ = await verifier.drivers()
    if verifier.target.attached:
        raise RuleNotApplicable("the program is attached")
    found = await _look(session, verifier.limits.idle)
    for _ in range(_LOOKS - 1):
        if found.cpu <= _CPU and found.requests <= _REQUESTS:
            break
        again = await _look(session, verifier.limits.idle)
        found = IdleDriver(min(found.cpu, again.cpu), min(found.requests, again.requests))
    return found


async def _look(session: DriverSession, seconds: float) -> IdleDriver:
    pids = session.program.processes()
    cpu, requests = processor_demand(pids), len(session.api.requests)
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):  # nothing is expected to happen
            await first(session.program.ends())
    return IdleDriver((processor_demand(pids) - cpu) / seconds, (len(session.api.requests) - requests) / seconds)


class DriverRestsWhenIdle(DriverRule):
    id, level, observation, waits = "DRR-04", Level.MUST, "idleness", 1
    title = "An idle driver does not use the processor"
    why = "A busy loop takes a core of every node."
    fix = "Wait for events; a `for {}` around a select with a default is a busy loop."

    async def check_driver(self, verifier: DriverVerifier) -> None:
        idle = await verifier.remembered(idle_driver)
        expect(idle.cpu <= _CPU, f"at most {_CPU:.0%} of a core", f"{idle.cpu:.0%}")


class AsksNothingWhenIdle(DriverRule):
    id, level, observation, waits, follows = "DRR-05", Level.SHOULD, "idleness", 1, ("DRR-04",)
    title = "An idle driver sends the API server few requests"
    why = "It runs on every node: ten requests per second become ten thousand on a thousand nodes."
    fix = "Watch the objects you need instead of polling them."

    async def check_driver(self, verifier: DriverVerifier) -> None:
        idle = await verifier.remembered(idle_driver)
        expect(idle.requests <= _REQUESTS, f"at most {_REQUESTS} in a second", f"{idle.requests:.0f} in a second")


class StreamsLeaveNoDescriptor(DriverRule):
    id, level, facts = "DRR-06", Level.MUST, ("11.23",)
    title = f"{_STREAMS} health streams, opened and ended, leave no descriptor open"
    why = "Each start of a kubelet opens another stream; finally the driver can open no file, and prepares no claim."
    fix = "Return from NodeWatchResources when the context of the stream ends, and close what you opened for it."

    async def check_driver(self, verifier: DriverVerifier) -> None:
        session, found = await with_health(verifier)
        if verifier.target.attached:
            raise RuleNotApplicable("the program is attached")
        driver, service = found[0]
        [reports, *_] = await messages(driver, service, 1, verifier.limits.call) or [[]]
        lease = max((report.timeout or LEASE for report in reports), default=LEASE)
        before = usage(session.program.processes()).descriptors
        for _ in range(_STREAMS):
            await messages(driver, service, 1, verifier.limits.call)
        longest = _THOROUGH_LEASE if verifier.options.thorough else verifier.limits.lease
        left = await self._left(session, before, min(lease, longest))
        if left > _LEFT and lease > longest:
            raise RuleNotChecked(f"the lease of {lease:g} s is longer than this run waits ({longest:g} s)")
        expect(left <= _LEFT, "as many descriptors as before", f"{left} more after {_STREAMS} streams")

    @staticmethod
    async def _left(session: DriverSession, before: int, lease: float) -> int:
        """The descriptors that stay open; a driver may notice the end of a stream when it sends the next report."""
        left = usage(session.program.processes()).descriptors - before
        for _ in range(int(lease / _LOOK)):
            if left <= _LEFT:
                break
            await asyncio.sleep(_LOOK)
            left = usage(session.program.processes()).descriptors - before
        return left


RULES: tuple[type[Rule], ...] = (DriverRestsWhenIdle, AsksNothingWhenIdle, StreamsLeaveNoDescriptor)
