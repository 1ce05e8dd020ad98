"""Rules of further registrations: after a restart of the kubelet, a lost stream or a lost socket."""

import asyncio
import socket
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from plugwright.conformance.asking import check_alive, expect
from plugwright.conformance.observations import first_restart
from plugwright.conformance.restarting import restart_kubelet, until_back
from plugwright.conformance.rule import Level, Rule
from plugwright.conformance.session import Session
from plugwright.conformance.verifier import Verifier
from plugwright.errors import PeerGone, PluginNotRunning, RuleViolated
from plugwright.kubelet.events import Call
from plugwright.model import some

__all__ = ["RULES"]

_RESTARTS, _THOROUGH_RESTARTS = 5, 100
_AWAY, _THOROUGH_AWAY = 9.0, 180.0  # seconds


class RegistersAgain(Rule):
    id, level, facts, waits = "REG-14", Level.MUST, ("1.16", "2.15", "8.7"), 1
    title = "The plugin registers again after the kubelet was restarted"
    why = (
        "A kubelet forgets its plugins and removes their sockets when it starts; allocatable is 0 until the "
        "plugins have registered again."
    )
    fix = (
        "Watch the directory for a new kubelet.sock, or your own socket for its removal; then serve and register again."
    )

    async def check(self, verifier: Verifier) -> None:
        session = await verifier.running()
        mark = session.mark
        await session.kubelet.restart()
        try:
            await until_back(session, verifier.resources, mark)
        except PluginNotRunning as error:
            raise RuleViolated("a registration and a list after the restart", str(error)) from None


class RegistersAgainPromptly(Rule):
    id, level, facts, waits = "REG-15", Level.SHOULD, ("3.69", "8.7"), 1
    title = "The plugin registers soon after a restart of the kubelet"
    why = (
        "Until then, the kubelet permanently refuses pods with devices (UnexpectedAdmissionError), especially "
        "after a reboot of the node."
    )
    fix = "Watch for the new kubelet.sock with inotify instead of polling every few seconds."

    async def check(self, verifier: Verifier) -> None:
        session, limit = await verifier.running(), verifier.limits.prompt
        mark, began = session.mark, time.monotonic()
        await session.kubelet.restart()
        await until_back(session, verifier.resources, mark)
        seconds = time.monotonic() - began
        expect(seconds <= limit, f"back within {limit:g} s", f"back after {seconds:.1f} s")


class SurvivesRestarts(Rule):
    id, level, facts, waits, follows = "REG-16", Level.MUST, ("2.15",), _RESTARTS, ("REG-14",)
    title = "The plugin registers after every one of several restarts"
    why = "A kubelet in a crash loop restarts many times; a plugin that limits its attempts does not register again."
    fix = (
        "Create a new server for each registration, keep no state of the previous one, and never stop trying; or "
        "exit with an error, so that the program is restarted."
    )

    async def check(self, verifier: Verifier) -> None:
        count = _THOROUGH_RESTARTS if verifier.options.thorough else _RESTARTS
        session = await verifier.running()
        for number in range(count):
            mark = session.mark
            await session.kubelet.restart()
            try:
                await until_back(session, verifier.resources, mark)
            except PluginNotRunning as error:
                raise RuleViolated(f"back after each of {count} restarts", f"restart {number + 1}: {error}") from None


class NoticesRemovedSocket(Rule):
    id, level, facts, waits = "REG-17", Level.SHOULD, ("1.16", "8.7"), 1
    title = "The plugin registers again when its own socket is removed"
    why = (
        "A starting kubelet removes every socket; if the plugin missed the new kubelet.sock and the end of the "
        "stream, this is the only remaining sign."
    )
    fix = "Watch your own socket as well, and serve and register again when it is removed."

    async def check(self, verifier: Verifier) -> None:
        session = await verifier.running()
        plugins, mark = session.plugins(), session.mark
        for plugin in plugins:
            plugin.socket.unlink(missing_ok=True)
        try:
            await session.until_registered(verifier.resources, mark=mark)  # REG-15 tests how soon it returns
        except PluginNotRunning as error:
            await verifier.running()
            raise RuleViolated("another registration", str(error)) from None
        if not await verifier.comes_back():  # the list can be one of the last registration
            problem = await verifier.is_alive()
            await verifier.running()
            raise RuleViolated("another registration", problem)


class RegistersOnce(Rule):
    id, level, facts, waits = "REG-18", Level.SHOULD, ("2.22", "8.10"), 1
    title = "The plugin registers once for each start of the kubelet"
    why = (
        "Each registration opens another stream; when an older stream ends, kubelets up to 1.36 disconnect the "
        "newer one."
    )
    fix = "Do not register again while the stream of the previous registration is open."

    async def check(self, verifier: Verifier) -> None:
        session = await verifier.running()
        before = len(session.registrations)
        await restart_kubelet(session)
        await session.settle()
        counts = [registration.request.resource for registration in session.registrations[before:]]
        twice = sorted({resource for resource in counts if counts.count(resource) > 1})
        expect(not twice, "one Register for each resource", f"several for {', '.join(twice)}")


class NeverRegistersConnectedSocket(Rule):
    id, level, facts, since = "REG-19", Level.MUST, ("1.35", "1.37"), "1.37"
    title = "A socket that is connected is not registered again"
    why = (
        "Kubelets from 1.37 on refuse it, and forget the working connection: its devices stay advertised when it ends."
    )
    fix = "Use a new socket name for each registration."

    async def check(self, verifier: Verifier) -> None:
        session = await verifier.running()
        refused = [call for call in _calls(session, "Register") if "already connected" in call.outcome]
        expect(not refused, "each Register has a socket of its own", refused[0].outcome if refused else "")


class KeepsResourceName(Rule):
    id, level, facts, waits = "REG-20", Level.MUST, ("2.18",), 1
    title = "The resource has the same name after a restart of the kubelet"
    why = "Pods request it by its name, and an old name stays in the node's status."
    fix = "Derive the name only from the hardware and the configuration."

    async def check(self, verifier: Verifier) -> None:
        session = await verifier.running()
        try:
            await restart_kubelet(session)
        except PluginNotRunning:
            if session.registered_names <= verifier.resources:
                raise
        names = session.registered_names
        expect(names <= verifier.resources, ", ".join(sorted(verifier.resources)), ", ".join(sorted(names)))


class KeepsOptions(Rule):
    id, level, facts, alone = "REG-26", Level.MUST, ("1.30", "1.33"), True
    waits, observation = 1, "first restart"
    title = "The options are the same after a restart of the kubelet"
    why = (
        "The kubelet asks again at each registration and forgets the previous answer: without "
        "pre_start_required, containers start on devices that were not reset."
    )
    fix = "Derive the answer of GetDevicePluginOptions only from the configuration, however often it is called."

    async def check(self, verifier: Verifier) -> None:
        seen = await verifier.remembered(first_restart)
        for resource, options in seen.after.options.items():
            expected = seen.before.options.get(resource, options)
            expect(options == expected, f"{expected}", f"{resource} answered {options}")


class NoticesLostStream(Rule):
    id, level, facts, note, waits = "REG-21", Level.SHOULD, ("2.15", "2.22", "8.6"), True, 1
    title = "The plugin registers again when the kubelet ends its stream"
    why = (
        "A kubelet never calls ListAndWatch a second time: the resource stays at 0 although the plugin runs. A "
        "running kubelet ends the stream of a plugin only if another instance has registered the same resource."
    )
    fix = (
        "Treat the end of ListAndWatch as the end of the registration, and register again on a new socket after "
        "a short delay: a starting kubelet ends the stream first, and then removes every socket."
    )

    async def check(self, verifier: Verifier) -> None:
        session = await verifier.running()
        plugins, mark = session.plugins(), session.mark
        for plugin in plugins:
            session.kubelet.hang_up(plugin.resource)
        try:
            await session.until_registered(verifier.resources, mark=mark, limit=verifier.limits.prompt)
        except PluginNotRunning as error:
            raise RuleViolated("another registration", str(error)) from None


class OutlivesKubelet(Rule):
    id, level, facts, waits = "REG-25", Level.MUST, ("1.16", "2.15", "8.7"), 3
    follows = ("REG-14", "REG-12", "REG-16")
    title = "The program waits for a stopped kubelet, and registers when it is back"
    why = (
        "During an upgrade a kubelet is down for minutes, and a killed kubelet leaves its socket behind; a "
        "plugin that ends or gives up in this time leaves the node without its devices."
    )
    fix = (
        "Treat a lost connection as an event. Wait for the next kubelet.sock indefinitely, and try again if no "
        "process listens on it; the delay between attempts can grow to a few seconds."
    )

    async def check(self, verifier: Verifier) -> None:
        session = await verifier.running()
        seconds = _THOROUGH_AWAY if verifier.options.thorough else _AWAY
        before = {plugin.resource: set(plugin.ids) for plugin in session.plugins()}
        mark = session.mark
        await session.kubelet.stop()
        session.paths.kubelet_socket.unlink(missing_ok=True)
        await self._pass(verifier, session, seconds * 2 / 3)
        _leave_socket(session.paths.kubelet_socket)  # as left by a killed kubelet
        await self._pass(verifier, session, seconds / 3)
        await session.kubelet.start()
        if not verifier.target.attached:
            expect(session.program.running, "it waits for the next kubelet", session.program.ending)
        try:
            await until_back(session, verifier.resources, mark)
        except PluginNotRunning as error:
            raise RuleViolated(f"a registration with a kubelet that was away for {seconds:g} s", str(error)) from None
        await verifier.comes_back()  # a program may serve once more, when it sees the new socket
        await check_alive(verifier, f"a kubelet that was away for {seconds:g} s")
        await self._check_devices(session, before)

    @staticmethod
    async def _check_devices(session: Session, before: Mapping[str, set[str]]) -> None:
        """The healthy devices must return; LST-12 is about the first list after any restart."""

        def is_complete() -> bool:
            return all(before.get(plugin.resource, set()) <= set(plugin.ids) for plugin in session.plugins())

        with suppress(PeerGone):  # some check their devices again first
            await session.kubelet.until(is_complete, session.limits.prompt, "")
        for plugin in session.plugins():
            lost = sorted(before.get(plugin.resource, set()) - set(plugin.ids))
            expect(not lost, f"the healthy devices of {plugin.resource} as before", f"without {some(lost)}")

    @staticmethod
    async def _pass(verifier: Verifier, session: Session, seconds: float) -> None:
        """Waits, as long as the program runs."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await (asyncio.sleep(seconds) if verifier.target.attached else session.program.ends())


def _leave_socket(path: Path) -> None:
    """Leaves a socket without a listener."""
    path.unlink(missing_ok=True)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as left:
        left.bind(str(path))


def _calls(session: Session, method: str) -> list[Call]:
    return [call for call in session.kubelet.calls if call.method == method]


RULES: tuple[type[Rule], ...] = (
    RegistersAgain,
    RegistersAgainPromptly,
    SurvivesRestarts,
    NoticesRemovedSocket,
    RegistersOnce,
    NeverRegistersConnectedSocket,
    KeepsResourceName,
    KeepsOptions,
    NoticesLostStream,
    OutlivesKubelet,
)
