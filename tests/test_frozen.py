"""Public values with an `__init__` of their own: immutable, comparable, and copied with changes by `replace()`."""

import copy
import pickle
import sys

import pytest

from plugwright import Allocation, Capacity, CounterSet, Device, DeviceNode, InvalidValue, Mount

VALUES = [
    Device("st0", "Unhealthy", "no fan", [1], {"model": "T1"}, physical=["0000:3b:00.0"]),
    Mount("/opt", "/tape", read_only=True),
    DeviceNode("/dev/st0", permissions="r"),
    Allocation({"A": "1"}, ["/opt"], ["/dev/st0"], {"k": "v"}, ["v.com/c=d"]),
    Capacity("80Gi", default="10Gi", minimum="1Gi", step="1Gi"),
    CounterSet("card0", {"memory": "40Gi"}),
]
BY_NAME = pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)


@BY_NAME
def test_a_copy_is_equal_and_has_the_same_hash(value: Device) -> None:
    for same in (value.replace(), copy.copy(value)):
        assert same == value
        assert hash(same) == hash(value)
        assert same is not value


@BY_NAME
def test_a_value_is_not_equal_to_its_fields(value: Device) -> None:
    assert value != tuple(getattr(value, name) for name in value.__match_args__)


@BY_NAME
def test_no_field_can_be_set_deleted_or_added(value: Device) -> None:
    for name in (*value.__match_args__, "another"):
        with pytest.raises(AttributeError, match="cannot be changed"):
            setattr(value, name, None)
        with pytest.raises(AttributeError, match="cannot be changed"):
            delattr(value, name)


def test_a_value_shows_its_fields() -> None:
    expected = "Mount(host_path='/opt', container_path='/tape', read_only=True)"
    assert repr(Mount("/opt", "/tape", read_only=True)) == expected


def test_values_without_mappings_can_be_pickled() -> None:
    node = DeviceNode("/dev/st0", permissions="r")
    assert pickle.loads(pickle.dumps(node)) == node


def test_replace_changes_the_named_fields_alone() -> None:
    device = Device("st0", numa=[1], attributes={"model": "T1"})
    assert device.replace(id="st1", numa=()) == Device("st1", attributes={"model": "T1"})
    assert device == Device("st0", numa=[1], attributes={"model": "T1"})


def test_replace_checks_like_the_constructor() -> None:
    with pytest.raises(InvalidValue, match="device id must be a non-empty string"):
        Device("st0").replace(id="")
    with pytest.raises(TypeError, match="colour"):
        Device("st0").replace(colour="red")


@pytest.mark.skipif(sys.version_info < (3, 13), reason="copy.replace() came with Python 3.13")
def test_copy_replace_works_too() -> None:
    assert copy.replace(Device("st0"), id="st1") == Device("st1")  # type: ignore[attr-defined, unused-ignore]


def test_the_fields_can_be_matched_by_position() -> None:
    match Mount("/opt", "/tape"):
        case Mount(host, inside, False):
            assert (host, inside) == ("/opt", "/tape")
        case _:
            pytest.fail("not matched")


class Tape(Device):
    """An author's own kind of device."""

    def __init__(self, serial: str) -> None:
        super().__init__(f"tape-{serial}", attributes={"serial": serial})


def test_an_authors_subclass_is_compared_by_the_fields_of_a_device() -> None:
    assert Tape("a") == Tape("a")
    assert Tape("a") != Tape("b")
    assert Tape("a") != Device("tape-a", attributes={"serial": "a"})
    assert hash(Tape("a")) == hash(Device("tape-a"))
    assert Tape("a").unhealthy("no fan") == Tape("a").unhealthy("no fan")
