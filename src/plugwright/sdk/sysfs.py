"""What the kernel says of hardware: attributes, drivers, NUMA nodes, PCI functions, and the nodes in /dev.

Every root is an argument, so that a tree in a temporary directory is as good as a machine. What is absent or cannot
be read is empty: hardware goes away while it is being looked at. Which of it becomes a device is a plugin's business.
"""

import os
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

__all__ = [
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
    "uevent",
]

_PCI_ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
_LINKS = 40  # as many as the kernel follows
_DEPTH = 8  # from a USB or PCI device down to the deepest node below it, with room to spare


@dataclass(frozen=True, slots=True)
class Host:
    """A machine's files; `root` is where its `/` is seen."""

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

    def seen(self, path: str) -> Path:
        """Where a path of the host is seen from here."""
        return self.root / path.lstrip("/")

    def path(self, seen: Path) -> str:
        """The host's own path of what is seen here."""
        return "/" + str(seen.relative_to(self.root))

    def has(self, path: str) -> bool:
        """By stat: an unprivileged daemon may look at device nodes, never open them."""
        try:
            self.stat(path)
        except OSError:
            return False
        return True

    def stat(self, path: str) -> os.stat_result:
        """Of what is at a path of the host, links followed; OSError where nothing is."""
        return os.stat(path if self.is_whole else self.seen(self.resolve(path)))  # noqa: PTH116

    @property
    def is_whole(self) -> bool:
        """Whether its `/` is ours."""
        return str(self.root) == "/"

    def resolve(self, path: str) -> str:
        """The host's own path with every link followed, none of them out of `root`."""
        if self.is_whole:
            return str(real(Path(path)))
        return str(self._trace(path)[-1])

    def passed(self, path: str) -> list[str]:
        """The directories in which a name is looked up on the way to `path`: whoever can change one decides where."""
        return [str(each) for each in dict.fromkeys(self._trace(path)[:-1])]

    def _trace(self, path: str) -> list[PurePosixPath]:
        """Every directory passed, and where it ends."""
        passed: list[PurePosixPath] = []
        done, left, links = PurePosixPath("/"), list(PurePosixPath(path).parts[:0:-1]), 0
        while left:
            part = left.pop()
            if part == "..":
                done = done.parent
                continue
            passed.append(done)
            place = self.seen(str(done / part))
            if not place.is_symlink() or links == _LINKS:
                done /= part
                continue
            links += 1
            target = _target(place)
            done = PurePosixPath("/") if target.is_absolute() else done
            left += reversed([each for each in target.parts if each != "/"])
        return [*passed, done]

    def directory_of(self, path: str) -> Path | None:
        """The directory in /sys of a device node."""
        try:
            status = self.stat(path)
        except OSError:
            return None
        kind = "block" if stat.S_ISBLK(status.st_mode) else "char" if stat.S_ISCHR(status.st_mode) else ""
        number = f"{os.major(status.st_rdev)}:{os.minor(status.st_rdev)}"
        place = self.sys / "dev" / kind / number
        return real(place) if kind and place.exists() else None


@dataclass(frozen=True, slots=True)
class SysfsNode:
    """A device node: its path on the host, the subsystem that it belongs to, and its directory in /sys."""

    path: str
    subsystem: str
    directory: Path


@dataclass(frozen=True, slots=True)
class PciFunction:
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
    """With every link followed; as it is where one went away meanwhile, which pathlib takes for an error."""
    try:
        return path.resolve()
    except (OSError, RuntimeError):
        return path


def matching(directory: Path, pattern: str) -> list[Path]:
    """What is below a directory by a pattern, sorted; nothing if it went away meanwhile."""
    try:
        return sorted(directory.glob(pattern))
    except OSError:
        return []


def attribute(directory: Path, name: str) -> str:
    try:
        return directory.joinpath(name).read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def link_name(directory: Path, name: str) -> str:
    """What a link leads to, by its last name: `driver`, `subsystem`, `iommu_group`."""
    try:
        return Path(os.readlink(directory / name)).name  # noqa: PTH115
    except OSError:
        return ""


def entries(directory: Path) -> list[Path]:
    """What is in a directory, sorted; nothing if it is not there."""
    try:
        return sorted(directory.iterdir())
    except OSError:
        return []


def uevent(directory: Path) -> dict[str, str]:
    pairs = (line.partition("=") for line in attribute(directory, "uevent").splitlines())
    return {name: value for name, _, value in pairs}


def numa_nodes(directory: Path) -> tuple[int, ...]:
    """The NUMA node of a device or of the nearest of its parents that has one; -1 means none.

    An IOMMU group has those of its devices, a disk made of others has theirs.
    """
    place = real(directory)
    for each in (place, *place.parents):
        if each.name in ("devices", "sys"):
            break
        number = attribute(each, "numa_node")
        if number.isdecimal():
            return (int(number),)
    return tuple(sorted({node for each in _made_of(place) for node in numa_nodes(each)}))


def nodes_below(directory: Path) -> list[SysfsNode]:
    """The device nodes of a device and of what is below it, but for those of another device behind it."""
    found = list(_nodes(real(directory), _DEPTH))
    return sorted(found, key=lambda node: node.path)


def pci_address_of(directory: Path) -> str:
    """The PCI function that a device is, or is behind."""
    place = real(directory)
    return next((each.name for each in (place, *place.parents) if _PCI_ADDRESS.fullmatch(each.name)), "")


def pci_function(directory: Path) -> PciFunction:
    place = real(directory)
    return PciFunction(
        address=place.name,
        directory=place,
        vendor=attribute(place, "vendor").removeprefix("0x"),
        device=attribute(place, "device").removeprefix("0x"),
        class_code=attribute(place, "class").removeprefix("0x"),
        driver=link_name(place, "driver"),
    )


def pci_functions(sys: Path) -> list[PciFunction]:
    return [pci_function(each) for each in entries(sys / "bus" / "pci" / "devices")]


def _made_of(place: Path) -> list[Path]:
    """What stands behind a virtual device."""
    if place.parts[-3:-1] == ("virtual", "vfio"):
        return entries(place.parents[3] / "kernel" / "iommu_groups" / place.name.removeprefix("noiommu-") / "devices")
    return entries(place / "slaves")


def _target(link: Path) -> PurePosixPath:
    try:
        return PurePosixPath(os.readlink(link))  # noqa: PTH115
    except OSError:  # gone since it was seen
        return PurePosixPath(link.name)


def _nodes(directory: Path, depth: int) -> Iterator[SysfsNode]:
    name = uevent(directory).get("DEVNAME") if directory.joinpath("dev").exists() else ""
    if name:
        path = name if name.startswith("/") else f"/dev/{name}"
        yield SysfsNode(path, link_name(directory, "subsystem") or directory.parent.name, directory)
    for child in entries(directory) if depth else []:
        if child.is_dir() and not child.is_symlink() and not _is_another(child):
            yield from _nodes(child, depth - 1)


def _is_another(directory: Path) -> bool:
    """Behind a hub there are other USB devices, behind a bridge other PCI functions."""
    return directory.joinpath("devnum").exists() or _PCI_ADDRESS.fullmatch(directory.name) is not None
