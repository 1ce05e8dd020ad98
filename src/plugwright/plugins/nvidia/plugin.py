"""The plugin of one resource of NVIDIA GPUs.

It combines the parts: `monitor` reads the machine, `selection` selects the resource's devices, `health` assesses them,
`sharing` splits them, `preference` chooses among them, and `allocation` allocates them.

Lists and allocations are made in threads with time limits: they read and write the host's files, and a list of sixty
thousand shares takes seconds.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial

from plugwright.attributes import Capacity, Quantity
from plugwright.errors import HardwareMissing, InvalidValue, PluginError
from plugwright.model import Allocation, Device, some
from plugwright.plugins.nvidia import config as nvidia_config
from plugwright.plugins.nvidia import gpu_attributes, health, selection, sharing, stored
from plugwright.plugins.nvidia.allocation import AllocationBuilder
from plugwright.plugins.nvidia.cdi import GpuSpecs
from plugwright.plugins.nvidia.config import DeviceListStrategy, NvidiaConfig, SharingStrategy
from plugwright.plugins.nvidia.driver import GpuHealth
from plugwright.plugins.nvidia.driver_files import DriverFiles
from plugwright.plugins.nvidia.health import HealthAssessment
from plugwright.plugins.nvidia.kept_answers import KeptAnswers
from plugwright.plugins.nvidia.labels import NodeLabels
from plugwright.plugins.nvidia.monitor import GpuMonitor, View
from plugwright.plugins.nvidia.preference import CachedPreference
from plugwright.plugins.nvidia.sharing import ContainerExtras, GpuUnit, SharingBackend
from plugwright.plugins.nvidia.stored import MovedGpu
from plugwright.plugins.nvidia.time_slicing import TimeSlicing
from plugwright.sdk.cdi import recreation
from plugwright.sdk.node_state import NodeState, StoredAllocation
from plugwright.sdk.plugin import Plugin
from plugwright.sdk.serve_settings import ServeMode, ServeSettings
from plugwright.sdk.share_usage import HeldShare, ShareUsage
from plugwright.system import concurrency
from plugwright.system.blocking import BlockingCalls
from plugwright.system.log_once import LogOnce
from plugwright.text import clean

__all__ = ["ClaimedNvidia", "Nvidia"]

logger = logging.getLogger(__name__)


class Nvidia(Plugin):
    """`monitor` can be shared: the resources of one machine have a common monitor."""

    def __init__(
        self, resource: str, config: NvidiaConfig, monitor: GpuMonitor, backend: SharingBackend | None = None
    ) -> None:
        self.resource = resource
        self.monitor = monitor
        self.config = config
        self._selection = selection.from_config(config)
        self._sharing = backend or TimeSlicing(resource, config.share)
        self._serve = ServeSettings()
        is_simulated = monitor.driver.inject is not None
        self.simulates = ("xid", "recover", "remove", "add") if is_simulated else ()
        files = DriverFiles(config, simulated=is_simulated)
        self._specs = GpuSpecs(config, files)
        self._labels = NodeLabels(resource, config)
        self._allocations = AllocationBuilder(config, files, self._specs)
        self._listing = BlockingCalls(f"list of {resource}", monitor.intervals.list_timeout, most_hung=1)
        self._allocating = BlockingCalls(f"allocation of {resource}", monitor.intervals.allocate_timeout)
        self._units: dict[str, GpuUnit] = {}
        self._answers = KeptAnswers(self._allocations, self._sharing, monitor.republish)
        self._listed: list[Device] = []
        self._problems = LogOnce(logger)
        self._versions = ("", "")  # of the driver and of CUDA
        self._loader_note = ""
        self._missing: dict[str, str] = {}  # by UUID, why devices cannot be allocated
        self._preferences = CachedPreference()
        self._recheck_after: float | None = None
        self._node: NodeState | None = None
        self._stored: Sequence[StoredAllocation] = ()
        self._restored: Sequence[StoredAllocation] = ()  # those whose files have been restored
        self._moved: list[MovedGpu] = []

    @property
    def serve(self) -> ServeSettings:
        return self._serve

    @serve.setter
    def serve(self, settings: ServeSettings) -> None:
        """ConfigError if devices cannot be offered in this way."""
        nvidia_config.check_api(self.config, settings.api)
        self._serve = settings

    @property
    def _is_shared_by_claims(self) -> bool:
        return self.config.share is not None and self._serve.api is ServeMode.DRA

    @property
    def hardware_events(self) -> Mapping[tuple[str, str], int]:
        """Reported errors by UUID and code, for metrics."""
        return self.monitor.counted_of({unit.gpu.uuid for unit in self._units.values()})

    async def restore(self, node: NodeState) -> None:
        self._node, self._stored = node, await node.allocations() or ()
        self._specs.classes = stored.classes(self.config.cdi.vendor, self._stored)
        self.monitor.keep_xids(node.directory)

    async def discover(self) -> AsyncIterator[list[Device]]:
        monitor = self.monitor
        async with monitor.running():
            with monitor.selecting(self.resource, self._selection), self._answers.watching():
                self._labels.begin()
                follow = asyncio.create_task(self._sharing.follow(monitor.republish, monitor.driver))
                follow.add_done_callback(lambda _: monitor.republish())
                try:
                    while True:
                        view = monitor.views.value
                        monitor.check_running()
                        if follow.done():
                            follow.result()  # raises the error that ended it
                        if self._moved and self._node is not None:  # until the pod has been deleted
                            now = await self._node.allocations(current=True)
                            self._stored = self._stored if now is None else now
                        if not view.is_pending:
                            yield await self._list_in_time(view)
                        await self._write_ahead(view)
                        await self._wait_for_change(view)
                finally:
                    self._labels.end()
                    await concurrency.cancel(follow)

    async def allocate(self, devices: Sequence[Device]) -> Allocation:
        return await self._allocating.run(partial(self._allocate, devices))

    def allocate_now(self, devices: Sequence[Device]) -> Allocation | None:
        return self._answers.get([device.id for device in devices])

    async def prefer(self, available: Sequence[Device], required: Sequence[Device], size: int) -> Sequence[Device]:
        """Uses the links of the newest view, without calling the driver."""
        preference = self._preferences.get(self._units, self.monitor.views.value.snapshot.links, self.config.packed)
        devices = {device.id: device for device in (*available, *required)}
        ids = preference.prefer([device.id for device in available], [device.id for device in required], size)
        return [devices[device_id] for device_id in ids]

    async def check_parameters(self, parameters: Mapping[str, object]) -> None:
        from plugwright.plugins.nvidia import nvidia_parameters

        nvidia_parameters.check(self.resource, self.config.share, parameters)

    def usage(self, held: Sequence[HeldShare]) -> Sequence[ShareUsage]:
        return self._sharing.usage([sharing.unit_key(device_id, share_id) for device_id, share_id in held])

    async def command(self, name: str, arguments: Mapping[str, str]) -> str:
        """`recover` clears a GPU's recorded faults; a simulated machine has commands for faults."""
        if name == "recover":
            unit = self._find_unit(arguments.get("id", ""))
            if self.monitor.clear_xids(unit.gpu.uuid):
                return f"{unit.gpu.uuid}: recorded Xids cleared; Healthy again unless the driver still reports a fault"
            return f"{unit.gpu.uuid}: no Xid is recorded; nothing to clear"
        inject = self.monitor.driver.inject
        if inject is None:
            raise PluginError(f"{self.resource} supports only the command recover (others need `simulate`), got {name}")
        done = inject(name, arguments)
        self.monitor.read_now()
        return done

    def _allocate(self, devices: Sequence[Device]) -> Allocation:
        units = [sharing.given(self._unit(device.id), device) for device in devices]
        if not self._is_shared_by_claims and (kept := self._answers.renewed(units)) is not None:
            return kept
        if self._is_shared_by_claims and not any(unit.share_id or unit.is_part for unit in units):
            # Admin access, or an API server without shared devices: the claim has no part.
            return self._allocations.build(units, ContainerExtras(env=sharing.device_env(units)))
        return self._allocations.build(units, self._sharing.extras(units))

    async def _wait_for_change(self, view: View) -> None:
        """Waits for another view, or until an unhealthy GPU is due for a new check."""
        with suppress(TimeoutError):
            async with asyncio.timeout(self._recheck_after):
                await self.monitor.views.until(lambda newest: newest is not view)
            return
        self.monitor.read_now()

    async def _write_ahead(self, view: View) -> None:
        """Writes files of shares for later allocations, after the list. Failures are reported by the allocation."""
        with suppress(PluginError):
            while not self._answers.is_ahead and self.monitor.views.value is view:
                await self._listing.run(self._answers.write_ahead, to_end=True)

    async def _list_in_time(self, view: View) -> list[Device]:
        """The list; a known problem of all GPUs is listed without a thread, because none could be left."""
        try:
            self._listed = await self._listing.run(partial(self._list, view))
        except PluginError:
            self._answers.forget()
            if not view.problem or not self._listed:
                raise
            return [device.unhealthy(view.problem, "driver") for device in self._listed]
        self._answers.take()
        return self._listed

    def _list(self, view: View) -> list[Device]:
        if view.problem and not view.snapshot.driver:
            # The machine was never read: there is nothing to list.
            if not view.is_unloaded:
                raise PluginError(view.problem)
            raise HardwareMissing(view.problem, self.monitor.driver.cards_on_bus())
        whole = selection.select_devices(view.snapshot.gpus, self._selection)
        units = self._shares_of(whole)
        if not view.problem:
            self._moved = stored.moved_gpus(self.config.cdi.vendor, self._stored, view.snapshot.gpus)
            self._specs.withheld = {moved.cdi_name for moved in self._moved if moved.cdi_name}
            self._write_specs(view)
            self._restore_files({unit.id: unit for unit in units})
            self._labels.update(view.snapshot, whole, units)
            self._look_for_files(units)
        assessments = {uuid: self._assess(view, uuid) for uuid in dict.fromkeys(unit.gpu.uuid for unit in units)}
        waits = [
            assessment.recheck_after or self.monitor.intervals.retry
            for assessment in assessments.values()
            if assessment.reason
        ]
        waits += [self.monitor.intervals.rescan] if self._moved else []
        waits += [self.monitor.intervals.retry] if self._missing else []
        self._recheck_after = min(waits, default=None)
        self._units = {unit.id: unit for unit in units}
        self._answers.make([] if view.problem or self._is_shared_by_claims else units)
        overlaps = selection.overlaps(view.snapshot.gpus, view.selections)
        self._versions = (view.snapshot.driver, view.snapshot.cuda)
        return list(self._devices(units, assessments, overlaps))

    def _look_for_files(self, units: Iterable[GpuUnit]) -> None:
        """Finds devices that cannot be allocated: they are Unhealthy, instead of causing refused pods."""
        devices = {unit.uuid: unit for unit in units}
        self._missing = {uuid: fault for uuid, unit in devices.items() if (fault := self._allocations.fault(unit))}
        self._loader_note = self._allocations.loader_cache()

    def _devices(
        self,
        units: Iterable[GpuUnit],
        assessments: Mapping[str, HealthAssessment],
        overlaps: Mapping[str, Sequence[str]],
    ) -> Iterator[Device]:
        """The devices, without unlistable ones, such as a device with an invalid UUID."""
        physical: dict[str, tuple[str, ...]] = {}  # by device, each of which can have thousands of shares
        for unit in units:
            names = physical.get(unit.uuid) or physical.setdefault(unit.uuid, selection.physical_names(unit))
            try:
                yield self._device(unit, assessments[unit.gpu.uuid], overlaps, names)
            except InvalidValue as error:
                facts = {"resource": self.resource, "device": clean(unit.id), "error": clean(error)}
                self._problems.error("device left out of the list", clean(error), key=unit.id, extra=facts)

    def _shares_of(self, whole: Sequence[GpuUnit]) -> list[GpuUnit]:
        by_claims = self._is_shared_by_claims
        if self.config.share is not None:
            whole = [sharing.to_share(unit) for unit in whole]
        units = self._sharing.claimable(whole) if by_claims else self._sharing.units(whole)
        if whole and not units:
            raise PluginError(f"{self.resource}: no device is large enough for one share")
        return units

    def _unit(self, device_id: str) -> GpuUnit:
        """The unit; also for a plugin which has just replaced another and has not listed its devices yet."""
        view = self.monitor.views.value
        if device_id not in self._units and not view.is_pending:
            whole = selection.select_devices(view.snapshot.gpus, self._selection)
            self._units = {unit.id: unit for unit in self._shares_of(whole)}
        if device_id not in self._units:
            raise PluginError(f"{self.resource} no longer has {device_id}")
        return self._units[device_id]

    def _assess(self, view: View, uuid: str) -> HealthAssessment:
        """The assessment of a GPU, valid for all its MIG devices and shares."""
        rules = self.config.health
        if view.problem:
            return HealthAssessment(view.problem, code="driver")
        if rules.checks and view.unknown_xids:
            return HealthAssessment(view.unknown_xids, code="incidents")
        if rules.unwatched and rules.checks and uuid in view.unwatched:
            return HealthAssessment(f"its events cannot be registered: {view.unwatched[uuid]}", code="events")
        values = view.health.get(uuid, GpuHealth(fault="not found"))
        own = health.assess(rules, values, view.xids.get(uuid, ()), self.monitor.clock())
        return own if own.reason else health.assess_switches(rules, view.xids)

    def _device(
        self,
        unit: GpuUnit,
        gpu: HealthAssessment,
        overlaps: Mapping[str, Sequence[str]],
        physical: tuple[str, ...],
    ) -> Device:
        device = Device(
            unit.id,
            numa=[unit.gpu.numa] if unit.gpu.numa is not None else [],
            attributes=self._attributes(unit),
            physical=physical,
            sharing=sharing.kind_of_share(self.resource, self.config.share, unit),
            capacity=self._capacity(unit),
            allow_multiple=self._is_shared_by_claims,
            consumes=gpu_attributes.shared_counters(unit) if unit.replica is None else (),
        )
        resources = sorted({name for uuid in selection.occupied_uuids(unit) for name in overlaps.get(uuid, ())})
        if resources:
            conflict = f"selected by {' and '.join(resources)}: a device can be in one resource only"
            return device.unhealthy(conflict, "overlap")
        if gpu.reason:
            return device.unhealthy(gpu.reason, gpu.code)
        moved = next((moved for moved in self._moved if moved.uuid == unit.gpu.uuid and not moved.cdi_name), None)
        if moved is not None:
            return device.unhealthy(moved.reason, "renumbered")
        if self.config.health.checks and self._is_empty_in_mig_mode(unit):
            return device.unhealthy("in MIG mode: CUDA finds no device in the whole GPU", "mig-mode")
        if fault := self._sharing.fault(unit):
            by = self.config.share.by if self.config.share is not None else None
            return device.unhealthy(fault, "mps-down" if by is SharingStrategy.MPS else "sharing")
        return device.unhealthy(self._missing[unit.uuid], "files") if unit.uuid in self._missing else device

    def _attributes(self, unit: GpuUnit) -> Mapping[str, object]:
        notes = {"shared": self._sharing.note(unit), "loader cache in containers": self._loader_note}
        facts: dict[str, object] = {"notes": {title: text for title, text in notes.items() if text}}
        if self.config.share:
            facts["sharing"] = self.config.share.by.value
        if links := self.monitor.views.value.snapshot.links.of(unit.gpu.uuid):
            facts["links"] = links
        driver, cuda = self._versions
        whole = unit.replica is None
        return (
            gpu_attributes.device_attributes(unit, driver, cuda) if whole else gpu_attributes.of_share(unit)
        ) | facts

    def _capacity(self, unit: GpuUnit) -> Mapping[str, Capacity | Quantity]:
        if unit.replica is not None:
            return {}
        return self._sharing.capacity(unit) if self._is_shared_by_claims else gpu_attributes.whole_capacity(unit)

    def _is_empty_in_mig_mode(self, unit: GpuUnit) -> bool:
        """Whether a GPU in MIG mode offers nothing: only NVIDIA's runtime gives containers all its MIG devices."""
        own = (DeviceListStrategy.ENVVAR, DeviceListStrategy.VOLUME_MOUNTS)
        by_runtime = any(strategy in own for strategy in self.config.strategies)
        return unit.mig is None and unit.gpu.mig_enabled and not (by_runtime and unit.gpu.mig)

    def _restore_files(self, units: Mapping[str, GpuUnit]) -> None:
        """Restores files of stored answers after a reboot: limits in CDI devices, directories of shares."""
        if self._restored is self._stored:
            return
        faults = {allocation: self._restored_fault(allocation, units) for allocation in self._stored}
        for allocation, reason in faults.items():
            key = allocation.pod_uid, allocation.container
            if reason:
                facts = {"resource": self.resource, "pod": key[0], "container": key[1], "reason": reason}
                self._problems.warning("a container may not start again: delete its pod", reason, key=key, extra=facts)
            else:
                self._problems.recovered(key)
        if not any(faults.values()):  # otherwise they are retried with the next list
            self._restored = self._stored

    def _restored_fault(self, allocation: StoredAllocation, units: Mapping[str, GpuUnit]) -> str:
        """Restores the files of one answer; returns what is still missing."""
        names = stored.cdi_names(allocation)
        held = [units[device_id] for device_id in allocation.device_ids if device_id in units]
        if len(held) == len(allocation.device_ids):
            try:
                current = self._allocations.build(held, self._sharing.restored(held))
                self._specs.keep_limits(names, recreation.names_in(current.cdi, current.annotations))
            except (PluginError, InvalidValue, OSError) as error:
                return clean(error)
            # Without an MPS daemon, CUDA programs run without limits.
            if unused := stored.lost_mps_directories(self.config, allocation, current):
                return f"no MPS daemon is planned for {some(unused)}"
        unresolved = self._specs.unresolved(names)
        return f"no CDI device {some(unresolved)}" if unresolved else ""

    def _write_specs(self, view: View) -> None:
        is_used = any(strategy.is_cdi for strategy in self.config.strategies) or self._specs.classes
        if self.config.cdi.write and is_used:
            try:
                self._specs.write(view.snapshot.gpus)
            except PluginError:
                return  # for a reason that then applies to every device
            except OSError as error:
                raise PluginError(f"CDI specs cannot be written: {error}") from error

    def _find_unit(self, name: str) -> GpuUnit:
        for unit in self._units.values():
            if name in (unit.id, unit.uuid, unit.gpu.uuid, unit.index, str(unit.gpu.index)):
                return unit
        raise PluginError(f"{self.resource} has no device {name!r} (it has: {some(self._units)})")


class ClaimedNvidia(Nvidia):
    """GPUs shared by claims, which leave files behind.

    A separate class, because ends of device plugin pods are searched for only if there is a release().
    """

    async def release(self, devices: Sequence[Device]) -> None:
        keys = [sharing.unit_key(device.id, device.share_id) for device in devices if device.share_id]
        if keys:
            await self._allocating.run(partial(self._sharing.release, keys))
