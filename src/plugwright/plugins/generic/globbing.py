"""Patterns of paths on a host: which files they name, and where to look for others. No link leads out of the root."""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from plugwright.model import natural_order
from plugwright.plugins.generic.units import pattern
from plugwright.sdk.sysfs import Host

__all__ = ["Match", "has_wildcard", "home", "look"]

_WILD = "*?["


@dataclass(frozen=True, slots=True)
class Match:
    """The files that a pattern names, and the directories where more may appear."""

    paths: Sequence[str]
    directories: Sequence[Path]


def has_wildcard(text: str) -> bool:
    return any(each in text for each in _WILD)


def home(text: str) -> str:
    """What a match must not lead out of: /dev, or the directory that is named before the first pattern."""
    parts = PurePosixPath(text).parts
    if parts[1:2] == ("dev",) and len(parts) > 2:
        return "/dev"
    named = next((n for n, part in enumerate(parts) if has_wildcard(part)), len(parts) - 1)
    return str(PurePosixPath(*parts[:named]))


def look(host: Host, text: str) -> Match:
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
