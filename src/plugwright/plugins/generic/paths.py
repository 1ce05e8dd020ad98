"""Devices that are named by their paths: nodes, and also files, sockets and directories.

Patterns of paths on a host: which files they name, and where to look for others. No link leads out of the root.
"""

import os
import stat
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path, PurePosixPath

from plugwright.errors import InvalidValue
from plugwright.model import natural_order
from plugwright.plugins.generic import hardware
from plugwright.plugins.generic.hardware import Member, Unit, pattern
from plugwright.sdk import sysfs
from plugwright.sdk.hotplug import Uevent
from plugwright.sdk.sysfs import Host

__all__ = [
    "Match",
    "PathPattern",
    "PathSelector",
    "PathType",
    "escape",
    "fixed_part",
    "has_wildcard",
    "look_for",
    "member",
    "unit",
]

_WILD = "*?["


@dataclass(frozen=True, slots=True)
class Match:
    """The files that a pattern names, and the directories where more may appear."""

    paths: Sequence[str]
    directories: Sequence[Path]


def has_wildcard(text: str) -> bool:
    return any(each in text for each in _WILD)


def fixed_part(text: str) -> str:
    """What a match must not lead out of: /dev, or the directory that is named before the first pattern."""
    parts = PurePosixPath(text).parts
    if parts[1:2] == ("dev",) and len(parts) > 2:
        return "/dev"
    named = next((n for n, part in enumerate(parts) if has_wildcard(part)), len(parts) - 1)
    return str(PurePosixPath(*parts[:named]))


def look_for(host: Host, text: str) -> Match:
    """In natural order: ttyUSB2 comes before ttyUSB10."""
    directories: list[Path] = []
    found = list(_walk(host, PurePosixPath("/"), PurePosixPath(text).parts[1:], directories))
    return Match(sorted(found, key=natural_order), list(dict.fromkeys(directories)))


def _walk(host: Host, place: PurePosixPath, parts: Sequence[str], seen: list[Path]) -> Iterator[str]:
    if not parts:
        yield str(place)
        return
    here = host.seen(host.resolve(str(place)))
    if len(parts) == 1 or has_wildcard(parts[0]) or not here.joinpath(parts[0].replace("\\", "")).exists():
        seen.append(here)
    for name in _names(here, parts[0]):
        yield from _walk(host, place / name, parts[1:], seen)


def _names(directory: Path, part: str) -> list[str]:
    if not has_wildcard(part):
        name = part.replace("\\", "")
        return [name] if os.path.lexists(directory / name) else []
    matching = pattern(part)
    try:
        # What cannot be printed, or is no UTF-8, cannot be told to a kubelet either.
        return sorted(name for name in os.listdir(directory) if name.isprintable() and matching(name))  # noqa: PTH208
    except OSError:
        return []


class PathType(StrEnum):
    """`auto`: nodes, and whatever is below /dev, are devices; other files, sockets and directories are mounts."""

    AUTO = "auto"
    DEVICE = "device"
    MOUNT = "mount"


@dataclass(frozen=True, slots=True, kw_only=True)
class PathPattern:
    path: str
    to: str = ""
    type: PathType = PathType.AUTO
    permissions: str = ""
    read_only: bool = False
    optional: bool = False  # for groups: the others go without it
    limit: int = 1  # for groups: of how many devices a match may be a part

    def __post_init__(self) -> None:
        if not self.path.startswith("/") or ".." in PurePosixPath(self.path).parts:
            raise InvalidValue(f"a path is absolute and has no '..', not {self.path!r}")
        if self.path == "/" or not self.path.isprintable():
            raise InvalidValue(f"a path that nothing can be found at: {self.path!r}")
        if len(set(self.permissions)) != len(self.permissions) or set(self.permissions) - set("rwm"):
            raise InvalidValue(f"permissions are letters of 'rwm', each once, not {self.permissions!r}")
        if self.to and not self.to.startswith("/"):
            raise InvalidValue(f"a path in a container is absolute, not {self.to!r}")


@dataclass(frozen=True, slots=True)
class PathSelector:
    """Every match of every pattern is a device of its own."""

    patterns: Sequence[PathPattern]

    def find(self, host: Host) -> list[Unit]:
        found: dict[str, Unit] = {}
        for each in self.patterns:
            for path in look_for(host, each.path).paths:
                found.setdefault(path, unit(host, each, path))
        return hardware.distinct(list(found.values()))

    def directories(self, host: Host) -> Iterable[Path]:
        for each in self.patterns:
            yield from look_for(host, each.path).directories

    def concerns(self, event: Uevent) -> bool:
        return bool(event.node) and any(each.path.startswith("/dev/") for each in self.patterns)


def unit(host: Host, wanted: PathPattern, path: str) -> Unit:
    """The device that one match is."""
    directory = host.directory_of(path)
    return Unit(
        id=hardware.stable(path.removeprefix("/dev/").strip("/").replace("/", "-")),
        members=(member(host, wanted, path),),
        facts={"name": PurePosixPath(path).name, "pci": sysfs.pci_address_of(directory) if directory else ""},
        numa=sysfs.numa_nodes(directory) if directory else (),
        fault="" if host.has(path) else f"{path} leads nowhere",
        danger=escape(host, wanted, path),
        directory=directory,
    )


def member(host: Host, wanted: PathPattern, path: str) -> Member:
    return Member(
        path=path,
        # A link that only root can change is handed out as it is: what it leads to may be another node tomorrow, and
        # runtimes follow it each time that a container starts.
        host_path=path if _is_trusted(host, path) else host.resolve(path),
        container_path=wanted.to,
        permissions=wanted.permissions,
        mount=_is_mount(host, wanted.type, path),
        read_only=wanted.read_only,
    )


def escape(host: Host, wanted: PathPattern, path: str) -> str:
    """Where a link leads that leaves what the operator named; empty if it does not."""
    real, home = PurePosixPath(host.resolve(path)), fixed_part(wanted.path)
    explicit = not has_wildcard(wanted.path) and _is_trusted(host, path)
    # A link on the way to it counts as its place only if nobody else can lead it elsewhere.
    home = host.resolve(home) if _is_trusted(host, home) else home
    if not explicit and not real.is_relative_to(home):
        return f"{path} is a link to {real}, out of {home}"
    return ""


def _is_mount(host: Host, kind: PathType, path: str) -> bool:
    if kind is not PathType.AUTO:
        return kind is PathType.MOUNT
    try:
        mode = host.seen(host.resolve(path)).stat().st_mode
    except OSError:
        return False
    if stat.S_ISCHR(mode) or stat.S_ISBLK(mode):
        return False
    return stat.S_ISSOCK(mode) or not path.startswith("/dev/")


def _is_trusted(host: Host, path: str) -> bool:
    """Whether only root, or whoever runs us, can change what is at `path`, or a link on the way there."""
    return all(_is_closed(host.seen(each)) for each in host.passed(path))


def _is_closed(directory: Path) -> bool:
    try:
        status = directory.stat()
    except OSError:
        return False
    return status.st_uid in (0, os.geteuid()) and not status.st_mode & 0o022
