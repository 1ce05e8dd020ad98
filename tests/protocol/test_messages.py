"""Model values to messages and back; the bytes below were written by hand from the field numbers of the API."""

from contextlib import suppress

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.proto import deviceplugin_v1beta1_pb2 as pb
from tests.proto import pluginregistration_v1_pb2 as watcher_pb
from tests.protocol.allocations import decode_allocation, encode_allocation

from plugwright.errors import InvalidValue, ListTooLarge, MalformedMessage, PluginError
from plugwright.model import Allocation, Device, DeviceNode, Health, Mount, Options, PreferenceRequest
from plugwright.protocol import messages, transport
from plugwright.protocol.messages import ListedDevice

steady = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])  # however busy the machine is

PRINTABLE = st.characters(exclude_categories=("C", "Z"))
IDS = st.text(PRINTABLE, min_size=1, max_size=63).filter(str.isprintable)
TEXTS = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=20)
NAMES = TEXTS.filter(lambda text: text != "" and "=" not in text)
PATHS = st.text(PRINTABLE, max_size=20).filter(str.isprintable).map("/{}".format).filter(lambda path: ".." not in path)
NODES = st.lists(st.integers(0, 1023), max_size=4)
DEVICES = st.builds(Device, IDS, st.sampled_from(Health), st.just(""), NODES)
MOUNTS = st.lists(
    st.builds(Mount, PATHS, PATHS, st.booleans()), max_size=3, unique_by=lambda mount: mount.container_path
)
DEVICE_NODES = st.lists(
    st.builds(DeviceNode, PATHS, PATHS, st.sampled_from(["r", "rw", "rwm"])),
    max_size=3,
    unique_by=lambda node: node.container_path,
)
ALLOCATIONS = st.builds(
    Allocation,
    st.dictionaries(NAMES, TEXTS, max_size=3),
    MOUNTS,
    DEVICE_NODES,
    st.dictionaries(IDS, TEXTS, max_size=3),
    st.lists(st.from_regex(r"\Av[a-z0-9]{0,9}/[a-z]{1,9}=[a-z0-9]{1,9}\Z"), max_size=3),
)


def test_a_device_on_a_numa_node_is_written_as_the_kubelet_reads_it() -> None:
    listed = messages.encode_devices("a/b", [Device("a", numa=[1])])
    assert listed == b"\x0a\x12\x0a\x01a\x12\x07Healthy\x1a\x04\x0a\x02\x08\x01"


def test_numa_node_zero_is_a_node_although_zeros_are_not_written() -> None:
    listed = messages.encode_devices("a/b", [Device("a", "Unhealthy", numa=[0])])
    assert listed == b"\x0a\x12\x0a\x01a\x12\x09Unhealthy\x1a\x02\x0a\x00"
    assert messages.decode_devices(listed) == [ListedDevice("a", "Unhealthy", (0,))]


@pytest.mark.parametrize("numa", [[], [-1]])
def test_a_device_on_no_numa_node_carries_no_topology_message(numa: list[int]) -> None:
    assert messages.encode_devices("a/b", [Device("a", numa=numa)]) == b"\x0a\x0c\x0a\x01a\x12\x07Healthy"


def test_reasons_and_attributes_are_not_sent() -> None:
    sent = messages.encode_devices("a/b", [Device("a", "Unhealthy", "secret", attributes={"serial": "secret"})])
    assert sent == messages.encode_devices("a/b", [Device("a", "Unhealthy")])


def test_numa_node_minus_one_of_a_peer_is_passed_on() -> None:
    message = b"\x0a\x1b\x0a\x01a\x12\x07Healthy\x1a\x0d\x0a\x0b\x08" + b"\xff" * 9 + b"\x01"
    assert messages.decode_devices(message) == [ListedDevice("a", "Healthy", (-1,))]


def test_an_empty_list_is_an_empty_message() -> None:
    assert messages.encode_devices("a/b", []) == b""


@steady
@given(st.lists(DEVICES, max_size=8))
def test_encoded_devices_are_decoded_unchanged(devices: list[Device]) -> None:
    listed = messages.encode_devices("a/b", devices)
    expected = [ListedDevice(device.id, device.health, device.numa or None) for device in devices]
    assert messages.decode_devices(listed) == expected


def test_a_list_of_exactly_4_mib_is_sent_and_one_byte_more_is_not() -> None:
    devices = [Device(f"{number:063}", "Unhealthy") for number in range(53_772)]  # 78 bytes each, and 88 are left
    devices.append(Device("a" * 29, "Unhealthy"))
    assert len(messages.encode_devices("a/b", [*devices, Device("b" * 29, "Unhealthy")])) == transport.MESSAGE_LIMIT
    with pytest.raises(ListTooLarge, match="a/b lists 53774 devices in 4194305 bytes, the kubelet accepts 4194304"):
        messages.encode_devices("a/b", [*devices, Device("b" * 30, "Unhealthy")])


def test_a_list_that_could_not_turn_unhealthy_is_refused() -> None:
    with pytest.raises(ListTooLarge):
        messages.encode_devices("a/b", [Device(f"{number:063}") for number in range(53_800)])


def test_an_allocation_is_written_as_the_kubelet_reads_it() -> None:
    allocation = Allocation(
        env={"A": "B"},
        mounts=[Mount("/h", "/c", read_only=True)],
        nodes=[DeviceNode("/d", "/e", "rw")],
        annotations={"k": "v"},
        cdi=["v/c=d"],
    )
    written = (
        b"\x0a\x06\x0a\x01A\x12\x01B"
        b"\x12\x0a\x0a\x02/c\x12\x02/h\x18\x01"
        b"\x1a\x0c\x0a\x02/e\x12\x02/d\x1a\x02rw"
        b"\x22\x06\x0a\x01k\x12\x01v"
        b"\x2a\x07\x0a\x05v/c=d"
    )
    assert encode_allocation(allocation) == written
    assert decode_allocation(written) == allocation
    answer = messages.encode_allocations([allocation, Allocation()])
    assert answer == b"\x0a" + bytes([len(written)]) + written + b"\x0a\x00"


@steady
@given(ALLOCATIONS)
def test_an_encoded_allocation_is_decoded_unchanged(allocation: Allocation) -> None:
    assert decode_allocation(encode_allocation(allocation)) == allocation


@settings(steady, max_examples=30)  # each allocation is tried alone above
@given(st.lists(ALLOCATIONS, max_size=3))
def test_answers_keep_their_number_and_order(allocations: list[Allocation]) -> None:
    responses = pb.AllocateResponse.FromString(messages.encode_allocations(allocations)).container_responses
    assert [decode_allocation(response.SerializeToString()) for response in responses] == allocations


def test_an_answer_of_more_than_4_mib_is_not_sent() -> None:
    half = Allocation(env={"A": "x" * (transport.MESSAGE_LIMIT // 2)})
    assert len(messages.encode_allocations([half])) > transport.MESSAGE_LIMIT // 2
    with pytest.raises(
        PluginError, match=r"an allocation must have at most 4194304 bytes for the kubelet, got 41943\d\d"
    ):
        messages.encode_allocations([half, half])


@pytest.mark.parametrize("answer", [b"\x0a", b"\x0a\x05A", b"\xff\xff", b"\x0a\x03\x0a\x01\xff"])
def test_bytes_that_are_no_response_are_the_peers_fault(answer: bytes) -> None:
    with pytest.raises(MalformedMessage, match="not a ContainerAllocateResponse"):
        decode_allocation(answer)


@steady
@given(st.binary(max_size=40))
def test_any_bytes_are_decoded_or_raise_an_error_of_ours(answer: bytes) -> None:
    with suppress(MalformedMessage, InvalidValue):
        decode_allocation(answer)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (Options(), b""),
        (Options(pre_start=True), b"\x08\x01"),
        (Options(preference=True), b"\x10\x01"),
        (Options(pre_start=True, preference=True), b"\x08\x01\x10\x01"),
    ],
)
def test_options_are_written_as_the_kubelet_reads_them(options: Options, message: bytes) -> None:
    assert messages.encode_options(options) == message
    assert messages.decode_options(message) == options


def test_a_preference_request_is_read_as_the_kubelet_writes_it() -> None:
    message = b"\x0a\x0d\x0a\x02g0\x0a\x02g1\x12\x01g\x18\x02" + b"\x0a\x00"
    requests = [PreferenceRequest(("g0", "g1"), ("g",), 2), PreferenceRequest((), (), 0)]
    assert messages.decode_preference_requests(message) == requests
    assert messages.encode_preference_requests(requests) == message


def test_a_negative_size_asks_for_nothing() -> None:
    message = b"\x0a\x0b\x18" + b"\xff" * 9 + b"\x01"
    assert messages.decode_preference_requests(message) == [PreferenceRequest((), (), 0)]


def test_preferences_keep_their_order() -> None:
    assert messages.encode_preferences([["g1", "g0"], []]) == b"\x0a\x08\x0a\x02g1\x0a\x02g0" + b"\x0a\x00"


def test_the_messages_of_both_registrations_have_the_numbers_of_the_api() -> None:
    options = pb.DevicePluginOptions(pre_start_required=True)
    register = pb.RegisterRequest(version="v1beta1", endpoint="s", resource_name="a/b", options=options)
    assert register.SerializeToString() == b"\x0a\x07v1beta1\x12\x01s\x1a\x03a/b\x22\x02\x08\x01"
    info = watcher_pb.PluginInfo(type="DevicePlugin", name="a/b", endpoint="/s", supported_versions=["v1beta1"])
    assert info.SerializeToString() == b"\x0a\x0cDevicePlugin\x12\x03a/b\x1a\x02/s\x22\x07v1beta1"
    status = watcher_pb.RegistrationStatus(plugin_registered=True, error="no")
    assert status.SerializeToString() == b"\x08\x01\x12\x02no"


def test_the_requests_for_devices_have_the_numbers_of_the_api() -> None:
    allocate = pb.AllocateRequest(container_requests=[pb.ContainerAllocateRequest(devices_ids=["a", "b"])])
    assert allocate.SerializeToString() == b"\x0a\x06\x0a\x01a\x0a\x01b"
    assert pb.PreStartContainerRequest(devices_ids=["a"]).SerializeToString() == b"\x0a\x01a"
    assert pb.PreStartContainerResponse().SerializeToString() == b""
