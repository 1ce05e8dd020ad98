"""Changes of a node's devices between two of its reports, as notices for Events. Pure."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Literal

import msgspec

from plugwright.model import natural_order, some
from plugwright.sdk.node_report import DeviceReport, NodeReport, ResourceReport
from plugwright.sdk.status import PLANNED_CODES
from plugwright.text import clean

__all__ = ["REASONS", "DeviceChanges", "Notice", "PodReference", "described_device", "is_failed", "is_gone"]

_NAMED = 8  # devices that one message names
_GONE = "gone"
_REMEMBERED = 256  # devices of a resource removed from the list


class PodReference(msgspec.Struct, frozen=True):
    namespace: str
    name: str
    uid: str = ""


class Notice(msgspec.Struct, frozen=True):
    """One Event: about a pod, or about the node."""

    reason: str
    message: str
    type: Literal["Normal", "Warning"] = "Normal"
    pod: PodReference | None = None


class _Known(msgspec.Struct, frozen=True):
    """A device as in the last report; one removed from the list is `gone`."""

    problem: str = ""  # the code of a failure, `gone`, or empty
    is_cordoned: bool = False
    holders: tuple[PodReference, ...] = ()


class _Change(msgspec.Struct, frozen=True):
    reason: str
    text: str  # of the device, with the reason
    type: Literal["Normal", "Warning"]
    holders: tuple[PodReference, ...]


_VERBS = {
    "DeviceFailed": "failed",
    "DeviceRecovered": "recovered",
    "DeviceVanished": "vanished",
    "DeviceCordoned": "cordoned",
    "DeviceUncordoned": "put back into service",
}
REASONS = tuple(_VERBS)  # of Events
_WARNINGS = ("DeviceFailed", "DeviceVanished")


def is_failed(device: DeviceReport) -> bool:
    """Whether the device itself is broken; a cordoned, held or moving device is Unhealthy on purpose."""
    return device.health != "Healthy" and device.code not in PLANNED_CODES


def is_gone(device: DeviceReport) -> bool:
    """Whether discovery no longer finds the device; it stays listed because a pod could hold it."""
    return device.health != "Healthy" and device.code == _GONE


def described_device(device: DeviceReport) -> str:
    """The device with its problem, such as `GPU-1c2d: Xid 79 (xid-79)`"""
    reason = f": {clean(device.reason)[:200]}" if device.reason else ""
    code = f" ({device.code})" if device.code and device.code not in ("other", _GONE) else ""
    return f"{clean(device.id)}{reason}{code}"


class DeviceChanges:
    """Compares each report of the node with the previous one."""

    def __init__(self) -> None:
        self._known: dict[str, dict[str, _Known]] = {}
        self._configuration = ""

    def compare(self, report: NodeReport, announced: Iterable[str] = ()) -> list[Notice]:
        """The changes in `report`.

        For a new resource every problem is a change, unless the resource is in `announced`.
        """
        config = report.daemon.config.sha256 if report.daemon.config is not None else ""
        is_configured, self._configuration = config != self._configuration, config
        notices: list[Notice] = []
        served = {resource.name: resource for resource in report.resources if _is_listed(resource)}
        names = {resource.name for resource in report.resources if not resource.owner}
        for name, resource in served.items():
            known = self._known.get(name)
            changes = list(_changes(known or {}, resource, is_vanishing_planned=is_configured))
            if known is not None or name not in announced:
                notices += _notices(name, changes)
            after = {device.id: _after((known or {}).get(device.id), device) for device in resource.devices}
            left = [] if is_configured else [device_id for device_id in known or () if device_id not in after]
            self._known[name] = {**dict.fromkeys(left[-_REMEMBERED:], _Known(_GONE)), **after}
        self._known = {name: known for name, known in self._known.items() if name in names}
        return notices


def _is_listed(resource: ResourceReport) -> bool:
    """Whether this daemon serves the resource, and has had its first list since it started."""
    return not resource.owner and (bool(resource.devices) or resource.state not in ("starting", "stopped"))


def _after(before: _Known | None, device: DeviceReport) -> _Known:
    holders = (PodReference(each.namespace, each.pod, each.pod_uid) for each in device.holders if each.pod)
    problem = device.code or "other" if is_failed(device) else _GONE if is_gone(device) else ""
    if device.health != "Healthy" and not problem and before is not None:
        problem = before.problem  # it is unknown whether a cordoned, held or moving device is broken
    return _Known(problem, bool(device.cordoned), tuple(dict.fromkeys(holders)))


def _changes(known: Mapping[str, _Known], resource: ResourceReport, *, is_vanishing_planned: bool) -> Iterator[_Change]:
    listed = {device.id for device in resource.devices}
    for device in resource.devices:
        before = known.get(device.id) or _Known()
        after = _after(before, device)
        holders = tuple(dict.fromkeys([*after.holders, *before.holders]))
        for reason in _reasons(before, after):
            text = f"{clean(device.id)}: {clean(device.cordoned)}" if reason == "DeviceCordoned" else clean(device.id)
            if reason in _WARNINGS:
                text = described_device(device)
            yield _Change(reason, text, "Warning" if reason in _WARNINGS else "Normal", holders)
    # A held device stays listed, so a removed device has no holder.
    for device_id, before in known.items():
        if device_id not in listed and before.problem != _GONE and not is_vanishing_planned:
            yield _Change("DeviceVanished", clean(device_id), "Warning", ())


def _reasons(before: _Known, after: _Known) -> Iterator[str]:
    if after.problem != before.problem:
        yield {"": "DeviceRecovered", _GONE: "DeviceVanished"}.get(after.problem, "DeviceFailed")
    if after.is_cordoned != before.is_cordoned:
        yield "DeviceCordoned" if after.is_cordoned else "DeviceUncordoned"


def _notices(resource: str, changes: Iterable[_Change]) -> Iterator[Notice]:
    """One notice for the node and one for each holding pod, about all devices with the same change."""
    on_node: dict[str, list[_Change]] = {}
    on_pods: dict[tuple[str, PodReference], list[_Change]] = {}
    for change in changes:
        on_node.setdefault(change.reason, []).append(change)
        for pod in change.holders:
            on_pods.setdefault((change.reason, pod), []).append(change)
    for reason, happened in on_node.items():
        yield Notice(reason, _message(resource, reason, happened), happened[0].type)
    for (reason, pod), happened in on_pods.items():
        yield Notice(reason, f"Of this pod's devices: {_message(resource, reason, happened)}", happened[0].type, pod)


def _message(resource: str, reason: str, changes: list[_Change]) -> str:
    texts = sorted((change.text for change in changes), key=natural_order)
    count = "1 device" if len(texts) == 1 else f"{len(texts)} devices"
    return f"{count} of {clean(resource)} {_VERBS[reason]}: {some(texts, _NAMED)}"[:1024]
