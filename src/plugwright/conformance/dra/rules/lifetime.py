"""Rules of a driver's long life: leaks of calls, an unreachable kubelet, and a rolling update."""

import asyncio
import signal
import time
import uuid
from contextlib import suppress

from plugwright.conformance.asking import expect
from plugwright.conformance.dra.cdi_specs import cdi_devices
from plugwright.conformance.dra.claim_calls import (
    ClaimAllocation,
    allocated,
    expect_refused,
    plain_devices,
    prepare,
    prepared,
    some_devices,
    unprepare,
)
from plugwright.conformance.dra.driver_verifier import DriverRule, DriverVerifier
from plugwright.conformance.dra.rules.preparing import refuses_held
from plugwright.conformance.dra.rules.unpreparing import spec_directories
from plugwright.conformance.measuring import Growth, growth, usage
from plugwright.conformance.restarting import start_after_end
from plugwright.conformance.rule import Level, Rule
from plugwright.conformance.verifier import Verifier
from plugwright.errors import (
    PeerGone,
    PeerRefused,
    PluginNotRunning,
    PrerequisiteBroken,
    RuleNotApplicable,
    RuleViolated,
)
from plugwright.model import some
from plugwright.protocol.dra import Claim

__all__ = ["AWAY_RULES", "LEAK_RULES", "UPDATE_RULES"]

_CALLS, _FEW_CALLS, _MANY_CALLS = 40, 5, 150  # of one round
_ROUND_TIME = 1.0  # seconds
_AWAY, _THOROUGH_AWAY = 4.0, 180.0  # seconds


async def call_growth(verifier: Verifier) -> Growth:
    """Leaks of claims that are prepared, prepared again, unprepared and refused."""
    assert isinstance(verifier, DriverVerifier)
    session, [driver, *_] = await verifier.drivers()
    if verifier.target.attached:
        raise RuleNotApplicable("the program is attached")
    wanted = ClaimAllocation(some_devices(session, driver))

    made = 0

    async def make_calls(count: int) -> None:
        nonlocal made
        for _ in range(count):
            async with allocated(session, driver, wanted) as [claim]:
                await prepared(session, driver, claim)
                made += 1
                await prepare(session, driver, claim)
                await unprepare(session, driver, claim)
            with suppress(PeerRefused):  # as for a pod whose claim was deleted
                await prepare(session, driver, Claim("default", "no-such-claim", str(uuid.uuid4())))

    began = time.monotonic()
    await make_calls(_FEW_CALLS)
    each = (time.monotonic() - began) / _FEW_CALLS
    calls = max(_FEW_CALLS, min(_CALLS, int(_ROUND_TIME / max(each, 1e-4))))
    try:
        return await growth(session.program.processes, make_calls, calls, max(calls, _MANY_CALLS))
    except (PeerRefused, RuleViolated) as error:
        used = usage(session.program.processes())
        seen = f"{error} after {made} claims; it has {used.descriptors} open descriptors and {used.threads} threads"
        raise PrerequisiteBroken("DRR-01", "devices for one claim after the other", seen) from None


class ClaimsLeaveNoDescriptor(DriverRule):
    id, level, observation = "DRR-01", Level.MUST, "calls"
    title = "Claims leave no descriptor open"
    why = "After some thousand pods the driver can no longer open any file, and prepares no claim."
    fix = "Close everything you open in a call, even if the call fails."

    async def check_driver(self, verifier: DriverVerifier) -> None:
        grown = await verifier.remembered(call_growth)
        seen = f"{grown.total.descriptors} more after {grown.total_calls} claims"
        expect(not grown.leaks_descriptors, "as many descriptors as before", seen)


class ClaimsLeaveNoThread(DriverRule):
    id, level, observation = "DRR-02", Level.MUST, "calls"
    title = "Claims leave no thread behind"
    why = "Each thread holds memory, and finally the driver can start no thread any more."
    fix = "End everything that you start for a call when the call ends."

    async def check_driver(self, verifier: DriverVerifier) -> None:
        grown = await verifier.remembered(call_growth)
        seen = f"{grown.total.threads} more after {grown.total_calls} claims"
        expect(not grown.leaks_threads, "as many threads as before", seen)


class ClaimsLeaveNoMemory(DriverRule):
    id, level, observation = "DRR-03", Level.MUST, "calls"
    title = "Claims do not fill the memory"
    why = "The pod is killed at its memory limit, and other pods wait for their claims."
    fix = "Forget a claim when it is unprepared: look for maps that only grow, and goroutines that never end."

    async def check_driver(self, verifier: DriverVerifier) -> None:
        grown = await verifier.remembered(call_growth)
        seen = f"{grown.total.memory / 1024:.0f} KiB more after {grown.total_calls} claims, some with each of them"
        expect(not grown.leaks_memory, "memory that stops growing", seen)


class DriverOutlivesKubelet(DriverRule):
    id, level, facts, waits = "DRG-12", Level.MUST, ("11.6", "11.8"), 2
    title = "The driver waits for a stopped kubelet, and can be found when it is back"
    why = (
        "During an upgrade a kubelet is down for minutes; no claim could be prepared until someone restarts the driver."
    )
    fix = "Keep both sockets and their servers for as long as the program runs, whether or not a kubelet is connected."

    async def check_driver(self, verifier: DriverVerifier) -> None:
        session, drivers = await verifier.drivers()
        names, mark = {driver.name for driver in drivers}, session.mark
        seconds = _THOROUGH_AWAY if verifier.options.thorough else _AWAY
        await session.kubelet.stop()
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await (session.program.ends() if session.programs else asyncio.sleep(seconds))
        await session.kubelet.start()
        if session.programs:
            expect(session.program.running, "it waits for the next kubelet", session.program.ending)
        try:
            await session.kubelet.until(lambda: session.registered(mark) >= names, verifier.limits.register, "none")
        except PeerGone:
            expect(False, f"a driver that is found by a kubelet that was away for {seconds:g} s", session.ending)
        finally:
            await session.api.until(lambda: all(map(session.devices, names)), verifier.limits.republish)
        for driver in await verifier.drivers_of(session):
            async with allocated(session, driver, ClaimAllocation(some_devices(session, driver))) as [claim]:
                await prepared(session, driver, claim)


class SurvivesUpdate(DriverRule):
    id, level, facts, alone = "DST-07", Level.MUST, ("11.16", "11.17"), True
    title = "A rolling update, with SIGTERM and a start in another pod, keeps claims, CDI specs and devices"
    why = (
        "Pods continue to run while a driver is updated. They lose state or specs that are removed at SIGTERM, "
        "or that can be found only by the pod's uid: containers do not start again, and devices are allocated "
        "twice."
    )
    fix = "Remove only your sockets at SIGTERM; name the state after the driver, not after its pod or process."

    async def check_driver(self, verifier: DriverVerifier) -> None:
        exclusive = await verifier.remembered(refuses_held)
        async with verifier.fresh_running() as (session, driver):
            wanted = ClaimAllocation(plain_devices(session, driver)[:1])
            async with allocated(session, driver, wanted, wanted) as [one, other]:
                before = await prepared(session, driver, one)
                names = [name for device in before for name in device.cdi_devices]
                places = spec_directories(verifier, session)
                names = [name for name in names if name in cdi_devices(places)]
                ended = await session.program.stop(verifier.limits.end, signal.SIGTERM)
                expect(ended, f"an end within {verifier.limits.end:g} s while a claim is prepared", "it runs on")
                await session.program.end()
                gone = [name for name in names if name not in cdi_devices(places)]
                expect(not gone, "the CDI specs of prepared claims after SIGTERM", f"none for {some(gone)}")
                mark = session.mark
                session.change_pod()
                await start_after_end(session)
                try:
                    await session.until_registered(verifier.resources, mark=mark, limit=verifier.limits.start)
                except PluginNotRunning as error:
                    raise RuleViolated("a registration of the new pod", str(error)) from None
                [again, *_] = await verifier.drivers_of(session)
                gone = [name for name in names if name not in cdi_devices(places)]
                expect(not gone, "the CDI specs of prepared claims after the update", f"none for {some(gone)}")
                try:
                    if exclusive:
                        await expect_refused(session, again, other, "a device that was in use before the update")
                    after = await prepared(session, again, one)
                    expect(before == after, f"the same answer as before the update, {before}", f"{after}")
                except RuleViolated as error:  # any restart may have this effect
                    raise PrerequisiteBroken("DST-01", error.expected, error.seen) from None
                await unprepare(session, again, one)
                await prepared(session, again, other)


LEAK_RULES: tuple[type[Rule], ...] = (ClaimsLeaveNoDescriptor, ClaimsLeaveNoThread, ClaimsLeaveNoMemory)
AWAY_RULES: tuple[type[Rule], ...] = (DriverOutlivesKubelet,)
UPDATE_RULES: tuple[type[Rule], ...] = (SurvivesUpdate,)
