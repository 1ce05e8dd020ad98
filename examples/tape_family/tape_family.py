"""SCSI tape drives as a family of devices for `plugwright run`: the key `tape` of a resource in its file."""

from collections.abc import AsyncIterator, Sequence
from pathlib import Path

from plugwright import Allocation, Device, Plugin
from plugwright.sdk import sysfs
from plugwright.sdk.device_family import DeviceFamily, FamilyContext, FamilySettings, InvalidSetting, ResourceEntry
from plugwright.sdk.hotplug import Hotplug


class TapeSettings(FamilySettings, frozen=True):
    """`vendor` is as in /sys, any where it is empty. `rewind`: the tape is rewound when a program closes the node."""

    vendor: str = ""
    rewind: bool = True


class Tapes(Plugin):
    def __init__(self, resource: str, settings: TapeSettings, context: FamilyContext) -> None:
        self.resource = resource
        self._settings, self._hotplug, self._host = settings, context.hotplug, sysfs.Host(Path(context.host.root))

    async def discover(self) -> AsyncIterator[list[Device]]:
        hotplug = Hotplug(lambda event: event.subsystem == "scsi_tape", self._hotplug)
        async with hotplug.watching():
            while True:
                yield [self._device(drive) for drive in self._drives()]
                await hotplug.change([self._host.dev])

    async def allocate(self, devices: Sequence[Device]) -> Allocation:
        prefix = "" if self._settings.rewind else "n"
        return Allocation(nodes=[f"/dev/{prefix}{device.id}" for device in devices])

    def _drives(self) -> list[Path]:
        drives = [entry for entry in sysfs.entries(self._host.sys / "class" / "scsi_tape") if entry.name[2:].isdigit()]
        return [drive for drive in drives if self._settings.vendor in ("", sysfs.attribute(drive, "device/vendor"))]

    def _device(self, drive: Path) -> Device:
        return Device(drive.name, numa=sysfs.numa_nodes(drive))


class TapeFamily(DeviceFamily[TapeSettings]):
    settings = TapeSettings

    def plugin(self, entry: ResourceEntry[TapeSettings], context: FamilyContext) -> Plugin:
        return Tapes(entry.name, entry.settings, context)

    def check(self, entry: ResourceEntry[TapeSettings], earlier: Sequence[ResourceEntry[TapeSettings]]) -> None:
        for other in earlier:
            if other.settings.vendor in ("", entry.settings.vendor):
                raise InvalidSetting(f"{other.name} has these drives already", "tape.vendor")


FAMILY = TapeFamily()
