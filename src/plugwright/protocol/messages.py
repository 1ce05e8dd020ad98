"""Model values to messages and back.

A plugin's answer to Allocate as the kubelet keeps it: bytes to values, nothing checked.

The kubelet passes paths and permissions on to the runtime as they are, so `model`'s values, which refuse what
could never work, would lose what a plugin really said.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from google.protobuf.message import DecodeError

from plugwright.errors import ListTooLarge, MalformedMessage, PluginError
from plugwright.model import Allocation, Device, DeviceNode, Mount, Options, PreferenceRequest
from plugwright.protocol.deviceplugin.v1beta1 import deviceplugin_pb2 as pb
from plugwright.protocol.transport import MESSAGE_LIMIT

__all__ = [
    "AllocateResponse",
    "DeviceList",
    "DeviceSpec",
    "ListedDevice",
    "MountSpec",
    "decode",
    "decode_allocation",
    "encode_allocation",
    "encode_devices",
    "from_allocations",
    "from_options",
    "from_preference_requests",
    "from_preferences",
    "to_allocation",
    "to_allocations",
    "to_devices",
    "to_listed",
    "to_options",
    "to_preference_requests",
]


@dataclass(frozen=True, slots=True)
class DeviceList:
    """A list encoded once, however many streams it goes to."""

    count: int
    message: bytes


@dataclass(frozen=True, slots=True)
class ListedDevice:
    """A device as a plugin lists it, unchecked; `nodes` is None where it sent no topology at all."""

    id: str
    health: str
    nodes: tuple[int, ...] | None


def encode_devices(resource: str, devices: Sequence[Device]) -> DeviceList:
    message = pb.ListAndWatchResponse(devices=map(_from_device, devices)).SerializeToString()
    # "Unhealthy" is the longer word: a list that is taken must be able to say so of every device.
    size = len(message) + 3 * sum(device.healthy for device in devices)
    if size > MESSAGE_LIMIT:
        raise ListTooLarge(resource, len(devices), size, MESSAGE_LIMIT)
    return DeviceList(len(devices), message)


def _from_device(device: Device) -> pb.Device:
    # A topology message without nodes hides the device from GetAllocatableResources: none or at least one node.
    topology = pb.TopologyInfo(nodes=[pb.NUMANode(ID=node) for node in device.numa]) if device.numa else None
    return pb.Device(ID=device.id, health=device.health.value, topology=topology)


def to_devices(message: pb.ListAndWatchResponse) -> list[Device]:
    return [Device(each.ID, each.health, numa=[node.ID for node in each.topology.nodes]) for each in message.devices]


def to_listed(message: pb.ListAndWatchResponse) -> list[ListedDevice]:
    return [
        ListedDevice(
            each.ID, each.health, tuple(node.ID for node in each.topology.nodes) if each.HasField("topology") else None
        )
        for each in message.devices
    ]


def from_options(options: Options) -> pb.DevicePluginOptions:
    return pb.DevicePluginOptions(
        pre_start_required=options.pre_start, get_preferred_allocation_available=options.preference
    )


def to_options(message: pb.DevicePluginOptions) -> Options:
    return Options(pre_start=message.pre_start_required, preference=message.get_preferred_allocation_available)


def from_allocations(allocations: Iterable[Allocation]) -> pb.AllocateResponse:
    answer = pb.AllocateResponse(container_responses=map(_from_allocation, allocations))
    if answer.ByteSize() > MESSAGE_LIMIT:
        raise PluginError(f"an allocation of {answer.ByteSize()} bytes, the kubelet takes {MESSAGE_LIMIT}")
    return answer


def _from_allocation(allocation: Allocation) -> pb.ContainerAllocateResponse:
    return pb.ContainerAllocateResponse(
        envs=allocation.env,
        mounts=[
            pb.Mount(container_path=mount.container_path, host_path=mount.host_path, read_only=mount.read_only)
            for mount in allocation.mounts
        ],
        devices=[
            pb.DeviceSpec(container_path=node.container_path, host_path=node.host_path, permissions=node.permissions)
            for node in allocation.nodes
        ],
        annotations=allocation.annotations,
        cdi_devices=[pb.CDIDevice(name=name) for name in allocation.cdi],
    )


def to_allocations(message: pb.AllocateResponse) -> list[Allocation]:
    return [to_allocation(each) for each in message.container_responses]


def to_allocation(message: pb.ContainerAllocateResponse) -> Allocation:
    return Allocation(
        env=dict(message.envs),
        mounts=[Mount(mount.host_path, mount.container_path, mount.read_only) for mount in message.mounts],
        nodes=[DeviceNode(node.host_path, node.container_path, node.permissions) for node in message.devices],
        annotations=dict(message.annotations),
        cdi=[device.name for device in message.cdi_devices],
    )


def encode_allocation(allocation: Allocation) -> bytes:
    """One container's answer as the kubelet's checkpoint keeps it, the same bytes for the same answer."""
    return _from_allocation(allocation).SerializeToString(deterministic=True)


def decode_allocation(answer: bytes) -> Allocation:
    try:
        return to_allocation(pb.ContainerAllocateResponse.FromString(answer))
    except DecodeError as error:
        raise MalformedMessage(f"stored answer: {error}") from error


def from_preference_requests(requests: Iterable[PreferenceRequest]) -> pb.PreferredAllocationRequest:
    return pb.PreferredAllocationRequest(
        container_requests=[
            pb.ContainerPreferredAllocationRequest(
                available_deviceIDs=request.available,
                must_include_deviceIDs=request.required,
                allocation_size=request.size,
            )
            for request in requests
        ]
    )


def to_preference_requests(message: pb.PreferredAllocationRequest) -> list[PreferenceRequest]:
    return [
        PreferenceRequest(
            tuple(each.available_deviceIDs), tuple(each.must_include_deviceIDs), max(0, each.allocation_size)
        )
        for each in message.container_requests
    ]


def from_preferences(preferences: Iterable[Sequence[str]]) -> pb.PreferredAllocationResponse:
    return pb.PreferredAllocationResponse(
        container_responses=[pb.ContainerPreferredAllocationResponse(deviceIDs=ids) for ids in preferences]
    )


@dataclass(frozen=True, slots=True)
class MountSpec:
    host_path: str
    container_path: str
    read_only: bool


@dataclass(frozen=True, slots=True)
class DeviceSpec:
    host_path: str
    container_path: str
    permissions: str


@dataclass(frozen=True, slots=True)
class AllocateResponse:
    """What one plugin gives one container."""

    env: Mapping[str, str]
    mounts: tuple[MountSpec, ...]
    nodes: tuple[DeviceSpec, ...]
    annotations: Mapping[str, str]
    cdi: tuple[str, ...]


def decode(answer: bytes) -> AllocateResponse:
    try:
        message = pb.ContainerAllocateResponse.FromString(answer)
    except DecodeError as error:
        raise MalformedMessage(f"not a plugin's answer: {error}") from error
    return AllocateResponse(
        env=dict(sorted(message.envs.items())),
        mounts=tuple(MountSpec(each.host_path, each.container_path, each.read_only) for each in message.mounts),
        nodes=tuple(DeviceSpec(each.host_path, each.container_path, each.permissions) for each in message.devices),
        annotations=dict(sorted(message.annotations.items())),
        cdi=tuple(each.name for each in message.cdi_devices),
    )
