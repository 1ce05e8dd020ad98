"""Which API offers each device of a resource: kept on disk, changed by operators, a policy, and claims that arrive.

`moves` decides, by the evidence in `readings`; here devices are withheld and published accordingly, holders are read
while a device waits for them, and every phase is on disk before it takes effect. Where a source cannot be read, devices
stay where they are, and `status` says why. Allocate and Prepare refuse what the other API has, whatever happens here.
"""

import asyncio
import logging
import math
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from plugwright.dra.api_split import adoption, moves
from plugwright.dra.api_split.holders import ClaimLister, HoldersUnreadable, PodHolders, Prepared, claims_by_device
from plugwright.dra.api_split.kept_placements import KeptPlacements
from plugwright.dra.api_split.moves import Evidence, Phase, Placement
from plugwright.dra.api_split.readings import MoveSettings, Readings
from plugwright.dra.api_split.split_file import SplitFile, SplitState
from plugwright.dra.names import device_name
from plugwright.errors import ConfigError, PlugwrightError
from plugwright.model import Device, some
from plugwright.sdk.daemon import ResourceRuntime
from plugwright.sdk.serve_settings import Api
from plugwright.sdk.sysfs import BOOT_ID
from plugwright.system.concurrency import Latest
from plugwright.text import clean

__all__ = ["MOVING", "ApiSplit"]

logger = logging.getLogger(__name__)

MOVING = {"key": "plugwright.dev/moving", "value": "device-plugin", "effect": "NoSchedule"}
_FOLLOWING = 1.0  # seconds after which another daemon's decisions are read again


class ApiSplit:
    """`placements` are published when they have taken effect; `problem` is why nothing moves, empty if it does.

    The driver publishes the devices of `in_slices` with `taints`, and reports by `confirm` what the API server has.
    """

    def __init__(
        self,
        runtime: ResourceRuntime,
        path: Path,
        pool: tuple[str, str],
        prepared: Prepared,
        api: ClaimLister,
        settings: MoveSettings | None = None,
        clock: Callable[[], float] = time.monotonic,
        boot_id: Path = BOOT_ID,
        holders: PodHolders | None = None,
    ) -> None:
        """`pool` is the driver's name and the pool's."""
        self.problem = Latest("")
        self.settings = settings or MoveSettings.of(runtime.settings.timeouts)
        self.readings = Readings(self.settings, clock)
        self._runtime, self._pool, self._prepared, self._api = runtime, pool, prepared, api
        self._clock = clock
        self._kept = KeptPlacements(runtime, SplitFile(path, boot_id), self.readings)
        self.placements = self._kept.latest
        self._holders = holders or PodHolders(runtime, self.settings.stored, clock)
        self._units: Mapping[str, tuple[str, ...]] = {}
        self._adopted: Mapping[str, tuple[str, ...]] = {}  # the units that have placements
        self._distinct: list[tuple[str, ...]] = []
        self._found_in: Mapping[str, Device] = {}  # the devices that the units are of
        self._names: dict[str, str] = {}
        self._ids: dict[str, str] = {}  # by name
        self._taints_dropped = False
        self._loaded = False
        self._start_held: frozenset[str] | None = None
        self._changing = asyncio.Lock()
        self._wake = Latest(0)
        self.rounds = Latest(0)  # how often devices were looked at

    @property
    def state(self) -> SplitState:
        return self._kept.state

    @property
    def handover(self) -> Api | None:
        return self.state.handover

    @property
    def in_slices(self) -> frozenset[str]:
        """The devices to be published."""
        placements = self.placements.value
        left_out = (Phase.TAINTED,) if self._taints_dropped else ()
        return frozenset(
            key for key, placement in placements.items() if placement.phase.in_slice and placement.phase not in left_out
        )

    @property
    def taints(self) -> dict[str, Mapping[str, str]]:
        """One for each device that leaves the slices."""
        placements = self.placements.value
        return {key: MOVING for key in sorted(placements) if placements[key].phase is Phase.TAINTED}

    def unit(self, device_id: str) -> tuple[str, ...]:
        return self._units.get(device_id, (device_id,))

    def confirm(self, published: Mapping[str, bool], *, taints_dropped: bool = False) -> None:
        """The devices that are in the slices of the API server, and whether with the taint of a move.

        `taints_dropped`: the server has no taints, so that a device that moves away leaves the slices first.
        """
        dropped, self._taints_dropped = self._taints_dropped, taints_dropped
        self.readings.set_published(published, self.placements.value)
        if dropped != taints_dropped:
            self.placements.publish(self.placements.value)
        self._notice()

    def refusal(self, device_id: str) -> str:
        """Why no claim can be prepared with the device now; empty if one can."""
        placement = self.placements.value.get(device_id)
        if placement is not None and placement.phase.in_slice:
            return ""
        if placement is None:
            return f"{device_id}: it is not decided yet which API offers it"
        if placement.phase is Phase.DISPUTED:
            return f"{device_id}: it is not clear who holds it; it is given to nobody until that is known"
        pod = next(filter(None, map(self.readings.pod, self.unit(device_id))), "")
        if pod:
            return f"{device_id} is held by {pod} through the device plugin API; the claim gets it when that pod ends"
        reason = f" ({self.problem.value})" if self.problem.value else ""
        return f"{device_id} is offered through the device plugin API; it moves when it is known to be free{reason}"

    async def arriving(self, name: str) -> None:
        """A claim names this device: it stays on the claim's side, or moves there if it is free, within some seconds.

        To be called before `refusal`, for every claim that is not prepared yet.
        """
        device_id = self._ids.get(name, "")
        if device_id not in self.placements.value:
            return
        for key in self.unit(device_id):
            self.readings.ask(key)
        if self._phase(device_id).in_slice:
            return
        begun = self.rounds.value
        self._notice()
        with suppress(TimeoutError):
            async with asyncio.timeout(self.settings.arrival):
                # The round that runs now may have begun before the claim came.
                await self.rounds.until(lambda count: self._phase(device_id).in_slice or count > begun + 1)

    async def move(self, device_id: str, to: Api) -> None:
        """Returns when the request is on disk."""
        self._check_moves()
        if device_id not in self.placements.value:
            names = some(sorted(self.placements.value))
            raise ConfigError(f"{self._runtime.resource} has no device {device_id!r} (it has: {names})")
        await self._retarget(dict.fromkeys(self.unit(device_id), to), self.state.handover)

    async def hand_over(self, to: Api) -> None:
        """All devices, and those that are found later, to one side; `both` gives them back to the operator's split."""
        self._check_moves()
        targets = dict.fromkeys(self.placements.value, to)
        if to is Api.BOTH:
            on_dra = [key for key, placement in self.placements.value.items() if placement.phase.in_slice]
            held = await self._holders.pods()
            split = self._runtime.serve.split
            targets |= adoption.targets_by_split(self._devices().values(), split, on_dra, held)
        await self._retarget(targets, None if to is Api.BOTH else to)

    async def run(self) -> None:
        """For ever."""
        ends = [self._runtime.inventory.latest.subscribe(self._notice_devices)]
        ends.append(self._prepared.latest.subscribe(self._notice_prepared))
        try:
            while True:
                seen = self._wake.value
                await self._round()
                self.rounds.publish(self.rounds.value + 1)
                await self._pause(seen)
        finally:
            for end in ends:
                end()
            self._loaded = False
            self._kept.close()

    async def _round(self) -> None:
        """Whatever can move now, moves."""
        if not self._devices():
            return
        try:
            if not self._loaded and not await self._load():
                return
            async with self._changing:
                await self._adopt()
                await self._advance()
            problems = [await self._read_pods(), await self._read_claims()]
            async with self._changing:
                await self._advance()
                problems.append(await self._balance())
            self._set_problem(next(filter(None, problems), ""))
        except (OSError, PlugwrightError) as error:
            self._set_problem(clean(error))

    async def _load(self) -> bool:
        """What an earlier run left, corrected by who holds what; False while another daemon decides."""
        await self._prepared.read()
        state = await self._kept.load()
        if state is None:
            self._set_problem("another process of the daemon decides until it ends")
            return False
        self._start_held = None
        with suppress(HoldersUnreadable):
            self._start_held = await self._holders.stored()
        rebooted = self._kept.rebooted
        if rebooted:
            until = self._clock() + self.settings.readmission
            self.readings.pinned_until = dict.fromkeys(self._start_held or (), until)
        self._find_units()
        placements = {
            key: adoption.restored(placement, self._evidence_at_start(self.unit(key)), rebooted=rebooted)
            for key, placement in state.placements.items()
        }
        self._kept.state, self._loaded, self._adopted = replace(state, placements=placements), True, {}
        return True

    def _evidence_at_start(self, unit: Collection[str]) -> Evidence:
        held = self._start_held
        held_by_pod = None if held is None else any(key in held for key in unit)
        return replace(self.readings.evidence(unit), held_by_pod=held_by_pod)

    async def _adopt(self) -> None:
        """Gives new devices a placement."""
        self._find_units()
        if self._units == self._adopted and self.placements.value:
            return
        found = adoption.Found(self._devices(), self._units, self._evidence_at_start, self._start_held or ())
        state = adoption.adopt(self.state, self._runtime.serve, found)
        if state != self.state or not self.placements.value:
            await self._kept.commit(state)
        self._adopted = self._units

    def _find_units(self) -> None:
        devices = self._devices()
        if devices is not self._found_in:
            self._found_in, self._units = devices, moves.units(devices.values())
            self._distinct = sorted(set(self._units.values()))
        self._note_prepared()

    def _note_prepared(self) -> None:
        for key in (*self.state.placements, *self._devices()):
            if key not in self._names:
                self._names[key] = device_name(key)
                self._ids[self._names[key]] = key
        held = self._prepared.held().items()
        self.readings.set_prepared(
            {self._ids[name]: tuple(map(str, claims)) for name, claims in held if name in self._ids}
        )

    async def _advance(self) -> None:
        """The phases that follow from what is known; some follow from another."""
        for _ in Phase:
            self._find_units()
            changes: dict[str, Placement] = {}
            for unit in self._unsettled_units():
                before, evidence = self.state.placements[unit[0]], self.readings.evidence(unit)
                placement = moves.reconsidered(before, evidence)
                placement = replace(placement, phase=moves.next_phase(placement, evidence))
                if placement != before:
                    changes |= dict.fromkeys(unit, placement)
            if not changes:
                return
            await self._kept.commit(replace(self.state, placements={**self.state.placements, **changes}))

    def _present_units(self) -> list[tuple[str, ...]]:
        placements = self.state.placements
        return [unit for unit in self._distinct if all(key in placements for key in unit)]

    def _unsettled_units(self) -> list[tuple[str, ...]]:
        """Those that are not where they are to be, or that a claim may want elsewhere; of many devices, few are."""
        placements, claimed = self.state.placements, {*self.readings.asked(), *self.readings.prepared}
        return [
            unit
            for unit in self._present_units()
            if placements[unit[0]].phase.offered_by is not placements[unit[0]].target or not claimed.isdisjoint(unit)
        ]

    async def _read_pods(self) -> str:
        """Reads which pods hold the devices that wait for them; returns why that is not possible."""
        self.readings.forget_free()
        placements = self.state.placements
        waiting = [unit for unit in self._unsettled_units() if self.readings.waits_for_pods(unit, placements[unit[0]])]
        stays = {key: self.readings.stay(key) for unit in waiting for key in unit}
        try:
            self.readings.set_pods(stays, await self._holders.of(stays) if stays else {})
        except HoldersUnreadable as error:
            return f"devices stay where they are: {error}"
        return ""

    async def _read_claims(self) -> str:
        """Lists claims, once for all devices that wait for that; returns why that is not possible."""
        placements = self.state.placements
        waiting = [
            unit for unit in self._unsettled_units() if self.readings.waits_for_claims(unit, placements[unit[0]])
        ]
        stays = {key: self.readings.stay(key) for unit in waiting for key in unit}
        if not stays:
            return ""
        try:
            claims = await claims_by_device(self._api, *self._pool)
        except HoldersUnreadable as error:
            self.readings.postpone(stays)
            return f"devices stay where they are: {error}"
        self.readings.set_claims(stays, {key: claims.get(self._names[key], ()) for key in stays})
        return ""

    async def _balance(self) -> str:
        """Moves free devices by the policy, where there is one and no operator has asked for a handover."""
        keep_free = self._runtime.serve.split.keep_free
        if not self._follows_policy:
            return ""
        try:
            held = await self._holders.active()
        except HoldersUnreadable as error:
            return f"devices stay where they are: {error}"
        present = {unit[0]: unit for unit in self._present_units()}
        evidence = {key: self.readings.evidence(unit) for key, unit in present.items()}
        idle = [
            key
            for key, unit in present.items()
            if held.isdisjoint(unit) and not evidence[key].asked and not evidence[key].prepared
        ]
        wanted = moves.balanced({key: self.state.placements[key] for key in present}, idle, keep_free)
        placements = {
            key: Placement(self._phase(key), to, True) for unit, to in wanted.items() for key in present[unit]
        }
        if placements:
            await self._kept.commit(replace(self.state, placements={**self.state.placements, **placements}))
            await self._advance()
        return ""

    @property
    def _follows_policy(self) -> bool:
        serve = self._runtime.serve
        return serve.split.keep_free > 0 and serve.api is Api.BOTH and self.state.handover is None

    async def _retarget(self, targets: Mapping[str, Api], handover: Api | None) -> None:
        async with self._changing:
            placements = dict(self.state.placements)
            placements |= {
                key: Placement(placements[key].phase, to) for key, to in targets.items() if key in placements
            }
            await self._kept.commit(replace(self.state, placements=placements, handover=handover))
            await self._advance()
        self._notice()

    async def _pause(self, seen: int) -> None:
        """Until something changes, or until something may be due."""
        now, due = self._clock(), math.inf
        if not self._loaded and self._devices():
            due = now + _FOLLOWING
        elif self.problem.value or self._follows_policy:
            due = now + self.settings.interval
        if self._loaded:
            placements = self.state.placements
            due = min([due, *(self.readings.next_time(unit, placements[unit[0]]) for unit in self._unsettled_units())])
        with suppress(TimeoutError):
            async with asyncio.timeout(None if math.isinf(due) else max(0.0, due - now)):
                await self._wake.until(lambda count: count != seen)

    def _phase(self, device_id: str) -> Phase:
        placement = self.placements.value.get(device_id)
        return placement.phase if placement is not None else Phase.DISPUTED

    def _devices(self) -> Mapping[str, Device]:
        snapshot = self._runtime.inventory.latest.value
        return snapshot.devices if snapshot is not None else {}

    def _notice(self) -> None:
        self._wake.publish(self._wake.value + 1)

    def _notice_prepared(self) -> None:
        self._note_prepared()
        self._notice()

    def _notice_devices(self) -> None:
        """Only new devices are of interest; the list is also published because of what is decided here."""
        if self._devices().keys() - self.placements.value.keys():
            self._notice()

    def _set_problem(self, problem: str) -> None:
        if problem and problem != self.problem.value:
            logger.warning("devices do not move", extra={"resource": self._runtime.resource, "error": problem})
        self.problem.publish_if_changed(problem)

    def _check_moves(self) -> None:
        if self._runtime.serve.api is not Api.BOTH:
            text = f"{self._runtime.resource} is served by {self._runtime.serve.api} alone"
            raise ConfigError(f"{text}: devices move where the operator's file has `serve: both`")
        if not self._loaded:
            raise ConfigError(f"{self._runtime.resource}: it is not known yet where its devices are")
