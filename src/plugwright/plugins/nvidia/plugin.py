"""NVIDIA GPUs under one resource name: lists them, judges them, and says what a container gets.

What the machine has is `watch`'s, which devices are ours `selection`'s, whether each is fit `health`'s, how one is
shared `isolation`'s, and what a container gets `answers`' work. This puts them together.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import suppress

from plugwright.errors import PluginError
from plugwright.model import Allocation, Device, some
from plugwright.plugins.nvidia import health, selection
from plugwright.plugins.nvidia.allocation import Answers
from plugwright.plugins.nvidia.cdi import Specs
from plugwright.plugins.nvidia.config import Options
from plugwright.plugins.nvidia.driver import Facts, Links
from plugwright.plugins.nvidia.driver_files import Files
from plugwright.plugins.nvidia.health import Verdict
from plugwright.plugins.nvidia.monitor import GpuMonitor, View
from plugwright.plugins.nvidia.preference import Policy, Preference
from plugwright.plugins.nvidia.sharing import SharingBackend, TimeSlicing, Unit
from plugwright.plugins.nvidia.simulation import Simulation
from plugwright.sdk.plugin import Plugin

__all__ = ["Nvidia"]

logger = logging.getLogger(__name__)


class Nvidia(Plugin):
    """`watch` may be shared: the resources of one machine have one."""

    def __init__(
        self, resource: str, options: Options, watch: GpuMonitor, isolation: SharingBackend | None = None
    ) -> None:
        self.resource = resource
        self.watch = watch
        self.options = options
        self._isolation = isolation or TimeSlicing(resource, options.share)
        files = Files(options.places, isinstance(watch.driver, Simulation))
        self._specs = Specs(files)
        self._answers = Answers(options, files, self._specs)
        self._units: dict[str, Unit] = {}
        self._reasons: dict[str, str] = {}  # why GPUs are unfit, as was last said
        self._preference = _Preferred()
        self._news = asyncio.Event()
        self._again: float | None = None

    async def discover(self) -> AsyncIterator[list[Device]]:
        async with self.watch.watching(self._news.set):
            with self.watch.claiming(self.resource, self.options.selection):
                following = asyncio.create_task(self._isolation.follow(self._news.set))
                following.add_done_callback(lambda _: self._news.set())
                try:
                    while True:
                        self._news.clear()
                        if following.done():
                            following.result()  # raises what went wrong
                        if self.watch.view is not None:
                            yield self._list(self.watch.view)
                        await self._until_news()
                finally:
                    following.cancel()
                    await asyncio.wait((following,))

    async def allocate(self, devices: Sequence[Device]) -> Allocation:
        units = [self._unit(device.id) for device in devices]
        return self._answers.answer(units, self._isolation.extras(units))

    async def prefer(self, available: Sequence[Device], required: Sequence[Device], size: int) -> Sequence[Device]:
        """Never asks the driver: the links are known."""
        links = self.watch.view.reading.links if self.watch.view else Links()
        preference = self._preference.of(self._units, links, self.options.packed)
        devices = {device.id: device for device in (*available, *required)}
        chosen = preference.prefer([each.id for each in available], [each.id for each in required], size)
        return [devices[each] for each in chosen]

    async def command(self, name: str, arguments: Mapping[str, str]) -> str:
        """`recover` forgives a GPU what has happened to it; a simulated machine does what it is told."""
        if name == "recover":
            unit = self._named(arguments.get("id", ""))
            self.watch.forgive(unit.gpu.uuid)
            return f"{unit.gpu.uuid}: what has happened to it is forgotten"
        if not isinstance(self.watch.driver, Simulation):
            raise PluginError(f"{self.resource} takes the command recover, and others only when it is simulated")
        done = self.watch.driver.act(name, arguments)
        self.watch.look()
        return done

    async def _until_news(self) -> None:
        """Until something has changed, or may have by itself; what is wrong is looked at again and again."""
        with suppress(TimeoutError):
            async with asyncio.timeout(self._again):
                await self._news.wait()
            return
        self.watch.look()

    def _list(self, view: View) -> list[Device]:
        if view.problem and not view.reading.driver:
            raise PluginError(view.problem)  # nothing was ever read: there is nothing to list
        units = self._offered(view)
        if not view.problem:
            self._write_specs(view)
        verdicts = {unit.gpu.uuid: self._verdict(view, unit) for unit in units}
        if not view.problem:  # which was said once for all of them
            self._say(verdicts)
        waits = [verdict.again or self.watch.pace.retry for verdict in verdicts.values() if verdict.reason]
        self._again = min(waits, default=None)
        self._units = {unit.id: unit for unit in units}
        contested = selection.overlaps(view.reading.gpus, self.watch.claims)
        return [self._device(unit, verdicts[unit.gpu.uuid].reason, contested) for unit in units]

    def _say(self, verdicts: Mapping[str, Verdict]) -> None:
        for uuid, verdict in sorted(verdicts.items()):
            before, facts = self._reasons.get(uuid, ""), {"resource": self.resource, "gpu": uuid}
            if verdict.reason and verdict.reason != before:
                logger.warning("GPU is unfit", extra={**facts, "reason": verdict.reason})
            elif before and not verdict.reason:
                logger.info("GPU is fit again", extra=facts)
        self._reasons = {uuid: verdict.reason for uuid, verdict in verdicts.items()}

    def _offered(self, view: View) -> list[Unit]:
        whole = selection.chosen(view.reading.gpus, self.options.selection)
        units = self._isolation.units(whole)
        if whole and not units:
            raise PluginError(f"{self.resource}: no device is large enough for a single share of it")
        return units

    def _unit(self, device_id: str) -> Unit:
        """Also for a plugin that has just taken over the resource from another and not listed anything yet."""
        if device_id not in self._units and self.watch.view is not None:
            self._units = {unit.id: unit for unit in self._offered(self.watch.view)}
        if device_id not in self._units:
            raise PluginError(f"{self.resource} no longer has {device_id}")
        return self._units[device_id]

    def _verdict(self, view: View, unit: Unit) -> Verdict:
        """A GPU's; its MIG devices and shares inherit it."""
        uuid, rules = unit.gpu.uuid, self.options.rules
        if view.problem:
            return Verdict(view.problem)
        if rules.unwatched and not rules.off and uuid in view.unwatched:
            return Verdict(f"its events cannot be heard: {view.unwatched[uuid]}")
        facts = view.facts.get(uuid, Facts(fault="not found"))
        return health.judge(rules, facts, view.incidents.get(uuid, ()), self.watch.clock())

    def _device(self, unit: Unit, fault: str, contested: Mapping[str, Sequence[str]]) -> Device:
        askers = sorted({asker for uuid in selection.occupied(unit) for asker in contested.get(uuid, ())})
        reason = f"asked for by {' and '.join(askers)}: a device is in one resource" if askers else fault
        reason = reason or self._isolation.fault(unit)
        numa = [unit.gpu.numa] if unit.gpu.numa is not None else []
        device = Device(unit.id, numa=numa, attributes={**_facts(unit), **self._isolation.attributes(unit)})
        return device.unhealthy(reason) if reason else device

    def _write_specs(self, view: View) -> None:
        if self.options.write_specs and any(strategy.is_cdi for strategy in self.options.strategies):
            try:
                self._specs.write(view.reading.gpus, self.options.features)
            except OSError as error:
                raise PluginError(f"CDI specs cannot be written: {error}") from error

    def _named(self, name: str) -> Unit:
        for unit in self._units.values():
            if name in (unit.id, unit.uuid, unit.gpu.uuid, unit.index, str(unit.gpu.index)):
                return unit
        raise PluginError(f"{self.resource} has no device {name!r} (there is: {some(self._units)})")


class _Preferred:
    """The preference for the units there are, worked out once for as long as these and their links stay the same."""

    def __init__(self) -> None:
        self._made: tuple[dict[str, Unit], Links, Preference] | None = None

    def of(self, units: dict[str, Unit], links: Links, packed: bool) -> Preference:
        made = self._made
        if made is None or (made[0] is not units and made[0] != units) or made[1] != links:
            policy = Policy.PACKED if packed else Policy.SPREAD
            made = self._made = (units, links, Preference(units.values(), links, policy))
        return made[2]


def _facts(unit: Unit) -> dict[str, object]:
    """For people; `memory` is in bytes."""
    known: dict[str, object] = {
        "index": unit.index,
        "model": unit.gpu.model,
        "memory": unit.memory,
        "pci": unit.gpu.pci,
        "gpu": unit.gpu.uuid,
        "compute_mode": str(unit.gpu.compute_mode),
    }
    return {**known, "profile": unit.mig.profile} if unit.mig else known
