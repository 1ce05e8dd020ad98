"""Hardware in sysfs: attributes, drivers, NUMA nodes, PCI functions, and the device nodes in /dev.

Every root is an argument: a tree in a temporary directory can replace a machine. Absent and unreadable content
counts as empty: hardware can disappear while it is being read, and can report any value. The plugins decide which
hardware becomes a device.
"""

import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

import msgspec

from plugwright.model import NUMA_NODES

__all__ = [
    "NUMA_ATTRIBUTE",
    "Host",
    "PciFunction",
    "SysfsNode",
    "attribute",
    "entries",
    "link_name",
    "matching",
    "nodes_below",
    "numa_nodes",
    "pci_address_of",
    "pci_function",
    "pci_functions",
    "real",
    "standard_attributes",
    "uevent",
]

_PCI_ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
_PCI_ROOT = re.compile(r"pci[0-9a-f]{4,8}:[0-9a-f]{2}")
_STANDARD = "resource.kubernetes.io"
NUMA_ATTRIBUTE = f"{_STANDARD}/numaNode"
_NUMA_NODE = re.compile("[0-9]{1,9}")
_MOUNTINFO = Path("/proc/self/mountinfo")
_LINKS = 40  # same as the kernel
_DEPTH = 8  # from a USB or PCI device to the deepest node below it, with a margin


class Host(msgspec.Struct, frozen=True):
    """A machine's files; its `/` is mounted at `root`."""

    root: Path = Path("/")

    @property
    def sys(self) -> Path:
        return self.root / "sys"

    @property
    def dev(self) -> Path:
        return self.root / "dev"

    @property
    def proc(self) -> Path:
        return self.root / "proc"

    def has_tmpfs_dev(self, mountinfo: Path = _MOUNTINFO) -> bool:
        """Whether /dev is a tmpfs made by a container runtime or systemd; the kernel's own is a devtmpfs."""
        try:
            lines = [line.split(" ") for line in mountinfo.read_text(errors="replace").splitlines()]
        except OSError:
            return False
        kinds = [words[words.index("-") + 1] for words in lines if "-" in words and words[4] == str(self.dev)]
        return kinds[-1:] == ["tmpfs"]  # the last mount is on top

    def seen(self, path: str) -> Path:
        """The path below `root` of a path of the host."""
        return self.root / path.lstrip("/")

    def path(self, seen: Path) -> str:
        """The host's own path of a path below `root`."""
        return "/" + str(seen.relative_to(self.root))

    def has(self, path: str) -> bool:
        """Whether a path exists, by stat: an unprivileged daemon can stat device nodes, but not open them."""
        try:
            self.stat(path)
        except (OSError, ValueError):  # not a valid path, such as one that contains a NUL
            return False
        return True

    def stat(self, path: str) -> os.stat_result:
        """The status of a path of the host, following links; OSError if it does not exist."""
        return os.stat(path if self.is_whole else self.seen(self.resolve(path)))  # noqa: PTH116

    @property
    def is_whole(self) -> bool:
        """Whether `root` is our own `/`."""
        return str(self.root) == "/"

    def resolve(self, path: str) -> str:
        """The host's own path with every link followed, none of which leads out of `root`."""
        if self.is_whole:
            return str(real(Path(path)))
        return str(self._trace(path)[-1])

    def passed(self, path: str) -> list[str]:
        """The directories in which `path` is looked up: a user who can change any of them controls where it leads."""
        return [str(directory) for directory in dict.fromkeys(self._trace(path)[:-1])]

    def _trace(self, path: str) -> list[PurePosixPath]:
        """Every directory passed, followed by the end of the path."""
        passed: list[PurePosixPath] = []
        done, left, links = PurePosixPath("/"), list(PurePosixPath(path).parts[:0:-1]), 0
        while left:
            part = left.pop()
            if part == "..":
                done = done.parent
                continue
            passed.append(done)
            link = self.seen(str(done / part))
            if not link.is_symlink() or links == _LINKS:
                done /= part
                continue
            links += 1
            target = _target(link)
            done = PurePosixPath("/") if target.is_absolute() else done
            left += reversed([name for name in target.parts if name != "/"])
        return [*passed, done]

    def directory_of(self, path: str) -> Path | None:
        """The directory in /sys of a device node."""
        try:
            status = self.stat(path)
        except (OSError, ValueError):
            return None
        kind = "block" if stat.S_ISBLK(status.st_mode) else "char" if stat.S_ISCHR(status.st_mode) else ""
        number = f"{os.major(status.st_rdev)}:{os.minor(status.st_rdev)}"
        directory = self.sys / "dev" / kind / number
        return real(directory) if kind and directory.exists() else None


class SysfsNode(msgspec.Struct, frozen=True):
    """A device node: its path on the host, its subsystem, and its directory in /sys."""

    path: str
    subsystem: str
    directory: Path


class PciFunction(msgspec.Struct, frozen=True):
    """One function of a PCI device; ids are hexadecimal digits without 0x."""

    address: str
    directory: Path
    vendor: str
    device: str
    class_code: str
    driver: str

    @property
    def is_virtual(self) -> bool:
        return self.directory.joinpath("physfn").exists()

    @property
    def iommu_group(self) -> str:
        return link_name(self.directory, "iommu_group")


def real(path: Path) -> Path:
    """The path with every link followed; `path` itself if a component is missing, for which pathlib raises."""
    try:
        return path.resolve()
    except (OSError, RuntimeError, ValueError):
        return path


def matching(directory: Path, pattern: str) -> list[Path]:
    """The paths below a directory matching a pattern, sorted; empty if the directory is missing."""
    try:
        return sorted(directory.glob(pattern))
    except OSError:
        return []


def attribute(directory: Path, name: str) -> str:
    try:
        # Some drivers pad a buffer with NULs, which no path and no variable can contain.
        text = directory.joinpath(name).read_text(encoding="utf-8", errors="replace")
        return text.replace("\0", "").strip()
    except (OSError, ValueError):
        return ""


def link_name(directory: Path, name: str) -> str:
    """The last component of a link's target: of `driver`, `subsystem`, `iommu_group`."""
    try:
        return Path(os.readlink(directory / name)).name  # noqa: PTH115
    except OSError:
        return ""


def entries(directory: Path) -> list[Path]:
    """The paths in a directory, sorted; empty if it does not exist."""
    try:
        return sorted(directory.iterdir())
    except OSError:
        return []


def uevent(directory: Path) -> dict[str, str]:
    pairs = (line.partition("=") for line in attribute(directory, "uevent").splitlines())
    return {name: value for name, _, value in pairs}


def numa_nodes(directory: Path) -> tuple[int, ...]:
    """The NUMA node of a device or of its nearest parent with a node; -1 in sysfs means none.

    An IOMMU group has the nodes of its devices, and a disk composed of others has theirs.
    """
    device = real(directory)
    for path in (device, *device.parents):
        if path.name in ("devices", "sys"):
            break
        number = attribute(path, "numa_node")
        if _NUMA_NODE.fullmatch(number):
            return (int(number),)
    return tuple(sorted({node for part in _parts(device) for node in numa_nodes(part)}))


def nodes_below(directory: Path) -> list[SysfsNode]:
    """The device nodes of a device and below it, except those of another device behind it."""
    return sorted(_nodes(real(directory), _DEPTH), key=lambda node: node.path)


def pci_address_of(directory: Path) -> str:
    """The address of the PCI function of a device, or of the function in front of it."""
    device = real(directory)
    return next((path.name for path in (device, *device.parents) if _PCI_ADDRESS.fullmatch(path.name)), "")


def standard_attributes(directory: Path) -> dict[str, str | int]:
    """The attributes with names defined by Kubernetes, for a PCI function or a device behind one; otherwise none.

    Drivers of all vendors publish the same attributes, so a claim can request a GPU and a NIC on one PCIe root.
    """
    address = pci_address_of(directory)
    if not address:
        return {}
    # The outermost root: Intel's VMD adds another root, which shares the lanes of the first.
    root = next((part for part in real(directory).parts if _PCI_ROOT.fullmatch(part)), "")
    attributes: dict[str, str | int] = {f"{_STANDARD}/pciBusID": address}
    if root:
        attributes[f"{_STANDARD}/pcieRoot"] = root
    nodes = numa_nodes(directory)
    # Without NUMA there is no attribute: with -1, all such devices would seem to be on one node.
    if len(nodes) == 1 and nodes[0] in NUMA_NODES:
        attributes[NUMA_ATTRIBUTE] = nodes[0]
    return attributes


def pci_function(directory: Path) -> PciFunction:
    directory = real(directory)
    return PciFunction(
        address=directory.name,
        directory=directory,
        vendor=attribute(directory, "vendor").removeprefix("0x"),
        device=attribute(directory, "device").removeprefix("0x"),
        class_code=attribute(directory, "class").removeprefix("0x"),
        driver=link_name(directory, "driver"),
    )


def pci_functions(sys: Path) -> list[PciFunction]:
    return [pci_function(directory) for directory in entries(sys / "bus" / "pci" / "devices")]


def _parts(device: Path) -> list[Path]:
    """The devices behind a virtual device."""
    if device.parts[-3:-1] == ("virtual", "vfio"):
        return entries(device.parents[3] / "kernel" / "iommu_groups" / device.name.removeprefix("noiommu-") / "devices")
    return entries(device / "slaves")


def _target(link: Path) -> PurePosixPath:
    try:
        return PurePosixPath(os.readlink(link))  # noqa: PTH115
    except OSError:  # removed in the meantime
        return PurePosixPath(link.name)


def _nodes(directory: Path, depth: int) -> Iterator[SysfsNode]:
    name = uevent(directory).get("DEVNAME") if directory.joinpath("dev").exists() else ""
    if name:
        path = name if name.startswith("/") else f"/dev/{name}"
        yield SysfsNode(path, link_name(directory, "subsystem") or directory.parent.name, directory)
    for child in entries(directory) if depth else []:
        if child.is_dir() and not child.is_symlink() and not _is_other_device(child):
            yield from _nodes(child, depth - 1)


def _is_other_device(directory: Path) -> bool:
    """Whether it is another device: a hub has other USB devices behind it, a bridge other PCI functions."""
    return directory.joinpath("devnum").exists() or _PCI_ADDRESS.fullmatch(directory.name) is not None
