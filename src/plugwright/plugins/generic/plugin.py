"""One resource of ordinary devices: looks for them, watches them, and hands them out.

What to look for is a selector's business, what a container gets `answers`', what is broken `checking`'s.
"""

import asyncio
import logging
import stat
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

from plugwright.errors import PluginError
from plugwright.model import Allocation, Device
from plugwright.plugins.generic import allocation, hardware, safety
from plugwright.plugins.generic.allocation import Handing
from plugwright.plugins.generic.hardware import Naming, Selector, Unit
from plugwright.plugins.generic.health import Check, Checking
from plugwright.sdk import plugin, sysfs
from plugwright.sdk.hotplug import Hotplug, HotplugSource, HotplugTiming
from plugwright.sdk.plugin import Plugin
from plugwright.sdk.sysfs import Host
from plugwright.system import concurrency

__all__ = ["Catalog", "Generic", "Options", "Surroundings"]

logger = logging.getLogger(__name__)

# Nodes that many devices have in common: having one of them does not make two devices the same.
_SHARED = frozenset(
    ("/dev/vfio/vfio", "/dev/iommu", "/dev/infiniband/rdma_cm", "/dev/kfd", "/dev/vhost-net", "/dev/net/tun")
)


class Catalog(Protocol):
    """Gives units names that runtimes resolve; returns them by the units' ids."""

    def write(self, host: Host, handing: Handing, units: Sequence[Unit]) -> dict[str, str]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """`count`: how many containers may have a device at a time. `taken`: what belongs to other resources."""

    selector: Selector
    count: int = 1
    naming: Naming = Naming.STABLE
    handing: Handing = field(default_factory=Handing)
    checks: Sequence[Check] = ()
    taken: Sequence[Selector] = ()
    topology: bool = True
    dangerous: bool = False
    catalog: Catalog | None = None
    info_directory: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """The machine, and how news of it come. Resources of one process share their `ears`."""

    host: Host = field(default_factory=Host)
    ears: HotplugSource = field(default_factory=HotplugSource)
    pace: HotplugTiming = field(default_factory=HotplugTiming)


class Generic(Plugin):
    def __init__(self, resource: str, options: Options, around: Surroundings | None = None) -> None:
        self.resource = resource
        self._options, self._around = options, around or Surroundings()
        self._units: dict[str, Unit] = {}  # as they were last seen
        self._offered: dict[str, Unit] = {}  # by the ids that the kubelet knows
        self._seals: dict[str, object] = {}
        self._named: dict[str, str] = {}  # the CDI names of those that have one
        self._warned: set[str] = set()
        self._looked = asyncio.Event()

    async def discover(self) -> AsyncIterator[list[Device]]:
        host, selector = self._around.host, self._options.selector
        hotplug = Hotplug(selector.concerns, self._around.ears, self._around.pace)
        checking = Checking(host, self._options.checks, hotplug.touch)
        async with hotplug.watching(), checking.running():
            while True:
                # In a thread: a driver that hangs may keep whoever reads its files waiting.
                units, directories = await concurrency.in_thread(f"{self.resource} look", self._look)
                await checking.take(units)
                yield self._devices(units, checking)
                await hotplug.change(directories)

    async def allocate(self, devices: Sequence[Device]) -> Allocation:
        # A plugin that has just taken over from another is asked for what that one listed.
        await self._looked.wait()
        offered = {device.id: self._unit(device.id) for device in devices}
        units = list({unit.id: unit for unit in offered.values()}.values())
        for unit in units:
            self._check_again(unit)
        if self._options.info_directory is not None:
            for device_id, unit in offered.items():
                allocation.write(self._options.info_directory, self.resource, device_id, unit)
        given = allocation.answer(self.resource, self._options.handing, units)
        named = [self._named[unit.id] for unit in units if unit.id in self._named]
        return Allocation(given.env, annotations=given.annotations, cdi=named) if named else given

    async def prefer(self, available: Sequence[Device], required: Sequence[Device], size: int) -> Sequence[Device]:
        """Copies of different units before several of one, the least used unit first; then the fewest NUMA nodes."""
        chosen = list(required)
        while len(chosen) < size:
            fresh = _one_of_each(available, chosen)
            if not fresh:
                break
            wanted = min(size, len(chosen) + len(fresh))
            chosen = list(plugin.fewest_numa_nodes([*chosen, *fresh], chosen, wanted))
        return chosen

    def _unit(self, device_id: str) -> Unit:
        if device_id not in self._offered:
            raise PluginError(f"{device_id} of {self.resource} is not there any more")
        return self._offered[device_id]

    def _look(self) -> tuple[list[Unit], list[Path]]:
        host, selector = self._around.host, self._options.selector
        units = hardware.kept(self._units.values(), _without(selector.find(host), self._taken()))
        found = {unit.id: self._vetted(unit) for unit in units}
        away = {name: unit for name, unit in self._units.items() if name not in found and _is_in_a_pod(unit)}
        self._units = {**found, **away}
        self._seals = {name: self._seal(unit) for name, unit in found.items() if not unit.fault}
        return list(self._units.values()), list(selector.directories(host))

    def _taken(self) -> Iterable[Unit]:
        return [unit for selector in self._options.taken for unit in selector.find(self._around.host)]

    def _vetted(self, unit: Unit) -> Unit:
        """A unit that is gone, broken or dangerous says so."""
        missing = [each.path for each in unit.members if not self._around.host.has(each.host_path)]
        fault = unit.fault or (f"{missing[0]} is not there" if missing else "") or self._danger(unit)
        return replace(unit, fault=fault)

    def _danger(self, unit: Unit) -> str:
        if self._options.dangerous:
            return ""
        why = unit.danger or next((why for each in unit.members if (why := safety.reason(self._around.host, each))), "")
        if why and why not in self._warned:
            logger.warning("not handed out", extra={"resource": self.resource, "device": unit.id, "error": why})
            self._warned.add(why)
        return f"{why}: needs 'dangerous: true'" if why else ""

    def _seal(self, unit: Unit) -> object:
        """What tells whether a unit is still what was looked at; nothing does where a disk may be in use by now."""
        host = self._around.host
        try:
            stamp = self._stamp(unit)
        except OSError:  # gone since it was found
            return None
        changing = any(stat.S_ISDIR(mode) for mode, *_ in stamp) or any(
            safety.has_disk(host, each) for each in unit.members
        )
        return None if changing else stamp

    def _stamp(self, unit: Unit) -> list[tuple[int, int, int, int]]:
        found = [self._around.host.stat(each.host_path) for each in unit.members]
        return [(each.st_mode, each.st_rdev, each.st_dev, each.st_ino) for each in found]

    def _check_again(self, unit: Unit) -> None:
        """Between the last look and now a node may have gone, or a disk been mounted."""
        with suppress(OSError):
            if self._stamp(unit) == self._seals.get(unit.id):
                return
        fault = self._vetted(replace(unit, fault="")).fault
        if fault and not _is_in_a_pod(unit):
            raise PluginError(f"{unit.id} of {self.resource}: {fault}")

    def _devices(self, units: Sequence[Unit], checking: Checking) -> list[Device]:
        options = self._options
        if options.catalog is not None:
            self._named = options.catalog.write(self._around.host, options.handing, units)
        self._offered = dict(hardware.copies(options.naming, units, options.count))
        self._looked.set()
        return [self._device(name, unit, checking) for name, unit in self._offered.items()]

    def _device(self, name: str, unit: Unit, checking: Checking) -> Device:
        facts = {key: value for key, value in unit.facts.items() if value}
        attributes = {**facts, "unit": unit.id, "nodes": [member.path for member in unit.members]}
        device = Device(name, numa=unit.numa if self._options.topology else (), attributes=attributes)
        reason = unit.fault or checking.reason(unit)
        return device.unhealthy(reason) if reason else device


def _is_in_a_pod(unit: Unit) -> bool:
    """Not seen, but its hardware is there with its driver: a pod has it in a namespace of its own."""
    bound = sysfs.link_name(unit.anchor, "driver") if unit.anchor is not None else ""
    return bool(bound) and bound in unit.facts.get("driver", "").split(",")


def _without(units: Sequence[Unit], taken: Iterable[Unit]) -> list[Unit]:
    held = {key for unit in taken for key in _identity(unit)}
    return [unit for unit in units if held.isdisjoint(_identity(unit))]


def _identity(unit: Unit) -> set[str]:
    """Its nodes; and its PCI address if that is what it is, not only what it is behind."""
    paths = {member.host_path for member in unit.members} - _SHARED
    addresses = {each for each in unit.facts.get("pci", "").split(",") if each}
    is_function = unit.details.get("generic", {}).get("deviceID") in addresses
    return paths | addresses if is_function or not paths else paths


def _one_of_each(available: Sequence[Device], chosen: Sequence[Device]) -> list[Device]:
    """A copy of each unit of which the fewest are chosen, and of those of each that has the most left."""
    taken = {device.id for device in chosen}
    free: dict[object, list[Device]] = {}
    for device in available:
        if device.id not in taken:
            free.setdefault(device.attributes.get("unit"), []).append(device)
    used = [device.attributes.get("unit") for device in chosen]
    least = min((used.count(unit) for unit in free), default=0)
    fresh = [copies for unit, copies in free.items() if used.count(unit) == least]
    most = max(map(len, fresh), default=0)
    return [copies[0] for copies in fresh if len(copies) == most]
