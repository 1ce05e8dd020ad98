"""What would hand out the node itself: its memory, a disk in use, the container runtime.

Such a device is listed as Unhealthy with the reason, unless the file says `dangerous: true`. Asked at every look and
again when a container gets the device: a disk may have been mounted in between.

Which interfaces carry the node's default route: whoever takes one away takes the node away.
"""

import os
import stat
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path, PurePosixPath

from plugwright.plugins.generic.hardware import Member
from plugwright.sdk import sysfs
from plugwright.sdk.sysfs import Host

__all__ = ["by_name", "carriers", "has_disk", "in_use", "reason"]

_NODES = {
    "/dev/mem": "the memory of the node",
    "/dev/kmem": "the memory of the kernel",
    "/dev/port": "the ports of the node",
    "/dev/mapper/control": "the node's disks",
}
_MSR = 202  # the major number of /dev/cpu/N/msr
_NUMBERS = {(1, 1): "/dev/mem", (1, 2): "/dev/kmem", (1, 4): "/dev/port", (10, 236): "/dev/mapper/control"}
_SOCKETS = (
    "containerd.sock", "crio.sock", "cri-dockerd.sock", "docker.sock", "dockershim.sock", "kubelet.sock", "nri.sock",
    "podman.sock",
)  # fmt: skip
_DIRECTORIES = (
    "/run/containerd", "/run/crio", "/run/k3s", "/run/nri", "/run/podman", "/var/lib/kubelet", "/var/lib/containerd",
    "/var/lib/containers", "/var/lib/docker", "/run/docker", "/run/systemd", "/run/dbus", "/etc/kubernetes",
)  # fmt: skip
_SYSTEM = ("/", "/bin", "/boot", "/dev", "/etc", "/lib", "/lib64", "/proc", "/root", "/sbin", "/sys", "/usr")


def by_name(path: str) -> str:
    """Why a path may not be handed out, whatever is there; empty if it may."""
    if path in _NODES:
        return f"{path} is {_NODES[path]}"
    if path.rpartition("/")[2] in _SOCKETS:
        return f"{path} is the container runtime's"
    # /var/run is a link to /run everywhere, and a file may name either.
    real = path.removeprefix("/var") if f"{path}/".startswith("/var/run/") else path
    near = [each for each in _DIRECTORIES if _is_in(real, each) or _is_in(each, real)]
    if real in _SYSTEM or near:
        return f"{path} is, has in it or is a part of what rules the node ({near[0] if near else path})"
    return ""


def has_disk(host: Host, member: Member) -> bool:
    """Whether it may be in use tomorrow though it is not today."""
    return bool(_blocks(host, host.resolve(member.host_path)))


def reason(host: Host, member: Member) -> str:
    """Why this may not be handed out; empty if it may."""
    real = host.resolve(member.host_path)
    named = by_name(real)
    if named:
        return named
    try:
        status = host.seen(real).stat()
    except OSError:
        return ""  # that it is gone is said elsewhere
    if stat.S_ISDIR(status.st_mode) and not member.mount:
        return _inside(host, member, real)
    inside = _sockets_in(host.seen(real)) if stat.S_ISDIR(status.st_mode) else []
    if inside:
        return f"{real} has {inside[0]} in it, the container runtime's"
    number = (os.major(status.st_rdev), os.minor(status.st_rdev))
    if stat.S_ISCHR(status.st_mode) and number in _NUMBERS:
        return by_name(_NUMBERS[number])
    if stat.S_ISCHR(status.st_mode) and number[0] == _MSR:
        return f"{real} sets the node's processors"
    return next((why for each in _blocks(host, real) if (why := in_use(host, each))), "")


def in_use(host: Host, block: Path) -> str:
    """Who uses a block device, or a part of it; empty if nobody does. `block` is its directory in /sys."""
    if sysfs.attribute(host.proc / "2", "comm") != "kthreadd":  # only the node's own /proc has the kernel's threads
        return f"/dev/{block.name} is a disk, and who uses it cannot be seen from here (hostPID)"
    mounts = {number: place for number, _, place in _mounts(host)}
    sources = {host.resolve(source): place for _, source, place in _mounts(host) if source.startswith("/dev/")}
    swaps = {line.split()[0] for line in sysfs.attribute(host.proc, "swaps").splitlines()[1:]}
    for each in (block, *(child for child in sysfs.entries(block) if child.joinpath("partition").exists())):
        path = f"/dev/{each.name}"
        place = mounts.get(sysfs.attribute(each, "dev")) or sources.get(path)
        if place:
            return f"{path} holds a file system, mounted at {place}"
        if path in swaps:
            return f"{path} is swap"
        if sysfs.matching(host.sys / "fs", f"btrfs/*/devices/{each.name}"):  # the mounts name only one disk of several
            return f"{path} is a part of a btrfs that is mounted"
        holders = sysfs.entries(each / "holders")
        if holders:
            return f"{path} is a part of {holders[0].name}"
    return ""


def _is_in(path: str, directory: str) -> bool:
    return f"{path}/".startswith(f"{directory.rstrip('/')}/")


def _inside(host: Host, member: Member, directory: str) -> str:
    """Runtimes hand out every node below a directory; they follow no link there."""
    inside = [host.path(each) for each in sysfs.entries(host.seen(directory)) if not each.is_symlink()]
    return next((why for each in inside if (why := reason(host, replace(member, path=each, host_path=each)))), "")


def _sockets_in(directory: Path) -> list[str]:
    return [name for name in _SOCKETS if directory.joinpath(name).exists()]


def _mounts(host: Host) -> Iterator[tuple[str, str, str]]:
    """Number, source and place of everything mounted: on the node, where we see its processes, and where we are."""
    for process in ("1", "self"):
        for line in sysfs.attribute(host.proc / process, "mountinfo").splitlines():
            front, _, back = line.partition(" - ")
            fields = front.split()
            if len(fields) > 4 and len(back.split()) > 1:
                yield fields[2], back.split()[1], fields[4]


def _blocks(host: Host, path: str) -> list[Path]:
    """The block devices that a node gives access to: its own, or the disk of a SCSI or NVMe generic node."""
    # Its number says what a node is, whatever its name.
    directory = host.directory_of(path)
    if directory is None and not path.startswith("/dev/"):
        return []
    name = directory.name if directory else PurePosixPath(path).name
    for kind in ("bsg", "scsi_generic"):
        if host.sys.joinpath("class", kind, name).exists():
            return sysfs.entries(host.sys / "class" / kind / name / "device" / "block")
    if name.startswith("ng") and name[2:3].isdecimal():
        name = f"nvme{name[2:]}"
    if name.startswith("nvme") and name[4:].isdecimal():  # the controller: all of its namespaces
        return [each for each in sysfs.entries(host.sys / "class" / "block") if each.name.startswith(f"{name}n")]
    block = host.sys / "class" / "block" / name
    return [sysfs.real(block)] if block.exists() else []


_REJECTED = 0x200  # RTF_REJECT: every node without IPv6 has such a route


def carriers(host: Host) -> set[str]:
    """Those that the routes name, and what these stand on: the cards of a bond, of a bridge, of a VLAN."""
    found, new = set[str](), _named(host)
    while new:
        found |= new
        lower = {each.name.removeprefix("lower_") for name in new for each in _lower(host, name)}
        new = lower - found
    return found


def _named(host: Host) -> set[str]:
    """By the node's own tables where we see its processes, else by those of our own network."""
    for place in ("1/net", "net"):
        old, new = _lines(host, f"{place}/route")[1:], _lines(host, f"{place}/ipv6_route")
        if old or new:
            by_old = {line[0] for line in old if len(line) > 7 and line[1] == line[7] == "00000000"}
            return by_old | {line[9] for line in new if len(line) > 9 and _is_default(line)}
    return set()


def _lower(host: Host, name: str) -> list[Path]:
    return sysfs.matching(host.sys / "class" / "net" / name, "lower_*")


def _lines(host: Host, name: str) -> list[list[str]]:
    return [line.split() for line in sysfs.attribute(host.proc, name).splitlines()]


def _is_default(line: list[str]) -> bool:
    """Of IPv6: to everywhere, by a route that leads somewhere."""
    return not line[0].strip("0") and line[1] == "00" and not int(line[8], 16) & _REJECTED
