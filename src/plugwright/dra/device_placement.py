"""Which API offers each device of a resource: the states of a device, and a driver's interface to the placement.

`claims_only` implements `serve: dra`, in which every device belongs to claims. The package `both`, loaded by nothing
else, implements `serve: both`.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from enum import StrEnum
from typing import Protocol

from plugwright.model import Device, natural_order
from plugwright.sdk.driver_names import device_name
from plugwright.sdk.serve_settings import ServeMode
from plugwright.system.latest import Signal

__all__ = ["MOVING", "DevicePlacement", "DeviceState", "device_status", "hardware_units"]

MOVING = {"key": "plugwright.dev/moving", "value": "device-plugin", "effect": "NoSchedule"}


class DeviceState(StrEnum):
    """Which API offers a device; `both.states` defines the transitions."""

    LISTED = "listed"  # Healthy in the kubelet's list
    WITHHELD = "withheld"  # Unhealthy in the kubelet's list: held by a pod, or not known to be free
    PUBLISHED = "published"  # in a ResourceSlice
    TAINTED = "tainted"  # in a ResourceSlice with the taint of a move: claims that hold it keep it
    WITHDRAWN = "withdrawn"  # removed from the ResourceSlices, which the API server has yet to confirm
    DISPUTED = "disputed"  # held through both APIs, or by an unknown holder

    @property
    def offered_by(self) -> ServeMode | None:
        return {DeviceState.LISTED: ServeMode.DEVICE_PLUGIN, DeviceState.PUBLISHED: ServeMode.DRA}.get(self)

    @property
    def in_slice(self) -> bool:
        return self in (DeviceState.PUBLISHED, DeviceState.TAINTED)


class DevicePlacement(Protocol):
    """Decides which devices claims can get; `changed` is notified when `in_slices` or `taints` change."""

    changed: Signal

    def in_slices(self, devices: Mapping[str, Device]) -> Collection[str] | None:
        """The devices to publish; None while they are not known."""
        ...

    def taints(self) -> Mapping[str, Mapping[str, str]]:
        """The taint of each device that leaves the slices."""
        ...

    def confirm(self, published: Mapping[str, bool], *, taints_dropped: bool = False) -> None:
        """Receives the names of the devices in the API server's slices, and whether each has the taint of a move.

        `taints_dropped`: the server drops taints.
        """
        ...

    async def arriving(self, names: Collection[str]) -> None:
        """An unprepared claim names these devices: they could have to move to claims first."""
        ...

    def refusal(self, device_id: str) -> str:
        """Why no claim can be prepared with the device now; empty if it is possible."""
        ...

    def status(self) -> dict[str, object]:
        """`handover`, `problem` and `devices` of the driver's status."""
        ...

    async def command(self, name: str, arguments: Mapping[str, str]) -> str:
        """Runs an operator's command; `ConfigError` if it is impossible."""
        ...

    async def run(self) -> None:
        """Runs forever."""
        ...


def device_status(
    device_id: str, state: DeviceState, target: ServeMode, waits: str, claims: Iterable[str]
) -> dict[str, object]:
    """One device in the driver's status; `waits` is why it is not on its target side."""
    return {
        "name": device_name(device_id),
        "api": state.offered_by or "",
        "phase": state.value,
        "target": target.value,
        "waits": waits,
        "claims": sorted(claims),
    }


def hardware_units(devices: Iterable[Device]) -> dict[str, tuple[str, ...]]:
    """By device id, the sorted ids of all devices that are the same hardware or use the same counters.

    One API offers all such devices, as a GPU and its partitions.
    """
    devices = sorted(devices, key=lambda device: natural_order(device.id))
    names = {name for device in devices for name in device.physical}
    parents: dict[object, object] = {}

    def root(key: object) -> object:
        while (parent := parents.get(key, key)) != key:
            key = parent
        return key

    for device in devices:
        for key in _hardware(device, names):
            first, second = root(("device", device.id)), root(key)
            if first != second:
                parents[second] = first
    members: dict[object, list[str]] = {}
    for device in devices:
        members.setdefault(root(("device", device.id)), []).append(device.id)
    return {device_id: tuple(unit) for unit in members.values() for device_id in unit}


def _hardware(device: Device, names: Collection[str]) -> Iterator[tuple[str, str]]:
    """The names of a device's hardware. Two parts of one device differ, unless the device itself is listed too."""
    for consumption in device.consumes:
        yield "counters", consumption.of.name
    for name in device.physical:
        yield "hardware", name
        while name := name.rpartition("/")[0]:
            if name in names:
                yield "hardware", name
