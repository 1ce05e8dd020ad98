"""Values are checked where they are made: one that exists can be sent."""

import os
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from random import Random
from types import MappingProxyType

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from plugwright.errors import InvalidValue
from plugwright.model import Allocation, Device, DeviceNode, Health, Mount, Options, Resource, natural_order
from plugwright.text import clean

steady = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])  # however busy the machine is

LONGEST_DOMAIN = "a" * 244
BAD_IDS = ["", "x" * 64, "st 0", " st0", "st0\n", "st\t0", "st\x000", "st\x7f", "st\u00a00", "st\u200b", "\udcff"]
NOT_IDS = [None, 0, b"st0", ["st0"]]
GOOD_IDS = ["0", "x" * 63, "GPU-8dcd6dcf-c8ee-4bd1", "0000:3b:00.0", "usb/1-1.4", "straße", "日本"]


def taken(values: Iterable[object], make: Callable[..., object]) -> list[object]:
    """Those of `values` that are not refused."""
    return [value for value in values if not _is_refused(make, value)]


def _is_refused(make: Callable[..., object], value: object) -> bool:
    try:
        make(value)
    except InvalidValue:
        return True
    return False


def test_an_id_that_can_be_printed_is_taken() -> None:
    assert [Device(device_id).id for device_id in GOOD_IDS] == GOOD_IDS


def test_an_id_that_a_reader_cannot_tell_apart_is_refused() -> None:
    assert taken([*BAD_IDS, *NOT_IDS], Device) == []


def test_an_id_that_is_too_long_is_refused_with_its_length() -> None:
    with pytest.raises(InvalidValue, match="must have at most 63 characters, got 64"):
        Device("x" * 64)


def test_a_device_is_healthy_unless_told() -> None:
    assert Device("st0").healthy
    assert not Device("st0", Health.UNHEALTHY).healthy
    assert Device("st0", "Unhealthy").health is Health.UNHEALTHY


def test_health_has_two_words_and_their_case_matters() -> None:
    assert taken(["healthy", "HEALTHY", "", "Unknown", None, True], partial(Device, "st0")) == []
    with pytest.raises(InvalidValue, match="health of 'st0' must be 'Healthy' or 'Unhealthy', got 'ok'"):
        Device("st0", "ok")


def test_a_device_becomes_unhealthy_and_keeps_everything_else() -> None:
    broken = Device("st0", numa=[1], attributes={"model": "T1"}).unhealthy("no tape")
    assert broken == Device("st0", "Unhealthy", "no tape", [1], {"model": "T1"})


def test_numa_nodes_are_sorted_and_minus_one_means_none() -> None:
    given_nodes = [[-1], [0], [3, 1, 3, -1], (), range(2)]
    assert [Device("st0", numa=nodes).numa for nodes in given_nodes] == [(), (0,), (1, 3), (), (0, 1)]


def test_a_numa_node_is_a_whole_number() -> None:
    wrong: list[object] = [[True], [False, 1], ["0"], "0", [0.0], [None]]
    assert taken(wrong, lambda nodes: Device("st0", numa=nodes)) == []


@pytest.mark.parametrize("node", [-2, 1024, 99_999_999_999, 2**63])
def test_a_numa_node_that_no_machine_has_is_refused(node: int) -> None:
    with pytest.raises(InvalidValue, match=f"from 0 to 1023, or -1 for none, got {node}"):
        Device("st0", numa=[node])


def test_a_device_that_is_unhealthy_for_no_reason_says_so() -> None:
    assert Device("st0").unhealthy("").reason == "no reason given"


def test_paths_of_pathlib_are_paths() -> None:
    path = Path("/dev/st0")
    allocation = Allocation(nodes=[path, DeviceNode(path, Path("/dev/tape"))], mounts=[path, Mount(path, "/tape")])
    assert [(node.host_path, node.container_path) for node in allocation.nodes] == [
        ("/dev/st0", "/dev/st0"),
        ("/dev/st0", "/dev/tape"),
    ]
    assert [(mount.host_path, mount.container_path) for mount in allocation.mounts] == [
        ("/dev/st0", "/dev/st0"),
        ("/dev/st0", "/tape"),
    ]


def test_an_annotation_name_with_a_space_is_refused() -> None:
    with pytest.raises(InvalidValue, match=r"annotation name must have no spaces .*, got 'a b'"):
        Allocation(annotations={"a b": "c"})


def test_a_device_cannot_be_changed() -> None:
    device = Device("st0", attributes={"model": "T1"})
    with pytest.raises(AttributeError, match="cannot be changed"):
        device.id = "st1"  # type: ignore[misc]
    with pytest.raises(TypeError):
        device.attributes["model"] = "T2"  # type: ignore[index]


def test_attributes_are_copied_and_count_for_equality_but_not_for_the_hash() -> None:
    attributes = {"links": ["st1"]}
    device = Device("st0", attributes=attributes)
    attributes["links"] = []
    assert device == Device("st0", attributes=MappingProxyType({"links": ["st1"]}))
    assert device != Device("st0")
    assert hash(device) == hash(Device("st0"))
    assert {device, Device("st0"), Device("st0")} == {device, Device("st0")}


def test_allocations_cannot_be_changed_and_can_be_keys() -> None:
    allocation = Allocation(env={"A": "1"}, mounts=["/a"], nodes=["/dev/a"], annotations={"k": "v"}, cdi=["v.com/c=d"])
    assert {allocation: 1}[Allocation({"A": "1"}, ["/a"], ["/dev/a"], {"k": "v"}, ["v.com/c=d"])] == 1
    with pytest.raises(AttributeError, match="cannot be changed"):
        allocation.cdi = ()  # type: ignore[misc]
    with pytest.raises(TypeError):
        allocation.env["A"] = "2"  # type: ignore[index]


def test_a_path_stands_for_the_same_path_inside() -> None:
    allocation = Allocation(mounts=["/opt/tape"], nodes=["/dev/st0", DeviceNode("/dev/st1", "/dev/tape", "r")])
    assert allocation.mounts == (Mount("/opt/tape", "/opt/tape", read_only=False),)
    assert allocation.nodes == (DeviceNode("/dev/st0", "/dev/st0", "rw"), DeviceNode("/dev/st1", "/dev/tape", "r"))


BAD_PATHS = ["dev/st0", "./st0", "/dev/../st0", "/..", "/dev/st\n0", "/dev/\x00"]


def test_a_path_is_absolute_and_goes_straight_on() -> None:
    assert taken([*BAD_PATHS, "", None, 3], Mount) == taken([*BAD_PATHS, "", None, 3], DeviceNode) == []
    with pytest.raises(InvalidValue, match="mount's host path must be absolute, got 'st0'"):
        Mount("st0")


def test_a_path_inside_is_held_to_the_same_rules() -> None:
    assert taken(BAD_PATHS, partial(Mount, "/dev/st0")) == taken(BAD_PATHS, partial(DeviceNode, "/dev/st0")) == []
    with pytest.raises(InvalidValue, match="device node's container path must be absolute, got 'st0'"):
        DeviceNode("/dev/st0", "st0")


def test_an_odd_path_that_works_is_taken() -> None:
    odd = ["/", "/dev/st 0", "/dev/..st0", "/dev/st0..", "/dev/bänd"]
    assert [Mount(path).host_path for path in odd] == [DeviceNode(path).container_path for path in odd] == odd


def test_permissions_are_letters_of_rwm() -> None:
    def allowed(letters: str) -> DeviceNode:
        return DeviceNode("/dev/st0", permissions=letters)

    for letters in ["r", "w", "m", "rw", "wr", "rwm", "mrw"]:
        assert allowed(letters).permissions == letters
    assert taken(["", "x", "rr", "rwmr", "RW", "r w", "rw\n"], allowed) == []


def test_an_env_that_no_process_can_have_is_refused() -> None:
    wrong: list[object] = [{"A=B": "1"}, {"=": ""}, {"": "1"}, {"A\0": "1"}, {"A": "\0"}, {"A": 1}, {1: "A"}]
    assert taken(wrong, Allocation) == []


def test_an_annotation_is_a_text_under_a_name() -> None:
    wrong: list[object] = [{"": "1"}, {"a\0": ""}, {"a": "\0"}, {"a": None}, {None: "a"}]
    assert taken(wrong, lambda annotations: Allocation(annotations=annotations)) == []


def test_odd_texts_that_work_are_taken() -> None:
    allocation = Allocation(env={"a.b": "", "A": "x=y\nz"}, annotations={"k=v": "日本"})
    assert (dict(allocation.env), dict(allocation.annotations)) == ({"A": "x=y\nz", "a.b": ""}, {"k=v": "日本"})


GOOD_CDI = ["nvidia.com/gpu=0", "v/c=d", "V1.a_b-c/C_d-1=0:1.2_x-y", "vendor.com/net=eth0.1", "a1/b2=3"]
BAD_CDI = ["", "gpu0", "nvidia.com/gpu", "nvidia.com/gpu=", "/gpu=0", "nvidia.com/=0", "nvidia.com=0", "1v.com/c=d"]
BAD_CDI += [
    "v.com/1c=d",
    "v-/c=d",
    "v.com/c-=d",
    "v.com/c=-d",
    "v.com/c=d-",
    "v.com/c=d:",
    "v.com/c=d/e",
    "v.com/c d=e",
]
BAD_CDI += ["v.com/c=d\n", "v.com/c/e=d", "v.com/c=d=e", "vändor/c=d"]


def test_a_cdi_name_has_a_vendor_a_class_and_a_name() -> None:
    assert Allocation(cdi=[*GOOD_CDI, *GOOD_CDI]).cdi == tuple(GOOD_CDI)


def test_any_other_cdi_name_is_refused() -> None:
    assert taken([*BAD_CDI, None, 1], lambda name: Allocation(cdi=[name])) == []


def test_the_class_of_a_cdi_name_may_have_dots() -> None:
    assert Allocation(cdi=["v.com/c.d=e"]).cdi == ("v.com/c.d=e",)


def test_two_things_at_one_path_inside_are_refused() -> None:
    with pytest.raises(InvalidValue, match="two mounts at /a"):
        Allocation(mounts=["/a", Mount("/b", "/a")])
    with pytest.raises(InvalidValue, match="two device nodes at /dev/a"):
        Allocation(nodes=["/dev/a", DeviceNode("/dev/b", "/dev/a")])


def test_one_thing_at_two_paths_inside_is_taken() -> None:
    assert len(Allocation(mounts=["/a", Mount("/a", "/b")], nodes=["/dev/a", DeviceNode("/dev/a", "/b")]).mounts) == 2


def test_a_value_that_is_no_list_of_the_right_type_is_refused() -> None:
    wrong: list[object] = ["/dev/fuse", None, 1, {"/dev/fuse": "rw"}, [None], [1], [("/dev/fuse", "rw")]]
    assert taken(wrong, lambda listed: Allocation(mounts=listed)) == []
    assert taken(wrong, lambda listed: Allocation(nodes=listed)) == []
    assert taken(wrong, lambda listed: Allocation(cdi=listed)) == []


UNSENDABLE: dict[str, Callable[[], object]] = {
    "half a surrogate pair in env": lambda: Allocation(env={"A": "\udcff"}),
    "half a surrogate pair in an annotation's name": lambda: Allocation(annotations={"\udcff": ""}),
    "a word for whether a mount is read-only": lambda: Mount("/a", read_only="no"),  # type: ignore[arg-type]
}
UNCLEAR: dict[str, Callable[[], object]] = {
    "one NUMA node in place of a list": lambda: Device("st0", numa=0),  # type: ignore[arg-type]
    "a reason that is no text": lambda: Device("st0", "Unhealthy", None),  # type: ignore[arg-type]
    "attributes that are a list": lambda: Device("st0", attributes=[1]),  # type: ignore[arg-type]
    "an attribute whose name is no text": lambda: Device("st0", attributes={(0, 1): "x"}),  # type: ignore[dict-item]
    "no env": lambda: Allocation(env=None),  # type: ignore[arg-type]
    "env as a list": lambda: Allocation(env=["A"]),  # type: ignore[arg-type]
    "permissions that are no text": lambda: DeviceNode("/a", permissions=None),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("make", UNSENDABLE.values(), ids=UNSENDABLE)
def test_a_value_that_could_not_be_sent_is_refused(make: Callable[[], object]) -> None:
    with pytest.raises(InvalidValue):
        make()


@pytest.mark.parametrize("make", UNCLEAR.values(), ids=UNCLEAR)
def test_a_value_of_the_wrong_kind_is_refused_clearly(make: Callable[[], object]) -> None:
    with pytest.raises(InvalidValue):
        make()


@pytest.mark.parametrize("reason", [os.fsdecode(b"no \xff"), "a\0b", "\x1b[2J", "\u202e", "two\nlines", "x" * 5_000])
def test_a_reason_from_outside_is_cleaned_not_refused(reason: str) -> None:
    device = Device("st0").unhealthy(reason)
    assert device == Device("st0", "Unhealthy", reason)
    assert not device.healthy
    assert device.reason == clean(reason)
    assert device.reason.isprintable()


def test_whatever_a_device_turns_unhealthy_for_it_does() -> None:
    assert Device("st0").unhealthy(OSError("no fan")).reason == "no fan"  # type: ignore[arg-type]


GOOD_RESOURCES = ["example.com/GPU_1.x", "a/x", f"a/{'x' * 63}", f"{LONGEST_DOMAIN}/x", "a.b-c.d/X", "1.2/3", "a/x.y-z"]
BAD_RESOURCES = [
    "gpu",
    "/x",
    "x/",
    "a/b/c",
    "Example.com/gpu",
    "example.com/-x",
    f"a/{'x' * 64}",
    f"{LONGEST_DOMAIN}a/x",
]
BAD_RESOURCES += ["", "/", "kubernetes.io/x", "mykubernetes.io/x", "requests.a.com/x", "a.com/x-"]
BAD_RESOURCES += [
    "a.com/x y",
    "-a/x",
    "a-/x",
    "a..b/x",
    ".a/x",
    "a./x",
    "a_b/x",
    "a.com/x\n",
    "a.com\n/x",
    "a.com/ü",
    "bücher.de/x",
]


def test_an_extended_resource_name_is_taken() -> None:
    assert [str(Resource(name)) for name in GOOD_RESOURCES] == GOOD_RESOURCES


def test_any_other_resource_name_is_refused_with_the_reason() -> None:
    assert taken([*BAD_RESOURCES, None, 1, b"a/x"], Resource) == []
    with pytest.raises(InvalidValue, match="'gpu' is not a resource name: it must have one '/', as in "):
        Resource("gpu")


def test_options_say_nothing_unless_told() -> None:
    assert Options() == Options(pre_start=False, preference=False)


@steady
@given(st.lists(st.text(alphabet="a01٣-", max_size=8)), st.randoms(use_true_random=False))
def test_natural_order_is_the_same_for_every_order_of_the_input(texts: list[str], random: Random) -> None:
    shuffled = list(texts)
    random.shuffle(shuffled)
    assert sorted(shuffled, key=natural_order) == sorted(texts, key=natural_order)


@steady
@given(st.text(max_size=63), st.text(max_size=63))
def test_natural_order_tells_every_two_texts_apart(one: str, other: str) -> None:
    before, after = natural_order(one) < natural_order(other), natural_order(other) < natural_order(one)
    assert (before or after) == (one != other)
    assert not (before and after)


@steady
@given(st.text(alphabet="abc-", max_size=5), st.integers(0, 10**50), st.integers(0, 10**50))
def test_natural_order_counts(prefix: str, one: int, other: int) -> None:
    assert (natural_order(f"{prefix}{one}") < natural_order(f"{prefix}{other}")) == (one < other)


def test_natural_order_has_a_name_before_its_numbers() -> None:
    names = ["a.b/fuse", "a.b/fuse-2", "a.b/fuse2", "a.b/fuse2x", "a.b/fuse10"]
    assert sorted(names, key=natural_order) == [
        "a.b/fuse",
        "a.b/fuse2",
        "a.b/fuse2x",
        "a.b/fuse10",
        "a.b/fuse-2",
    ]


def test_natural_order_takes_any_number_of_digits() -> None:
    assert natural_order("9" * 5000) > natural_order("8")
