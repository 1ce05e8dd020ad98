"""One round of moves: reads the holders and advances every device that can move.

`states` decides with the evidence of `device_observations`. If a source cannot be read, a round returns the reason, and
the devices that wait for it stay where they are.
"""

import asyncio
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress

from msgspec.structs import replace

from plugwright.dra.both import first_states, states
from plugwright.dra.both.device_observations import Observations
from plugwright.dra.both.holders import HolderSources
from plugwright.dra.both.move_settings import MoveSettings
from plugwright.dra.both.split_file import KeptPlacements, SplitState
from plugwright.dra.both.states import Evidence, Placement, Unit
from plugwright.dra.device_placement import DeviceState, hardware_units
from plugwright.errors import HoldersUnknown, PlugwrightError
from plugwright.model import Device
from plugwright.sdk.driver_names import device_name
from plugwright.sdk.inventory import Inventory
from plugwright.sdk.resource_runtime import ResourceRuntime
from plugwright.sdk.serve_settings import ServeMode

__all__ = ["SplitRounds"]

_STAY = "devices stay where they are: {}"


class DeviceUnits:
    """The units of devices. `by_device` are those of the devices listed at the last `find`."""

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
        """The Healthy devices in the kubelet's list."""
        snapshot = self._inventory.latest.value
        if snapshot is None:
            return frozenset()
        return frozenset(
            key for key in snapshot.devices if (listed := snapshot.listed(key)) is not None and listed.healthy
        )

    def find(self) -> None:
        devices = self.devices
        if devices is not self._found_in:
            self._found_in, self.by_device = devices, hardware_units(devices.values())
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
        """The units whose devices are all among these."""
        return [unit for unit in self._distinct if all(key in device_ids for key in unit)]


class SplitRounds:
    """Runs rounds. `changing` is held while placements change."""

    def __init__(
        self,
        runtime: ResourceRuntime,
        kept: KeptPlacements,
        observations: Observations,
        sources: HolderSources,
        settings: MoveSettings,
    ) -> None:
        self.units = DeviceUnits(runtime.inventory)
        self.changing = asyncio.Lock()
        self.loaded = False
        self._runtime, self._kept, self._observations = runtime, kept, observations
        self._sources, self._settings = sources, settings
        self._placed: Mapping[str, Unit] = {}  # units with a placement
        self._start_held: frozenset[str] | None = None

    @property
    def state(self) -> SplitState:
        return self._kept.state

    @property
    def follows_policy(self) -> bool:
        serve = self._runtime.serve
        return serve.split.keep_free > 0 and serve.api is ServeMode.BOTH and self.state.handover is None

    async def round(self) -> str:
        """Moves every device that can move now; returns the reason why others cannot, empty if there is none."""
        if not self.loaded and not await self._load():
            return "another process of the daemon decides until it ends"
        async with self.changing:
            await self._place_found()
            await self.advance()
        problems = [await self._read_leaving(), await self._read_pods(), await self._read_claims()]
        async with self.changing:
            await self.advance()
            problems.append(await self._rebalance())
        return next(filter(None, problems), "")

    async def advance(self) -> None:
        """Changes states by the present evidence; repeats, because one state can follow from another."""
        for _ in DeviceState:
            self._find_units()
            changes: dict[str, Placement] = {}
            for unit in self.unsettled():
                before, evidence = self.state.placements[unit[0]], self._observations.evidence(unit)
                placement = states.reconsidered(before, evidence)
                placement = replace(placement, state=states.next_state(placement, evidence))
                if placement != before:
                    changes |= dict.fromkeys(unit, placement)
            if not changes:
                return
            await self._kept.commit(replace(self.state, placements={**self.state.placements, **changes}))

    def unsettled(self) -> list[Unit]:
        """The units not on their target side, or that a claim could need elsewhere; usually few."""
        placements, claimed = self.state.placements, {*self._observations.asked(), *self._observations.prepared}
        return [
            unit
            for unit in self.units.known(placements)
            if placements[unit[0]].state.offered_by is not placements[unit[0]].target or not claimed.isdisjoint(unit)
        ]

    def note_prepared(self) -> None:
        self.units.name(self.state.placements)
        ids, held = self.units.ids, self._sources.prepared.held().items()
        prepared = {ids[name]: tuple(map(str, claims)) for name, claims in held if name in ids}
        # Claims whose files are lost are known to the ledger from the kubelet.
        claimed = self._runtime.ledger.claimed(self._runtime.resource)
        self._observations.set_prepared({**claimed, **prepared})

    async def _load(self) -> bool:
        """Loads the state of an earlier run, corrected by the present holders; False while another daemon decides."""
        await self._sources.prepared.read()
        state = await self._kept.load()
        if state is None:
            return False
        if not state.placements:
            await self._runtime.ledger.read()
            # Without the files of an earlier run and without the kubelet, any device could belong to a claim.
            state = replace(state, lost=state.lost or bool(self._runtime.ledger.claims_unknown))
        self._start_held = None
        with suppress(HoldersUnknown):
            self._start_held = await self._sources.pods.stored()
        rebooted = self._kept.rebooted
        if rebooted:
            self._observations.pinned_until = dict.fromkeys(
                self._start_held or (), self._settings.clock() + self._settings.readmission
            )
        self._find_units()
        placements = {
            key: first_states.restored(placement, self._evidence_at_start(self.units.of(key)), rebooted=rebooted)
            for key, placement in state.placements.items()
        }
        self._kept.state, self.loaded, self._placed = replace(state, placements=placements), True, {}
        return True

    def _evidence_at_start(self, unit: Unit) -> Evidence:
        held = self._start_held
        held_by_pod = None if held is None else any(key in held for key in unit)
        return replace(self._observations.evidence(unit), held_by_pod=held_by_pod)

    async def _place_found(self) -> None:
        """Gives new devices a placement."""
        self._find_units()
        units = self.units.by_device
        if units == self._placed and self._kept.latest.value:
            return
        found = first_states.Found(self.units.devices, units, self._evidence_at_start, self._start_held or ())
        state = first_states.placed(self.state, self._runtime.serve, found)
        if state != self.state or not self._kept.latest.value:
            await self._kept.commit(state)
        self._placed = units

    def _find_units(self) -> None:
        self.units.find()
        self.note_prepared()

    async def _read_leaving(self) -> str:
        """Reads the pods' need of the list while devices leave it; returns why that is impossible."""
        leaving_units, placements = self._observations.leaving, self.state.placements
        leaving = [unit for unit in self.unsettled() if self._observations.leaves(unit, placements[unit[0]])]
        leaving_units.keep(leaving)
        leaving = [unit for unit in leaving if self._observations.waits_for_room(unit, placements[unit[0]])]
        if not leaving or not leaving_units.is_careful():
            return ""
        try:
            held = await self._sources.pods.active()
        except HoldersUnknown as error:
            return _STAY.format(error)
        spare = self._has_spare(held)
        for unit in leaving:
            leaving_units.look(unit, self._observations.entry(unit[0]), lacking=not spare and held.isdisjoint(unit))
        if (
            any(placements[unit[0]].state is DeviceState.WITHHELD for unit in leaving)
            and leaving_units.is_comparison_due()
        ):
            with suppress(PlugwrightError):  # the wait for it ends after the time that the kubelet takes
                leaving_units.compare(
                    await self._sources.claims.allocatable(self._runtime.resource), len(self.units.offered)
                )
        return ""

    def _has_spare(self, held: Collection[str]) -> bool:
        """Whether the next pod finds a free device that stays in the list."""
        placements, free = self.state.placements, self.units.offered.difference(held)
        return any(placements[key].target is ServeMode.DEVICE_PLUGIN for key in free if key in placements)

    async def _read_pods(self) -> str:
        """Reads the pods that hold waiting devices; returns why that is impossible."""
        self._observations.forget_free()
        placements = self.state.placements
        waiting = [unit for unit in self.unsettled() if self._observations.waits_for_pods(unit, placements[unit[0]])]
        entries = self._observations.entries(waiting)
        try:
            self._observations.set_pods(entries, await self._sources.pods.of(entries) if entries else {})
        except HoldersUnknown as error:
            return _STAY.format(error)
        return ""

    async def _read_claims(self) -> str:
        """Lists claims, once for all waiting devices; returns why that is impossible."""
        placements = self.state.placements
        waiting = [unit for unit in self.unsettled() if self._observations.waits_for_claims(unit, placements[unit[0]])]
        entries = self._observations.entries(waiting)
        if not entries:
            return ""
        try:
            claims = await self._sources.claims.by_device()
        except HoldersUnknown as error:
            self._observations.postpone(entries)
            return _STAY.format(error)
        self._observations.set_claims(entries, {key: claims.get(self.units.names[key], ()) for key in entries})
        return ""

    async def _rebalance(self) -> str:
        """Moves free devices by the policy and by the split's number; returns why that is impossible."""
        held = self._held_where_they_are()
        if not self.follows_policy and not held:
            return ""
        try:
            by_pods = await self._sources.pods.active()
        except HoldersUnknown as error:
            return _STAY.format(error)
        present = {unit[0]: unit for unit in self.units.known(self.state.placements)}
        evidence = {key: self._observations.evidence(unit) for key, unit in present.items()}
        idle = [
            key
            for key, unit in present.items()
            if by_pods.isdisjoint(unit) and not evidence[key].asked and not evidence[key].prepared
        ]
        placements = {key: self.state.placements[key] for key in present}
        single = {key: placement for key, placement in placements.items() if len(present[key]) == 1}
        moves = {key: Placement(placements[key].state, to) for key, to in states.exchanged(single, held, idle).items()}
        if self.follows_policy:
            wanted = states.balanced(placements | moves, idle, self._runtime.serve.split.keep_free)
            moves |= {key: Placement(placements[key].state, to, by_policy=True) for key, to in wanted.items()}
        if moves:
            changes = {key: placement for head, placement in moves.items() for key in present[head]}
            await self._kept.commit(replace(self.state, placements={**self.state.placements, **changes}))
            await self.advance()
        return ""

    def _held_where_they_are(self) -> list[str]:
        """The units whose holders keep them from moving, if the operator has asked for a number of devices."""
        serve, found = self._runtime.serve, []
        if serve.split.dra is None or serve.api is not ServeMode.BOTH or self.state.handover is not None:
            return []
        for unit in self.unsettled():
            evidence, state = self._observations.evidence(unit), self.state.placements[unit[0]].state
            by_claim = evidence.asked or evidence.prepared or evidence.held_by_claim
            if (state is DeviceState.TAINTED and by_claim) or (state is DeviceState.WITHHELD and evidence.held_by_pod):
                found.append(unit[0])
        return found
