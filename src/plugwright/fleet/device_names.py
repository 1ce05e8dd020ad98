"""Completes an abbreviated device name: an id, an id prefix, or an index."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from typing import Any

import msgspec

from plugwright.errors import ConfigError
from plugwright.model import some

__all__ = ["NamedDevice", "close_names", "complete_device", "devices_in_status", "short_ids"]

_DIGITS = re.compile(r"\d+")
_LONG, _SHORTEST = 20, 8  # characters of an id that is shortened, and of its beginning
_SEPARATORS = "-_.:/"  # a shortened id ends before one of these


class NamedDevice(msgspec.Struct, frozen=True):
    resource: str
    id: str
    index: str = ""


def complete_device(text: str, devices: Iterable[NamedDevice]) -> Sequence[NamedDevice]:
    """The devices with the one id that `text` names, in several resources if they share it; empty if there are none.

    An exact id has precedence over an index, an index over a prefix, and `gpu-1` is `gpu-1-3f` rather than `gpu-10`.
    ConfigError if several ids have the prefix.
    """
    found = list(devices)
    exact = [device for device in found if device.id == text]
    by_index = [device for device in found if device.index and device.index == text]
    whole = [device for device in found if device.id.startswith(text) and device.id[len(text) :][:1] in _SEPARATORS]
    beginning = [device for device in found if device.id.startswith(text)]
    matches = next((matches for matches in (exact, by_index, whole, beginning) if matches and text), [])
    ids = sorted({device.id for device in matches})
    if len(ids) > 1:
        resources = {device.resource for device in matches}
        which = "several devices have the index" if matches is by_index else "several devices begin with"
        more = "; choose one with its resource" if len(resources) > 1 else ""
        raise ConfigError(f"{which} {text!r}: {some(ids)}{more}")
    return matches


def close_names(text: str, ids: Iterable[str], others: Iterable[str] = ()) -> str:
    """Words for an error: the id, beginning of an id or other name that was probably meant.

    A beginning has the same digits, since `mock-1` is not a misspelt `mock-2`.
    """
    ids = set(ids)
    beginnings = Counter(id_[:end] for id_ in ids for end in range(len(id_)) if id_[end] in _SEPARATORS)
    digits = _DIGITS.findall(text)
    unique = {name for name, count in beginnings.items() if count == 1 and _DIGITS.findall(name) == digits}
    close = get_close_matches(text, sorted({*ids, *unique, *others}), n=1, cutoff=0.6)
    return f"; did you mean {close[0]!r}?" if close else ""


def devices_in_status(status: Mapping[str, Any], resource: str = "") -> list[NamedDevice]:
    """The devices of a daemon's status, of all resources or of one."""
    return [
        NamedDevice(str(entry["name"]), str(device["id"]), str(device["attributes"].get("index", "")))
        for entry in status["resources"]
        if resource in ("", entry["name"])
        for device in entry["devices"]
    ]


def short_ids(ids: Iterable[str]) -> dict[str, str]:
    """A short form of each id, such as `GPU-8f3c2e4a`, which commands accept in place of the id."""
    known = set(ids)
    return {name: next(_beginnings(name, known), name) for name in known}


def _beginnings(name: str, known: set[str]) -> Iterator[str]:
    ends = [place for place, sign in enumerate(name) if sign in _SEPARATORS and place >= _SHORTEST]
    for end in ends if len(name) > _LONG else ():
        if not any(other.startswith(name[:end]) for other in known if other != name):
            yield name[:end]
