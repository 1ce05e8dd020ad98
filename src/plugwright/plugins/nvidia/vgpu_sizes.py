"""The sizes of vgpu shares: `GPU-…::20480m-25c-3` is the id of share 3, with 20480 MiB and 25 %."""

from collections.abc import Sequence

import msgspec

from plugwright.plugins.nvidia import sharing
from plugwright.plugins.nvidia.sharing import GpuUnit

__all__ = ["LONGEST_SIZE", "ContainerShare", "DeviceShare", "device_shares", "sized_id"]

LONGEST_SIZE = len("9999999m-100c-")
_MIB = 2**20


class DeviceShare(msgspec.Struct, frozen=True):
    """One container's part of one device: the sum of its units."""

    uuid: str
    mebibytes: int
    percent: int


class ContainerShare(msgspec.Struct, frozen=True, kw_only=True):
    """One container's shares. The same units have the same `name`; a fresh container has used nothing yet."""

    name: str
    devices: Sequence[DeviceShare]
    is_oversubscribed: bool
    is_fresh: bool


def sized_id(unit: GpuUnit) -> str:
    return f"{unit.uuid}::{unit.memory // _MIB}m-{unit.percent}c-{unit.replica or 0}"


def device_shares(units: Sequence[GpuUnit]) -> list[DeviceShare]:
    """Shares in the order in which a program in the container counts devices."""
    return [
        DeviceShare(uuid, sum(unit.memory // _MIB for unit in parts), min(100, sum(unit.percent for unit in parts)))
        for uuid, parts in sharing.units_by_device(units).items()
    ]
