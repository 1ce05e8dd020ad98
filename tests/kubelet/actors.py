"""Whom the emulated kubelet meets in its tests: a plugin that does what a test says, and a clock turned by hand."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from plugwright.errors import PeerRefused, PodRefused
from plugwright.kubelet import Kubelet, KubeletSettings, Pod, PodSpec, Timing
from plugwright.kubelet.events import Call, Finding, StateChange
from plugwright.model import Allocation, Options, PreferenceRequest, natural_order
from plugwright.protocol import checkpoint, device_plugin, registration
from plugwright.protocol.checkpoint import Checkpoint
from plugwright.protocol.deviceplugin.v1beta1 import deviceplugin_pb2 as pb
from plugwright.protocol.messages import DeviceList, ListedDevice
from plugwright.protocol.registration import PluginInfo, RegisterRequest
from plugwright.system.concurrency import Latest

__all__ = [
    "LIMIT",
    "OTHER",
    "TAPE",
    "Announcing",
    "Clock",
    "Hold",
    "Scripted",
    "Seen",
    "called",
    "device",
    "found",
    "given",
    "heard",
    "plugged",
    "quick",
    "records",
    "refused",
    "register",
    "said",
    "states",
    "written",
]

LIMIT = 30.0  # seconds for what must come about, on a busy machine
TAPE, OTHER = "example.com/tape", "example.com/other"


def device(device_id: str, *nodes: int, health: str = "Healthy") -> ListedDevice:
    """Without nodes it has no topology at all."""
    return ListedDevice(device_id, health, nodes or None)


def encoded(devices: Sequence[ListedDevice]) -> DeviceList:
    """As it goes over the wire, whatever it says: nothing is checked."""
    message = pb.ListAndWatchResponse(devices=[_message(each) for each in devices])
    return DeviceList(len(devices), message.SerializeToString())


def _message(each: ListedDevice) -> pb.Device:
    nodes = None if each.nodes is None else pb.TopologyInfo(nodes=[pb.NUMANode(ID=node) for node in each.nodes])
    return pb.Device(ID=each.id, health=each.health, topology=nodes)


class Clock:
    """Stands still until it is advanced."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        self.now += seconds


def quick(**settings: object) -> KubeletSettings:
    """The settings given, little time for what fails, and much for what must come about on a busy machine."""
    timing = Timing(dial=0.5, reconcile=0.02, retry=0.02, max_retry=0.1)
    return KubeletSettings(**{"timing": timing, "timeout": LIMIT, **settings})  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True)
class Seen:
    """One call; ids in natural order."""

    method: str
    devices: tuple[str, ...] = ()
    required: tuple[str, ...] = ()
    size: int = 0


@dataclass
class Hold:
    """A call that is not answered before it is let go; `asked` tells that a kubelet waits for it."""

    asked: asyncio.Event = field(default_factory=asyncio.Event)
    free: asyncio.Event = field(default_factory=asyncio.Event)


class Scripted:
    """A plugin that lists `devices` and remembers its `calls`; `wish` is what it prefers, else the last ones."""

    def __init__(self, *devices: str | ListedDevice, resource: str = TAPE, options: Options | None = None) -> None:
        self.resource = resource
        self.told = options or Options()
        self.calls: list[Seen] = []
        self.errors: dict[str, str] = {}  # by method: the refusal's text
        self.wish: list[str] | None = None
        self.answer: Callable[[Sequence[str]], list[Allocation]] = self._names
        self.streams = Latest(0)
        self._holds: dict[str, Hold] = {}
        self._lists: Latest[DeviceList | PeerRefused | None] = Latest(None)
        self.send(*devices)

    def send(self, *devices: str | ListedDevice) -> None:
        self._lists.publish(encoded([device(each) if isinstance(each, str) else each for each in devices]))

    def end(self, error: str = "") -> None:
        """ListAndWatch returns, without an error if there is none."""
        self._lists.publish(PeerRefused("INTERNAL", error) if error else None)

    def hold(self, method: str) -> Hold:
        """From now on calls of this method wait."""
        return self._holds.setdefault(method, Hold())

    @property
    def methods(self) -> list[str]:
        return [seen.method for seen in self.calls]

    def asked(self, method: str) -> list[tuple[str, ...]]:
        """The devices of every call of one method."""
        return [seen.devices for seen in self.calls if seen.method == method]

    async def options(self) -> Options:
        await self._note(Seen("GetDevicePluginOptions"))
        return self.told

    async def lists(self) -> AsyncGenerator[DeviceList, None]:
        self.streams.publish(self.streams.value + 1)
        try:
            await self._note(Seen("ListAndWatch"))
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
            Seen("GetPreferredAllocation", _sorted(request.available), _sorted(request.required), request.size)
        )
        if self.wish is not None:
            return [self.wish]
        free = [each for each in reversed(_sorted(request.available)) if each not in request.required]
        return [[*request.required, *free][: request.size]]

    async def allocate(self, containers: Sequence[Sequence[str]]) -> list[Allocation]:
        [device_ids] = containers  # 3.36: one, never more
        await self._note(Seen("Allocate", _sorted(device_ids)))
        return self.answer(device_ids)

    async def pre_start(self, device_ids: Sequence[str]) -> None:
        await self._note(Seen("PreStartContainer", _sorted(device_ids)))

    def _names(self, device_ids: Sequence[str]) -> list[Allocation]:
        return [Allocation(env={_variable(self.resource): ",".join(_sorted(device_ids))})]

    async def _note(self, seen: Seen) -> None:
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
async def plugged(kubelet: Kubelet, plugin: Scripted, name: str = "") -> AsyncIterator[Scripted]:
    """Served beside the kubelet's socket and registered; its list may still be on the way."""
    socket = kubelet.paths.device_plugins / (name or f"{_variable(plugin.resource)}.sock")
    async with device_plugin.serve(plugin, socket):
        await register(kubelet, RegisterRequest(plugin.resource, socket.name))
        yield plugin


async def register(kubelet: Kubelet, request: RegisterRequest, timeout: float | None = None) -> None:
    async with registration.connect(kubelet.paths.kubelet_socket) as client:
        await client.register(request, timeout)


class Announcing:
    """Says who a plugin is and remembers what it was told; `told` has every notification."""

    def __init__(self, announcement: PluginInfo) -> None:
        self.announcement = announcement
        self.told: asyncio.Queue[tuple[bool, str]] = asyncio.Queue()
        self.error = ""
        self.slow: asyncio.Event | None = None
        self.asked = 0

    async def announce(self) -> PluginInfo:
        self.asked += 1
        if self.slow is not None:
            await self.slow.wait()
        return self.announcement

    async def notify(self, registered: bool, error: str) -> None:
        self.told.put_nowait((registered, error))
        if self.error:
            raise PeerRefused("UNKNOWN", self.error)


@asynccontextmanager
async def found(
    kubelet: Kubelet, plugin: Scripted, announcing: Announcing | None = None, name: str = "found.sock"
) -> AsyncIterator[Path]:
    """Served in plugins_registry, where a kubelet finds it by itself."""
    path = kubelet.paths.plugins_registry / name
    path.parent.mkdir(parents=True, exist_ok=True)
    announcing = announcing or Announcing(PluginInfo(plugin.resource))
    async with registration.serve_watched(plugin, announcing, path) as served:
        yield served.path


def written(kubelet: Kubelet) -> Checkpoint:
    return checkpoint.decode(kubelet.paths.checkpoint.read_bytes())


def records(kubelet: Kubelet) -> dict[tuple[str, str], dict[int, tuple[str, ...]]]:
    """What the checkpoint says, by container and resource: the devices by NUMA node."""
    return {
        (entry.container, entry.resource): {node: tuple(ids or ()) for node, ids in (entry.devices or {}).items()}
        for entry in written(kubelet).entries or ()
    }


def given(pod: Pod, container: str = "main", resource: str = TAPE) -> list[str]:
    """The devices a container was started with."""
    return pod.container(container).env[_variable(resource)].split(",")


async def refused(kubelet: Kubelet, pod: PodSpec) -> PodRefused:
    with pytest.raises(PodRefused) as told:
        await kubelet.admit(pod)
    return told.value


async def heard(kubelet: Kubelet, kind: str, about: str | None = None) -> list[StateChange]:
    """Waits for a state of this kind; returns everything that was told up to it."""
    found: list[StateChange] = []
    async with asyncio.timeout(LIMIT), aclosing(kubelet.events()) as events:
        async for event in events:
            if isinstance(event, StateChange):
                found.append(event)
                if event.kind == kind and about in (None, event.about):
                    return found
    raise AssertionError(f"no {kind} of {about}, only {found}")


async def called(kubelet: Kubelet, method: str) -> Call:
    """Waits until the first call of this method has ended."""
    async with asyncio.timeout(LIMIT), aclosing(kubelet.events()) as events:
        async for event in events:
            if isinstance(event, Call) and event.method == method:
                return event
    raise AssertionError(f"no {method}")


async def said(kubelet: Kubelet, fact: str) -> Finding:
    """Waits for a finding."""
    async with asyncio.timeout(LIMIT), aclosing(kubelet.events()) as events:
        async for event in events:
            if isinstance(event, Finding) and event.fact == fact:
                return event
    raise AssertionError(f"{fact} was not found")


async def states(kubelet: Kubelet, kind: str) -> list[StateChange]:
    """Every state of one kind, of a kubelet that was left."""
    return [event async for event in kubelet.events() if isinstance(event, StateChange) and event.kind == kind]
