"""The kubelet's pod-resources service: which container holds which device, by device plugin or by claim.

v1 and v1alpha1 are served on one socket. Answers grow with the node: Go's clients accept 4 MiB unless a limit is set,
and most set 16, as ours does.
"""

from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from itertools import groupby
from pathlib import Path
from typing import Protocol

import msgspec
from msgspec.structs import replace

from plugwright.protocol import transport, wire_format
from plugwright.protocol.transport import Unary
from plugwright.protocol.wire_format import Fields, write, write_integer, write_text
from plugwright.system import sockets
from plugwright.system.sockets import SocketFile

__all__ = [
    "ANSWER_LIMIT",
    "AllocatableDevice",
    "ClaimDevice",
    "ContainerDevices",
    "ContainerResources",
    "DynamicResource",
    "HeldClaimDevice",
    "HeldDevice",
    "PodResources",
    "PodResourcesClient",
    "PodResourcesLister",
    "connect",
    "decode_pods",
    "held_claims",
    "held_devices",
    "held_in",
    "serve",
]

ANSWER_LIMIT = 16 << 20  # bytes
_LIST = "/v1.PodResourcesLister/List"
_ALLOCATABLE = "/v1.PodResourcesLister/GetAllocatableResources"
_GET = "/v1.PodResourcesLister/Get"
_ALPHA_LIST = "/v1alpha1.PodResourcesLister/List"


class HeldDevice(msgspec.Struct, frozen=True, order=True):
    """One device in one container of one pod."""

    resource: str
    device_id: str
    namespace: str
    pod: str
    container: str


class HeldClaimDevice(msgspec.Struct, frozen=True, order=True):
    """One device of a prepared ResourceClaim in one container of one pod."""

    driver: str
    pool: str
    device: str
    namespace: str  # of the pod and of the claim
    claim: str
    pod: str
    container: str
    share_id: str = ""


class ContainerDevices(msgspec.Struct, frozen=True):
    """One device on one NUMA node; a device on two nodes appears twice, and `numa` is None without a node."""

    resource: str
    device_id: str
    numa: int | None = None


class ClaimDevice(msgspec.Struct, frozen=True):
    """A device prepared for a claim by a DRA driver."""

    driver: str
    pool: str
    name: str
    cdi_devices: tuple[str, ...] = ()
    share_id: str = ""


class DynamicResource(msgspec.Struct, frozen=True):
    """A ResourceClaim of a container, with all devices of the claim."""

    claim_namespace: str
    claim_name: str
    devices: tuple[ClaimDevice, ...] = ()


class ContainerResources(msgspec.Struct, frozen=True):
    name: str
    devices: tuple[ContainerDevices, ...] = ()
    claims: tuple[DynamicResource, ...] = ()


class PodResources(msgspec.Struct, frozen=True):
    name: str
    namespace: str
    containers: tuple[ContainerResources, ...] = ()


class AllocatableDevice(msgspec.Struct, frozen=True):
    """A healthy device, in use or not; `nodes` is None if its plugin sent no topology."""

    resource: str
    device_id: str
    nodes: tuple[int, ...] | None = None


class PodResourcesLister(Protocol):
    """The kubelet's side; `pod` raises `PeerRefused` for a pod it does not know."""

    async def pods(self) -> Sequence[PodResources]: ...

    async def allocatable(self) -> Sequence[AllocatableDevice]: ...

    async def pod(self, name: str, namespace: str) -> PodResources: ...

    async def alpha_pods(self) -> Sequence[PodResources]: ...


def serve(lister: PodResourcesLister, socket: Path, *, kept: bool = False) -> AbstractAsyncContextManager[SocketFile]:
    """As a kubelet does: an old socket is replaced; with `kept` the new socket is left at the end."""

    async def pods(message: bytes) -> bytes:
        wire_format.read(message)  # an empty message
        return _encode_pods(await lister.pods())

    async def allocatable(message: bytes) -> bytes:
        wire_format.read(message)
        return b"".join(write(1, _encoded_device(device)) for device in _by_node(await lister.allocatable()))

    async def pod(message: bytes) -> bytes:
        fields = wire_format.read(message)
        return _encode_pods([await lister.pod(wire_format.text(fields, 1), wire_format.text(fields, 2))])

    async def alpha_pods(message: bytes) -> bytes:
        wire_format.read(message)
        return _encode_pods(map(_without_nodes, await lister.alpha_pods()))

    methods: list[transport.Bound] = [
        Unary(_LIST, pods),
        Unary(_ALLOCATABLE, allocatable),
        Unary(_GET, pod),
        Unary(_ALPHA_LIST, alpha_pods),
    ]
    return transport.serve(socket, methods, kept=kept, listening_on=sockets.listen_in_place)


def _encode_pods(pods: Iterable[PodResources]) -> bytes:
    """A list of pods alone, which each of the answers about pods is."""
    return b"".join([write(1, _encoded_pod(pod)) for pod in pods])


def _encoded_pod(pod: PodResources) -> bytes:
    containers = [write(3, _encoded_container(container)) for container in pod.containers]
    return b"".join([write_text(1, pod.name), write_text(2, pod.namespace), *containers])


def _encoded_container(container: ContainerResources) -> bytes:
    devices = (write(2, _encoded_device(item)) for item in container.devices)
    claims = (write(5, _encoded_claim(item)) for item in container.claims)
    return b"".join([write_text(1, container.name), *devices, *claims])


def _encoded_device(device: ContainerDevices) -> bytes:
    topology = b"" if device.numa is None else write(3, write(1, write_integer(1, device.numa)))
    return write_text(1, device.resource) + write(2, device.device_id.encode()) + topology


def _encoded_claim(claim: DynamicResource) -> bytes:
    devices = (write(4, _encoded_claim_device(device)) for device in claim.devices)
    return b"".join([write_text(2, claim.claim_name), write_text(3, claim.claim_namespace), *devices])


def _encoded_claim_device(device: ClaimDevice) -> bytes:
    names = (write(1, write_text(1, name)) for name in device.cdi_devices)
    identity = (write_text(2, device.driver), write_text(3, device.pool), write_text(4, device.name))
    return b"".join([*names, *identity, write_text(5, device.share_id)])


def _by_node(devices: Iterable[AllocatableDevice]) -> Iterable[ContainerDevices]:
    for device in devices:
        for node in (None,) if device.nodes is None else device.nodes:
            yield ContainerDevices(device.resource, device.device_id, node)


def _without_nodes(pod: PodResources) -> PodResources:
    """As in v1alpha1, which has neither NUMA nodes nor claims."""
    containers = (
        ContainerResources(container.name, tuple(replace(device, numa=None) for device in container.devices))
        for container in pod.containers
    )
    return replace(pod, containers=tuple(containers))


class PodResourcesClient:
    """Calls a kubelet; `timeout` is in seconds, pods come in the order they are sent."""

    def __init__(self, connection: transport.Connection) -> None:
        self._connection = connection

    async def held_devices(self, timeout: float | None = None) -> list[HeldDevice]:
        """Every device of active pods, sorted."""
        return held_in(await self.pods(timeout))

    async def held_claims(self, timeout: float | None = None) -> list[HeldClaimDevice]:
        """Every device of active pods by ResourceClaims, sorted."""
        return sorted(
            {
                HeldClaimDevice(
                    *(device.driver, device.pool, device.name, claim.claim_namespace, claim.claim_name),
                    *(pod.name, container.name, device.share_id),
                )
                for pod in await self.pods(timeout)
                for container in pod.containers
                for claim in container.claims
                for device in claim.devices
            }
        )

    async def pods(self, timeout: float | None = None) -> list[PodResources]:
        """Every active pod, those without devices too."""
        return await self._connection.call(_LIST, b"", decode_pods, timeout)

    async def pod(self, name: str, namespace: str, timeout: float | None = None) -> PodResources:
        request = write_text(1, name) + write_text(2, namespace)
        return await self._connection.call(_GET, request, _decode_one_pod, timeout)

    async def allocatable(self, timeout: float | None = None) -> list[AllocatableDevice]:
        """Every healthy device, sorted."""
        devices = await self._connection.call(_ALLOCATABLE, b"", _decode_devices, timeout)
        listed = sorted(devices, key=_resource_and_id)
        return [_to_allocatable(*key, items) for key, items in groupby(listed, _resource_and_id)]

    async def alpha_pods(self, timeout: float | None = None) -> list[PodResources]:
        """Every pod the kubelet knows, through v1alpha1: no NUMA nodes."""
        return await self._connection.call(_ALPHA_LIST, b"", decode_pods, timeout)


def decode_pods(message: bytes) -> list[PodResources]:
    return [_pod(pod) for pod in wire_format.messages(wire_format.read(message), 1)]


def _decode_one_pod(message: bytes) -> PodResources:
    return _pod(wire_format.message(wire_format.read(message), 1) or {})


def _decode_devices(message: bytes) -> list[ContainerDevices]:
    return list(_devices(wire_format.messages(wire_format.read(message), 1)))


def _pod(pod: Fields) -> PodResources:
    containers = (
        ContainerResources(
            wire_format.text(container, 1),
            tuple(_devices(wire_format.messages(container, 2))),
            tuple(map(_claim, wire_format.messages(container, 5))),
        )
        for container in wire_format.messages(pod, 3)
    )
    return PodResources(wire_format.text(pod, 1), wire_format.text(pod, 2), tuple(containers))


def _claim(claim: Fields) -> DynamicResource:
    devices = (
        ClaimDevice(
            wire_format.text(device, 2),
            wire_format.text(device, 3),
            wire_format.text(device, 4),
            tuple(wire_format.text(name, 1) for name in wire_format.messages(device, 1)),
            wire_format.text(device, 5),
        )
        for device in wire_format.messages(claim, 4)
    )
    return DynamicResource(wire_format.text(claim, 3), wire_format.text(claim, 2), tuple(devices))


def _devices(items: Iterable[Fields]) -> Iterator[ContainerDevices]:
    for item in items:
        resource, topology = wire_format.text(item, 1), wire_format.message(item, 3) or {}
        nodes = [wire_format.integer(node, 1) for node in wire_format.messages(topology, 1)]
        for device_id in wire_format.texts(item, 2):
            for node in nodes or (None,):
                yield ContainerDevices(resource, device_id, node)


def _resource_and_id(device: ContainerDevices) -> tuple[str, str]:
    return device.resource, device.device_id


def _to_allocatable(resource: str, device_id: str, items: Iterable[ContainerDevices]) -> AllocatableDevice:
    nodes = tuple(sorted(item.numa for item in items if item.numa is not None))
    return AllocatableDevice(resource, device_id, nodes or None)


def held_in(pods: Iterable[PodResources]) -> list[HeldDevice]:
    """Every device of these pods, sorted."""
    return sorted(
        {
            HeldDevice(device.resource, device.device_id, pod.namespace, pod.name, container.name)
            for pod in pods
            for container in pod.containers
            for device in container.devices
        }
    )


async def held_devices(socket: Path, timeout: float) -> list[HeldDevice]:
    """Every device of active pods, by one call. Side effect: the kubelet frees ended pods' devices (6.4)."""
    async with connect(socket) as kubelet:
        return await kubelet.held_devices(timeout)


async def held_claims(socket: Path, timeout: float) -> list[HeldClaimDevice]:
    """Every device of active pods by ResourceClaims, by one question with the same effect."""
    async with connect(socket) as kubelet:
        return await kubelet.held_claims(timeout)


@asynccontextmanager
async def connect(socket: Path, limit: int = ANSWER_LIMIT) -> AsyncIterator[PodResourcesClient]:
    """`limit` is the largest accepted answer in bytes."""
    async with transport.connect(socket, limit) as connection:
        yield PodResourcesClient(connection)
