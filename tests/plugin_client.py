"""A client of one plugin, for direct calls with checked values of `plugwright.model`."""

from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Sequence
from contextlib import aclosing, asynccontextmanager
from pathlib import Path

from plugwright.model import Allocation, Device, DeviceNode, Mount, Options, PreferenceRequest
from plugwright.protocol import device_plugin, messages
from plugwright.protocol.device_plugin import DevicePluginClient
from plugwright.protocol.messages import AllocateResponse, ListedDevice

__all__ = ["PluginClient", "connect_plugin", "to_allocation", "to_devices"]


class PluginClient:
    def __init__(self, client: DevicePluginClient) -> None:
        self._client = client

    async def options(self, timeout: float | None = None) -> Options:
        return await self._client.options(timeout)

    async def lists(self) -> AsyncGenerator[list[Device], None]:
        async with aclosing(self._client.list_and_watch()) as lists:
            async for listed in lists:
                yield to_devices(listed)

    async def prefer(self, *requests: PreferenceRequest) -> list[list[str]]:
        return await self._client.prefer(*requests)

    async def allocate(self, *containers: Sequence[str]) -> list[Allocation]:
        responses = await self._client.allocate_encoded(*containers)
        return [to_allocation(messages.decode(response)) for response in responses]

    async def pre_start(self, device_ids: Sequence[str], timeout: float | None = 30) -> None:
        await self._client.pre_start(device_ids, timeout)


def to_devices(listed: Iterable[ListedDevice]) -> list[Device]:
    return [Device(device.id, device.health, numa=device.nodes or ()) for device in listed]


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
    async with device_plugin.connect(socket) as client:
        yield PluginClient(client)
