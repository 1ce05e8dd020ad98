"""The devices of a resource as claims see them, and the plugin's methods: what preparing a claim needs of the SDK."""

from collections.abc import Collection, Mapping, Sequence
from typing import Protocol

from plugwright.errors import InvalidValue
from plugwright.model import Allocation, Device
from plugwright.sdk.daemon import ResourceRuntime
from plugwright.sdk.driver_names import device_name
from plugwright.sdk.inventory import Snapshot
from plugwright.sdk.plugin import Plugin

__all__ = ["ClaimAdmission", "PluginDevices"]

_NOT_THERE = ("gone", "held", "holders-unknown")  # codes: no plugin call can make such a device usable


class ClaimAdmission(Protocol):
    """Whether claims may have a device; part of `device_placement.DevicePlacement`."""

    async def arriving(self, names: Collection[str]) -> None: ...

    def refusal(self, device_id: str) -> str: ...


class PluginDevices:
    """Implements `claim_setup.DeviceAccess`; devices are known by their names in the slices."""

    def __init__(self, runtime: ResourceRuntime, placement: ClaimAdmission) -> None:
        self._runtime, self._placement = runtime, placement
        self.arriving = placement.arriving
        self._snapshot: Snapshot | None = None  # that `_by_name` was made of
        self._by_name: dict[str, Device] = {}

    def device(self, name: str) -> Device | None:
        """As it is without a cordon: that is a taint, which claims that have the device already do not mind."""
        snapshot = self._runtime.inventory.latest.value
        if snapshot is None:
            return None
        if snapshot is not self._snapshot:
            devices = {**snapshot.devices, **snapshot.cordoned}.values()
            self._snapshot, self._by_name = snapshot, {device_name(device.id): device for device in devices}
        return self._by_name.get(name)

    def refusal(self, device: Device) -> str:
        if not device.healthy and device.code in _NOT_THERE:
            return device.reason
        return self._placement.refusal(device.id)

    async def allocate(self, devices: Sequence[Device]) -> Allocation:
        """Also what comes before the start of a container: no kubelet asks a DRA driver for that."""
        plugin, limits = self._runtime.service.plugin, self._runtime.settings.limits
        # What a pod of the device plugin API had is given back first: its end may not have been noticed there yet.
        await self._runtime.released_devices.release([device.id for device in devices])
        allocation: object = await self._runtime.calls.call("allocate", plugin.allocate, devices, limit=limits.allocate)
        if not isinstance(allocation, Allocation):
            raise InvalidValue(f"allocate() of {plugin.resource} must return an Allocation, got {allocation!r}")
        if type(plugin).pre_start is not Plugin.pre_start:
            await self._runtime.calls.call("pre_start", plugin.pre_start, devices, limit=limits.pre_start)
        return allocation

    async def release(self, devices: Sequence[Device]) -> None:
        plugin, limit = self._runtime.service.plugin, self._runtime.settings.limits.allocate
        if type(plugin).release is not Plugin.release:
            await self._runtime.calls.call("release", plugin.release, devices, limit=limit)

    async def check_parameters(self, parameters: Mapping[str, object]) -> None:
        plugin, limit = self._runtime.service.plugin, self._runtime.settings.limits.prefer
        await self._runtime.calls.call("check_parameters", plugin.check_parameters, parameters, limit=limit)
