"""Rules of API server faults: it is unreachable, slow, refuses, or forgets the version of a watch."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from plugwright.conformance.asking import expect
from plugwright.conformance.dra.claim_calls import (
    DEADLINE,
    ClaimAllocation,
    allocated,
    expect_prepared,
    prepare,
    prepared,
    some_devices,
    unprepare,
)
from plugwright.conformance.dra.driver_session import DriverSession, RegisteredDriver
from plugwright.conformance.dra.driver_verifier import DriverRule, DriverVerifier
from plugwright.conformance.dra.rules.slicing import until_back as until_slices_back
from plugwright.conformance.restarting import until_back
from plugwright.conformance.rule import Level, Rule
from plugwright.errors import PluginNotRunning, PlugwrightError, RuleViolated
from plugwright.protocol import registration

__all__ = ["RULES"]

_AWAY, _THOROUGH_AWAY = 3.0, 120.0  # seconds
_REFUSING = 2.0  # seconds
_HOT = 100  # requests in that time
_SLOW = 3.0  # seconds
_GET_INFO = 1.0  # seconds of the kubelet (1.45)


def _away_time(verifier: DriverVerifier) -> float:
    return _THOROUGH_AWAY if verifier.options.thorough else _AWAY


async def _runs_for(session: DriverSession, seconds: float) -> None:
    """Waits; raises RuleViolated if the program ends."""
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await (session.program.ends() if session.programs else asyncio.sleep(seconds))
            raise RuleViolated("it runs on", session.ending)


def _delete_slices(session: DriverSession, driver: RegisteredDriver) -> dict[str, list[str]]:
    """Deletes the first slice; returns the devices before."""
    before = {driver.name: sorted(f"{device.pool}/{device.name}" for device in session.devices(driver.name))}
    session.api.change_slice(session.slices(driver.name)[0]["metadata"]["name"], None)
    return before


@asynccontextmanager
async def _away(session: DriverSession) -> AsyncIterator[None]:
    await session.api.stop_serving()
    try:
        yield
    finally:
        await session.api.start_serving()


class OutlivesApiServer(DriverRule):
    id, level, alone, waits = "API-01", Level.MUST, True, 3
    title = "The driver continues to run while the API server is unavailable, and repairs its slices afterwards"
    why = (
        "API servers are unavailable for minutes during upgrades and failures; a driver that ends or gives up "
        "leaves its node without devices."
    )
    fix = "Retry indefinitely, with a delay that grows to a few seconds; list again when the server is available."

    async def check_driver(self, verifier: DriverVerifier) -> None:
        async with (
            verifier.fresh_running() as (session, driver),
            allocated(session, driver, ClaimAllocation(some_devices(session, driver))) as [claim],
        ):
            async with _away(session):
                before = _delete_slices(session, driver)
                await _runs_for(session, _away_time(verifier))
            await until_slices_back(verifier, session, before)
            await prepared(session, driver, claim)


class UnpreparesWithoutApiServer(DriverRule):
    id, level, facts, alone = "API-02", Level.MUST, ("11.19",), True
    title = "Claims are unprepared while the API server is unavailable"
    why = (
        "The kubelet needs no API server when a pod ends; otherwise the pod stays in Terminating, and its device "
        "stays held."
    )
    fix = "Read what you need from the checkpoint, not from the API."

    async def check_driver(self, verifier: DriverVerifier) -> None:
        async with verifier.fresh_running() as (session, driver):
            wanted = ClaimAllocation(some_devices(session, driver))
            async with allocated(session, driver, wanted, wanted) as [claim, other]:
                await prepared(session, driver, claim)
                async with _away(session):
                    try:
                        async with driver.connect() as client:
                            answer = await client.unprepare([claim], DEADLINE)
                    except (PlugwrightError, TimeoutError) as error:
                        raise RuleViolated("an answer within 45 s", f"{error}; {session.ending}") from None
                    seen = f"{answer.get(claim.uid)!r}" if claim.uid in answer else "no entry"
                    expect(answer.get(claim.uid) == "", "success", seen)
                await prepared(session, driver, other)


class StartsWithoutApiServer(DriverRule):
    id, level, alone, waits = "API-03", Level.MUST, True, 3
    title = "A driver that starts before the API server is reachable publishes its slices once it is"
    why = "After a power cut nodes start faster than the control plane, and nobody restarts the drivers by hand."
    fix = "Wait for the API server, or exit with an error so that the program is started again."

    async def check_driver(self, verifier: DriverVerifier) -> None:
        async with verifier.fresh_driver() as session:
            async with _away(session):
                program = await session.start_program()
                await program.settles(verifier.limits.start)
                if not program.running:
                    expect(program.returncode, "it waits, or exits with an error", program.ending)
            try:
                await until_back(session, verifier.resources, 0, verifier.limits.republish)
            except PluginNotRunning as error:
                raise RuleViolated("a ResourceSlice when the API server is there", str(error)) from None


class ListsAgainWhenExpired(DriverRule):
    id, level, waits = "API-04", Level.MUST, 6
    title = "A watch that ends, with 410 or without an error, is followed by another list"
    why = (
        "API servers end watches every few minutes, and forget old versions: a slice that is lost then is not restored."
    )
    fix = "When a watch ends, for whatever reason, list again and watch from that version."

    async def check_driver(self, verifier: DriverVerifier) -> None:
        session, drivers = await verifier.drivers()
        for driver in drivers:
            await session.api.faults.end_watches(verifier.limits.quick, expired=False)
            await _runs_for(session, verifier.limits.settle)
            before = _delete_slices(session, driver)
            await until_slices_back(verifier, session, before)
            await session.api.faults.end_watches(verifier.limits.quick, expired=True)
            before = _delete_slices(session, driver)  # between two watches
            await until_slices_back(verifier, session, before)


class RetriesRefusedRequests(DriverRule):
    id, level, waits = "API-05", Level.MUST, 6
    title = "Requests that the API server answers with 500 or 429 are retried, without a hot loop"
    why = (
        "An overloaded API server refuses requests for minutes; drivers that give up lose their devices, and "
        "drivers that retry without a pause increase the load."
    )
    fix = "Retry after an increasing delay, and respect Retry-After."

    async def check_driver(self, verifier: DriverVerifier) -> None:
        session, drivers = await verifier.drivers()
        for driver in drivers:
            for code in (500, 429):
                with session.api.faults.refusing(code):
                    before, known = _delete_slices(session, driver), len(session.api.requests)
                    await _runs_for(session, _REFUSING)
                    made = len(session.api.requests) - known
                expect(made < _HOT, f"fewer than {_HOT} requests in {_REFUSING:g} s of answers {code}", f"{made}")
                # Go's library up to 0.34 waits for its cache after a failed write, and then again.
                await until_slices_back(verifier, session, before, times=2)


class EnduresSlowApiServer(DriverRule):
    id, level, facts, waits = "API-06", Level.MUST, ("1.45", "11.11"), 2
    title = f"With an API server that takes {_SLOW:g} s for an answer claims are prepared, and GetInfo is answered"
    why = (
        "Slow answers are normal in a large cluster that restarts. A kubelet waits 45 s for a claim and one "
        "second for GetInfo: it deregisters a driver that misses both."
    )
    fix = "Set time limits of at least ten seconds for requests, and hold no lock that GetInfo needs during a request."

    async def check_driver(self, verifier: DriverVerifier) -> None:
        session, drivers = await verifier.drivers()
        for driver in drivers:
            async with allocated(session, driver, ClaimAllocation(some_devices(session, driver))) as [claim]:
                with session.api.faults.slow(_SLOW) as delayed:
                    preparing = asyncio.ensure_future(prepared(session, driver, claim))
                    with suppress(TimeoutError):  # a driver can know its claims already
                        async with asyncio.timeout(_SLOW / 2):
                            await delayed.wait()
                    try:
                        seconds = await self._announce(session, driver)
                        expect(seconds < _GET_INFO, "GetInfo within a second", f"{seconds:.1f} s")
                        await preparing
                    finally:
                        preparing.cancel()
                        with suppress(asyncio.CancelledError, PlugwrightError):
                            await preparing

    @staticmethod
    async def _announce(session: DriverSession, driver: RegisteredDriver) -> float:
        began = time.monotonic()
        async with registration.connect_watched(driver.socket) as client:
            await client.announce(_SLOW * 2)
        return time.monotonic() - began


class PreparesAfterFailure(DriverRule):
    id, level, facts = "API-07", Level.MUST, ("11.10", "11.15")
    title = "A claim that could not be read is prepared when it can be"
    why = "The kubelet repeats the call until the pod starts or is deleted; a remembered failure keeps the pod waiting."
    fix = "Keep no state of a failed call."

    async def check_driver(self, verifier: DriverVerifier) -> None:
        session, drivers = await verifier.drivers()
        for driver in drivers:
            wanted = ClaimAllocation(some_devices(session, driver))
            for code in (500, 429):
                async with allocated(session, driver, wanted) as [claim]:
                    with session.api.faults.refusing(code), suppress(PlugwrightError, TimeoutError):
                        async with asyncio.timeout(_REFUSING):
                            await prepare(session, driver, claim)
                    await expect_prepared(session, driver, claim, "when the API server answers again")


class PreparesAfterCut(DriverRule):
    id, level, facts = "API-08", Level.MUST, ("11.10", "11.17")
    title = "A claim is prepared after a kubelet was killed while it waited for the claim"
    why = "The next kubelet calls for the same claim; a claim that stays marked as in preparation is never prepared."
    fix = "Clear the mark for a claim in preparation in every case, even if the call is cancelled."

    async def check_driver(self, verifier: DriverVerifier) -> None:
        session, drivers = await verifier.drivers()
        for driver in drivers:
            wanted = ClaimAllocation(some_devices(session, driver))
            async with allocated(session, driver, wanted, wanted) as [claim, other]:
                with session.api.faults.slow(_SLOW) as delayed:
                    preparing = asyncio.ensure_future(prepare(session, driver, claim))
                    with suppress(TimeoutError):  # a driver can know its claims already
                        async with asyncio.timeout(_SLOW / 2):
                            await delayed.wait()
                    preparing.cancel()
                    with suppress(asyncio.CancelledError, PlugwrightError):
                        await preparing
                await expect_prepared(session, driver, claim, "whose first call was cut")
                await unprepare(session, driver, claim)
                await expect_prepared(session, driver, other, "that comes next for the device")


RULES: tuple[type[Rule], ...] = (
    OutlivesApiServer,
    UnpreparesWithoutApiServer,
    StartsWithoutApiServer,
    ListsAgainWhenExpired,
    RetriesRefusedRequests,
    EnduresSlowApiServer,
    PreparesAfterFailure,
    PreparesAfterCut,
)
