"""The sizes of vgpu shares: `GPU-…::20480m-25c-3` is the id of share 3, with 20480 MiB and 25 %."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from plugwright.errors import PluginError
from plugwright.plugins.nvidia import sharing
from plugwright.plugins.nvidia.sharing import GpuUnit

__all__ = ["LONGEST_SIZE", "ContainerShare", "DeviceShare", "VgpuSize", "decode", "device_shares", "encode"]

LONGEST_SIZE = len("9999999m-100c-")
_ID = re.compile(r"(?P<device>.+)::(?P<memory>[0-9]+)m-(?P<percent>[0-9]+)c-(?P<number>[0-9]+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class VgpuSize:
    """The parts of a unit's id."""

    device: str
    mebibytes: int
    percent: int
    number: int


@dataclass(frozen=True, slots=True)
class DeviceShare:
    """What one container has of one device: the sum of its units."""

    uuid: str
    mebibytes: int
    percent: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerShare:
    """What one container has. The same units have the same `name`; a fresh container has used nothing yet."""

    name: str
    devices: Sequence[DeviceShare]
    is_oversubscribed: bool
    is_fresh: bool


def encode(size: VgpuSize) -> str:
    return f"{size.device}::{size.mebibytes}m-{size.percent}c-{size.number}"


def decode(unit_id: str) -> VgpuSize:
    match = _ID.fullmatch(unit_id)
    if not match:
        raise PluginError(f"the id of a vgpu share must end in its size, got {unit_id!r}")
    return VgpuSize(
        device=match["device"],
        mebibytes=int(match["memory"]),
        percent=int(match["percent"]),
        number=int(match["number"]),
    )


def device_shares(units: Sequence[GpuUnit]) -> list[DeviceShare]:
    """In the order in which a program in the container counts devices."""
    shares = []
    for uuid, parts in sharing.units_by_device(units).items():
        sizes = [decode(unit.id) for unit in parts]
        percent = min(100, sum(size.percent for size in sizes))
        shares.append(DeviceShare(uuid, sum(size.mebibytes for size in sizes), percent))
    return shares
