"""Our messages are those of protobuf: written byte for byte as it writes them, and read as it reads them."""

from collections.abc import Callable

import pytest
from google.protobuf.message import DecodeError, Message
from hypothesis import example, given
from hypothesis import strategies as st
from tests.proto import deviceplugin_v1beta1_pb2 as pb
from tests.proto import pluginregistration_v1_pb2 as watcher_pb

from plugwright.errors import MalformedMessage
from plugwright.model import Options, PreferenceRequest
from plugwright.protocol import messages, registration, wire_format
from plugwright.protocol.registration import PluginInfo, RegisterRequest

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=200)
id_lists = st.lists(texts, max_size=5)
options = st.builds(Options, pre_start=st.booleans(), preference=st.booleans())
sizes = st.integers(-(2**31), 2**31 - 1)


def listed(message: pb.ListAndWatchResponse) -> object:
    return [
        (
            device.ID,
            device.health,
            tuple(node.ID for node in device.topology.nodes) if device.HasField("topology") else None,
        )
        for device in message.devices
    ]


def response_of(message: pb.ContainerAllocateResponse) -> object:
    return (
        sorted(message.envs.items()),
        [(mount.host_path, mount.container_path, mount.read_only) for mount in message.mounts],
        [(node.host_path, node.container_path, node.permissions) for node in message.devices],
        sorted(message.annotations.items()),
        [device.name for device in message.cdi_devices],
    )


def our_response(data: bytes) -> object:
    response = messages.decode(data)
    return (
        list(response.env.items()),
        [(mount.host_path, mount.container_path, mount.read_only) for mount in response.mounts],
        [(node.host_path, node.container_path, node.permissions) for node in response.nodes],
        list(response.annotations.items()),
        list(response.cdi),
    )


# What each message means, read by protobuf and by us.
READERS: dict[type[Message], tuple[Callable[..., object], Callable[[bytes], object]]] = {
    pb.ListAndWatchResponse: (
        listed,
        lambda data: [(device.id, device.health, device.nodes) for device in messages.decode_devices(data)],
    ),
    pb.AllocateRequest: (
        lambda message: [list(container.devices_ids) for container in message.container_requests],
        messages.decode_allocate_request,
    ),
    pb.ContainerAllocateResponse: (response_of, our_response),
    pb.PreferredAllocationRequest: (
        lambda message: [
            (
                tuple(request.available_deviceIDs),
                tuple(request.must_include_deviceIDs),
                max(0, request.allocation_size),
            )
            for request in message.container_requests
        ],
        lambda data: [
            (request.available, request.required, request.size) for request in messages.decode_preference_requests(data)
        ],
    ),
    pb.DevicePluginOptions: (
        lambda message: Options(message.pre_start_required, message.get_preferred_allocation_available),
        messages.decode_options,
    ),
    pb.RegisterRequest: (
        lambda message: RegisterRequest(
            message.resource_name,
            message.endpoint,
            Options(message.options.pre_start_required, message.options.get_preferred_allocation_available),
            message.version,
        ),
        registration._decode_request,
    ),
    watcher_pb.PluginInfo: (
        lambda message: PluginInfo(message.name, message.type, message.endpoint, tuple(message.supported_versions)),
        registration._decode_info,
    ),
}


@given(st.lists(id_lists, max_size=3))
def test_requests_for_devices_are_written_as_protobuf_does(containers: list[list[str]]) -> None:
    requests = [pb.ContainerAllocateRequest(devices_ids=device_ids) for device_ids in containers]
    assert (
        messages.encode_allocate_request(containers)
        == pb.AllocateRequest(container_requests=requests).SerializeToString()
    )
    for device_ids in containers:
        assert (
            messages.encode_ids(device_ids) == pb.PreStartContainerRequest(devices_ids=device_ids).SerializeToString()
        )


@given(
    st.dictionaries(texts, texts, max_size=4),
    st.lists(st.tuples(texts, texts, st.booleans()), max_size=3),
    st.lists(st.tuples(texts, texts, texts), max_size=3),
    st.lists(texts, max_size=3),
)
def test_responses_are_written_as_protobuf_does(
    env: dict[str, str], mounts: list[tuple[str, str, bool]], nodes: list[tuple[str, str, str]], names: list[str]
) -> None:
    mount_messages = [pb.Mount(container_path=a, host_path=b, read_only=c) for a, b, c in mounts]
    node_messages = [pb.DeviceSpec(container_path=a, host_path=b, permissions=c) for a, b, c in nodes]
    message = pb.ContainerAllocateResponse(
        envs=env,
        mounts=mount_messages,
        devices=node_messages,
        annotations=env,
        cdi_devices=[pb.CDIDevice(name=name) for name in names],
    )
    answer = pb.AllocateResponse(container_responses=[message]).SerializeToString()
    [ours] = messages.decode_allocations(answer)
    assert pb.ContainerAllocateResponse.FromString(ours) == message
    if len(env) < 2:  # protobuf's order of a map is its own
        assert ours == message.SerializeToString()


@given(st.lists(st.tuples(id_lists, id_lists, sizes), max_size=3))
def test_preferences_are_written_as_protobuf_does(requests: list[tuple[list[str], list[str], int]]) -> None:
    expected = pb.PreferredAllocationRequest(
        container_requests=[
            pb.ContainerPreferredAllocationRequest(
                available_deviceIDs=available, must_include_deviceIDs=required, allocation_size=size
            )
            for available, required, size in requests
        ]
    )
    ours = [PreferenceRequest(tuple(available), tuple(required), size) for available, required, size in requests]
    assert messages.encode_preference_requests(ours) == expected.SerializeToString()


@given(texts, texts, texts, options, id_lists)
def test_registrations_are_written_as_protobuf_does(
    name: str, endpoint: str, version: str, supported: Options, versions: list[str]
) -> None:
    announced = pb.DevicePluginOptions(
        pre_start_required=supported.pre_start, get_preferred_allocation_available=supported.preference
    )
    register = pb.RegisterRequest(version=version, endpoint=endpoint, resource_name=name, options=announced)
    ours = RegisterRequest(name, endpoint, supported, version)
    assert registration._encode_request(ours) == register.SerializeToString()
    info = watcher_pb.PluginInfo(type="t", name=name, endpoint=endpoint, supported_versions=versions)
    assert registration._encode_info(PluginInfo(name, "t", endpoint, tuple(versions))) == info.SerializeToString()


def has_odd_pairs(data: bytes) -> bool:
    """A pair of a map with more than its two texts: protobuf for Python leaves it out, Go's takes it."""
    fields = wire_format.read(data)
    return any(is_odd(pair) for number in (1, 4) for pair in fields.get(number, ()) if isinstance(pair, bytes))


def is_odd(pair: bytes) -> bool:
    fields = wire_format.read(pair)
    texts = [(number, value) for number in (1, 2) for value in fields.get(number, ()) if isinstance(value, bytes)]
    return sum(len(wire_format.write(number, value)) for number, value in texts) != len(pair)


def pieces() -> st.SearchStrategy[bytes]:
    """Fields of every number and kind that a reader of these messages may meet, whole ones and others."""
    numbers = st.integers(1, 6)
    lengths = st.integers(0, 12)
    whole = st.builds(wire_format.write, numbers, st.binary(max_size=20))
    integers = st.builds(wire_format.write_integer, numbers, st.integers(-(2**63), 2**63 - 1))
    fixed = st.builds(
        lambda number, kind, data: bytes([number << 3 | kind]) + data[: 8 if kind == 1 else 4],
        numbers,
        st.sampled_from([1, 5]),
        st.binary(min_size=8, max_size=8),
    )
    broken = st.builds(lambda number, length: bytes([number << 3 | 2, length]), numbers, lengths)
    return st.lists(st.one_of(whole, integers, fixed, broken), max_size=5).map(b"".join)


def nested() -> st.SearchStrategy[bytes]:
    inner = st.one_of(pieces(), texts.map(str.encode))
    once = st.lists(st.builds(wire_format.write, st.integers(1, 5), inner), max_size=4).map(b"".join)
    twice = st.lists(st.builds(wire_format.write, st.integers(1, 3), once), max_size=3).map(b"".join)
    return st.one_of(pieces(), once, twice, st.binary(max_size=60))


@pytest.mark.parametrize("kind", READERS, ids=lambda kind: kind.DESCRIPTOR.name)
@given(data=nested())
@example(data=b"\x0a\x04\x0a\x01a\x12")  # a text that is cut off
@example(data=b"\x0a\x0c\x0a\x01a\x1a\x02\x0a\x00\x1a\x03\x0a\x01\x08")  # a message in two parts, the second cut off
@example(data=b"\x22\x02\x08\x01\x22\x02\x10\x01\x22\x00")  # a message in three parts
@example(data=b"\x22\x02\x0a\x02\x22\x02\x08\x01")  # in two, which only together are one
@example(data=b"\x0a\x05\x0a\x01a\x0a\x00")  # an id twice: the last one counts
@example(data=b"\x0a\x03\x0a\x01\xff")  # not UTF-8
@example(data=b"\x80\x80\x80\x80\x80\x80\x80\x80\x80\x80\x01")  # a tag that does not end
def test_any_bytes_mean_to_us_what_they_mean_to_protobuf(kind: type[Message], data: bytes) -> None:
    meaning, ours = READERS[kind]
    try:
        expected = meaning(kind.FromString(data))
    except DecodeError:
        with pytest.raises(MalformedMessage):
            ours(data)
        return
    try:
        found = ours(data)
    except MalformedMessage as error:
        if "which no message has" in str(error):
            return  # a group, which only protobuf skips
        raise
    assert found == expected or (kind is pb.ContainerAllocateResponse and has_odd_pairs(data))
