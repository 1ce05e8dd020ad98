"""The devices of a resource as the split sees them: the units that move together, and their names in slices."""

from collections.abc import Collection, Iterable, Mapping

from plugwright.dra.api_split import moves
from plugwright.dra.names import device_name
from plugwright.model import Device
from plugwright.sdk.inventory import Inventory

__all__ = ["DeviceUnits"]

Unit = tuple[str, ...]


class DeviceUnits:
    """`by_device` are those of the devices that were listed at the last `find`."""

    def __init__(self, inventory: Inventory) -> None:
        self.by_device: Mapping[str, Unit] = {}
        self.names: dict[str, str] = {}
        self.ids: dict[str, str] = {}  # by name
        self._inventory = inventory
        self._distinct: list[Unit] = []
        self._found_in: Mapping[str, Device] = {}

    @property
    def devices(self) -> Mapping[str, Device]:
        snapshot = self._inventory.latest.value
        return snapshot.devices if snapshot is not None else {}

    @property
    def offered(self) -> frozenset[str]:
        """The devices that the kubelet's list has as Healthy."""
        snapshot = self._inventory.latest.value
        if snapshot is None:
            return frozenset()
        return frozenset(
            key for key in snapshot.devices if (listed := snapshot.listed(key)) is not None and listed.healthy
        )

    def find(self) -> None:
        devices = self.devices
        if devices is not self._found_in:
            self._found_in, self.by_device = devices, moves.units(devices.values())
            self._distinct = sorted(set(self.by_device.values()))
        self.name(devices)

    def name(self, device_ids: Iterable[str]) -> None:
        for key in device_ids:
            if key not in self.names:
                self.names[key] = device_name(key)
                self.ids[self.names[key]] = key

    def of(self, device_id: str) -> Unit:
        return self.by_device.get(device_id, (device_id,))

    def known(self, device_ids: Collection[str]) -> list[Unit]:
        """Those of which every device is among these."""
        return [unit for unit in self._distinct if all(key in device_ids for key in unit)]
