"""The emulated kubelet as tests observe it: every registration and every device list, in order, with a way to wait.

All of it is read from the kubelet's own events. Direct calls to a plugin use the connection that the kubelet has to it.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.plugin_client import PluginClient, to_devices

from plugwright.kubelet import Kubelet, KubeletSettings
from plugwright.kubelet.devicemanager import endpoints
from plugwright.kubelet.events import Call, Event, StateChange
from plugwright.kubelet.settings import Timing
from plugwright.model import Device, Options
from plugwright.system.latest import Latest

__all__ = ["ObservedEndpoint", "ObservedKubelet", "RegisteredPlugin", "observed_kubelet"]

QUICK = Timing(reconcile=0.01, retry=0.02, max_retry=0.1)


@dataclass(frozen=True, slots=True)
class RegisteredPlugin:
    """A registration that the kubelet has accepted; `endpoint` is the name of the plugin's socket."""

    resource: str
    endpoint: str


@dataclass(slots=True, eq=False)
class ObservedEndpoint:
    """One registered plugin: how to call it, and the lists that it has sent."""

    request: RegisteredPlugin
    connected: endpoints.Endpoint
    client: PluginClient
    lists: list[list[Device]] = field(default_factory=list)

    @property
    def options(self) -> Options:
        return self.connected.options

    @property
    def ended(self) -> bool:
        """Whether its stream of lists has ended."""
        return self.connected.stopped_at is not None

    @property
    def devices(self) -> dict[str, Device]:
        return {device.id: device for device in self.lists[-1]} if self.lists else {}


class ObservedKubelet:
    """`kubelet` is the emulated one. Started and stopped without a claim of its root, which tests fill beforehand."""

    def __init__(self, root: Path) -> None:
        self.kubelet = Kubelet(root, KubeletSettings(timing=QUICK))
        self.paths = self.kubelet.paths
        self.registered: list[RegisteredPlugin] = []
        self.endpoints: dict[str, ObservedEndpoint] = {}
        self._starts = 0
        self._changes = Latest(0)
        self._observing: asyncio.Task[None] | None = None

    async def start(self) -> None:
        self._observing = asyncio.create_task(self._observe())
        starts = self._starts
        await self.kubelet.start()
        await self.until(lambda _: self._starts > starts)

    async def stop(self) -> None:
        """Stops as if the process were killed; the sockets stay (1.10)."""
        if self._observing is not None:
            self._observing.cancel()
            await asyncio.wait([self._observing])
            self._observing = None
        await self.kubelet.stop()
        self.endpoints.clear()

    async def restart(self) -> None:
        await self.stop()
        await self.start()

    async def until(self, condition: Callable[["ObservedKubelet"], object], timeout: float = 60) -> None:
        """Waits for a fact; fails after `timeout` seconds."""
        async with asyncio.timeout(timeout):
            await self._changes.until(lambda _: bool(condition(self)))

    async def endpoint(self, resource: str, count: int = 1, timeout: float = 60) -> ObservedEndpoint:
        """The plugin of a resource, once it lists at least `count` devices."""

        def is_listed(_: ObservedKubelet) -> bool:
            return resource in self.endpoints and len(self.endpoints[resource].devices) >= count

        await self.until(is_listed, timeout)
        return self.endpoints[resource]

    async def health(self, resource: str, device_id: str, health: str) -> None:
        """Waits until a device is listed with this health."""

        def is_listed(_: ObservedKubelet) -> bool:
            devices = self.endpoints[resource].devices if resource in self.endpoints else {}
            return device_id in devices and devices[device_id].health == health

        await self.until(is_listed)

    def wake(self) -> None:
        """Checks the conditions of `until` again."""
        self._changes.publish(self._changes.value + 1)

    async def _observe(self) -> None:
        async with aclosing(self.kubelet.events(new=True)) as events:
            async for event in events:
                self._add(event)
                self.wake()

    def _add(self, event: Event) -> None:
        if isinstance(event, Call) and event.method == "ListAndWatch":
            self._connect(event.resource)
        elif isinstance(event, StateChange):
            if event.kind == "started":
                self._starts += 1
            elif event.kind == "registered":
                self.registered.append(RegisteredPlugin(event.about, event.text.rpartition(" ")[2]))
            elif event.kind == "list":
                self.endpoints[event.about].lists.append(to_devices(event.devices))

    def _connect(self, resource: str) -> None:
        connected = self.kubelet.endpoint(resource)
        assert connected.client is not None
        assert connected.socket is not None
        request = RegisteredPlugin(resource, connected.socket.name)
        self.endpoints[resource] = ObservedEndpoint(request, connected, PluginClient(connected.client))


@asynccontextmanager
async def observed_kubelet(root: Path) -> AsyncIterator[ObservedKubelet]:
    kubelet = ObservedKubelet(root)
    await kubelet.start()
    try:
        yield kubelet
    finally:
        await kubelet.stop()
