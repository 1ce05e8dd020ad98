"""Rules of registration: the registered values, and the first attempts."""

import re
import stat
from pathlib import Path

from plugwright.conformance.asking import expect, expect_answers
from plugwright.conformance.observations import refusals
from plugwright.conformance.restarting import until_back
from plugwright.conformance.rule import Level, Rule
from plugwright.conformance.session import RegisterCall, Session
from plugwright.conformance.verifier import Verifier
from plugwright.errors import PluginNotRunning, RuleNotApplicable, RuleViolated
from plugwright.kubelet.devicemanager.registration import is_resource_name
from plugwright.kubelet.events import Call
from plugwright.protocol.registration import API_VERSION
from plugwright.system.sockets import PATH_LIMIT

__all__ = ["RULES"]

_DIRECTORY = "/var/lib/kubelet/device-plugins/"
_RESTARTS, _THOROUGH_RESTARTS = 5, 100
_HOT = 7  # refused registrations in a row
_HOT_TIME = 0.3  # seconds for them; waits that double from 10 ms take twice as long


async def _requests(verifier: Verifier) -> tuple[Session, list[RegisterCall]]:
    session = await verifier.started()
    if not session.registrations:
        raise RuleNotApplicable("Register was not called")
    return session, session.registrations


class Registers(Rule):
    id, level, facts = "REG-01", Level.MUST, ("1.31", "8.1")
    title = "The program registers a resource and sends its list"
    why = "Without it the node has none of the devices. Pods that request them stay Pending."
    fix = (
        "Serve the DevicePlugin service on a socket beside kubelet.sock, then call Register. Read the last line "
        "of output."
    )

    async def check(self, verifier: Verifier) -> None:
        await verifier.started()
        expect(not verifier.failure, "a Register call, and a list on ListAndWatch", verifier.failure)


class StaysInForeground(Rule):
    id, level, facts = "REG-02", Level.MUST, ()
    title = "The program stays in the foreground"
    why = "A container ends with its first process, and all other processes of the container end with it."
    fix = "Do not fork into the background: a DaemonSet or systemd restarts the program."

    async def check(self, verifier: Verifier) -> None:
        session = await verifier.started()
        if verifier.target.attached:
            raise RuleNotApplicable("the program is attached")
        program = session.program
        expect(
            program.running or not program.processes(),
            "the first process runs as long as the plugin",
            f"{program.ending}; processes that it left behind run on",
        )


class NamesResource(Rule):
    id, level, facts = "REG-03", Level.MUST, ("1.28", "10.1")
    title = "The resource has the name of an extended resource"
    why = "The kubelet refuses the registration: the ResourceName is invalid."
    fix = "Use a domain and a name, such as example.com/gpu, with a lower-case domain other than kubernetes.io."

    async def check(self, verifier: Verifier) -> None:
        _, requests = await _requests(verifier)
        names = {registration.request.resource for registration in requests}
        bad = sorted(name for name in names if not is_resource_name(name))
        expect(not bad, "a name such as example.com/gpu", f"Register was called for {', '.join(map(repr, bad))}")


class NamesVersion(Rule):
    id, level, facts = "REG-04", Level.MUST, ("1.27",)
    title = f"Register has the version {API_VERSION}"
    why = "The kubelet refuses every other version, an empty one included."
    fix = f"Set RegisterRequest.version to {API_VERSION}."

    async def check(self, verifier: Verifier) -> None:
        _, requests = await _requests(verifier)
        versions = sorted({registration.request.version for registration in requests} - {API_VERSION})
        expect(not versions, f"version {API_VERSION!r}", f"Register was called with {', '.join(map(repr, versions))}")


class ServesBeforeRegister(Rule):
    id, level, facts = "REG-05", Level.MUST, ("1.31", "1.32")
    title = "The plugin listens on its socket before it calls Register"
    why = (
        "The kubelet connects to the plugin before it answers Register. It gives up after ten seconds; at best, "
        "the mistake costs one second."
    )
    fix = "Bind and serve the socket first, and call Register when it accepts connections."

    async def check(self, verifier: Verifier) -> None:
        _, requests = await _requests(verifier)
        for registration in requests:
            name = registration.request.endpoint
            expect(registration.listening, f"a process listens on {name} when Register comes", "none does")


class EndpointIsFileName(Rule):
    id, level, facts = "REG-06", Level.MUST, ("1.29",)
    title = "The endpoint is the name of a socket in the device-plugins directory"
    why = (
        "The kubelet appends the endpoint to its own directory: an absolute path leads nowhere, and an empty one "
        "to the directory itself."
    )
    fix = "Send only the file name of the socket."

    async def check(self, verifier: Verifier) -> None:
        _, requests = await _requests(verifier)
        for registration in requests:
            name = registration.request.endpoint
            expect(name and "/" not in name and name not in (".", ".."), "a file name", f"endpoint {name!r}")


class SocketPathFits(Rule):
    id, level, facts = "REG-07", Level.MUST, ("8.19",)
    title = f"The socket's path fits into {PATH_LIMIT} bytes on a node"
    why = f"Linux allows {PATH_LIMIT} bytes for a socket's path, and a node's directory is longer than that of a test."
    fix = f"Use names of at most {PATH_LIMIT - len(_DIRECTORY)} bytes; a hash of the resource is short enough."

    async def check(self, verifier: Verifier) -> None:
        _, requests = await _requests(verifier)
        for registration in requests:
            path = _DIRECTORY + registration.request.endpoint
            expect(len(path.encode()) <= PATH_LIMIT, f"at most {PATH_LIMIT} bytes", f"{len(path.encode())}: {path}")


class SocketIsPrivate(Rule):
    id, level, facts = "REG-08", Level.SHOULD, ("1.8",)
    title = "Only its owner can use the socket"
    why = "Any user who can write to the socket can allocate devices and read the answers."
    fix = "Create it with mode 0600, or with a umask of at least 022."

    async def check(self, verifier: Verifier) -> None:
        _, requests = await _requests(verifier)
        for registration in requests:
            mode = stat.S_IMODE(registration.mode or 0)
            expect(not mode & 0o022, "no write permission for others", f"mode {mode:04o}")


class AnswersOptions(Rule):
    id, level, facts = "REG-09", Level.MUST, ("1.33",)
    title = "The plugin answers GetDevicePluginOptions"
    why = "Kubelets from 1.25 on call it during Register and refuse a plugin that fails it."
    fix = "Implement the method, if only with an empty answer."

    async def check(self, verifier: Verifier) -> None:
        session, _ = await _requests(verifier)
        expect_answers(_calls(session, "GetDevicePluginOptions"))


class OptionsAgree(Rule):
    id, level, facts = "REG-10", Level.SHOULD, ("1.30",)
    title = "Register and GetDevicePluginOptions report the same options"
    why = "The kubelet ignores the options of Register: it never calls a method that only Register announces."
    fix = "Answer GetDevicePluginOptions with the same options."

    async def check(self, verifier: Verifier) -> None:
        session, requests = await _requests(verifier)
        options = {plugin.resource: plugin.options for plugin in session.plugins()}
        for request in (registration.request for registration in requests):
            announced = options.get(request.resource, request.options)
            expect(request.options == announced, f"{announced}", f"Register had {request.options}")


class WaitsForKubelet(Rule):
    id, level, facts, alone = "REG-11", Level.MUST, ("1.1", "8.7"), True
    title = "A program that starts before the kubelet registers when the kubelet starts"
    why = (
        "The order of starts after a boot is not defined; a program that gives up leaves the node without "
        "devices until someone restarts it."
    )
    fix = "Wait for kubelet.sock, or exit with an error so that the program is started again."

    async def check(self, verifier: Verifier) -> None:
        async with verifier.fresh() as session:
            await session.kubelet.stop()
            session.paths.kubelet_socket.unlink(missing_ok=True)
            program = await session.start_program()
            await program.settles(verifier.limits.start)
            if not program.running:
                expect(program.returncode, "it waits, or exits with an error", program.ending)
                return
            mark = session.mark
            await session.kubelet.start()
            try:
                await until_back(session, verifier.resources, mark)
            except PluginNotRunning as error:
                raise RuleViolated("a registration when the kubelet has started", str(error)) from None


class RetriesRefused(Rule):
    id, level, facts, alone, observation = "REG-12", Level.MUST, ("1.26", "8.3"), True, "refusals"
    title = "The program retries a refused registration, or exits with an error"
    why = (
        "A kubelet refuses a plugin that it cannot reach; a plugin that does not try again never gets its "
        "devices onto the node."
    )
    fix = "Call Register again after an increasing delay, or exit with an error."

    async def check(self, verifier: Verifier) -> None:
        seen = await verifier.remembered(refusals)
        expect(not seen.failure or seen.exited, "another Register, or an exit with an error", seen.failure)


class RetriesSlowly(Rule):
    id, level, facts, alone, observation = "REG-13", Level.SHOULD, ("1.26",), True, "refusals"
    title = "Refused registrations are not repeated in a hot loop"
    why = "A starting kubelet is busy; thousands of calls per second prevent it from starting."
    fix = "Wait between attempts, longer each time."

    async def check(self, verifier: Verifier) -> None:
        times = [registration.at for registration in (await verifier.remembered(refusals)).registrations]
        hot = len(times) >= _HOT and times[_HOT - 1] - times[0] < _HOT_TIME
        expect(not hot, "a delay between attempts", f"{_HOT} Register calls in {_HOT_TIME * 1000:g} ms")


class IgnoresDeprecationFile(Rule):
    id, level, facts, alone, note = "REG-22", Level.MUST, ("1.19", "8.8"), True, True
    title = "A file named DEPRECATION does not keep the plugin from registering"
    why = (
        "Kubelets up to 1.24 created it, and those from 1.33 on no longer remove it: on a node that was upgraded "
        "since then, such a plugin never registers again."
    )
    fix = "Register whether the file exists or not."

    async def check(self, verifier: Verifier) -> None:
        async with verifier.fresh() as session:
            Path(session.paths.device_plugins, "DEPRECATION").touch()
            await session.start_program()
            try:
                await session.until_registered(verifier.resources, limit=verifier.limits.start)
            except PluginNotRunning as error:
                raise RuleViolated("a registration", str(error)) from None


class AnnouncesItself(Rule):
    id, level, facts = "REG-23", Level.MUST, ("1.44", "1.45", "1.48")
    title = "A socket in plugins_registry answers GetInfo within a second, as a DevicePlugin of v1beta1"
    why = "The kubelet's plugin watcher retries a socket that is slower or answers differently, but never registers it."
    fix = "Answer GetInfo at once with type DevicePlugin, the resource as name, and v1beta1 among the versions."

    async def check(self, verifier: Verifier) -> None:
        session = await verifier.started()
        infos, statuses = _calls(session, "GetInfo"), _calls(session, "NotifyRegistrationStatus")
        if not infos:
            raise RuleNotApplicable("the plugin has no socket in plugins_registry")
        expect_answers(infos)
        refused = [call.asked[0] for call in statuses if call.asked]
        refused = [text for text in refused if re.search("no handler|validation failed", text)]
        expect(not refused, "type DevicePlugin, a resource name and v1beta1", refused[0] if refused else "")


class TakesRegistrationStatus(Rule):
    id, level, facts = "REG-24", Level.MUST, ("1.47",)
    title = "A socket in plugins_registry answers NotifyRegistrationStatus"
    why = "If this call fails, the kubelet deregisters the plugin."
    fix = "Implement the method; log the error that it contains."

    async def check(self, verifier: Verifier) -> None:
        calls = _calls(await verifier.started(), "NotifyRegistrationStatus")
        if not calls:
            raise RuleNotApplicable("the plugin has no socket in plugins_registry that was registered")
        expect_answers(calls)


def _calls(session: Session, method: str) -> list[Call]:
    return [call for call in session.kubelet.calls if call.method == method]


RULES: tuple[type[Rule], ...] = (
    Registers,
    StaysInForeground,
    NamesResource,
    NamesVersion,
    ServesBeforeRegister,
    EndpointIsFileName,
    SocketPathFits,
    SocketIsPrivate,
    AnswersOptions,
    OptionsAgree,
    WaitsForKubelet,
    RetriesRefused,
    RetriesSlowly,
    IgnoresDeprecationFile,
    AnnouncesItself,
    TakesRegistrationStatus,
)
