"""Allocations of ordinary devices, their ids, and patterns."""

import hashlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from plugwright import DeviceNode, InvalidValue, Mount, PluginError
from plugwright.errors import InvalidSetting
from plugwright.model import Device
from plugwright.plugins.generic import allocation, hardware
from plugwright.plugins.generic.allocation import HandoutOptions, allocation_of
from plugwright.plugins.generic.hardware import HostPath, IdScheme, Unit, matches, pattern
from plugwright.sdk import cdi

NAME = "example.com/serial"
FIRST = Unit("usb-1", (HostPath("/dev/ttyUSB0"),), {"serial": "A", "pci": "0000:00:14.0"}, numa=(1,))
SECOND = Unit("usb-2", (HostPath("/dev/ttyUSB7"),), {"serial": "B"})


def test_nodes_and_mounts_are_handed_out_with_their_permissions() -> None:
    mount = HostPath("/run/a.sock", mount=True, read_only=True)
    allocated = allocation_of(NAME, HandoutOptions(permissions="r"), [replace(FIRST, paths=(*FIRST.paths, mount))])
    assert allocated.nodes == (DeviceNode("/dev/ttyUSB0", permissions="r"),)
    assert allocated.mounts == (Mount("/run/a.sock", read_only=True),)


def test_variables_are_filled_in_and_joined() -> None:
    options = HandoutOptions(
        env={"PORTS": "{node}", "PORT_{index}": "{node}:{serial}", "CARD": "{pci}", "ALL": "{{{resource}}}"},
        annotations={"example.com/numa": "{numa}"},
        remap={"/dev/ttyUSB*": "/dev/modem{index}"},
    )
    allocated = allocation_of(NAME, options, [FIRST, SECOND])
    assert allocated.env == {
        "PORTS": "/dev/modem0,/dev/modem1",
        "PORT_0": "/dev/modem0:A",
        "PORT_1": "/dev/modem1:B",
        "CARD": "0000:00:14.0",
        "ALL": "{example.com/serial}",
    }
    assert allocated.annotations == {"example.com/numa": "1"}
    assert allocated.nodes[1] == DeviceNode("/dev/ttyUSB7", "/dev/modem1")


def test_shared_nodes_are_handed_out_once() -> None:
    both = [replace(unit, paths=(HostPath("/dev/kfd"), *unit.paths)) for unit in (FIRST, SECOND)]
    nodes = [node.host_path for node in allocation_of(NAME, HandoutOptions(), both).nodes]
    assert nodes == ["/dev/kfd", "/dev/ttyUSB0", "/dev/ttyUSB7"]


def test_braces_in_the_name_of_a_node_are_no_template() -> None:
    odd = Unit("odd", (HostPath("/dev/{x}"), HostPath("/dev/{y", container_path="/dev/odd/")))
    assert [node.container_path for node in allocation_of(NAME, HandoutOptions(), [odd]).nodes] == [
        "/dev/{x}",
        "/dev/odd/{y",
    ]


def test_two_nodes_at_one_container_path_are_refused() -> None:
    with pytest.raises(PluginError, match=r"/dev/ttyUSB0 and /dev/ttyUSB7 would both be /dev/modem"):
        allocation_of(NAME, HandoutOptions(remap={"/dev/ttyUSB*": "/dev/modem"}), [FIRST, SECOND])


@pytest.mark.parametrize("text", ["{pcy}", "{pci", "{pci!r}", "{pci:>9}", "{}", "{0}", "{pci.x}"])
def test_a_template_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(InvalidSetting) as caught:
        allocation.check_options(HandoutOptions(env={"A": text}))
    assert caught.value.path == "env"
    with pytest.raises(InvalidValue):
        allocation.check_template(text)


def test_pci_variables_are_those_of_the_sriov_plugin() -> None:
    details = {
        "generic": {"deviceID": "0000:3b:02.0"},
        "vfio": {"mount": "/dev/vfio/vfio", "dev-mount": "/dev/vfio/65"},
    }
    units = [
        Unit("0000:3b:02.0", details=details),
        Unit("0000:3b:02.1", details={"generic": {"deviceID": "0000:3b:02.1"}}),
    ]
    info = {"*": {"rack": "7", "token": "a"}, "0000:3b:02.1": {"token": "b"}}
    env = allocation_of("intel.com/sriov-dpdk", HandoutOptions(info=info), units).env
    assert env["PCIDEVICE_INTEL_COM_SRIOV-DPDK"] == "0000:3b:02.0,0000:3b:02.1"
    assert json.loads(env["PCIDEVICE_INTEL_COM_SRIOV-DPDK_INFO"]) == {
        "0000:3b:02.0": {**details, "extra": {"rack": "7", "token": "a"}},
        "0000:3b:02.1": {"generic": {"deviceID": "0000:3b:02.1"}, "extra": {"rack": "7", "token": "b"}},
    }


def names(scheme: IdScheme, *units: Unit, count: int = 1) -> list[str]:
    return [name for name, _ in hardware.copies(scheme, units, count)]


def test_a_higher_count_leaves_the_first_name_as_it_is() -> None:
    assert names("stable", FIRST) == ["usb-1"]
    assert names("stable", FIRST, SECOND, count=2) == ["usb-1", "usb-1::1", "usb-2", "usb-2::1"]
    assert names("stable", replace(FIRST, count=3), SECOND) == ["usb-1", "usb-1::1", "usb-1::2", "usb-2"]


def test_names_can_be_those_of_other_plugins() -> None:
    assert names("index", FIRST, SECOND, count=2) == ["0", "1", "2", "3"]
    assert names("gdp", FIRST, count=2) == [hashlib.sha1(f"{copy}/dev/ttyUSB0".encode()).hexdigest() for copy in (0, 1)]


@given(st.lists(st.text(), min_size=1, max_size=4), st.integers(0, 99_999))
def test_every_name_is_one_that_the_kubelet_and_cdi_take(parts: list[str], copy: int) -> None:
    [*_, (name, _)] = hardware.copies("stable", [Unit(hardware.stable_id(*parts))], copy % 3 + 1)
    assert Device(name).id == name
    assert cdi.split_name(f"example.com/thing={hardware.stable_id(*parts)}") == (
        "example.com/thing",
        hardware.stable_id(*parts),
    )
    assert Device(f"{hardware.stable_id(*parts)}::{copy}").healthy
    assert hardware.stable_id(*parts) == hardware.stable_id(*parts)


@given(st.lists(st.sampled_from(["x", "y"]), max_size=6))
def test_no_two_units_have_one_name(serials: list[str]) -> None:
    units = [Unit(serial, facts={"port": f"1-{port}"}) for port, serial in enumerate(serials)]
    assert len({unit.id for unit in hardware.distinct(units)}) == len(units)


@pytest.mark.parametrize(
    ("text", "matching", "other"),
    [("a*", "abc", "bac"), ("[^a]", "b", "a"), (r"\*", "*", "a"), (r"a\[b", "a[b", "ab"), ("?", "a", "ab")],
)
def test_patterns(text: str, matching: str, other: str) -> None:
    assert pattern(text)(matching)
    assert not pattern(text)(other)


def test_no_patterns_match_everything() -> None:
    assert matches([], "anything")
    assert matches(["a*", "b*"], "bee")
    assert not matches(["a*"], "bee")
