"""One round of moves: what is known of the holders is read, and every device that can go on its way does.

`moves` decides, by the evidence in `readings`. Where a source cannot be read, a round says why, and the devices that
wait for it stay where they are.
"""

import asyncio
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import replace

from plugwright import quantity
from plugwright.dra.api_split import adoption, moves
from plugwright.dra.api_split.device_units import DeviceUnits
from plugwright.dra.api_split.holders import ApiReader, PodHolders, Prepared, claims_by_device
from plugwright.dra.api_split.kept_placements import KeptPlacements
from plugwright.dra.api_split.moves import Evidence, Phase, Placement
from plugwright.dra.api_split.readings import Readings
from plugwright.dra.api_split.split_file import SplitState
from plugwright.errors import HoldersUnknown, PlugwrightError
from plugwright.kube.api_client import segment
from plugwright.sdk.daemon import ResourceRuntime
from plugwright.sdk.serve_settings import Api

__all__ = ["SplitRounds"]

Unit = tuple[str, ...]
_STAY = "devices stay where they are: {}"


class SplitRounds:
    """`pool` is the driver's name and the pool's, which is the node's; `changing` is held while placements change."""

    def __init__(
        self,
        runtime: ResourceRuntime,
        kept: KeptPlacements,
        readings: Readings,
        holders: PodHolders,
        claims: tuple[Prepared, ApiReader, tuple[str, str]],
        clock: Callable[[], float],
    ) -> None:
        self.units = DeviceUnits(runtime.inventory)
        self.changing = asyncio.Lock()
        self.loaded = False
        self._runtime, self._kept, self._readings, self._holders = runtime, kept, readings, holders
        self._prepared, self._api, self._pool = claims
        self._clock = clock
        self._adopted: Mapping[str, Unit] = {}  # the units that have placements
        self._start_held: frozenset[str] | None = None

    @property
    def state(self) -> SplitState:
        return self._kept.state

    @property
    def follows_policy(self) -> bool:
        serve = self._runtime.serve
        return serve.split.keep_free > 0 and serve.api is Api.BOTH and self.state.handover is None

    async def round(self, readmission: float) -> str:
        """Whatever can move now, moves; returns why something cannot, empty if nothing is in the way."""
        if not self.loaded and not await self._load(readmission):
            return "another process of the daemon decides until it ends"
        async with self.changing:
            await self._adopt()
            await self.advance()
        problems = [await self._read_departures(), await self._read_pods(), await self._read_claims()]
        async with self.changing:
            await self.advance()
            problems.append(await self._balance())
        return next(filter(None, problems), "")

    async def advance(self) -> None:
        """The phases that follow from what is known; some follow from another."""
        for _ in Phase:
            self._find_units()
            changes: dict[str, Placement] = {}
            for unit in self.unsettled():
                before, evidence = self.state.placements[unit[0]], self._readings.evidence(unit)
                placement = moves.reconsidered(before, evidence)
                placement = replace(placement, phase=moves.next_phase(placement, evidence))
                if placement != before:
                    changes |= dict.fromkeys(unit, placement)
            if not changes:
                return
            await self._kept.commit(replace(self.state, placements={**self.state.placements, **changes}))

    def unsettled(self) -> list[Unit]:
        """Those that are not where they are to be, or that a claim may want elsewhere; of many devices, few are."""
        placements, claimed = self.state.placements, {*self._readings.asked(), *self._readings.prepared}
        return [
            unit
            for unit in self.units.known(placements)
            if placements[unit[0]].phase.offered_by is not placements[unit[0]].target or not claimed.isdisjoint(unit)
        ]

    def note_prepared(self) -> None:
        self.units.name(self.state.placements)
        ids, held = self.units.ids, self._prepared.held().items()
        self._readings.set_prepared({ids[name]: tuple(map(str, claims)) for name, claims in held if name in ids})

    async def _load(self, readmission: float) -> bool:
        """What an earlier run left, corrected by who holds what; False while another daemon decides."""
        await self._prepared.read()
        state = await self._kept.load()
        if state is None:
            return False
        self._start_held = None
        with suppress(HoldersUnknown):
            self._start_held = await self._holders.stored()
        rebooted = self._kept.rebooted
        if rebooted:
            self._readings.pinned_until = dict.fromkeys(self._start_held or (), self._clock() + readmission)
        self._find_units()
        placements = {
            key: adoption.restored(placement, self._evidence_at_start(self.units.of(key)), rebooted=rebooted)
            for key, placement in state.placements.items()
        }
        self._kept.state, self.loaded, self._adopted = replace(state, placements=placements), True, {}
        return True

    def _evidence_at_start(self, unit: Unit) -> Evidence:
        held = self._start_held
        held_by_pod = None if held is None else any(key in held for key in unit)
        return replace(self._readings.evidence(unit), held_by_pod=held_by_pod)

    async def _adopt(self) -> None:
        """Gives new devices a placement."""
        self._find_units()
        units = self.units.by_device
        if units == self._adopted and self._kept.latest.value:
            return
        found = adoption.Found(self.units.devices, units, self._evidence_at_start, self._start_held or ())
        state = adoption.adopt(self.state, self._runtime.serve, found)
        if state != self.state or not self._kept.latest.value:
            await self._kept.commit(state)
        self._adopted = units

    def _find_units(self) -> None:
        self.units.find()
        self.note_prepared()

    async def _read_departures(self) -> str:
        """Reads what pods need of the list while devices leave it; returns why that is not possible."""
        departures, placements = self._readings.departures, self.state.placements
        leaving = [unit for unit in self.unsettled() if self._readings.departs(unit, placements[unit[0]])]
        departures.keep(leaving)
        leaving = [unit for unit in leaving if self._readings.waits_for_room(unit, placements[unit[0]])]
        if not leaving or not departures.is_careful():
            return ""
        try:
            held = await self._holders.active()
        except HoldersUnknown as error:
            return _STAY.format(error)
        spare = self._has_spare(held)
        for unit in leaving:
            departures.look(unit, self._readings.stay(unit[0]), lacking=not spare and held.isdisjoint(unit))
        if any(placements[unit[0]].phase is Phase.WITHHELD for unit in leaving) and departures.is_comparison_due():
            with suppress(PlugwrightError):  # it is not waited for longer than the kubelet takes
                departures.compare(await self._allocatable(), len(self.units.offered))
        return ""

    def _has_spare(self, held: Collection[str]) -> bool:
        """Whether the next pod finds a device in the list that is to stay there."""
        placements, free = self.state.placements, self.units.offered.difference(held)
        return any(placements[key].target is Api.DEVICE_PLUGIN for key in free if key in placements)

    async def _allocatable(self) -> int:
        """What the Node says; the scheduler counts by it."""
        node = await self._api.get(f"/api/v1/nodes/{segment(self._pool[1])}")
        status = node.get("status")
        counts = status.get("allocatable") if isinstance(status, Mapping) else None
        count = counts.get(self._runtime.resource) if isinstance(counts, Mapping) else None
        return int(quantity.parse(str(count))) if count is not None else 0

    async def _read_pods(self) -> str:
        """Reads which pods hold the devices that wait for them; returns why that is not possible."""
        self._readings.forget_free()
        placements = self.state.placements
        waiting = [unit for unit in self.unsettled() if self._readings.waits_for_pods(unit, placements[unit[0]])]
        stays = {key: self._readings.stay(key) for unit in waiting for key in unit}
        try:
            self._readings.set_pods(stays, await self._holders.of(stays) if stays else {})
        except HoldersUnknown as error:
            return _STAY.format(error)
        return ""

    async def _read_claims(self) -> str:
        """Lists claims, once for all devices that wait for that; returns why that is not possible."""
        placements = self.state.placements
        waiting = [unit for unit in self.unsettled() if self._readings.waits_for_claims(unit, placements[unit[0]])]
        stays = {key: self._readings.stay(key) for unit in waiting for key in unit}
        if not stays:
            return ""
        try:
            claims = await claims_by_device(self._api, *self._pool)
        except HoldersUnknown as error:
            self._readings.postpone(stays)
            return _STAY.format(error)
        self._readings.set_claims(stays, {key: claims.get(self.units.names[key], ()) for key in stays})
        return ""

    async def _balance(self) -> str:
        """Moves free devices by the policy, where there is one and no operator has asked for a handover."""
        if not self.follows_policy:
            return ""
        try:
            held = await self._holders.active()
        except HoldersUnknown as error:
            return _STAY.format(error)
        present = {unit[0]: unit for unit in self.units.known(self.state.placements)}
        evidence = {key: self._readings.evidence(unit) for key, unit in present.items()}
        idle = [
            key
            for key, unit in present.items()
            if held.isdisjoint(unit) and not evidence[key].asked and not evidence[key].prepared
        ]
        placements = self.state.placements
        wanted = moves.balanced({key: placements[key] for key in present}, idle, self._runtime.serve.split.keep_free)
        changes = {
            key: Placement(placements[key].phase, to, True) for unit, to in wanted.items() for key in present[unit]
        }
        if changes:
            await self._kept.commit(replace(self.state, placements={**placements, **changes}))
            await self.advance()
        return ""
