"""Rules of what a driver must survive: restarts, reboots, damaged files, a second instance; and of its end."""

import asyncio
import re
import signal
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from plugwright.conformance.asking import expect
from plugwright.conformance.dra.cdi_specs import cdi_devices
from plugwright.conformance.dra.claim_calls import (
    ClaimAllocation,
    allocated,
    expect_prepared,
    expect_refused,
    plain_devices,
    prepare,
    prepared,
    separate_devices,
    some_devices,
    unprepare,
)
from plugwright.conformance.dra.driver_session import DriverSession, PublishedDevice, RegisteredDriver
from plugwright.conformance.dra.driver_verifier import DriverRule, DriverVerifier
from plugwright.conformance.dra.rules.preparing import refuses_held
from plugwright.conformance.dra.rules.unpreparing import prepared_names, spec_directories
from plugwright.conformance.restarting import start_after_end
from plugwright.conformance.rule import Level, Rule
from plugwright.errors import PeerGone, PluginNotRunning, PlugwrightError, RuleNotApplicable, RuleViolated
from plugwright.model import some

__all__ = ["END_RULES", "KILL_RULES", "STATE_RULES"]

_GARBAGE = b'{"plugwright verify": '
_NAMES_STATE = re.compile(r"checkpoint|corrupt|state file|\.json", re.IGNORECASE)
_FOREIGN = "foreign-driver.sock.txt"
_SLOW = 3.0  # seconds that the API server takes for an answer


async def _start_again(verifier: DriverVerifier, session: DriverSession) -> RegisteredDriver:
    """Kills the program, if it runs, and restarts it; raises RuleViolated if it does not register."""
    await session.program.stop(verifier.limits.end, signal.SIGKILL)
    await session.program.end()
    mark = session.mark
    await start_after_end(session)
    return await _registered(verifier, session, mark)


async def _registered(verifier: DriverVerifier, session: DriverSession, mark: int) -> RegisteredDriver:
    try:
        await session.until_registered(verifier.resources, mark=mark, limit=verifier.limits.start)
        return (await verifier.drivers_of(session))[0]
    except PluginNotRunning as error:
        raise RuleViolated("a registration after the start", str(error)) from None


def _claimed(session: DriverSession, driver: RegisteredDriver) -> list[list[PublishedDevice]]:
    """The devices of two claims, of which the first has two; fewer if the driver has fewer devices."""
    try:
        devices = separate_devices(session, driver, 2)[:3]
    except RuleNotApplicable:
        devices = plain_devices(session, driver)
    return [claimed for claimed in (devices[:2], devices[2:]) if claimed]


class RemembersClaims(DriverRule):
    id, level, alone = "DST-01", Level.MUST, True
    title = "A driver that was killed and started again knows which claims hold its devices"
    why = (
        "Pods continue to use their devices in the meantime; a driver that has lost its record allocates the "
        "devices again."
    )
    fix = "Write a checkpoint to the plugin's directory before you answer."

    async def check_driver(self, verifier: DriverVerifier) -> None:
        exclusive = await verifier.remembered(refuses_held)
        async with verifier.fresh_running() as (session, driver):
            wanted = [ClaimAllocation(devices) for devices in _claimed(session, driver)]
            others = [ClaimAllocation([device]) for one in wanted for device in one.devices]
            async with (
                allocated(session, driver, *wanted) as holders,
                allocated(session, driver, *others) as claims,
            ):
                before = [await prepared(session, driver, holder) for holder in holders]
                again = await _start_again(verifier, session)
                if exclusive:  # PRP-13 otherwise
                    held = "a device that was in use before the restart"
                    await asyncio.gather(*(expect_refused(session, again, other, held) for other in claims))
                after = [await prepared(session, again, holder) for holder in holders]
                expect(before == after, f"the same answers as before the restart, {before}", f"{after}")


class KeepsSpecs(DriverRule):
    id, level, facts, alone = "DST-02", Level.MUST, ("11.16",), True
    title = "The CDI specs of prepared claims outlive a restart of the driver"
    why = "The kubelet does not call again for a running pod: its next container cannot be created."
    fix = "Do not clean the CDI directory at the start; if you must, write the specs of the checkpoint again."

    async def check_driver(self, verifier: DriverVerifier) -> None:
        async with (
            verifier.fresh_running() as (session, driver),
            allocated(session, driver, ClaimAllocation(some_devices(session, driver))) as [claim],
        ):
            names = await prepared_names(session, driver, claim)
            await _start_again(verifier, session)
            known = cdi_devices(spec_directories(verifier, session))
            missing = [name for name in names if name not in known]
            expect(not missing, "the specs of before", f"none for {some(missing)}")


class SurvivesReboot(DriverRule):
    id, level, facts, alone = "DST-03", Level.MUST, ("11.17",), True
    title = "After a reboot, which empties the CDI directory, a claim is prepared with its spec"
    why = "After a reboot /var/run/cdi is empty, but the checkpoint is not: the container cannot be created."
    fix = "Write the spec at every NodePrepareResources, even for a claim that is prepared according to the checkpoint."

    async def check_driver(self, verifier: DriverVerifier) -> None:
        async with (
            verifier.fresh_running() as (session, driver),
            allocated(session, driver, ClaimAllocation(some_devices(session, driver))) as [claim],
        ):
            names = await prepared_names(session, driver, claim)
            if not set(names) <= set(cdi_devices([session.cdi])):
                raise RuleNotApplicable("the driver does not write its specs to {cdi}")
            await session.program.stop(verifier.limits.end, signal.SIGKILL)
            for path in session.cdi.iterdir():
                path.unlink()
            again = await _start_again(verifier, session)
            names = await prepared_names(session, again, claim)
            missing = [name for name in names if name not in cdi_devices(spec_directories(verifier, session))]
            expect(not missing, "specs for the claim", f"none for {some(missing)}")


async def _damage(verifier: DriverVerifier, change: Callable[[Path], object]) -> None:
    """Changes every file of the driver, and restarts it; it must serve, or end and name a file."""
    async with verifier.fresh_running() as (session, driver):
        devices = some_devices(session, driver, 2)
        async with allocated(session, driver, *(ClaimAllocation([device]) for device in devices)) as [one, other]:
            await prepared(session, driver, one)
            await session.program.stop(verifier.limits.end, signal.SIGKILL)
            files = [path for path in session.directory(driver.name).rglob("*") if path.is_file()]
            if not files:
                raise RuleNotApplicable(f"the driver keeps no file in plugins/{driver.name}")
            for path in files:
                change(path)
            try:
                await prepared(session, await _start_again(verifier, session), other)
            except RuleViolated as error:
                if not _NAMES_STATE.search(error.seen.splitlines()[-1]):
                    raise  # a driver can refuse to serve if it names the damaged file


class SurvivesDamage(DriverRule):
    id, level, alone = "DST-04", Level.MUST, True
    title = "The driver serves despite a damaged checkpoint, or names the file when it gives up"
    why = (
        "A driver that does not know the holders of its devices may refuse to continue, but then every pod of "
        "the node waits: the last line must tell the operator which file is damaged."
    )
    fix = "Rename the file, log this, and continue with the CDI directory and the API; or name the file in the error."

    async def check_driver(self, verifier: DriverVerifier) -> None:
        await _damage(verifier, lambda path: path.write_bytes(_GARBAGE))


class SurvivesEmptyFile(DriverRule):
    id, level, alone = "DST-05", Level.MUST, True
    title = "The driver serves despite an empty checkpoint, or names the file when it gives up"
    why = "A machine that loses power leaves empty files behind."
    fix = "Treat an empty file as a damaged one; write to another name, sync, and rename."

    async def check_driver(self, verifier: DriverVerifier) -> None:
        await _damage(verifier, lambda path: path.write_bytes(b""))


class SurvivesKillWhilePreparing(DriverRule):
    id, level, facts, alone = "DST-08", Level.MUST, ("11.10", "11.17"), True
    title = "A claim is prepared after the driver was killed while it prepared it"
    why = (
        "A driver that is killed in the middle of a call leaves a claim half prepared. The kubelet repeats the "
        "call; if the driver refuses it, the pod waits until someone removes the driver's state."
    )
    fix = "At the start, undo or finish every preparation that the checkpoint records as started."

    async def check_driver(self, verifier: DriverVerifier) -> None:
        async with verifier.fresh_running() as (session, driver):
            wanted = ClaimAllocation(plain_devices(session, driver))
            async with allocated(session, driver, wanted, wanted) as [claim, other]:
                with session.api.faults.slow(_SLOW) as delayed:
                    preparing = asyncio.ensure_future(prepare(session, driver, claim))
                    with suppress(TimeoutError):  # a driver may know its claims beforehand
                        async with asyncio.timeout(_SLOW / 2):
                            await delayed.wait()
                    await session.program.stop(verifier.limits.end, signal.SIGKILL)
                    with suppress(PlugwrightError):
                        await preparing
                again = await _start_again(verifier, session)
                await expect_prepared(session, again, claim, "whose first call was cut by the driver's end")
                await unprepare(session, again, claim)
                await expect_prepared(session, again, other, "that comes next for the device")


class AllowsSuccessor(DriverRule):
    id, level, facts, alone, note = "DST-06", Level.MUST, ("11.7",), True, True
    title = "An instance that ends leaves its successor registered"
    why = (
        "In a rolling update with maxSurge the old instance ends after the new one has started (without maxSurge "
        "it ends before); then no kubelet can reach the new one."
    )
    fix = "Unlink a socket only if your process has created it, or include the pod's uid in both names."

    async def check_driver(self, verifier: DriverVerifier) -> None:
        async with verifier.fresh_running() as (session, _):
            old, mark = session.program, session.mark
            new = await session.start_program()
            await new.settles(verifier.limits.start)
            with suppress(PeerGone):  # waiting for the end of the first instance is equivalent
                await session.kubelet.until(
                    lambda: session.registered(mark) >= verifier.resources or not new.running,
                    verifier.limits.prompt,
                    "",
                )
            if not new.running:
                raise RuleNotApplicable("a second instance ends beside the first")
            await old.stop(verifier.limits.end)
            await old.end()
            driver = await _registered(verifier, session, mark)
            async with allocated(session, driver, ClaimAllocation(some_devices(session, driver))) as [claim]:
                await prepared(session, driver, claim)


class RemembersEndOfClaims(DriverRule):
    id, level, facts, alone = "DST-09", Level.MUST, ("11.19",), True
    title = (
        "A driver that was killed and started again knows which of several claims were unprepared, and which were not"
    )
    why = (
        "Otherwise a device of a pod that has ended stays held until someone removes the driver's state, and a "
        "device of a forgotten claim is allocated twice."
    )
    fix = "Write all claims to the checkpoint whenever one is prepared or unprepared, before you answer."

    async def check_driver(self, verifier: DriverVerifier) -> None:
        exclusive = await verifier.remembered(refuses_held)
        async with verifier.fresh_running() as (session, driver):
            wanted = [ClaimAllocation([device]) for device in separate_devices(session, driver, 2)[:3]]
            async with (
                allocated(session, driver, *wanted) as claims,
                allocated(session, driver, *wanted) as [free, *others],
            ):
                for claim in claims:
                    await prepared(session, driver, claim)
                await unprepare(session, driver, claims[0])
                again = await _start_again(verifier, session)
                answer = (await prepare(session, again, free)).get(free.uid)
                is_free = answer is not None and not isinstance(answer, str)
                expect(is_free, f"{wanted[0].devices[0].name} is free after its claim was unprepared", f"{answer!r}")
                if exclusive:  # PRP-13 otherwise
                    held = "a device of one of several claims that were prepared before"
                    await asyncio.gather(*(expect_refused(session, again, other, held) for other in others))


class DriverEndsOnSigterm(DriverRule):
    id, level, alone = "DRE-01", Level.MUST, True
    title = "SIGTERM ends the driver, with status 0"
    why = "A pod that does not end is killed after its grace period; another status raises an alarm at each upgrade."
    fix = "Handle SIGTERM, finish the running call, and return normally."

    async def check_driver(self, verifier: DriverVerifier) -> None:
        async with verifier.fresh_running() as (session, _):
            ended = await session.program.stop(verifier.limits.end)
            kept = ended and session.program.returncode in (0, -signal.SIGTERM)
            expect(kept, f"an end within {verifier.limits.end:g} s, with status 0", session.program.ending)


class RemovesSockets(DriverRule):
    id, level, alone = "DRE-02", Level.SHOULD, True
    title = "A driver that ends removes its sockets"
    why = "The kubelet keeps a driver as long as its registration socket exists, and tries to connect to it in vain."
    fix = "Unlink both sockets when the driver ends."

    async def check_driver(self, verifier: DriverVerifier) -> None:
        async with verifier.fresh_running() as (session, driver):
            await session.program.stop(verifier.limits.end)
            left = [path.name for path in dict.fromkeys((driver.socket, driver.endpoint)) if path.exists()]
            expect(not left, "no sockets", f"{some(left)}")


class StartsBesideStaleSockets(DriverRule):
    id, level, alone = "DRE-03", Level.MUST, True
    title = "A driver that was killed can be started again"
    why = "Its sockets still exist and are never removed: address already in use, at every start."
    fix = "Unlink your own sockets before you listen, if no process answers on them."

    async def check_driver(self, verifier: DriverVerifier) -> None:
        async with verifier.fresh_running() as (session, _):
            driver = await _start_again(verifier, session)
            async with allocated(session, driver, ClaimAllocation(some_devices(session, driver))) as [claim]:
                await prepared(session, driver, claim)


class LeavesOtherFilesAlone(DriverRule):
    id, level, alone = "DRE-04", Level.MUST, True
    title = "Files of others in plugins_registry, plugins and the CDI directory are left alone"
    why = "Other drivers use the same directories; a driver whose files are removed is out of service."
    fix = "Remove only files that your program has created."

    async def check_driver(self, verifier: DriverVerifier) -> None:
        async with verifier.fresh_driver() as session:
            foreign = [
                Path(directory, _FOREIGN)
                for directory in (session.paths.plugins_registry, session.paths.plugins, session.cdi)
            ]
            for path in foreign:
                path.touch()
            await session.start_program()
            await session.until_registered(verifier.resources, limit=verifier.limits.start)
            await session.program.stop(verifier.limits.end)
            gone = [str(path.relative_to(session.paths.root)) for path in foreign if not path.exists()]
            expect(not gone, "the files of others", f"no {some(gone)}")


STATE_RULES: tuple[type[Rule], ...] = (
    RemembersClaims,
    KeepsSpecs,
    SurvivesReboot,
    SurvivesDamage,
    SurvivesEmptyFile,
    AllowsSuccessor,
)
KILL_RULES: tuple[type[Rule], ...] = (SurvivesKillWhilePreparing, RemembersEndOfClaims)
END_RULES: tuple[type[Rule], ...] = (
    DriverEndsOnSigterm,
    RemovesSockets,
    StartsBesideStaleSockets,
    LeavesOtherFilesAlone,
)
