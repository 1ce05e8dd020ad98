"""Completes an abbreviated device name: an id, an id prefix, or an index."""

from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from typing import Any

import msgspec

from plugwright.errors import ConfigError
from plugwright.model import some

__all__ = ["NamedDevice", "close_ids", "complete_device", "devices_in_status"]

_SEPARATORS = "-_.:/"  # characters after a complete part of an id


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


def close_ids(text: str, devices: Iterable[NamedDevice]) -> str:
    """The closest id, as a part of an error message."""
    close = get_close_matches(text, {device.id for device in devices}, n=1, cutoff=0.6)
    return f"; did you mean {close[0]!r}?" if close else ""


def devices_in_status(status: Mapping[str, Any], resource: str = "") -> list[NamedDevice]:
    """The devices of a daemon's status, of all resources or of one."""
    return [
        NamedDevice(str(entry["name"]), str(device["id"]), str(device["attributes"].get("index", "")))
        for entry in status["resources"]
        if resource in ("", entry["name"])
        for device in entry["devices"]
    ]
