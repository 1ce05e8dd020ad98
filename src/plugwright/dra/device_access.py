"""The devices of a resource as claims see them, and the plugin's methods: the SDK's side of preparing a claim."""

from collections.abc import Collection, Mapping, Sequence
from typing import Protocol

from plugwright.dra.device_taints.taint_budget import usual_effect
from plugwright.dra.device_taints.taints import CORDONED, UNHEALTHY, Taint, TaintController
from plugwright.errors import InvalidValue, PluginError
from plugwright.model import Allocation, Device
from plugwright.sdk.driver_names import device_name
from plugwright.sdk.inventory import Snapshot
from plugwright.sdk.plugin import Plugin
from plugwright.sdk.resource_runtime import ResourceRuntime

__all__ = ["ClaimAdmission", "PluginDevices"]

_NOT_THERE = ("gone", "held", "holders-unknown")  # codes of devices that no plugin call can make usable


class ClaimAdmission(Protocol):
    """Whether claims can get a device; part of `device_placement.DevicePlacement`."""

    async def arriving(self, names: Collection[str]) -> None: ...

    def refusal(self, device_id: str) -> str: ...


class PluginDevices:
    """Implements `claim_setup.DeviceAccess`; devices are identified by their names in the slices."""

    def __init__(
        self, runtime: ResourceRuntime, placement: ClaimAdmission, taints: TaintController | None = None
    ) -> None:
        self._runtime, self._placement, self._taints = runtime, placement, taints
        self.arriving = placement.arriving
        self._snapshot: Snapshot | None = None  # from which `_by_name` was made
        self._by_name: dict[str, Device] = {}

    def device(self, name: str) -> Device | None:
        """The device without its cordon, which is a taint that does not affect claims that already have the device."""
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

    def failure_taints(self, device: Device) -> Sequence[Taint]:
        published = self._taints.taints.value if self._taints is not None else None
        found = [taint for taint in (published or {}).get(device.id, ()) if taint["key"] != CORDONED]
        if found:
            return found
        # It has just failed: its taint will be published soon.
        return ({"key": UNHEALTHY, "value": device.code, "effect": usual_effect(self._runtime.serve.taints)},)

    async def allocate(self, devices: Sequence[Device]) -> Allocation:
        """Also calls pre_start(), because the kubelet does not call a DRA driver before it starts a container.

        Admin access monitors devices that others can hold: by default, the plugin does not change them.
        """
        plugin, limits = self._runtime.service.plugin, self._runtime.settings.limits
        owned = [device for device in devices if not device.admin_access]
        ids, resource = [device.id for device in owned], self._runtime.resource
        # The claim is already recorded, so nothing else gets the hardware from now on.
        for device_id, reason in (await self._runtime.ledger.confirm(resource, ids)).items():
            raise PluginError(f"device {device_id} of {resource} cannot be given to a claim: {reason}")
        # Releases devices of ended device plugin pods first, because their end can still be unnoticed.
        await self._runtime.released_devices.release(ids)
        allocation: object = await self._runtime.calls.call("allocate", plugin.allocate, devices, limit=limits.allocate)
        if not isinstance(allocation, Allocation):
            raise InvalidValue(f"allocate() of {plugin.resource} must return an Allocation, got {allocation!r}")
        started = devices if plugin.admin_access_hooks else owned
        if started and type(plugin).pre_start is not Plugin.pre_start:
            await self._runtime.calls.call("pre_start", plugin.pre_start, started, limit=limits.pre_start)
        return allocation

    async def release(self, devices: Sequence[Device]) -> None:
        plugin, limit = self._runtime.service.plugin, self._runtime.settings.limits.allocate
        ended = [device for device in devices if plugin.admin_access_hooks or not device.admin_access]
        if ended and type(plugin).release is not Plugin.release:
            await self._runtime.calls.call("release", plugin.release, ended, limit=limit)

    async def check_parameters(self, parameters: Mapping[str, object]) -> None:
        plugin, limit = self._runtime.service.plugin, self._runtime.settings.limits.prefer
        await self._runtime.calls.call("check_parameters", plugin.check_parameters, parameters, limit=limit)
