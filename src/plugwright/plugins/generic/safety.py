"""Devices exposing the node itself: its memory, a disk in use, the container runtime, its default route.

Such a device is listed as Unhealthy with the reason, unless the file has `dangerous: true`. Checked in every scan and
again for every allocation, because a disk can have been mounted in between.
"""

import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from msgspec.structs import replace

from plugwright.plugins.generic.hardware import HostPath
from plugwright.sdk import sysfs
from plugwright.sdk.sysfs import Host

__all__ = ["danger", "danger_of_path", "danger_of_pattern", "default_route_interfaces", "has_disk", "use_of_disk"]

_NODES = {
    "/dev/mem": "the memory of the node",
    "/dev/kmem": "the memory of the kernel",
    "/dev/port": "the ports of the node",
    "/dev/mapper/control": "the node's disks",
    "/dev/snapshot": "the image of the node's memory that is kept while it hibernates",
    "/dev/console": "the node's console",
    "/dev/uinput": "a keyboard for the node's console",
    "/dev/uhid": "a keyboard for the node's console",
    "/dev/loop-control": "the node's loop devices, which mount any file",
    "/dev/nvram": "the settings of the node's firmware",
}
_INPUT = "the keyboards and mice of the node"
_PATTERNS = {  # names that contain numbers
    re.compile(r"/dev/watchdog[0-9]*"): "the watchdog, which resets the node",
    re.compile(r"/dev/ipmi(dev)?/?[0-9]+"): "the management controller, which turns the node off and sets its firmware",
    re.compile(r"/dev/input(/.*)?"): _INPUT,
    re.compile(r"/dev/tty[0-9]{1,2}"): "a virtual console of the node",
    re.compile(r"/dev/vcs[au]?[0-9]*"): "the text on a virtual console of the node",
}
_EXAMPLES = (
    "/dev/watchdog", "/dev/watchdog0", "/dev/ipmi0", "/dev/ipmi/0", "/dev/ipmidev/0", "/dev/input", "/dev/input/event0",
    "/dev/tty1", "/dev/vcs", "/dev/vcsa1",
)  # fmt: skip
_MSR = 202  # the major number of /dev/cpu/N/msr
_NUMBERS = {
    (1, 1): "/dev/mem", (1, 2): "/dev/kmem", (1, 4): "/dev/port", (10, 236): "/dev/mapper/control",
    (10, 231): "/dev/snapshot", (5, 1): "/dev/console", (10, 223): "/dev/uinput", (10, 239): "/dev/uhid",
    (10, 237): "/dev/loop-control", (10, 144): "/dev/nvram", (10, 130): "/dev/watchdog",
}  # fmt: skip
_VIRTUAL_CONSOLES = 64  # of major 4; the serial ports follow them
_MAJORS = {7: "/dev/vcs", 13: "/dev/input"}
_SOCKETS = (
    "containerd.sock", "crio.sock", "cri-dockerd.sock", "docker.sock", "dockershim.sock", "kubelet.sock", "nri.sock",
    "podman.sock",
)  # fmt: skip
_DIRECTORIES = (
    "/run/containerd", "/run/crio", "/run/k3s", "/run/nri", "/run/podman", "/var/lib/kubelet", "/var/lib/containerd",
    "/var/lib/containers", "/var/lib/docker", "/run/docker", "/run/systemd", "/run/dbus", "/etc/kubernetes",
)  # fmt: skip
_REJECTED = 0x200  # RTF_REJECT: every node without IPv6 has such a route
_SYSTEM = ("/", "/bin", "/boot", "/dev", "/etc", "/lib", "/lib64", "/proc", "/root", "/sbin", "/sys", "/usr")


def danger_of_path(path: str) -> str:
    """Why a path must not be allocated, regardless of its content; empty if it can be."""
    node = _node(path)
    if node:
        return f"{path} is {node}"
    if path.rpartition("/")[2] in _SOCKETS:
        return f"{path} is the container runtime's"
    # /var/run is always a link to /run, and a file can name either.
    real = path.removeprefix("/var") if f"{path}/".startswith("/var/run/") else path
    near = [directory for directory in _DIRECTORIES if _is_in(real, directory) or _is_in(directory, real)]
    if real in _SYSTEM or near:
        return f"{path} is, has in it or is a part of what rules the node ({near[0] if near else path})"
    return ""


def has_disk(host: Host, path: HostPath) -> bool:
    """Whether a path gives access to a disk, which can come into use at any time."""
    return bool(_block_devices(host, host.resolve(path.host_path)))


def danger_of_pattern(pattern: str) -> str:
    """A dangerous path within a pattern with wildcards, with the reason; empty if there is none."""
    paths = (*_NODES, *_EXAMPLES)
    return next((f"may match {path}, {_node(path)}" for path in paths if PurePosixPath(path).match(pattern)), "")


def _node(path: str) -> str:
    """The purpose of a device node with this name, if it is dangerous."""
    return _NODES.get(path) or next((text for name, text in _PATTERNS.items() if name.fullmatch(path)), "")


def danger(host: Host, path: HostPath) -> str:
    """Why the file at a path must not be allocated; empty if it can be."""
    real = host.resolve(path.host_path)
    named = danger_of_path(real)
    if named and not _is_own_input(path, named):
        return named
    try:
        status = host.seen(real).stat()
    except OSError:
        return ""  # missing, which the plugin reports
    if stat.S_ISDIR(status.st_mode) and not path.mount:
        return _danger_inside(host, path, real)
    directory = host.seen(real) if stat.S_ISDIR(status.st_mode) else None
    sockets = [name for name in _SOCKETS if directory is not None and directory.joinpath(name).exists()]
    if sockets:
        return f"{real} has {sockets[0]} in it, the container runtime's"
    number = (os.major(status.st_rdev), os.minor(status.st_rdev))
    if stat.S_ISCHR(status.st_mode):
        kernel_name = _kernel_name(host, real, number)
        named = danger_of_path(kernel_name) if kernel_name else ""
        if named and not _is_own_input(path, named):
            return named
    if stat.S_ISCHR(status.st_mode) and number[0] == _MSR:
        return f"{real} sets the node's processors"
    return next((use for block in _block_devices(host, real) if (use := use_of_disk(host, block))), "")


def _is_own_input(path: HostPath, named: str) -> bool:
    """Whether it is a USB scanner acting as a keyboard, selected by its properties."""
    return path.selected and named.endswith(_INPUT)


def _kernel_name(host: Host, path: str, number: tuple[int, int]) -> str:
    """The kernel's name for a node, whatever the node's own name is; at least for dangerous nodes."""
    major, minor = number
    if number in _NUMBERS:
        return _NUMBERS[number]
    if major in _MAJORS:
        return _MAJORS[major]
    if major == 4 and minor < _VIRTUAL_CONSOLES:
        return f"/dev/tty{minor}"
    directory = host.directory_of(path)  # watchdogs and management controllers have changing numbers
    return f"/dev/{directory.name}" if directory is not None else ""


def use_of_disk(host: Host, block: Path) -> str:
    """The use of a block device or of a part of it; empty if unused. `block` is its directory in /sys."""
    if sysfs.attribute(host.proc / "2", "comm") != "kthreadd":  # only the node's own /proc has the kernel's threads
        return f"/dev/{block.name} is a disk, and its users are not visible from here (hostPID)"
    by_number = {number: mounted_at for number, _, mounted_at in _mounts(host)}
    by_source = {
        host.resolve(source): mounted_at for _, source, mounted_at in _mounts(host) if source.startswith("/dev/")
    }
    swaps = {line.split()[0] for line in sysfs.attribute(host.proc, "swaps").splitlines()[1:]}
    for part in (block, *(child for child in sysfs.entries(block) if child.joinpath("partition").exists())):
        path = f"/dev/{part.name}"
        mounted_at = by_number.get(sysfs.attribute(part, "dev")) or by_source.get(path)
        if mounted_at:
            return f"{path} holds a file system, mounted at {mounted_at}"
        if path in swaps:
            return f"{path} is swap"
        if sysfs.matching(host.sys / "fs", f"btrfs/*/devices/{part.name}"):  # the mounts name only one of several disks
            return f"{path} is a part of a btrfs that is mounted"
        holders = sysfs.entries(part / "holders")
        if holders:
            return f"{path} is a part of {holders[0].name}"
    return ""


def _is_in(path: str, directory: str) -> bool:
    return f"{path}/".startswith(f"{directory.rstrip('/')}/")


def _danger_inside(host: Host, path: HostPath, directory: str) -> str:
    """Why a directory is dangerous: runtimes allocate every node in it; they do not follow links there."""
    nodes = [host.path(entry) for entry in sysfs.entries(host.seen(directory)) if not entry.is_symlink()]
    return next((reason for node in nodes if (reason := danger(host, replace(path, path=node, host_path=node)))), "")


def _mounts(host: Host) -> Iterator[tuple[str, str, str]]:
    """Number, source and mount point of everything mounted: on the node, if its processes are visible, and here."""
    for process in ("1", "self"):
        for line in sysfs.attribute(host.proc / process, "mountinfo").splitlines():
            front, _, back = line.partition(" - ")
            fields = front.split()
            if len(fields) > 4 and len(back.split()) > 1:
                yield fields[2], back.split()[1], fields[4]


def _block_devices(host: Host, path: str) -> list[Path]:
    """The block devices to which a node gives access: its own, or the disk of a SCSI or NVMe generic node."""
    # The number identifies a node, whatever its name.
    directory = host.directory_of(path)
    if directory is None and not path.startswith("/dev/"):
        return []
    name = directory.name if directory else PurePosixPath(path).name
    for kind in ("bsg", "scsi_generic"):
        if host.sys.joinpath("class", kind, name).exists():
            return sysfs.entries(host.sys / "class" / kind / name / "device" / "block")
    if name.startswith("ng") and name[2:3].isdecimal():
        name = f"nvme{name[2:]}"
    if name.startswith("nvme") and name[4:].isdecimal():  # the controller gives access to all its namespaces
        blocks = sysfs.entries(host.sys / "class" / "block")
        return [block for block in blocks if block.name.startswith(f"{name}n")]
    block = host.sys / "class" / "block" / name
    return [sysfs.real(block)] if block.exists() else []


def default_route_interfaces(host: Host) -> set[str]:
    """The interfaces named by default routes, and those below them: the cards of a bond, a bridge or a VLAN."""
    interfaces, new = set[str](), _routed_interfaces(host)
    while new:
        interfaces |= new
        links = [link for name in new for link in sysfs.matching(host.sys / "class" / "net" / name, "lower_*")]
        new = {link.name.removeprefix("lower_") for link in links} - interfaces
    return interfaces


def _routed_interfaces(host: Host) -> set[str]:
    """Routed interfaces of the node's tables if its processes are visible, otherwise of the daemon's network."""
    for directory in ("1/net", "net"):
        ipv4 = _fields(host, f"{directory}/route")[1:]
        ipv6 = _fields(host, f"{directory}/ipv6_route")
        if ipv4 or ipv6:
            by_ipv4 = {fields[0] for fields in ipv4 if len(fields) > 7 and fields[1] == fields[7] == "00000000"}
            return by_ipv4 | {fields[9] for fields in ipv6 if len(fields) > 9 and _is_default_ipv6(fields)}
    return set()


def _fields(host: Host, name: str) -> list[list[str]]:
    return [line.split() for line in sysfs.attribute(host.proc, name).splitlines()]


def _is_default_ipv6(fields: list[str]) -> bool:
    return not fields[0].strip("0") and fields[1] == "00" and not int(fields[8], 16) & _REJECTED
