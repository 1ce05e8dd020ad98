"""What the tests of the emulated kubelet share: a scripted plugin, a manual clock, and waits for events."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from tests.proto import deviceplugin_v1beta1_pb2 as pb

from plugwright.errors import PeerRefused, PodRefused
from plugwright.kubelet import Kubelet, KubeletSettings, Pod, PodSpec, Timing
from plugwright.kubelet.events import Call, Finding, StateChange
from plugwright.model import Allocation, Options, PreferenceRequest, natural_order
from plugwright.protocol import checkpoint, device_plugin, messages, registration
from plugwright.protocol.checkpoint import Checkpoint
from plugwright.protocol.messages import ListedDevice
from plugwright.protocol.registration import PluginInfo, RegisterRequest
from plugwright.system.latest import Latest

__all__ = [
    "LIMIT",
    "OTHER",
    "TAPE",
    "Clock",
    "HeldCall",
    "PluginCall",
    "ScriptedInfo",
    "ScriptedPlugin",
    "checkpoint_of",
    "device",
    "granted_devices",
    "quick_settings",
    "recorded_devices",
    "refusal_of",
    "register",
    "registered",
    "serving_in_registry",
    "states",
    "until_call",
    "until_finding",
    "until_state",
]

LIMIT = 60.0  # seconds for what must happen, on a busy machine
TAPE, OTHER = "example.com/tape", "example.com/other"


def device(device_id: str, *nodes: int, health: str = "Healthy") -> ListedDevice:
    """A listed device; without `nodes` it has no topology message."""
    return ListedDevice(device_id, health, nodes or None)


def encoded(devices: Sequence[ListedDevice]) -> bytes:
    """The list as it goes over the wire; nothing is validated."""
    message = pb.ListAndWatchResponse(devices=[_message(listed) for listed in devices])
    return message.SerializeToString()


def _message(listed: ListedDevice) -> pb.Device:
    nodes = None if listed.nodes is None else pb.TopologyInfo(nodes=[pb.NUMANode(ID=node) for node in listed.nodes])
    return pb.Device(ID=listed.id, health=listed.health, topology=nodes)


class Clock:
    """A clock that stands still until `advance`."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        self.now += seconds


def quick_settings(**settings: object) -> KubeletSettings:
    """Settings with short timeouts for what must fail, and long ones for what must succeed on a busy machine."""
    timing = Timing(dial=0.5, get_info=LIMIT, notify=LIMIT, reconcile=0.02, retry=0.02, max_retry=0.1)
    return KubeletSettings(**{"timing": timing, "timeout": LIMIT, **settings})  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True)
class PluginCall:
    """One call; ids in natural order."""

    method: str
    devices: tuple[str, ...] = ()
    required: tuple[str, ...] = ()
    size: int = 0


@dataclass
class HeldCall:
    """A call that waits for `free` before it is answered; `asked` is set when it arrives."""

    asked: asyncio.Event = field(default_factory=asyncio.Event)
    free: asyncio.Event = field(default_factory=asyncio.Event)


class ScriptedPlugin:
    """A plugin that lists `devices` and records its `calls`; `preference` is by default the last devices."""

    def __init__(self, *devices: str | ListedDevice, resource: str = TAPE, options: Options | None = None) -> None:
        self.resource = resource
        self.plugin_options = options or Options()
        self.calls: list[PluginCall] = []
        self.errors: dict[str, str] = {}  # by method: the refusal's text
        self.preference: list[str] | None = None
        self.answer: Callable[[Sequence[str]], list[Allocation]] = self._names
        self.streams = Latest(0)
        self._holds: dict[str, HeldCall] = {}
        self._lists: Latest[bytes | PeerRefused | None] = Latest(None)
        self.send(*devices)

    def send(self, *devices: str | ListedDevice) -> None:
        self._lists.publish(encoded([device(item) if isinstance(item, str) else item for item in devices]))

    def end(self, error: str = "") -> None:
        """ListAndWatch returns, without an error if there is none."""
        self._lists.publish(PeerRefused("INTERNAL", error) if error else None)

    def hold(self, method: str) -> HeldCall:
        """Makes calls of this method wait from now on."""
        return self._holds.setdefault(method, HeldCall())

    @property
    def methods(self) -> list[str]:
        return [seen.method for seen in self.calls]

    def asked(self, method: str) -> list[tuple[str, ...]]:
        """The devices of every call of one method."""
        return [seen.devices for seen in self.calls if seen.method == method]

    async def options(self) -> Options:
        await self._note(PluginCall("GetDevicePluginOptions"))
        return self.plugin_options

    async def list_and_watch(self) -> AsyncGenerator[bytes, None]:
        self.streams.publish(self.streams.value + 1)
        try:
            await self._note(PluginCall("ListAndWatch"))
            async for message in self._lists.changes():
                if message is None:
                    return
                if isinstance(message, PeerRefused):
                    raise message
                yield message
        finally:
            self.streams.publish(self.streams.value - 1)

    async def prefer(self, requests: Sequence[PreferenceRequest]) -> list[list[str]]:
        [request] = requests  # 3.28: one, never more
        await self._note(
            PluginCall("GetPreferredAllocation", _sorted(request.available), _sorted(request.required), request.size)
        )
        if self.preference is not None:
            return [self.preference]
        free = [device_id for device_id in reversed(_sorted(request.available)) if device_id not in request.required]
        return [[*request.required, *free][: request.size]]

    async def allocate(self, containers: Sequence[Sequence[str]]) -> bytes:
        [device_ids] = containers  # 3.36: one, never more
        await self._note(PluginCall("Allocate", _sorted(device_ids)))
        return messages.encode_allocations(self.answer(device_ids))

    async def pre_start(self, device_ids: Sequence[str]) -> None:
        await self._note(PluginCall("PreStartContainer", _sorted(device_ids)))

    def _names(self, device_ids: Sequence[str]) -> list[Allocation]:
        return [Allocation(env={_variable(self.resource): ",".join(_sorted(device_ids))})]

    async def _note(self, seen: PluginCall) -> None:
        self.calls.append(seen)
        if seen.method in self._holds:
            self._holds[seen.method].asked.set()
            await self._holds[seen.method].free.wait()
        if seen.method in self.errors:
            raise PeerRefused("UNKNOWN", self.errors[seen.method])


def _sorted(device_ids: Sequence[str]) -> tuple[str, ...]:
    return tuple(sorted(device_ids, key=natural_order))


def _variable(resource: str) -> str:
    return resource.rpartition("/")[2].upper()


@asynccontextmanager
async def registered(kubelet: Kubelet, plugin: ScriptedPlugin, name: str = "") -> AsyncIterator[ScriptedPlugin]:
    """Serves the plugin beside the kubelet's socket and registers it; its list may follow later."""
    socket = kubelet.paths.device_plugins / (name or f"{_variable(plugin.resource)}.sock")
    async with device_plugin.serve(plugin, socket):
        await register(kubelet, RegisterRequest(plugin.resource, socket.name))
        yield plugin


async def register(kubelet: Kubelet, request: RegisterRequest, timeout: float | None = None) -> None:
    async with registration.connect(kubelet.paths.kubelet_socket) as client:
        await client.register(request, timeout)


class ScriptedInfo:
    """Answers GetInfo with `announcement`, and queues every notification."""

    def __init__(self, announcement: PluginInfo) -> None:
        self.announcement = announcement
        self.notifications: asyncio.Queue[tuple[bool, str]] = asyncio.Queue()
        self.error = ""
        self.slow: asyncio.Event | None = None
        self.asked = 0

    async def announce(self) -> PluginInfo:
        self.asked += 1
        if self.slow is not None:
            await self.slow.wait()
        return self.announcement

    async def notify(self, registered: bool, error: str) -> None:
        self.notifications.put_nowait((registered, error))
        if self.error:
            raise PeerRefused("UNKNOWN", self.error)


@asynccontextmanager
async def serving_in_registry(
    kubelet: Kubelet, plugin: ScriptedPlugin, announcing: ScriptedInfo | None = None, name: str = "found.sock"
) -> AsyncIterator[Path]:
    """Serves the plugin in plugins_registry, where the plugin watcher finds it."""
    path = kubelet.paths.plugins_registry / name
    path.parent.mkdir(parents=True, exist_ok=True)
    announcing = announcing or ScriptedInfo(PluginInfo(plugin.resource))
    async with registration.serve_watched(plugin, announcing, path) as served:
        yield served.path


def checkpoint_of(kubelet: Kubelet) -> Checkpoint:
    return checkpoint.decode(kubelet.paths.checkpoint.read_bytes())


def recorded_devices(kubelet: Kubelet) -> dict[tuple[str, str], dict[int, tuple[str, ...]]]:
    """The devices in the checkpoint by NUMA node, for every container and resource."""
    return {
        (entry.container, entry.resource): {node: tuple(ids or ()) for node, ids in (entry.devices or {}).items()}
        for entry in checkpoint_of(kubelet).entries or ()
    }


def granted_devices(pod: Pod, container: str = "main", resource: str = TAPE) -> list[str]:
    """The devices that a container was started with."""
    return pod.container(container).env[_variable(resource)].split(",")


async def refusal_of(kubelet: Kubelet, pod: PodSpec) -> PodRefused:
    with pytest.raises(PodRefused) as raised:
        await kubelet.admit(pod)
    return raised.value


async def until_state(kubelet: Kubelet, kind: str, about: str | None = None) -> list[StateChange]:
    """Waits for a state change of this kind; returns all state changes up to it."""
    changes: list[StateChange] = []
    async with asyncio.timeout(LIMIT), aclosing(kubelet.events()) as events:
        async for event in events:
            if isinstance(event, StateChange):
                changes.append(event)
                if event.kind == kind and about in (None, event.about):
                    return changes
    raise AssertionError(f"no {kind} of {about}, only {changes}")


async def until_call(kubelet: Kubelet, method: str) -> Call:
    """Waits until the first call of this method has ended."""
    async with asyncio.timeout(LIMIT), aclosing(kubelet.events()) as events:
        async for event in events:
            if isinstance(event, Call) and event.method == method:
                return event
    raise AssertionError(f"no {method}")


async def until_finding(kubelet: Kubelet, fact: str) -> Finding:
    """Waits for a finding."""
    async with asyncio.timeout(LIMIT), aclosing(kubelet.events()) as events:
        async for event in events:
            if isinstance(event, Finding) and event.fact == fact:
                return event
    raise AssertionError(f"no finding {fact}")


async def states(kubelet: Kubelet, kind: str) -> list[StateChange]:
    """Every state change of one kind, of a kubelet that has ended."""
    return [event async for event in kubelet.events() if isinstance(event, StateChange) and event.kind == kind]
