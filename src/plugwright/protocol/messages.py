"""Model values to protobuf messages and back.

Towards the kubelet, values of `model` are encoded, which refuse what could never work. What comes from a plugin is
decoded into values of its own, unchecked: the kubelet passes ids, paths and permissions on as they are.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from google.protobuf.message import DecodeError

from plugwright.errors import ListTooLarge, MalformedMessage, PluginError
from plugwright.model import Allocation, Device, Options, PreferenceRequest
from plugwright.protocol.deviceplugin.v1beta1 import deviceplugin_pb2 as pb
from plugwright.protocol.transport import MESSAGE_LIMIT

__all__ = [
    "AllocateResponse",
    "DeviceSpec",
    "ListedDevice",
    "MountSpec",
    "decode",
    "encode_allocations",
    "encode_devices",
    "from_options",
    "from_preference_requests",
    "from_preferences",
    "to_listed",
    "to_options",
    "to_preference_requests",
]


@dataclass(frozen=True, slots=True)
class ListedDevice:
    """A device of a plugin's list, unchecked; `nodes` is None where it has no topology at all."""

    id: str
    health: str
    nodes: tuple[int, ...] | None


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
    """A plugin's answer to Allocate for one container, unchecked."""

    env: Mapping[str, str]
    mounts: tuple[MountSpec, ...]
    nodes: tuple[DeviceSpec, ...]
    annotations: Mapping[str, str]
    cdi: tuple[str, ...]


def encode_devices(resource: str, devices: Sequence[Device]) -> bytes:
    """A ListAndWatchResponse; ListTooLarge where the kubelet would not take it."""
    message = pb.ListAndWatchResponse(devices=map(_from_device, devices)).SerializeToString()
    # "Unhealthy" is the longer word: a list that is accepted must be able to say so of every device.
    size = len(message) + 3 * sum(device.healthy for device in devices)
    if size > MESSAGE_LIMIT:
        raise ListTooLarge(resource, len(devices), size, MESSAGE_LIMIT)
    return message


def _from_device(device: Device) -> pb.Device:
    # A topology message without nodes hides the device from GetAllocatableResources (6.11): none or at least one node.
    topology = pb.TopologyInfo(nodes=[pb.NUMANode(ID=node) for node in device.numa]) if device.numa else None
    return pb.Device(ID=device.id, health=device.health.value, topology=topology)


def to_listed(message: pb.ListAndWatchResponse) -> list[ListedDevice]:
    return [
        ListedDevice(
            device.ID,
            device.health,
            tuple(node.ID for node in device.topology.nodes) if device.HasField("topology") else None,
        )
        for device in message.devices
    ]


def from_options(options: Options) -> pb.DevicePluginOptions:
    return pb.DevicePluginOptions(
        pre_start_required=options.pre_start, get_preferred_allocation_available=options.preference
    )


def to_options(message: pb.DevicePluginOptions) -> Options:
    return Options(pre_start=message.pre_start_required, preference=message.get_preferred_allocation_available)


def encode_allocations(allocations: Iterable[Allocation]) -> bytes:
    """The AllocateResponse; `PluginError` if it is larger than the kubelet accepts."""
    response = pb.AllocateResponse(container_responses=map(_from_allocation, allocations)).SerializeToString()
    if len(response) > MESSAGE_LIMIT:
        raise PluginError(f"an allocation must have at most {MESSAGE_LIMIT} bytes for the kubelet, got {len(response)}")
    return response


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


def decode(response: bytes) -> AllocateResponse:
    """Reads the ContainerAllocateResponse that a kubelet keeps in its checkpoint."""
    try:
        message = pb.ContainerAllocateResponse.FromString(response)
    except DecodeError as error:
        raise MalformedMessage(f"not a ContainerAllocateResponse: {error}") from error
    return AllocateResponse(
        env=dict(sorted(message.envs.items())),
        mounts=tuple(MountSpec(mount.host_path, mount.container_path, mount.read_only) for mount in message.mounts),
        nodes=tuple(DeviceSpec(node.host_path, node.container_path, node.permissions) for node in message.devices),
        annotations=dict(sorted(message.annotations.items())),
        cdi=tuple(device.name for device in message.cdi_devices),
    )


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
            tuple(request.available_deviceIDs), tuple(request.must_include_deviceIDs), max(0, request.allocation_size)
        )
        for request in message.container_requests
    ]


def from_preferences(preferences: Iterable[Sequence[str]]) -> pb.PreferredAllocationResponse:
    return pb.PreferredAllocationResponse(
        container_responses=[pb.ContainerPreferredAllocationResponse(deviceIDs=ids) for ids in preferences]
    )
