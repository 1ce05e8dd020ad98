"""Devices that give a container the node itself are refused."""

import os

import pytest
from tests.plugins.generic.machines import Machine

from plugwright.plugins.generic import safety
from plugwright.plugins.generic.hardware import HostPath

TAKES_OVER = [
    "/dev/snapshot", "/dev/watchdog", "/dev/watchdog1", "/dev/ipmi0", "/dev/ipmi/0", "/dev/ipmidev/0", "/dev/uinput",
    "/dev/uhid", "/dev/input", "/dev/input/event3", "/dev/input/by-id/kbd", "/dev/console", "/dev/loop-control",
    "/dev/nvram", "/dev/tty0", "/dev/tty63", "/dev/vcs", "/dev/vcsa1",
    "/dev/mem", "/dev/kmem", "/dev/port", "/dev/mapper/control", "/run/containerd/containerd.sock", "/run/docker.sock",
    "/var/run/nri/nri.sock", "/opt/nri.sock",
    "/var/run/crio/crio.sock", "/var/lib/kubelet/device-plugins/kubelet.sock", "/run", "/var/run", "/var/lib", "/",
    "/etc", "/dev", "/var/lib/kubelet", "/run/containerd", "/var/run/containerd", "/run/containerd/s/shim",
    "/var/lib/kubelet/pki/kubelet-client-current.pem", "/etc/kubernetes/admin.conf", "/run/dbus/system_bus_socket",
]  # fmt: skip
ORDINARY = [
    "/dev/tty",
    "/dev/ttyS0",
    "/dev/ttyUSB0",
    "/dev/watchdogs",
    "/dev/inputs",
    "/dev/loop0",
    "/dev/fuse",
    "/dev/snd",
    "/run/chrony",
    "/opt/licence",
    "/var/run/dcgm.sock",
    "/dev/mapper",
    "/run/mydaemon",
]


@pytest.mark.parametrize("path", TAKES_OVER)
def test_paths_that_control_the_node_are_dangerous(path: str) -> None:
    assert path in safety.danger_of_path(path)


@pytest.mark.parametrize("path", ORDINARY)
def test_ordinary_paths_are_not_dangerous(path: str) -> None:
    assert safety.danger_of_path(path) == ""


def test_a_name_that_only_begins_alike_is_ordinary() -> None:
    assert safety.danger_of_path("/run/containerd-stargz") == ""


def why(machine: Machine, path: str) -> str:
    return safety.danger(machine.host, HostPath(path))


def test_a_link_to_a_dangerous_path_is_dangerous(machine: Machine) -> None:
    machine.node("mem")
    machine.link("/dev/innocent", "/dev/mem")
    machine.link("/opt/socket", "/run/containerd/containerd.sock")
    assert why(machine, "/dev/innocent") == "/dev/mem is the memory of the node"
    assert "container runtime" in why(machine, "/opt/socket")


def test_a_mounted_directory_with_a_runtime_socket_is_dangerous(machine: Machine) -> None:
    machine.write("/opt/runtime/docker.sock")
    machine.write("/opt/other/file")
    assert (
        safety.danger(machine.host, HostPath("/opt/runtime", mount=True))
        == "/opt/runtime has docker.sock in it, the container runtime's"
    )
    assert safety.danger(machine.host, HostPath("/opt/other", mount=True)) == ""


@pytest.mark.skipif(os.geteuid() != 0, reason="making device nodes needs root")
def test_a_dangerous_node_under_another_name_is_dangerous(machine: Machine) -> None:
    (machine.root / "dev").mkdir()
    os.mknod(machine.root / "dev/harmless", 0o20600, os.makedev(1, 1))
    assert why(machine, "/dev/harmless") == "/dev/mem is the memory of the node"


UNDER_OTHER_NAMES = {
    (10, 231): "/dev/snapshot", (5, 1): "/dev/console", (10, 223): "/dev/uinput", (10, 239): "/dev/uhid",
    (10, 237): "/dev/loop-control", (10, 144): "/dev/nvram", (10, 130): "/dev/watchdog", (13, 64): "/dev/input",
    (4, 2): "/dev/tty2", (7, 0): "/dev/vcs",
}  # fmt: skip


@pytest.mark.skipif(os.geteuid() != 0, reason="making device nodes needs root")
@pytest.mark.parametrize(("number", "name"), UNDER_OTHER_NAMES.items(), ids=UNDER_OTHER_NAMES.values())
def test_the_machines_own_nodes_are_known_by_their_numbers(
    machine: Machine, number: tuple[int, int], name: str
) -> None:
    (machine.root / "srv").mkdir()
    os.mknod(machine.root / "srv/harmless", 0o20600, os.makedev(*number))
    assert why(machine, "/srv/harmless").startswith(f"{name} is ")


@pytest.mark.skipif(os.geteuid() != 0, reason="making device nodes needs root")
@pytest.mark.parametrize("name", ["ipmi0", "watchdog1"])
def test_a_node_whose_number_changes_is_known_by_the_kernels_name(machine: Machine, name: str) -> None:
    (machine.root / "srv").mkdir()
    os.mknod(machine.root / "srv/harmless", 0o20600, os.makedev(240, 3))
    machine.link("/sys/dev/char/240:3", f"/sys/devices/virtual/misc/{name}")
    (machine.root / "sys/devices/virtual/misc" / name).mkdir(parents=True)
    assert why(machine, "/srv/harmless").startswith(f"/dev/{name} is ")


def test_the_input_of_hardware_that_was_selected_is_handed_out(machine: Machine) -> None:
    machine.node("input/event3")
    assert why(machine, "/dev/input/event3") == "/dev/input/event3 is the keyboards and mice of the node"
    assert safety.danger(machine.host, HostPath("/dev/input/event3", selected=True)) == ""
    machine.node("watchdog0")
    assert safety.danger(machine.host, HostPath("/dev/watchdog0", selected=True)) != ""


@pytest.mark.skipif(os.geteuid() != 0, reason="making device nodes needs root")
def test_a_disk_is_known_by_its_number(disks: Machine) -> None:
    disks.link("/sys/dev/block/8:2", "/sys/devices/pci0000:00/ata1/block/sda/sda2")
    disks.mounted("8:2", "/data", "/dev/sda2")
    (disks.root / "dev/mapper").mkdir()
    os.mknod(disks.root / "dev/mapper/vault", 0o60600, os.makedev(8, 2))
    (disks.root / "srv").mkdir()
    os.mknod(disks.root / "srv/disk", 0o60600, os.makedev(8, 2))
    for path in ("/dev/mapper/vault", "/srv/disk", "/dev/mapper"):
        assert why(disks, path) == "/dev/sda2 holds a file system, mounted at /data", path


@pytest.mark.skipif(os.geteuid() != 0, reason="making device nodes needs root")
def test_processor_registers_are_the_node_itself(machine: Machine) -> None:
    (machine.root / "dev/cpu/0").mkdir(parents=True)
    os.mknod(machine.root / "dev/cpu/0/msr", 0o20600, os.makedev(202, 0))
    assert why(machine, "/dev/cpu/0/msr") == "/dev/cpu/0/msr sets the node's processors"
    assert why(machine, "/dev/cpu") == "/dev/cpu/0/msr sets the node's processors"


@pytest.fixture
def disks(machine: Machine) -> Machine:
    """A disk with two partitions, and an NVMe drive."""
    for name, number in (("sda", "8:0"), ("sda/sda1", "8:1"), ("sda/sda2", "8:2")):
        machine.device(f"pci0000:00/ata1/block/{name}", "block", name.rpartition("/")[2])
        machine.write(f"/sys/devices/pci0000:00/ata1/block/{name}/dev", number)
        (machine.root / f"sys/devices/pci0000:00/ata1/block/{name}/holders").mkdir()
    machine.write("/sys/devices/pci0000:00/ata1/block/sda/sda1/partition", "1")
    machine.write("/sys/devices/pci0000:00/ata1/block/sda/sda2/partition", "2")
    machine.nvme(machine.pci("0000:81:00.0", "144d:a80a", "010802", "nvme"), 0, "S4X")
    return machine


def test_an_unused_disk_may_be_handed_out(disks: Machine) -> None:
    assert [why(disks, path) for path in ("/dev/sda", "/dev/nvme0n1", "/dev/nvme0", "/dev/ng0n1")] == [""] * 4


def test_a_disk_is_not_handed_out_where_its_users_are_not_visible(disks: Machine) -> None:
    disks.write("/proc/2/comm", "plugwright")  # a pod sees only its own processes, and mounts
    assert why(disks, "/dev/sda") == "/dev/sda is a disk, and its users are not visible from here (hostPID)"
    disks.node("ttyUSB0")
    assert why(disks, "/dev/ttyUSB0") == ""


def test_a_disk_is_in_use_with_any_of_its_partitions(disks: Machine) -> None:
    disks.mounted("8:2", "/data", "/dev/disk/by-uuid/1234")
    assert why(disks, "/dev/sda") == "/dev/sda2 holds a file system, mounted at /data"
    assert why(disks, "/dev/sda2") == "/dev/sda2 holds a file system, mounted at /data"
    assert why(disks, "/dev/sda1") == ""


def test_a_file_system_without_a_number_is_known_by_its_source(disks: Machine) -> None:
    disks.mounted("0:42", "/btrfs", "/dev/sda1")
    assert "mounted at /btrfs" in why(disks, "/dev/sda")


def test_every_disk_of_a_btrfs_is_in_use(disks: Machine) -> None:
    disks.mounted("0:42", "/btrfs", "/dev/sdb")
    disks.link("/sys/fs/btrfs/1234-5678/devices/sda2", "/sys/class/block/sda2")
    assert why(disks, "/dev/sda") == "/dev/sda2 is a part of a btrfs that is mounted"
    assert why(disks, "/dev/sda1") == ""


def test_swap_and_parts_of_something_are_in_use(disks: Machine) -> None:
    disks.write("/proc/swaps", "Filename Type Size\n/dev/sda1 partition 1")
    assert why(disks, "/dev/sda1") == "/dev/sda1 is swap"
    disks.write("/sys/devices/pci0000:00/ata1/block/sda/sda2/holders/dm-0")
    assert why(disks, "/dev/sda2") == "/dev/sda2 is a part of dm-0"


def test_a_directory_is_as_dangerous_as_what_is_in_it(disks: Machine) -> None:
    disks.mounted("8:2", "/data", "/dev/sda2")
    disks.link("/dev/disk/by-id/x", "/dev/sda2")
    disks.node("snd/timer")
    disks.node("box/deep/docker.sock")
    assert why(disks, "/dev/snd") == ""
    assert why(disks, "/dev/disk") == ""  # nothing but links, which runtimes do not follow there
    assert "container runtime" in why(disks, "/dev/box")


def test_a_file_that_is_called_like_a_disk_is_none(disks: Machine) -> None:
    disks.mounted("8:2", "/data", "/dev/sda2")
    disks.write("/opt/sda2")
    assert why(disks, "/opt/sda2") == ""


def test_generic_nodes_are_ways_to_the_same_disk(disks: Machine) -> None:
    disks.mounted("259:0", "/fast", "/dev/nvme0n1")
    disks.mounted("8:1", "/", "/dev/sda1")
    disks.device("pci0000:00/ata1/scsi_generic/sg0", "scsi_generic", "sg0")
    disks.link("/sys/devices/pci0000:00/ata1/scsi_generic/sg0/device", "/sys/devices/pci0000:00/ata1")
    for path in ("/dev/nvme0n1", "/dev/ng0n1", "/dev/nvme0"):
        assert "mounted at /fast" in why(disks, path), path
    assert "mounted at /" in why(disks, "/dev/sg0")
    disks.device("pci0000:00/ata1/bsg/0:0:0:0", "bsg", "bsg/0:0:0:0")
    disks.link("/sys/devices/pci0000:00/ata1/bsg/0:0:0:0/device", "/sys/devices/pci0000:00/ata1")
    assert "mounted at /" in why(disks, "/dev/bsg/0:0:0:0")
