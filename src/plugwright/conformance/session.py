"""A session: one emulated kubelet in a separate directory, with the program under test.

It waits for registrations and lists, and keeps facts that are only visible at the time of a Register call. `verifier`
decides which rule is checked in which session.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Collection, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from plugwright.conformance import namespace, program
from plugwright.conformance.namespace import Mount
from plugwright.conformance.program import Program, Surroundings, Target
from plugwright.errors import PeerGone, PeerRefused, PluginNotRunning
from plugwright.kubelet import Kubelet, KubeletSettings
from plugwright.kubelet.events import Call, StateChange
from plugwright.kubelet.settings import Timing
from plugwright.model import Options
from plugwright.protocol import device_plugin
from plugwright.protocol.device_plugin import DevicePluginClient
from plugwright.protocol.messages import ListedDevice
from plugwright.protocol.registration import RegisterRequest
from plugwright.system import directories, sockets
from plugwright.system.concurrency import first, to_its_end

__all__ = ["RegisterCall", "RegisteredPlugin", "Session", "TimeLimits", "session", "visible_parent"]


_FINAL = ("is invalid", "is not supported by kubelet", "failed to get device plugin options", "RegisterPlugin error")
_FINAL_REFUSALS = 3  # of one plugin, consecutive


@dataclass(frozen=True, slots=True)
class TimeLimits:
    """Limits in seconds.

    `start`: from the start to the list. `register`: from a kubelet's start to the next registration; `prompt`: a good
    value for that. `call`: for any call; `quick`: a good value for that. `end`: from SIGTERM. `idle`: for observation.
    """

    start: float = 30.0
    register: float = 30.0
    prompt: float = 5.0
    call: float = 10.0
    quick: float = 1.0
    end: float = 10.0
    idle: float = 1.0
    settle: float = 0.25  # after a list, for further resources of the same program
    republish: float = 90.0  # from the loss of a slice to its return; Go's library takes up to 60
    wait: float = 10.0  # after which an unprepared claim counts as waiting: `call` is enough for the others
    lease: float = 60.0  # of health, until whose end a rule waits


@dataclass(frozen=True, slots=True)
class RegisterCall:
    """A Register call, with the facts at its arrival."""

    request: RegisterRequest
    at: float
    listening: bool
    mode: int | None  # of the socket's file


@dataclass(frozen=True, slots=True)
class RegisteredPlugin:
    """A served resource."""

    resource: str
    socket: Path
    options: Options
    devices: tuple[ListedDevice, ...] = field(repr=False)

    @property
    def ids(self) -> list[str]:
        """The ids of the healthy devices, each once."""
        return list(dict.fromkeys(device.id for device in self.devices if device.health == "Healthy"))

    @asynccontextmanager
    async def connect(self) -> AsyncIterator[DevicePluginClient]:
        """A separate connection besides the kubelet's."""
        async with device_plugin.connect(self.socket) as client:
            yield client


class Session:
    def __init__(self, target: Target, limits: TimeLimits, kubelet: Kubelet) -> None:
        self.target = target
        self.limits = limits
        self.kubelet = kubelet
        self.paths = kubelet.paths
        self.programs: list[Program] = []
        self.registrations: list[RegisterCall] = []
        self.refuse: Callable[[int], str] = lambda _: ""  # the refusal of the n-th Register, if any
        self.hold: asyncio.Event | None = None  # Register calls wait for it
        self.arrived = asyncio.Event()  # set by every Register call

    async def on_register(self, request: RegisterRequest) -> None:
        self.registrations.append(_registration(request, self.paths.device_plugins / request.endpoint))
        self.arrived.set()
        if self.hold is not None:
            await self.hold.wait()
        if refusal := self.refuse(len(self.registrations)):
            raise PeerRefused("UNKNOWN", refusal)

    @property
    def program(self) -> Program:
        if not self.programs:
            raise PluginNotRunning("the program was not started by us")
        return self.programs[-1]

    @property
    def ending(self) -> str:
        """How the program ended, or that it runs, with its last line."""
        return self.program.ending if self.programs else "the program is not ours"

    @property
    def cdi(self) -> Path:
        """The directory that is `/var/run/cdi` for the program; a reboot empties it."""
        return self.paths.root / "cdi"

    @property
    def mounts(self) -> tuple[Mount, ...]:
        """The program's view of the node's directories in its namespace."""
        return (*self._own_mounts, *self.target.binds)

    @property
    def _own_mounts(self) -> tuple[Mount, ...]:
        """Directories of this session, the kubelet's root first."""
        root = self.paths.root
        specs = (Mount(self.cdi, Path("/var/run/cdi")), Mount(root / "etc-cdi", Path("/etc/cdi")))
        return (Mount(root, namespace.KUBELET), *specs)

    def on_host(self, path: Path) -> Path:
        """The host location of a program's path: it can see other directories than the host's."""
        if self.target.attached:
            return namespace.translate(path, self._own_mounts[:1])
        return namespace.translate(path, self.mounts) if self.target.is_private else path

    def make_directories(self) -> None:
        if self.target.is_private:
            for mount in self._own_mounts:
                mount.source.mkdir(exist_ok=True)

    async def start_program(self) -> Program:
        started = await program.start(self.target, self.paths, Surroundings(mounts=self.mounts))
        self.programs.append(started)
        return started

    async def until_registered(self, resources: Collection[str] = (), *, mark: int = 0, limit: float = 0.0) -> None:
        """Waits for a list of each resource, or of any if none is given, after the event number `mark`."""
        limit = limit or self.limits.register
        named = ", ".join(sorted(resources)) or "any resource"

        def is_listed() -> bool:
            listed = self.listed(mark)
            return bool(listed) and listed.issuperset(resources)

        def is_decided() -> bool:
            return is_listed() or self._is_hopeless(mark)

        waits = [self.kubelet.until(is_decided, limit, f"no list of {named}")]
        if self.programs:
            waits.append(self.program.ends())
        try:
            await first(*waits)
        except PeerGone as error:
            raise PluginNotRunning(f"{error}: {self._reason(mark)}") from None
        if not is_listed():
            raise PluginNotRunning(f"no list of {named}: {self._reason(mark)}")

    def _is_hopeless(self, mark: int) -> bool:
        """Whether the kubelet refuses the plugin permanently, according to its own events."""
        events = self.kubelet.recorded[mark:]
        refused = [call for call in events if isinstance(call, Call) and _is_final(call)]
        cut = [event for event in self.stops(mark) if "larger than max" in event.text]
        return len(refused) >= _FINAL_REFUSALS or bool(cut)

    def _reason(self, mark: int) -> str:
        calls = [event for event in self.kubelet.recorded[mark:] if isinstance(event, Call)]
        refused = next((call for call in reversed(calls) if call.outcome not in ("OK", "open")), None)
        ended = self.ending
        if refused is not None:
            return f"{refused.method} of {refused.resource!r} was answered {refused.outcome!r}; {ended}"
        return ended if calls or self.registrations[-1:] else f"Register was never called; {ended}"

    async def settle(self) -> None:
        """Waits until no further resource of the program is listed for a moment."""
        known = -1
        while known != len(self.listed()):
            known = len(self.listed())
            with suppress(PeerGone):
                await self.kubelet.until(lambda: len(self.listed()) > known, self.limits.settle, "")  # noqa: B023

    @property
    def mark(self) -> int:
        return len(self.kubelet.recorded)

    def listed(self, mark: int = 0) -> set[str]:
        return {event.about for event in self.lists(mark)}

    def lists(self, mark: int = 0) -> list[StateChange]:
        return [
            event for event in self.kubelet.recorded[mark:] if isinstance(event, StateChange) and event.kind == "list"
        ]

    def stops(self, mark: int = 0) -> list[StateChange]:
        return [
            event
            for event in self.kubelet.recorded[mark:]
            if isinstance(event, StateChange) and event.kind == "stopped"
        ]

    def plugins(self) -> list[RegisteredPlugin]:
        """Every connected resource, with its latest list."""
        latest = {event.about: event.devices for event in self.lists()}
        return [plugin for resource in sorted(latest) if (plugin := self._plugin(resource, latest[resource]))]

    def _plugin(self, resource: str, devices: tuple[ListedDevice, ...]) -> RegisteredPlugin | None:
        try:
            endpoint = self.kubelet.endpoint(resource)
        except PeerGone:
            return None
        if endpoint.socket is None or endpoint.stopped_at is not None:
            return None
        return RegisteredPlugin(resource, endpoint.socket, endpoint.options, devices)

    @property
    def registered_names(self) -> set[str]:
        """The resources of all Register calls."""
        return {registration.request.resource for registration in self.registrations}

    @contextmanager
    def holding_registrations(self) -> Iterator[None]:
        """Keeps Register calls unanswered while inside."""
        self.hold = asyncio.Event()
        try:
            yield
        finally:
            self.hold.set()
            self.hold = None

    async def end(self) -> None:
        """Ends every program, even if the caller is cancelled meanwhile: another rule's error cancels this one."""
        await to_its_end(self._end_programs())

    async def _end_programs(self) -> None:
        for started in self.programs:
            await started.end()


def _is_final(call: Call) -> bool:
    texts = (call.outcome, *call.asked) if call.method in ("Register", "NotifyRegistrationStatus") else ()
    return any(reason in text for text in texts for reason in _FINAL)


def _registration(request: RegisterRequest, socket: Path) -> RegisterCall:
    try:
        mode = socket.stat().st_mode
    except OSError:
        return RegisterCall(request, time.monotonic(), False, None)
    return RegisterCall(request, time.monotonic(), sockets.is_listening(socket), mode)


def visible_parent(target: Target) -> Path | None:
    """A parent directory for the session that no bind of the target hides from the program; None for the default."""
    usual, other = Path("/dev/shm"), Path("/tmp")
    return other if any(usual.is_relative_to(bind.covered) for bind in target.binds) else None


@asynccontextmanager
async def session(
    target: Target, version: str, limits: TimeLimits, directory: Path | None = None
) -> AsyncIterator[Session]:
    """A kubelet without a program yet; leaving ends everything that was started in it."""
    async with AsyncExitStack() as stack:
        root = directory or stack.enter_context(directories.short_directory(visible_parent(target))) / "k"
        made: list[Session] = []

        async def on_register(request: RegisterRequest) -> None:
            await made[0].on_register(request)

        timing = Timing(dial=min(10.0, limits.start), reconcile=0.05, retry=0.1, max_retry=1.0)
        settings = KubeletSettings(
            version=version, timing=timing, timeout=limits.start, on_register=on_register, numa=8
        )
        kubelet = await stack.enter_async_context(Kubelet(root, settings))
        made.append(Session(target, limits, kubelet))
        made[0].make_directories()
        stack.push_async_callback(made[0].end)
        yield made[0]
