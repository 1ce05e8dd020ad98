"""Compares ResourceSlices: equal content, fields dropped by an API server, and the times of taints.

An API server silently drops the fields of features that are switched off. It preserves only the value of quantities, so
`1024Mi` can come back as `1Gi`, and fills in the time of a taint.
"""

from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from typing import Any, TypeAlias

import msgspec

from plugwright import quantity
from plugwright.errors import MalformedMessage

__all__ = [
    "Document",
    "TaintTimes",
    "checked_slice",
    "comparable",
    "dropped_fields",
    "needed_fields",
    "taint_times",
    "with_taint_times",
    "without",
]

Document: TypeAlias = dict[str, Any]
TaintTimes: TypeAlias = Mapping[tuple[str, str, str, str], str]

_AMOUNTS = ("capacity", "consumesCounters", "counters")
_COUNTERS = frozenset({"consumesCounters", "sharedCounters"})
_KEPT_AWAY = ("NoSchedule", "NoExecute")


class _SliceMetadata(msgspec.Struct):
    name: str
    uid: str
    resourceVersion: str  # noqa: N815  Kubernetes' name
    ownerReferences: list[Document] | None = None  # noqa: N815


class _SlicePool(msgspec.Struct):
    name: str
    generation: int | None = None
    resourceSliceCount: int | None = None  # noqa: N815


class _SliceDevice(msgspec.Struct):
    name: str
    attributes: dict[str, Document] | None = None
    capacity: dict[str, Document] | None = None
    taints: list[Document] | None = None


class _SliceSpec(msgspec.Struct):
    pool: _SlicePool
    devices: list[_SliceDevice] | None = None
    sharedCounters: list[Document] | None = None  # noqa: N815


class _Slice(msgspec.Struct):
    """The parts of a ResourceSlice that this package reads."""

    metadata: _SliceMetadata
    spec: _SliceSpec


def checked_slice(document: Document) -> Document:
    """The document if it is a ResourceSlice; else raises `MalformedMessage`: a failing server can send anything."""
    try:
        msgspec.convert(document, _Slice)
    except msgspec.ValidationError as error:
        raise MalformedMessage(f"the answer must be a ResourceSlice, got one with: {error!s:.200}") from error
    return document


def comparable(spec: Document) -> object:
    """The devices and counter sets of a slice; equal if they mean the same."""
    return [[_comparable(part) for part in spec.get(name) or ()] for name in ("devices", "sharedCounters")]


def _comparable(part: Document) -> Document:
    made = {name: value for name, value in part.items() if value not in (None, [], {})}
    for name in _AMOUNTS:
        if name in made:
            made[name] = _amounts(made[name])
    if "taints" in made:
        made["taints"] = [{name: value for name, value in taint.items() if value} for taint in made["taints"]]
    return made


def _amounts(content: object) -> object:
    """The content with quantities as numbers; the name of a counter set stays."""
    if isinstance(content, dict):
        return {name: value if name == "counterSet" else _amounts(value) for name, value in content.items()}
    if isinstance(content, list):
        return [_amounts(value) for value in content]
    text = str(content)
    if text.isdecimal() and text.isascii():
        return Decimal(text)
    return quantity.parse(text) if quantity.is_quantity(text) else text


def dropped_fields(sent: Document, answered: Document) -> frozenset[str]:
    """The names of the fields that did not come back as sent."""
    sent = {**sent, "devices": with_taint_times(sent.get("devices") or (), taint_times([{"spec": answered}]))}
    dropped = {
        name for name in ("devices", "sharedCounters") if len(sent.get(name) or ()) != len(answered.get(name) or ())
    }
    for before, after in zip(sent.get("devices") or (), answered.get("devices") or (), strict=False):
        one, other = _comparable(before), _comparable(after)
        dropped |= {name for name in one.keys() | other.keys() if one.get(name) != other.get(name)}
        if "capacity" in dropped and _without_policies(before) == _without_policies(after):
            dropped = dropped - {"capacity"} | {"requestPolicy"}
    return frozenset(dropped)


def _without_policies(device: Document) -> object:
    capacity = device.get("capacity") or {}
    return {name: _amounts(value.get("value")) for name, value in capacity.items()}


def without(devices: Iterable[Document], dropped: frozenset[str]) -> tuple[Document, ...]:
    """The devices that can be offered although an API server drops these fields.

    Without its taint, a device would be allocated to pods that it must be kept from. Without its counters, it would be
    allocated while another pod has the hardware that it is a part of.
    """
    return tuple(device for device in devices if not needed_fields(device) & dropped)


def needed_fields(device: Document) -> frozenset[str]:
    """The fields without which a device must not be offered."""
    is_kept_away = any(taint.get("effect") in _KEPT_AWAY for taint in device.get("taints") or ())
    return frozenset(("taints",) if is_kept_away else ()) | (
        _COUNTERS if device.get("consumesCounters") else frozenset()
    )


def taint_times(slices: Iterable[Document]) -> TaintTimes:
    """The time of each taint of each device, by the identifying parts of device and taint."""
    return {
        _taint_key(device, taint): str(taint["timeAdded"])
        for one in slices
        for device in one["spec"].get("devices") or ()
        for taint in device.get("taints") or ()
        if taint.get("timeAdded")
    }


def with_taint_times(devices: Sequence[Document], times: TaintTimes) -> tuple[Document, ...]:
    """The devices; an existing taint keeps its time, from which a pod's toleration counts."""
    return tuple(_with_times(device, times) if device.get("taints") else device for device in devices)


def _with_times(device: Document, times: TaintTimes) -> Document:
    def timed(taint: Document) -> Document:
        since = times.get(_taint_key(device, taint))
        return {**taint, "timeAdded": since} if since and not taint.get("timeAdded") else taint

    return {**device, "taints": [timed(taint) for taint in device["taints"]]}


def _taint_key(device: Document, taint: Document) -> tuple[str, str, str, str]:
    return str(device["name"]), str(taint.get("key")), str(taint.get("value") or ""), str(taint.get("effect"))
