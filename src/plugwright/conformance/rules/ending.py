"""Rules of the end: signals, leftovers, and the following instance."""

import asyncio
import signal
from contextlib import suppress

from plugwright.conformance.asking import expect
from plugwright.conformance.observations import ProgramLife, program_life
from plugwright.conformance.restarting import start_after_end
from plugwright.conformance.rule import Level, Rule
from plugwright.conformance.session import Session
from plugwright.conformance.verifier import Verifier
from plugwright.errors import (
    PluginNotRunning,
    PlugwrightError,
    PrerequisiteBroken,
    RuleNotApplicable,
    RuleViolated,
)
from plugwright.model import some

__all__ = ["RULES"]


async def _ended(verifier: Verifier) -> ProgramLife:
    life = await verifier.remembered(program_life)
    if not life.ended:
        raise RuleNotApplicable("SIGTERM does not end it")
    return life


async def _started(verifier: Verifier, session: Session) -> Session:
    await session.start_program()
    await session.until_registered(verifier.resources, limit=verifier.limits.start)
    return session


class EndsOnSigterm(Rule):
    id, level, facts, alone, observation = "END-01", Level.MUST, ("8.21",), True, "program life"
    title = "SIGTERM ends the program"
    why = "A pod that does not end is killed after its grace period, and an upgrade of the node waits for it."
    fix = "Handle SIGTERM. The first process of a container ignores signals that it does not handle."

    async def check(self, verifier: Verifier) -> None:
        life = await verifier.remembered(program_life)
        expect(life.ended, f"it ends within {verifier.limits.end:g} s", "it runs on")


class ExitsWithZero(Rule):
    id, level, facts, alone, observation = "END-02", Level.SHOULD, (), True, "program life"
    title = "The exit status after SIGTERM is 0"
    why = "Any other status is shown as an error of the pod, and raises an alarm at each upgrade."
    fix = "Return normally after SIGTERM. A program that the signal itself ends is accepted."

    async def check(self, verifier: Verifier) -> None:
        life = await _ended(verifier)
        expect(life.returncode in (0, -signal.SIGTERM), "status 0", life.ending)


class RemovesSocket(Rule):
    id, level, facts, alone, observation = "END-03", Level.SHOULD, ("8.21",), True, "program life"
    title = "A program that ends removes its socket"
    why = "The kubelet tries to connect to leftover sockets, and they fill the directory over the years."
    fix = "Unlink the socket when the server stops, if your process still owns it."

    async def check(self, verifier: Verifier) -> None:
        left = (await _ended(verifier)).sockets_left
        expect(not left, "no socket of it in the directory", f"{', '.join(left)} is still there")


class LeavesNoProcess(Rule):
    id, level, facts, alone, observation = "END-04", Level.SHOULD, (), True, "program life"
    title = "A program that ends leaves no process behind"
    why = "Outside of a container they hold devices and files that the next instance needs."
    fix = "Stop your child processes and wait for them."

    async def check(self, verifier: Verifier) -> None:
        left = (await _ended(verifier)).processes_left
        expect(not left, "no process of it", f"{left} still run")


class StartsAfterKill(Rule):
    id, level, facts, alone = "END-05", Level.MUST, ("1.15", "1.16"), True
    title = "A program that was killed can be started again"
    why = "Its socket still exists, and is not removed while the kubelet runs: address already in use, at every start."
    fix = "Use a new name for each start, or remove a socket on which no process listens."

    async def check(self, verifier: Verifier) -> None:
        async with verifier.fresh() as session:
            await _started(verifier, session)
            await session.program.stop(verifier.limits.end, signal.SIGKILL)
            await session.program.end()
            mark = session.mark
            await start_after_end(session)
            try:
                await session.until_registered(verifier.resources, mark=mark, limit=verifier.limits.start)
            except PluginNotRunning as error:
                raise RuleViolated("a registration after SIGKILL and a new start", str(error)) from None


class LeavesOthersAlone(Rule):
    id, level, facts, alone, observation = "END-06", Level.MUST, ("1.32", "8.7"), True, "program life"
    title = "Sockets and files of others in the directory are left alone"
    why = (
        "Other plugins use the same directory. If the socket of a registering plugin is removed, the kubelet "
        "refuses the plugin after ten seconds; a connected plugin stays connected, and registers again if it "
        "watches its socket."
    )
    fix = "Remove only files that your program has created."

    async def check(self, verifier: Verifier) -> None:
        gone = (await verifier.remembered(program_life)).foreign_gone
        expect(not gone, "the files of others are still there", f"{', '.join(gone)} is gone")


class LeavesSuccessorAlone(Rule):
    id, level, facts, alone, note = "END-07", Level.MUST, ("1.32", "1.35", "2.22", "8.10"), True, True
    title = "An instance that ends leaves its successor's socket alone"
    why = (
        "In a rolling update with maxSurge the old instance ends after the new one has registered (without "
        "maxSurge it ends before). Kubelets up to 1.36 then disconnect the new one, later ones have refused its "
        "socket, and no kubelet can connect to it when it registers again."
    )
    fix = "Use a separate socket name for each process, and unlink only the file that your process has created."

    async def check(self, verifier: Verifier) -> None:
        async with verifier.fresh() as session:
            old, mark = (await _started(verifier, session)).program, session.mark
            new = await start_after_end(session)
            try:
                await session.until_registered(verifier.resources, mark=mark, limit=verifier.limits.start)
            except PluginNotRunning as error:
                raise RuleNotApplicable(f"a second instance does not start beside the first: {error}") from None
            await old.stop(verifier.limits.end)
            await old.end()
            with suppress(TimeoutError):  # a kubelet up to 1.36 now ends the newer stream, and this one does not
                async with asyncio.timeout(verifier.limits.settle):
                    await new.ends()
            expect(new.running, "the new instance runs on", new.ending)
            await _expect_served(verifier, session)


async def _expect_served(verifier: Verifier, session: Session) -> None:
    connected = {plugin.resource: plugin for plugin in session.plugins()}
    for resource in sorted(verifier.resources):
        expected = f"{resource} is served by the new instance"
        expect(resource in connected, expected, "no plugin is connected")
        try:
            async with connected[resource].connect() as client:
                await client.options(verifier.limits.call)
        except PlugwrightError as error:
            raise RuleViolated(expected, str(error)) from None


class ComesBackAfterUpgrade(Rule):
    id, level, facts, alone, observation = "END-08", Level.MUST, ("2.23", "3.74"), True, "program life"
    title = "After SIGTERM and a new start, the resource is registered again"
    why = "Every upgrade does this; the kubelet itself is not restarted."
    fix = "Register at every start, whether a kubelet knew an earlier instance or not."

    async def check(self, verifier: Verifier) -> None:
        life = await verifier.remembered(program_life)
        expect(not life.again, "a registration", life.again)


class EndsWithoutKubelet(Rule):
    id, level, facts, alone = "END-09", Level.MUST, ("8.21",), True
    title = "SIGTERM ends the program even while there is no kubelet"
    why = (
        "The order in which the programs of a node end is not defined; a program that waits for a kubelet must "
        "still end."
    )
    fix = "Wait for the signal and for the kubelet at the same time."

    async def check(self, verifier: Verifier) -> None:
        async with verifier.fresh() as session:
            await _started(verifier, session)
            await session.kubelet.stop()
            session.paths.kubelet_socket.unlink(missing_ok=True)
            if not await session.program.stop(verifier.limits.end):
                raise PrerequisiteBroken("END-01", f"it ends within {verifier.limits.end:g} s", "it runs on")


class LeavesWhatPodsUse(Rule):
    id, level, facts, alone, observation = "END-10", Level.MUST, ("3.49", "8.12"), True, "program life"
    title = "Files, sockets and CDI specs of answers outlive the program's end and its next start"
    why = (
        "Pods continue to run while the plugin is upgraded. The kubelet restarts their containers with the "
        "stored answer, without calling the plugin: a missing path prevents them from starting."
    )
    fix = (
        "At SIGTERM and at the start, remove nothing that an answer to Allocate has named; use names that stay "
        "the same."
    )

    async def check(self, verifier: Verifier) -> None:
        gone = (await verifier.remembered(program_life)).paths_gone
        expect(not gone, "every path and CDI device of an answer to Allocate", f"no {some(gone)} after SIGTERM")


class KeepsListAtEnd(Rule):
    id, level, facts, alone, observation = "END-11", Level.MUST, ("2.25", "8.9"), True, "program life"
    title = "A program that ends drops no device from its list"
    why = (
        "The kubelet keeps the devices of a disconnected plugin for five minutes. Devices that are dropped from "
        "the list are removed immediately, and kubelets from 1.34 on crash if a pod holds one of them."
    )
    fix = "Send no list after SIGTERM; end the stream."

    async def check(self, verifier: Verifier) -> None:
        dropped = (await verifier.remembered(program_life)).dropped
        expect(not dropped, "no list, or one with the same devices", f"a list without {some(dropped)} after SIGTERM")


RULES: tuple[type[Rule], ...] = (
    EndsOnSigterm,
    ExitsWithZero,
    RemovesSocket,
    LeavesNoProcess,
    StartsAfterKill,
    LeavesOthersAlone,
    LeavesSuccessorAlone,
    ComesBackAfterUpgrade,
    EndsWithoutKubelet,
    LeavesWhatPodsUse,
    KeepsListAtEnd,
)
