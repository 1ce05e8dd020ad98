"""Devices named by their paths: nodes, but also files, sockets and directories.

A path can contain wildcards. No link leads out of the host's root.
"""

import os
import stat
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import Annotated, Literal

import msgspec

from plugwright.errors import InvalidValue
from plugwright.grammars import directory_before_wildcard, has_wildcard
from plugwright.model import natural_order
from plugwright.plugins.generic import allocation, hardware
from plugwright.plugins.generic.family import SelectorFamily, directories_of
from plugwright.plugins.generic.hardware import DeviceFilter, HostPath, Unit, pattern
from plugwright.sdk import sysfs
from plugwright.sdk.device_family import AbsolutePath
from plugwright.sdk.hotplug import Uevent
from plugwright.sdk.sysfs import Host

__all__ = [
    "FAMILY",
    "PathMatches",
    "PathPattern",
    "PathSelector",
    "PathType",
    "literal_paths",
    "match",
    "patterns_of",
    "unit",
]

PathType = Literal["auto", "device", "mount"]


class PathPattern(DeviceFilter, frozen=True):
    """Files of the host. `/dev/ttyUSB*` alone is the same as `{path: /dev/ttyUSB*}`.

    `to` is the path in the container: a trailing `/` has the name appended, templates are filled in. `type` is detected
    by default: device nodes become device nodes; files, sockets and directories become mounts. `permissions` are by
    default those of the resource. `optional` and `limit` are for groups: an optional path can be without a match; a
    match can be part of up to `limit` devices.
    """

    path: AbsolutePath
    to: str = ""
    type: PathType = "auto"
    permissions: Annotated[str, msgspec.Meta(pattern="^[rwm]{1,3}$")] | None = None
    read_only: bool = False
    optional: bool = False
    limit: Annotated[int, msgspec.Meta(ge=1, le=100_000)] = 1

    def __post_init__(self) -> None:
        permissions = self.permissions or ""
        if not self.path.startswith("/") or ".." in PurePosixPath(self.path).parts:
            raise InvalidValue(f"a path must be absolute and have no '..', got {self.path!r}")
        if self.path == "/" or not self.path.isprintable():
            raise InvalidValue(f"a path must name something below / in printable letters, got {self.path!r}")
        if len(set(permissions)) != len(permissions) or set(permissions) - set("rwm"):
            raise InvalidValue(f"permissions must be letters of 'rwm', each once, got {self.permissions!r}")
        if self.to and not self.to.startswith("/"):
            raise InvalidValue(f"a path in a container must be absolute, got {self.to!r}")
        allocation.check_template(self.to)


class PathMatches(msgspec.Struct, frozen=True):
    """The files matching a pattern, and the directories in which more can appear."""

    paths: Sequence[str]
    directories: Sequence[Path]


class PathSelector(msgspec.Struct, frozen=True):
    """Makes a separate device from every match of every pattern."""

    patterns: Sequence[PathPattern]

    def find(self, host: Host) -> list[Unit]:
        units: dict[str, Unit] = {}
        for wanted in self.patterns:
            for path in match(host, wanted.path).paths:
                units.setdefault(path, unit(host, wanted, path))
        return hardware.distinct(list(units.values()))

    def directories(self, host: Host) -> Iterable[Path]:
        for wanted in self.patterns:
            yield from match(host, wanted.path).directories

    def concerns(self, event: Uevent) -> bool:
        return bool(event.node) and any(wanted.path.startswith("/dev/") for wanted in self.patterns)


def patterns_of(settings: Iterable[str | PathPattern]) -> list[PathPattern]:
    return [PathPattern(path=wanted) if isinstance(wanted, str) else wanted for wanted in settings]


def literal_paths(settings: Iterable[str | PathPattern]) -> list[str]:
    """The paths without wildcards."""
    paths = [wanted if isinstance(wanted, str) else wanted.path for wanted in settings]
    return [path for path in paths if not has_wildcard(path)]


FAMILY = SelectorFamily(
    list[AbsolutePath | PathPattern],
    lambda settings, options: PathSelector(patterns_of(settings)),
    named_paths=literal_paths,
    mounts=directories_of("paths.path"),
)


def match(host: Host, text: str) -> PathMatches:
    """The matches in natural order: ttyUSB2 before ttyUSB10."""
    directories: list[Path] = []
    paths = list(_walk(host, PurePosixPath("/"), PurePosixPath(text).parts[1:], directories))
    return PathMatches(sorted(paths, key=natural_order), list(dict.fromkeys(directories)))


def unit(host: Host, wanted: PathPattern, path: str) -> Unit:
    """The device of one match."""
    directory = host.directory_of(path)
    host_path = HostPath(
        path=path,
        # If only root can change a link, it is allocated unchanged: its target can change, and runtimes follow it at
        # each start of a container.
        host_path=path if _is_trusted(host, path) else host.resolve(path),
        container_path=wanted.to,
        permissions=wanted.permissions or "",
        mount=_is_mount(host, wanted.type, path),
        read_only=wanted.read_only,
    )
    return Unit(
        id=hardware.stable_id(path.removeprefix("/dev/").strip("/").replace("/", "-")),
        paths=(host_path,),
        facts={"name": PurePosixPath(path).name, "pci": sysfs.pci_address_of(directory) if directory else ""},
        numa=sysfs.numa_nodes(directory) if directory else (),
        fault="" if host.has(path) else f"{path} leads nowhere",
        danger=_escape(host, wanted, path),
        directory=directory,
    )


def _walk(host: Host, parent: PurePosixPath, parts: Sequence[str], directories: list[Path]) -> Iterator[str]:
    if not parts:
        yield str(parent)
        return
    directory = host.seen(host.resolve(str(parent)))
    if len(parts) == 1 or has_wildcard(parts[0]) or not directory.joinpath(parts[0].replace("\\", "")).exists():
        directories.append(directory)
    for name in _names(directory, parts[0]):
        yield from _walk(host, parent / name, parts[1:], directories)


def _names(directory: Path, part: str) -> list[str]:
    if not has_wildcard(part):
        name = part.replace("\\", "")
        return [name] if os.path.lexists(directory / name) else []
    matching = pattern(part)
    try:
        # Unprintable names, and names that are not UTF-8, cannot be sent to a kubelet either.
        return sorted(name for name in os.listdir(directory) if name.isprintable() and matching(name))  # noqa: PTH208
    except OSError:
        return []


def _escape(host: Host, wanted: PathPattern, path: str) -> str:
    """Why a link leaves the operator's paths; empty if it does not."""
    real, home = PurePosixPath(host.resolve(path)), directory_before_wildcard(wanted.path)
    explicit = not has_wildcard(wanted.path) and _is_trusted(host, path)
    # A link in its path counts as its directory only if no other user can change the link.
    home = host.resolve(home) if _is_trusted(host, home) else home
    if not explicit and not real.is_relative_to(home):
        return f"{path} is a link to {real}, out of {home}"
    return ""


def _is_mount(host: Host, kind: PathType, path: str) -> bool:
    if kind != "auto":
        return kind == "mount"
    try:
        mode = host.seen(host.resolve(path)).stat().st_mode
    except OSError:
        return False
    if stat.S_ISCHR(mode) or stat.S_ISBLK(mode):
        return False
    return stat.S_ISSOCK(mode) or not path.startswith("/dev/")


def _is_trusted(host: Host, path: str) -> bool:
    """Whether only root, or the daemon's own user, can change the file at `path` or a link in the path."""
    return all(_is_closed(host.seen(directory)) for directory in host.passed(path))


def _is_closed(directory: Path) -> bool:
    try:
        status = directory.stat()
    except OSError:
        return False
    return status.st_uid in (0, os.geteuid()) and not status.st_mode & 0o022
