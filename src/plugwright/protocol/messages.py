"""Converts model values to messages of the device plugin API and back; field numbers as in deviceplugin_v1beta1.proto.

Messages to the kubelet are encoded from values of `model`, which reject invalid content. Messages from a plugin are
decoded into separate, unchecked values, because the kubelet passes on ids, paths and permissions unchanged.
"""

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

from plugwright.errors import ListTooLarge, MalformedMessage, PluginError
from plugwright.model import Allocation, Device, Options, PreferenceRequest
from plugwright.protocol import wire_format
from plugwright.protocol.transport import MESSAGE_LIMIT
from plugwright.protocol.wire_format import Fields, write, write_flag, write_integer, write_text

__all__ = [
    "AllocateResponse",
    "DeviceSpec",
    "ListedDevice",
    "MountSpec",
    "decode",
    "decode_allocate_request",
    "decode_allocations",
    "decode_devices",
    "decode_ids",
    "decode_options",
    "decode_preference_requests",
    "decode_preferences",
    "encode_allocate_request",
    "encode_allocations",
    "encode_devices",
    "encode_ids",
    "encode_options",
    "encode_preference_requests",
    "encode_preferences",
    "options_of",
]


_ID_TAG, _LONG = 0x0A, 0x80  # field 1; a length of more than one octet
_KEPT = 1024  # mounts and nodes: those of a driver's libraries, a hundred, are the same in every answer


class ListedDevice(NamedTuple):
    """A device of a plugin's list, unchecked; `nodes` is None if it has no topology at all."""

    id: str
    health: str
    nodes: tuple[int, ...] | None


class MountSpec(NamedTuple):
    host_path: str
    container_path: str
    read_only: bool


class DeviceSpec(NamedTuple):
    host_path: str
    container_path: str
    permissions: str


class AllocateResponse(NamedTuple):
    """A plugin's answer to Allocate for one container, unchecked."""

    env: Mapping[str, str]
    mounts: tuple[MountSpec, ...]
    nodes: tuple[DeviceSpec, ...]
    annotations: Mapping[str, str]
    cdi: tuple[str, ...]


def encode_devices(resource: str, devices: Sequence[Device]) -> bytes:
    """A ListAndWatchResponse; ListTooLarge if the kubelet would not accept it."""
    rests = {(device.health, device.numa): _after_id(device) for device in devices}
    message = b"".join(
        [write(1, write(1, device.id.encode()) + rests[device.health, device.numa]) for device in devices]
    )
    # "Unhealthy" is the longer word: an accepted list must still fit when every device is Unhealthy.
    size = len(message) + 3 * sum(device.healthy for device in devices)
    if size > MESSAGE_LIMIT:
        raise ListTooLarge(resource, len(devices), size, MESSAGE_LIMIT)
    return message


def _after_id(device: Device) -> bytes:
    # A topology message without nodes hides the device from GetAllocatableResources (6.11): none or at least one node.
    topology = b"".join(write(1, write_integer(1, node)) for node in device.numa)
    return write_text(2, device.health.value) + (write(3, topology) if topology else b"")


def decode_devices(message: bytes) -> list[ListedDevice]:
    """Of a ListAndWatchResponse. Devices differ in their ids, and in little else: the rest is read once."""
    rests: dict[bytes, tuple[str, tuple[int, ...] | None]] = {}
    listed = []
    for device in wire_format.read(message).get(1, ()):
        if not isinstance(device, bytes):
            continue
        end = 2 + device[1] if len(device) > 1 and device[0] == _ID_TAG and device[1] < _LONG else 0
        rest = rests.get(device[end:]) if end else None
        if rest is None:
            fields = wire_format.read(device)
            rest = wire_format.text(fields, 2), _nodes(wire_format.message(fields, 3))
            if len(fields.get(1, ())) != 1 or not end or end > len(device):  # not in the usual encoding
                listed.append(ListedDevice(wire_format.text(fields, 1), *rest))
                continue
            rests[device[end:]] = rest
        listed.append(ListedDevice(_decoded_text(device[2:end]), *rest))
    return listed


def _nodes(topology: Fields | None) -> tuple[int, ...] | None:
    if topology is None:
        return None
    return tuple(wire_format.integer(node, 1) for node in wire_format.messages(topology, 1))


def _decoded_text(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise MalformedMessage(f"device id must be UTF-8: {error.reason}") from None


def encode_options(options: Options) -> bytes:
    return write_flag(1, options.pre_start) + write_flag(2, options.preference)


def decode_options(message: bytes) -> Options:
    return options_of(wire_format.read(message))


def options_of(fields: Fields) -> Options:
    return Options(pre_start=wire_format.flag(fields, 1), preference=wire_format.flag(fields, 2))


def encode_ids(device_ids: Iterable[str]) -> bytes:
    """A list of ids alone, which several messages are."""
    return b"".join([write(1, device_id.encode()) for device_id in device_ids])


def decode_ids(message: bytes) -> list[str]:
    return wire_format.texts(wire_format.read(message), 1)


def encode_allocate_request(containers: Iterable[Iterable[str]]) -> bytes:
    return b"".join([write(1, encode_ids(device_ids)) for device_ids in containers])


def decode_allocate_request(message: bytes) -> list[list[str]]:
    return [wire_format.texts(container, 1) for container in wire_format.messages(wire_format.read(message), 1)]


def encode_allocations(allocations: Iterable[Allocation]) -> bytes:
    """The AllocateResponse; `PluginError` if it is larger than the kubelet accepts."""
    response = b"".join([write(1, _encoded(allocation)) for allocation in allocations])
    if len(response) > MESSAGE_LIMIT:
        raise PluginError(f"an allocation must have at most {MESSAGE_LIMIT} bytes for the kubelet, got {len(response)}")
    return response


def _encoded(response: "Allocation | AllocateResponse") -> bytes:
    parts = _encoded_map(1, response.env)
    parts += [_encoded_mount(mount.container_path, mount.host_path, mount.read_only) for mount in response.mounts]
    parts += [_encoded_node(node.container_path, node.host_path, node.permissions) for node in response.nodes]
    parts += _encoded_map(4, response.annotations)
    parts += [write(5, write_text(1, name)) for name in response.cdi]
    return b"".join(parts)


@lru_cache(_KEPT)
def _encoded_mount(container_path: str, host_path: str, read_only: bool) -> bytes:
    return write(2, write_text(1, container_path) + write_text(2, host_path) + write_flag(3, read_only))


@lru_cache(_KEPT)
def _encoded_node(container_path: str, host_path: str, permissions: str) -> bytes:
    return write(3, write_text(1, container_path) + write_text(2, host_path) + write_text(3, permissions))


def _encoded_map(number: int, texts: Mapping[str, str]) -> list[bytes]:
    return [write(number, write(1, name.encode()) + write(2, text.encode())) for name, text in texts.items()]


def decode_allocations(message: bytes) -> list[bytes]:
    """The ContainerAllocateResponses of an AllocateResponse, each as a kubelet keeps it: sorted, known fields only."""
    responses = wire_format.read(message).get(1, ())
    return [_encoded(decode(response)) for response in responses if isinstance(response, bytes)]


def decode(response: bytes) -> AllocateResponse:
    """Reads the ContainerAllocateResponse kept in a kubelet's checkpoint."""
    try:
        fields = wire_format.read(response)
        return AllocateResponse(
            env=_decoded_map(fields, 1),
            mounts=tuple(_mount(mount) for mount in fields.get(2, ()) if isinstance(mount, bytes)),
            nodes=tuple(_node(node) for node in fields.get(3, ()) if isinstance(node, bytes)),
            annotations=_decoded_map(fields, 4),
            cdi=tuple(wire_format.text(device, 1) for device in wire_format.messages(fields, 5)),
        )
    except MalformedMessage as error:
        raise MalformedMessage(f"not a ContainerAllocateResponse: {error}") from None


@lru_cache(_KEPT)
def _mount(message: bytes) -> MountSpec:
    fields = wire_format.read(message)
    return MountSpec(wire_format.text(fields, 2), wire_format.text(fields, 1), wire_format.flag(fields, 3))


@lru_cache(_KEPT)
def _node(message: bytes) -> DeviceSpec:
    fields = wire_format.read(message)
    return DeviceSpec(wire_format.text(fields, 2), wire_format.text(fields, 1), wire_format.text(fields, 3))


def _decoded_map(fields: Fields, number: int) -> dict[str, str]:
    pairs = wire_format.messages(fields, number)
    return dict(sorted({wire_format.text(pair, 1): wire_format.text(pair, 2) for pair in pairs}.items()))


def encode_preference_requests(requests: Iterable[PreferenceRequest]) -> bytes:
    return b"".join([write(1, _encoded_preference_request(request)) for request in requests])


def _encoded_preference_request(request: PreferenceRequest) -> bytes:
    available = [write(1, device_id.encode()) for device_id in request.available]
    required = [write(2, device_id.encode()) for device_id in request.required]
    return b"".join([*available, *required, write_integer(3, request.size)])


def decode_preference_requests(message: bytes) -> list[PreferenceRequest]:
    return [
        PreferenceRequest(
            tuple(wire_format.texts(request, 1)),
            tuple(wire_format.texts(request, 2)),
            max(0, _of_32_bits(wire_format.integer(request, 3))),
        )
        for request in wire_format.messages(wire_format.read(message), 1)
    ]


def _of_32_bits(value: int) -> int:
    return (value + 2**31) % 2**32 - 2**31


def encode_preferences(preferences: Iterable[Iterable[str]]) -> bytes:
    return b"".join([write(1, encode_ids(device_ids)) for device_ids in preferences])


def decode_preferences(message: bytes) -> list[list[str]]:
    return decode_allocate_request(message)  # the same shape
