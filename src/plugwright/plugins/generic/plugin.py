"""One resource of ordinary devices: discovers them, follows their changes, and allocates them.

The selector decides what to search for, `allocation` what a container gets, `health` which units are broken, and
`safety` which must not be allocated.

All access to the host's files runs in a thread with a time limit, because a driver, a network file system or a disk can
hang. A failure to examine or list a unit does not affect others.
"""

import asyncio
import logging
import operator
import stat
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Protocol

import msgspec
from msgspec.structs import replace

from plugwright.errors import InvalidValue, PluginError
from plugwright.model import Allocation, Device, Mount
from plugwright.plugins.generic import allocation, hardware, safety
from plugwright.plugins.generic.allocation import HandoutOptions, WrittenUnits
from plugwright.plugins.generic.hardware import Selector, Unit
from plugwright.plugins.generic.health import HealthCheck, HealthMonitor, Probe
from plugwright.sdk import plugin, sysfs
from plugwright.sdk.device_nodes import KeptAllocations, NodeStamps, memory_file_systems, take_stamps
from plugwright.sdk.hotplug import Hotplug, HotplugSource, HotplugTiming
from plugwright.sdk.node_state import NodeState
from plugwright.sdk.plugin import Plugin
from plugwright.sdk.sysfs import Host
from plugwright.system import concurrency
from plugwright.system.blocking import BlockingCalls
from plugwright.system.log_once import LogOnce
from plugwright.text import clean

__all__ = ["Generic", "HostAccess"]

logger = logging.getLogger(__name__)

Stamp = list[tuple[int, int, int, int]]
_SHARED = "several containers"  # the kind of sharing: only the number of containers is limited, in any resource


class HostAccess(msgspec.Struct, frozen=True, kw_only=True):
    """The host's files, the source of its hot-plug events, and the directories for files of other programs.

    Resources of one process share their `hotplug`. `device_info` is Multus's directory, `cdi` that of the container
    runtimes. `scan_timeout` and `allocate_timeout` limit the access to the host's files, in seconds.
    """

    host: Host = msgspec.field(default_factory=Host)
    hotplug: HotplugSource = msgspec.field(default_factory=HotplugSource)
    timing: HotplugTiming = msgspec.field(default_factory=HotplugTiming)
    device_info: Path | None = None
    cdi: Path = Path("/var/run/cdi")
    scan_timeout: float = 30.0
    allocate_timeout: float = 5.0


class _Scan(msgspec.Struct, frozen=True):
    """The found units with their stamps, hardware and attributes by id, and where others can appear.

    `empty_reason` is why there are no units.
    """

    units: Mapping[str, Unit]
    stamps: Mapping[str, Stamp | None]
    physical: Mapping[str, tuple[str, ...]]
    attributes: Mapping[str, Mapping[str, str | int]]
    nodes: Mapping[str, NodeStamps]  # of units that can be allocated without a thread
    directories: Sequence[Path]
    empty_reason: str


class _SpecWriter(Protocol):
    """Gives units names for container runtimes."""

    def write(self, host: Host, options: HandoutOptions, units: Sequence[Unit]) -> WrittenUnits: ...


class Generic(Plugin):
    def __init__(
        self,
        resource: str,
        selector: Selector,
        options: HandoutOptions | None = None,
        access: HostAccess | None = None,
    ) -> None:
        self.resource = resource
        self._selector, self._options, self._access = selector, options or HandoutOptions(), access or HostAccess()
        self._scanning = BlockingCalls(f"scan of {resource}", self._access.scan_timeout, most_hung=1)
        self._allocating = BlockingCalls(f"check of devices of {resource}", self._access.allocate_timeout)
        self._units: Mapping[str, Unit] = {}  # as last seen
        self._offered: Mapping[str, Unit] = {}  # by the ids of devices
        self._stamps: Mapping[str, Stamp | None] = {}
        self._physical: Mapping[str, tuple[str, ...]] = {}
        self._attributes: Mapping[str, Mapping[str, str | int]] = {}
        self._nodes: Mapping[str, NodeStamps] = {}
        self._kept = KeptAllocations()  # of the last scan
        self._cdi = WrittenUnits()
        self._problems = LogOnce(logger)
        self._listed = asyncio.Event()
        self._held: frozenset[str] = frozenset()  # devices held by containers when the plugin started
        self._spec = _spec_of(resource, self._access) if self._options.cdi else None
        self._checks: Sequence[tuple[HealthCheck, Probe]] = ()
        if self._options.health:
            from plugwright.plugins.generic import checks  # only if a file has health checks

            self._checks = checks.probes_of(self._options.health)

    async def restore(self, node: NodeState) -> None:
        stored = await node.allocations() or ()
        self._held = frozenset(device_id for allocation in stored for device_id in allocation.device_ids)

    async def discover(self) -> AsyncIterator[list[Device]]:
        """Yields lists of units after scans of the hardware; health checks change only their health."""
        hotplug = Hotplug(self._selector.concerns, self._access.hotplug, self._access.timing)
        monitor = HealthMonitor(self._access.host, self._checks)
        async with hotplug.watching(), monitor.running():
            while True:
                scan = await self._scanning.run(partial(self._scan, self._units))
                self._units, self._stamps = scan.units, scan.stamps
                self._physical, self._attributes = scan.physical, scan.attributes
                self._nodes = {}  # of the next units: until these are offered, an allocation takes a thread
                self._kept.clear()
                self.empty_reason = scan.empty_reason
                units = list(scan.units.values())
                await monitor.follow(units)
                await self._scanning.run(partial(self._offer, units))
                self._nodes = scan.nodes
                self._listed.set()
                hardware_change = asyncio.create_task(hotplug.change(scan.directories))
                try:
                    while not hardware_change.done():
                        reasons = monitor.reasons.value
                        yield await self._list(reasons)
                        health_change = monitor.reasons.until(partial(operator.ne, reasons))
                        await concurrency.first(asyncio.wait([hardware_change]), health_change)
                    await hardware_change
                finally:
                    await concurrency.cancel(hardware_change)

    async def _list(self, reasons: Mapping[str, str]) -> list[Device]:
        try:
            return await self._scanning.run(partial(self._devices, self._offered, reasons))
        except PluginError:
            # A node without free threads must still learn which devices are broken; this reads no file.
            return self._devices(self._offered, reasons)

    async def allocate(self, devices: Sequence[Device]) -> Allocation:
        # After replacing another plugin, a plugin can receive allocations before its first list.
        await self._listed.wait()
        offered = {device.id: self._offered_unit(device.id) for device in devices}
        await self._allocating.run(partial(self._prepare, offered))
        return self._allocation(list({unit.id: unit for unit in offered.values()}.values()))

    def allocate_now(self, devices: Sequence[Device]) -> Allocation | None:
        """The allocation, if every node is in memory and unchanged since the last scan, and no file must be written."""
        device_ids = [device.id for device in devices]
        kept = self._kept.get(device_ids)
        if kept is not None or not self._listed.is_set():
            return kept
        units = {unit.id: unit for device_id in device_ids if (unit := self._offered.get(device_id)) is not None}
        stamps = [self._nodes[unit_id] for unit_id in units if unit_id in self._nodes]
        if len(stamps) < len(units) or any(device_id not in self._offered for device_id in device_ids):
            return None
        nodes = NodeStamps(tuple(node for stamp in stamps for node in stamp.nodes))
        if not nodes.are_unchanged():
            return None
        made = self._allocation(list(units.values()))
        self._kept.keep(device_ids, made, nodes)
        return made

    def _allocation(self, units: Sequence[Unit]) -> Allocation:
        made = allocation.allocation_of(self.resource, self._options, units)
        names = [self._cdi.names[unit.id] for unit in units if unit.id in self._cdi.names]
        return Allocation(made.env, annotations=made.annotations, cdi=names) if names else made

    async def prefer(self, available: Sequence[Device], required: Sequence[Device], size: int) -> Sequence[Device]:
        """Prefers copies of different units over several of one, least used units first; then the fewest NUMA nodes."""
        chosen = list(required)
        while len(chosen) < size:
            fresh = _one_of_each_unit(available, chosen)
            if not fresh:
                break
            count = min(size, len(chosen) + len(fresh))
            chosen = list(plugin.fewest_numa_nodes([*chosen, *fresh], chosen, count))
        return chosen

    def _scan(self, before: Mapping[str, Unit]) -> _Scan:
        host = self._access.host
        units = hardware.keep_ids(before.values(), self._selector.find(host))
        visible = {unit.id: self._examined(unit) for unit in units}
        in_pods = {unit_id: unit for unit_id, unit in before.items() if unit_id not in visible and _is_in_a_pod(unit)}
        stamps = {unit_id: self._lasting_stamp(unit) for unit_id, unit in visible.items() if not unit.fault}
        found, directories = {**visible, **in_pods}, list(self._selector.directories(host))
        physical = {unit_id: hardware.physical_names(host, unit) for unit_id, unit in visible.items()}
        physical |= {unit_id: self._physical.get(unit_id, ()) for unit_id in in_pods}
        attributes = {unit_id: hardware.published_facts(host, unit) for unit_id, unit in visible.items()}
        attributes |= {unit_id: dict(self._attributes.get(unit_id, {})) for unit_id in in_pods}
        reason = "" if found else _empty_reason(host, directories)
        nodes = self._nodes_in_memory([visible[unit_id] for unit_id, stamp in stamps.items() if stamp is not None])
        return _Scan(found, stamps, physical, attributes, nodes, directories, reason)

    def _nodes_in_memory(self, units: Sequence[Unit]) -> dict[str, NodeStamps]:
        """The stamps of nodes in memory, except for units with a file for each allocation."""
        in_memory, host = memory_file_systems(), self._access.host
        if self._access.device_info is not None:
            units = [unit for unit in units if not unit.details]
        stamps = {unit.id: take_stamps(host, [path.host_path for path in unit.paths], in_memory) for unit in units}
        return {unit_id: stamp for unit_id, stamp in stamps.items() if stamp is not None}

    def _examined(self, unit: Unit) -> Unit:
        try:
            return self._vetted(unit)
        except Exception as error:  # noqa: BLE001  one unit: one of its names or texts that a call does not accept
            self._warn("device cannot be examined", unit.id, error)
            return replace(unit, fault=f"cannot be examined: {error}", code="device")

    def _vetted(self, unit: Unit) -> Unit:
        """The unit, with a fault if it is missing, broken or dangerous."""
        for path in unit.paths:
            Mount(path.host_path)  # rejects a path that no container can get
        missing = [path.path for path in unit.paths if not self._access.host.has(path.host_path)]
        if unit.fault:
            return replace(unit, code=unit.code or "device")
        if missing:
            return replace(unit, fault=f"{missing[0]} does not exist", code="missing")
        danger = self._danger(unit)
        return replace(unit, fault=danger, code="dangerous" if danger else "")

    def _danger(self, unit: Unit) -> str:
        if self._options.dangerous:
            return ""
        dangers = (safety.danger(self._access.host, path) for path in unit.paths)
        danger = unit.danger or next((danger for danger in dangers if danger), "")
        if danger:
            self._warn("dangerous device not handed out", unit.id, danger)
        return f"{danger}: needs 'dangerous: true'" if danger else ""

    def _warn(self, message: str, device_id: str, error: object) -> None:
        """Logs each error once, for whichever device, because every scan finds them again."""
        reason = clean(error)
        facts = {"resource": self.resource, "device": device_id, "error": reason}
        self._problems.warning(message, reason, key=reason, extra=facts)

    def _lasting_stamp(self, unit: Unit) -> Stamp | None:
        """The stamp of a unit; None if a stamp is not sufficient, as a disk can come into use before an allocation."""
        try:
            stamp = self._stamp(unit)
        except (OSError, ValueError):  # removed since it was found
            return None
        is_directory = any(stat.S_ISDIR(mode) for mode, *_ in stamp)
        has_disk = any(safety.has_disk(self._access.host, path) for path in unit.paths)
        return None if is_directory or has_disk else stamp

    def _stamp(self, unit: Unit) -> Stamp:
        stats = [self._access.host.stat(path.host_path) for path in unit.paths]
        return [(status.st_mode, status.st_rdev, status.st_dev, status.st_ino) for status in stats]

    def _check_again(self, unit: Unit) -> None:
        """Checks units again, because since the last scan a node can have been removed, or a disk mounted."""
        with suppress(OSError):
            if self._stamp(unit) == self._stamps.get(unit.id):
                return
        fault = self._vetted(replace(unit, fault="")).fault
        if fault and not _is_in_a_pod(unit):
            raise PluginError(f"{unit.id} of {self.resource}: {fault}")

    def _prepare(self, offered: Mapping[str, Unit]) -> None:
        """Prepares the host's files for an allocation."""
        for unit in {unit.id: unit for unit in offered.values()}.values():
            self._check_again(unit)
        self._write_device_info(offered)

    def _write_device_info(self, offered: Mapping[str, Unit]) -> None:
        if self._access.device_info is not None:
            for device_id, unit in offered.items():
                if unit.details:
                    allocation.write_device_info(self._access.device_info, self.resource, device_id, unit)

    def _offer(self, units: Sequence[Unit]) -> None:
        if self._spec is not None:
            self._cdi = self._spec.write(self._access.host, self._options, units)
        self._offered = dict(hardware.copies(self._options.ids, units, self._options.count or 1))
        # Multus reads the files in /run again when it recreates a pod's sandbox, for example after a reboot.
        held = {device_id: self._offered[device_id] for device_id in sorted(self._held & self._offered.keys())}
        self._write_device_info(held)

    def _offered_unit(self, device_id: str) -> Unit:
        if device_id not in self._offered:
            raise PluginError(f"{device_id} of {self.resource} no longer exists")
        return self._offered[device_id]

    def _devices(self, offered: Mapping[str, Unit], reasons: Mapping[str, str]) -> list[Device]:
        """The devices, without unlistable ones, which do not affect the others."""
        devices = []
        for device_id, unit in offered.items():
            try:
                devices.append(self._device(device_id, unit, reasons))
            except InvalidValue as error:
                self._warn("device left out of the list", unit.id, error)
        return devices

    def _device(self, device_id: str, unit: Unit, reasons: Mapping[str, str]) -> Device:
        nodes = [clean(path.path) for path in unit.paths]
        attributes = {**self._attributes.get(unit.id, {}), "unit": unit.id, "nodes": nodes}
        device = Device(
            device_id,
            numa=unit.numa if self._options.topology else (),
            attributes=attributes,
            physical=self._physical.get(unit.id, ()),
            sharing=_SHARED if (unit.count or self._options.count or 1) > 1 else "",
        )
        if unit.fault:
            return device.unhealthy(unit.fault, unit.code)
        if unit.id in self._cdi.faults:
            return device.unhealthy(self._cdi.faults[unit.id], "cdi")
        return device.unhealthy(reasons[unit.id], "check") if reasons.get(unit.id) else device


def _spec_of(resource: str, access: HostAccess) -> _SpecWriter:
    from plugwright.plugins.generic.cdi import GenericSpec  # only if a file uses CDI
    from plugwright.sdk import cdi

    return GenericSpec(cdi.SpecDirectory(access.cdi), resource)


def _empty_reason(host: Host, directories: Sequence[Path]) -> str:
    needs_dev = any(directory.is_relative_to(host.dev) for directory in directories)
    if needs_dev and host.has_tmpfs_dev():
        return f"nothing matches, and {host.dev} is a tmpfs, as that of a container is: is the node's /dev mounted?"
    return "nothing on this node matches"


def _is_in_a_pod(unit: Unit) -> bool:
    """Whether it is invisible although its hardware and driver are present: a pod has it in its own namespace."""
    bound = sysfs.link_name(unit.anchor, "driver") if unit.anchor is not None else ""
    return bool(bound) and bound in unit.facts.get("driver", "").split(",")


def _one_of_each_unit(available: Sequence[Device], chosen: Sequence[Device]) -> list[Device]:
    """A copy of each of the least chosen units, limited to the units with the most copies left."""
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
