"""Who set a capacity key of a node, as the node's own `managedFields` record it.

Only what changes a value becomes its owner there: the kubelet of what it counts, anybody else of what was set by hand.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

__all__ = ["Entry", "Setter", "setters"]

_KUBELET = "kubelet"
_EVER = datetime.min.replace(tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry of `managedFields`; `fields` is its fieldsV1."""

    manager: str
    time: datetime | None
    fields: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Setter:
    """`settled`: the kubelet has written the node's status since, so it has seen the value."""

    manager: str
    time: datetime | None
    kubelet: bool
    settled: bool = True


def setters(entries: Iterable[Entry]) -> dict[str, Setter]:
    """The owner of each capacity key. Where several share one, the kubelet counts, else who came last."""
    found: dict[str, Setter] = {}
    entries = sorted(entries, key=lambda entry: entry.time or _EVER)
    kubelet = _kubelet(entries)
    written = max((entry.time or _EVER for entry in entries if entry.manager == kubelet), default=_EVER)
    for entry in entries:
        setter = Setter(entry.manager, entry.time, entry.manager == kubelet, written > (entry.time or _EVER))
        for name in _names(_under(entry.fields, "f:status", "f:capacity")):
            if name not in found or not found[name].kubelet:
                found[name] = setter
    return found


def _kubelet(entries: Iterable[Entry]) -> str:
    """The manager that sends the heartbeats: some distributions build the kubelet into a program of another name."""
    for entry in entries:
        conditions = _under(entry.fields, "f:status", "f:conditions")
        if "f:lastHeartbeatTime" in _under(conditions, 'k:{"type":"Ready"}'):
            return entry.manager
    return _KUBELET


def _under(fields: Mapping[str, object], *path: str) -> Mapping[str, object]:
    for step in path:
        inner = fields.get(step)
        fields = inner if isinstance(inner, Mapping) else {}
    return fields


def _names(fields: Mapping[str, object]) -> Iterable[str]:
    return (field.removeprefix("f:") for field in fields if field.startswith("f:"))
