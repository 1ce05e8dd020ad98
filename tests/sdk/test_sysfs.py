"""What the kernel says of hardware is read from any root."""

from pathlib import Path

import pytest

from plugwright.model import Device
from plugwright.sdk import sysfs
from plugwright.sdk.sysfs import Host


def made(root: Path, **files: str) -> Path:
    root.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        root.joinpath(name).write_text(f"{text}\n")
    return root


def test_an_absent_attribute_is_empty(tmp_path: Path) -> None:
    assert sysfs.attribute(tmp_path, "none") == ""
    assert sysfs.link_name(tmp_path, "driver") == ""
    assert sysfs.entries(tmp_path / "none") == []
    assert sysfs.uevent(tmp_path) == {}
    assert sysfs.nodes_below(tmp_path) == []
    assert sysfs.pci_functions(tmp_path) == []


@pytest.mark.parametrize(
    ("own", "parent", "nodes"), [("1", "0", (1,)), ("-1", "0", (0,)), ("-1", "-1", ()), ("", "1", (1,)), ("", "", ())]
)
def test_the_nearest_parent_with_a_numa_node_decides(
    tmp_path: Path, own: str, parent: str, nodes: tuple[int, ...]
) -> None:
    above = made(tmp_path / "sys/devices/pci0000:3a/0000:3b:00.0", **({"numa_node": parent} if parent else {}))
    below = made(above / "net" / "ens1", **({"numa_node": own} if own else {}))
    assert sysfs.numa_nodes(below) == nodes


def test_an_iommu_group_is_where_its_devices_are(tmp_path: Path) -> None:
    function = made(tmp_path / "sys/devices/pci0000:3a/0000:3b:00.0", numa_node="1")
    made(tmp_path / "sys/kernel/iommu_groups/60/devices").joinpath(function.name).symlink_to(function)
    assert sysfs.numa_nodes(made(tmp_path / "sys/devices/virtual/vfio/60")) == (1,)
    assert sysfs.numa_nodes(made(tmp_path / "sys/devices/virtual/vfio/61")) == ()


def test_a_disk_made_of_others_is_where_they_are(tmp_path: Path) -> None:
    whole = made(tmp_path / "sys/devices/virtual/block/dm-0/slaves")
    for number in (0, 1):
        part = made(tmp_path / f"sys/devices/pci0000:3a/0000:3b:0{number}.0/nvme/nvme{number}", numa_node=str(number))
        whole.joinpath(part.name).symlink_to(part)
    assert sysfs.numa_nodes(whole.parent) == (0, 1)


def test_a_numa_node_outside_of_sysfs_is_none_of_ours(tmp_path: Path) -> None:
    made(tmp_path, numa_node="5")
    assert sysfs.numa_nodes(made(tmp_path / "sys/devices/platform/x")) == ()


def test_a_pci_function_is_read_whole(tmp_path: Path) -> None:
    place = made(tmp_path / "sys/devices/pci0000:3a/0000:3b:00.0", vendor="0x15b3", device="0x1017")
    place.joinpath("class").write_text("0x020700\n")
    place.joinpath("driver").symlink_to("../../../bus/pci/drivers/mlx5_core")
    place.joinpath("iommu_group").symlink_to("../../../kernel/iommu_groups/42")
    made(tmp_path / "sys/bus/pci/devices").joinpath(place.name).symlink_to(place)
    [function] = sysfs.pci_functions(tmp_path / "sys")
    assert (function.address, function.vendor, function.device) == ("0000:3b:00.0", "15b3", "1017")
    assert (function.class_code, function.driver, function.iommu_group) == ("020700", "mlx5_core", "42")
    assert not function.is_virtual
    assert sysfs.pci_address_of(made(place / "net/ens1")) == "0000:3b:00.0"


def test_the_address_is_that_of_the_nearest_function(tmp_path: Path) -> None:
    place = made(tmp_path / "sys/devices/pci0000:00/0000:00:01.0/0000:01:00.0/usb1/1-4")
    assert sysfs.pci_address_of(place) == "0000:01:00.0"
    assert sysfs.pci_address_of(made(tmp_path / "sys/devices/virtual/x")) == ""


def test_a_device_behind_a_pci_function_has_the_standard_attributes(tmp_path: Path) -> None:
    function = made(tmp_path / "sys/devices/pci0000:3a/0000:3a:01.0/0000:3b:00.0", numa_node="1")
    link = made(tmp_path / "sys/bus/pci/devices") / function.name
    link.symlink_to(function)
    standard = {
        "resource.kubernetes.io/pciBusID": "0000:3b:00.0",
        "resource.kubernetes.io/pcieRoot": "pci0000:3a",
        "resource.kubernetes.io/numaNode": 1,
    }
    assert sysfs.standard_attributes(function) == standard
    assert sysfs.standard_attributes(link) == standard
    assert sysfs.standard_attributes(made(function / "net/ens1")) == standard
    assert dict(Device("x", attributes=standard).attributes) == standard


@pytest.mark.parametrize("node", ["-1", "", "none", "99999"])
def test_a_device_without_numa_has_no_numa_node(tmp_path: Path, node: str) -> None:
    function = made(tmp_path / "sys/devices/pci0000:00/0000:00:01.0", numa_node=node)
    assert set(sysfs.standard_attributes(function)) == {
        "resource.kubernetes.io/pciBusID",
        "resource.kubernetes.io/pcieRoot",
    }


def test_a_root_behind_another_one_is_a_part_of_it(tmp_path: Path) -> None:
    function = made(tmp_path / "sys/devices/pci0000:00/0000:00:0e.0/pci10000:e0/10000:e0:01.0/10000:e1:00.0")
    attributes = sysfs.standard_attributes(function)
    assert attributes["resource.kubernetes.io/pcieRoot"] == "pci0000:00"
    assert attributes["resource.kubernetes.io/pciBusID"] == "10000:e1:00.0"


def test_what_is_not_behind_pci_has_no_standard_attributes(tmp_path: Path) -> None:
    assert sysfs.standard_attributes(made(tmp_path / "sys/devices/platform/uart", numa_node="0")) == {}
    assert sysfs.standard_attributes(tmp_path / "sys/devices/none") == {}


@pytest.mark.parametrize(
    ("links", "path", "real"),
    [
        ({}, "/dev/a", "/dev/a"),
        ({"dev/a": "b"}, "/dev/a", "/dev/b"),
        ({"dev/a": "/dev/b", "dev/b": "../x"}, "/dev/a", "/x"),
        ({"var/run": "/run"}, "/var/run/s.sock", "/run/s.sock"),
        ({"dev/a": "../../../../etc/passwd"}, "/dev/a", "/etc/passwd"),
        ({"dev/a": "/../../etc/passwd"}, "/dev/a", "/etc/passwd"),
    ],
)
def test_links_are_followed_and_never_out_of_the_root(
    tmp_path: Path, links: dict[str, str], path: str, real: str
) -> None:
    for name, target in links.items():
        made(tmp_path.joinpath(name).parent)
        tmp_path.joinpath(name).symlink_to(target)
    assert Host(tmp_path).resolve(path) == real


def test_links_in_a_circle_come_to_an_end(tmp_path: Path) -> None:
    tmp_path.joinpath("a").symlink_to("b")
    tmp_path.joinpath("b").symlink_to("a")
    assert not Host(tmp_path).has("/a")


def test_the_host_has_its_own_paths(tmp_path: Path) -> None:
    host = Host(tmp_path)
    assert host.path(host.seen("/dev/fuse")) == "/dev/fuse"
    assert not host.has("/dev/fuse")
    made(tmp_path / "dev", fuse="")
    assert host.has("/dev/fuse")


@pytest.mark.skipif(not Path("/sys/dev/char/1:3").exists(), reason="needs a Linux machine's /sys")
def test_a_node_of_this_machine_leads_to_its_directory() -> None:
    directory = Host().directory_of("/dev/null")
    assert directory == Path("/sys/devices/virtual/mem/null")
    assert [node.path for node in sysfs.nodes_below(directory)] == ["/dev/null"]
    assert Host().directory_of("/etc/passwd") is None


@pytest.mark.parametrize(
    ("mounts", "is_tmpfs"),
    [
        ("22 1 0:5 / /dev rw,nosuid shared:2 - devtmpfs udev rw", False),
        ("22 1 0:5 / /dev rw - devtmpfs udev rw\n30 22 0:51 / /dev rw,nosuid - tmpfs tmpfs rw", True),
        ("30 22 0:51 / /dev rw - tmpfs tmpfs rw\n31 30 0:5 / /dev rw - devtmpfs udev rw", False),
        ("30 22 0:51 / /devel rw - tmpfs tmpfs rw", False),
        ("", False),
        ("not a line of it", False),
    ],
)
def test_the_dev_of_a_container_is_a_tmpfs(tmp_path: Path, mounts: str, is_tmpfs: bool) -> None:
    tmp_path.joinpath("mountinfo").write_text(mounts)
    assert Host().has_tmpfs_dev(tmp_path / "mountinfo") == is_tmpfs
    assert not Host(Path("/host")).has_tmpfs_dev(tmp_path / "mountinfo")
    assert not Host().has_tmpfs_dev(tmp_path / "missing")
