"""A plugin that answers any bytes a test wants, which the emulated kubelet must survive."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from google.protobuf.message import Message
from tests.proto import deviceplugin_v1beta1_pb2 as pb
from tests.protobuf_methods import Method, streaming, unary

from plugwright.kubelet import Kubelet
from plugwright.protocol import registration, transport
from plugwright.protocol.registration import RegisterRequest
from plugwright.protocol.transport import Bound
from plugwright.system.latest import Latest

__all__ = ["TAPE", "Hanging", "Rogue", "always", "granting", "listing", "options", "register", "registered"]

TAPE = "example.com/tape"
Answer = Callable[[Message], Awaitable[object]]  # a message, or the bytes of what may be none
_METHODS: dict[str, tuple[type[Message], type[Message]]] = {
    "GetDevicePluginOptions": (pb.Empty, pb.DevicePluginOptions),
    "GetPreferredAllocation": (pb.PreferredAllocationRequest, pb.PreferredAllocationResponse),
    "Allocate": (pb.AllocateRequest, pb.AllocateResponse),
    "PreStartContainer": (pb.PreStartContainerRequest, pb.PreStartContainerResponse),
}


def listing(*ids: str, health: str = "Healthy") -> bytes:
    return pb.ListAndWatchResponse(
        devices=[pb.Device(ID=device_id, health=health) for device_id in ids]
    ).SerializeToString()


def granting(*envs: dict[str, str]) -> pb.AllocateResponse:
    """A response with one container for every environment."""
    return pb.AllocateResponse(container_responses=[pb.ContainerAllocateResponse(envs=env) for env in envs])


def options(*, preference: bool = False, pre_start: bool = False) -> Answer:
    return always(pb.DevicePluginOptions(pre_start_required=pre_start, get_preferred_allocation_available=preference))


def always(answer: object) -> Answer:
    async def same(_: Message) -> object:
        if isinstance(answer, Exception):
            raise answer
        return answer

    return same


async def allocate(request: Message) -> object:
    """As a good plugin answers: with the names of the devices."""
    assert isinstance(request, pb.AllocateRequest)
    return granting(*({"TAPES": ",".join(container.devices_ids)} for container in request.container_requests))


class Hanging:
    """A response that waits for `free`; `asked` is set when the call arrives."""

    def __init__(self, then: Answer = allocate) -> None:
        self.asked, self.free = asyncio.Event(), asyncio.Event()
        self._then = then

    async def __call__(self, request: Message) -> object:
        self.asked.set()
        await self.free.wait()
        return await self._then(request)


class Rogue:
    """A good plugin until its `answers` or `lists` are replaced; a method without an answer is not there at all."""

    def __init__(self, *ids: str) -> None:
        self.lists = Latest(listing(*ids or ("st0", "st1")))
        self.answers = {
            "GetDevicePluginOptions": options(),
            "GetPreferredAllocation": always(pb.PreferredAllocationResponse()),
            "Allocate": allocate,
            "PreStartContainer": always(pb.PreStartContainerResponse()),
        }

    def methods(self) -> list[Bound]:
        lists = Method("/v1beta1.DevicePlugin/ListAndWatch", pb.Empty, pb.ListAndWatchResponse)
        return [streaming(lists, self._lists), *map(self._method, self.answers)]

    def _method(self, name: str) -> Bound:
        async def answer(request: Message) -> object:
            return await self.answers[name](request)  # looked up at every call: a test may replace it

        return unary(Method(f"/v1beta1.DevicePlugin/{name}", *_METHODS[name]), answer)

    async def _lists(self) -> AsyncGenerator[bytes, None]:
        async for message in self.lists.changes():
            yield message


@asynccontextmanager
async def registered(kubelet: Kubelet, rogue: Rogue, resource: str = TAPE) -> AsyncIterator[Rogue]:
    """Served and registered while inside; its list may still be on the way."""
    socket = kubelet.paths.device_plugins / f"{resource.replace('/', '_')}.sock"
    async with transport.serve(socket, rogue.methods()):
        await register(kubelet, socket.name, resource)
        yield rogue


async def register(kubelet: Kubelet, endpoint: str, resource: str = TAPE, timeout: float | None = None) -> None:
    async with registration.connect(kubelet.paths.kubelet_socket) as client:
        await client.register(RegisterRequest(resource, endpoint), timeout)
