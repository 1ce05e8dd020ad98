"""The least a kubelet does for a device plugin: it registers plugins, watches their lists and calls them.

An example of `plugwright.protocol` from the kubelet's side; it schedules nothing, keeps nothing and checks little. Both
ways of registration work: kubelet.sock (direct) and plugins_registry (watcher). To test a plugin, use the emulated
kubelet of `plugwright.testing` instead.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Sequence
from contextlib import AsyncExitStack, aclosing, asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from plugwright.errors import PeerGone, PeerRefused
from plugwright.model import Allocation, Device, DeviceNode, Mount, Options
from plugwright.protocol import messages, registration, transport
from plugwright.protocol.device_plugin import DevicePluginClient
from plugwright.protocol.messages import AllocateResponse
from plugwright.protocol.paths import KubeletPaths
from plugwright.protocol.registration import RegisterRequest

__all__ = ["Endpoint", "PluginClient", "TinyKubelet", "connect_plugin", "tiny_kubelet", "to_allocation"]

_LOOK = 0.01  # seconds between looks into plugins_registry; a real kubelet looks every second


class PluginClient(DevicePluginClient):
    """Calls one plugin, with checked values of `plugwright.model`."""

    async def lists(self) -> AsyncGenerator[list[Device], None]:
        async with aclosing(self.list_and_watch()) as lists:
            async for listed in lists:
                yield [Device(device.id, device.health, numa=device.nodes or ()) for device in listed]

    async def allocate(self, *containers: Sequence[str]) -> list[Allocation]:
        return [to_allocation(messages.decode(response)) for response in await self.allocate_encoded(*containers)]


def to_allocation(response: AllocateResponse) -> Allocation:
    return Allocation(
        env=response.env,
        mounts=[Mount(mount.host_path, mount.container_path, mount.read_only) for mount in response.mounts],
        nodes=[DeviceNode(node.host_path, node.container_path, node.permissions) for node in response.nodes],
        annotations=response.annotations,
        cdi=response.cdi,
    )


@asynccontextmanager
async def connect_plugin(socket: Path) -> AsyncIterator[PluginClient]:
    async with transport.connect(socket, transport.MESSAGE_LIMIT) as connection:
        yield PluginClient(connection)


@dataclass(slots=True)
class Endpoint:
    """One registered plugin: how to call it, and the lists it has sent."""

    request: RegisterRequest
    options: Options
    client: PluginClient
    lists: list[list[Device]] = field(default_factory=list)
    ended: str = ""  # why its list ended, empty while it goes on

    @property
    def devices(self) -> dict[str, Device]:
        return {device.id: device for device in self.lists[-1]} if self.lists else {}


class TinyKubelet:
    def __init__(self, root: Path) -> None:
        self.paths = KubeletPaths.under(root)
        self.registered: list[RegisterRequest] = []  # every registration, in order
        self.endpoints: dict[str, Endpoint] = {}
        self.refuse = ""  # what to answer to the next registrations, empty to accept them
        self._news = asyncio.Event()
        self._stack: AsyncExitStack | None = None
        self._watches: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """As the real one: removes every socket in the directory, then listens."""
        self.paths.device_plugins.mkdir(parents=True, exist_ok=True)
        self.paths.plugins_registry.mkdir(parents=True, exist_ok=True)
        for path in self.paths.device_plugins.iterdir():
            if path.is_socket():
                path.unlink(missing_ok=True)
        self._stack = AsyncExitStack()
        await self._stack.enter_async_context(registration.serve(self, self.paths.kubelet_socket))
        self._spawn(self._watch_registry())

    async def stop(self) -> None:
        """As when the process is killed: connections break."""
        for watch in list(self._watches):
            watch.cancel()
        await asyncio.gather(*self._watches, return_exceptions=True)
        self._watches.clear()
        self.endpoints.clear()
        if self._stack is not None:
            await self._stack.aclose()
            self._stack = None

    async def restart(self) -> None:
        await self.stop()
        await self.start()

    async def register(self, request: RegisterRequest) -> None:
        self.registered.append(request)
        if self.refuse:
            self._tell()
            raise PeerRefused("UNKNOWN", self.refuse)
        await self._connect(request, self.paths.device_plugins / request.endpoint)

    async def until(self, happened: Callable[["TinyKubelet"], object], timeout: float = 60) -> None:
        """Waits for a fact; fails after `timeout` seconds."""
        async with asyncio.timeout(timeout):
            while not happened(self):
                self._news.clear()
                await self._news.wait()

    async def endpoint(self, resource: str, count: int = 1) -> Endpoint:
        """The plugin of a resource, once it lists at least `count` devices."""
        await self.until(
            lambda kubelet: (
                len(kubelet.endpoints[resource].devices) >= count if resource in kubelet.endpoints else False
            )
        )
        return self.endpoints[resource]

    async def health(self, resource: str, device_id: str, health: str) -> None:
        """Waits until a device is listed with this health."""

        def listed(kubelet: TinyKubelet) -> bool:
            endpoint = kubelet.endpoints.get(resource)
            return (
                endpoint is not None and device_id in endpoint.devices and endpoint.devices[device_id].health == health
            )

        await self.until(listed)

    async def _connect(self, request: RegisterRequest, socket: Path) -> None:
        connected: asyncio.Future[Endpoint] = asyncio.get_running_loop().create_future()
        self._spawn(self._talk(request, socket, connected))
        self.endpoints[request.resource] = await connected
        self._tell()

    async def _talk(self, request: RegisterRequest, socket: Path, connected: "asyncio.Future[Endpoint]") -> None:
        async with connect_plugin(socket) as client:
            try:
                endpoint = Endpoint(request, await client.options(timeout=60), client)
            except (PeerGone, PeerRefused) as error:
                connected.set_exception(PeerRefused("UNKNOWN", f"failed to dial device plugin: {error}"))
                return
            if connected.done():
                return
            connected.set_result(endpoint)
            await self._follow(endpoint)

    async def _follow(self, endpoint: Endpoint) -> None:
        try:
            async for devices in endpoint.client.lists():
                endpoint.lists.append(devices)
                self._tell()
            endpoint.ended = "ended"
        except (PeerGone, PeerRefused) as error:
            endpoint.ended = str(error)
        self._tell()

    async def _watch_registry(self) -> None:
        known: dict[Path, int] = {}
        while True:
            present = {path: path.stat().st_ino for path in self._announced()}
            for path in present.keys() - known.keys() | {path for path in present if present[path] != known.get(path)}:
                with suppress(PeerGone, PeerRefused):
                    await self._introduce(path)
            known = present
            await asyncio.sleep(_LOOK)

    def _announced(self) -> Sequence[Path]:
        return [path for path in sorted(self.paths.plugins_registry.iterdir()) if path.is_socket()]

    async def _introduce(self, path: Path) -> None:
        async with registration.connect_watched(path) as plugin:
            announced = await plugin.announce()
            request = RegisterRequest(announced.name, path.name)
            self.registered.append(request)
            if self.refuse:
                await plugin.notify(False, self.refuse)
                return
            await self._connect(request, path)
            await plugin.notify(True)

    def _spawn(self, work: Coroutine[object, object, None]) -> None:
        task = asyncio.create_task(work)
        self._watches.add(task)
        task.add_done_callback(self._watches.discard)

    def _tell(self) -> None:
        self._news.set()


@asynccontextmanager
async def tiny_kubelet(root: Path) -> AsyncIterator[TinyKubelet]:
    kubelet = TinyKubelet(root)
    await kubelet.start()
    try:
        yield kubelet
    finally:
        await kubelet.stop()
