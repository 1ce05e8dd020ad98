"""The placement of `serve: both`: changed by operators, a policy, and arriving claims, and stored on disk.

This is its interface for the driver, operators and claims; `rounds` decides when and why a device moves. If a source
cannot be read, devices stay where they are, and `status` reports the reason. Independently of this, Allocate and
Prepare refuse devices of the other API.
"""

import asyncio
import logging
import math
from collections.abc import Collection, Mapping
from contextlib import suppress

import msgspec
from msgspec.structs import replace

from plugwright.dra.both import first_states
from plugwright.dra.both.device_observations import Observations
from plugwright.dra.both.holders import HolderSources
from plugwright.dra.both.move_settings import MoveSettings
from plugwright.dra.both.rounds import SplitRounds
from plugwright.dra.both.split_file import KeptPlacements, SplitFile, SplitState
from plugwright.dra.both.states import Placement, Unit
from plugwright.dra.device_placement import MOVING, DeviceState
from plugwright.errors import ConfigError, PlugwrightError
from plugwright.model import Device, some
from plugwright.sdk.resource_runtime import ResourceRuntime
from plugwright.sdk.serve_settings import ServeMode
from plugwright.system.latest import Latest, Signal
from plugwright.system.log_once import LogOnce
from plugwright.text import clean

__all__ = ["DeviceSplit"]

logger = logging.getLogger(__name__)

_FOLLOWING = 1.0  # seconds between reads of another daemon's decisions


class DeviceSplit:
    """`placements` are published when they take effect; `problem` is why no device moves, empty if devices can move.

    `rounds` is notified after each round.
    """

    def __init__(
        self, runtime: ResourceRuntime, file: SplitFile, sources: HolderSources, settings: MoveSettings | None = None
    ) -> None:
        self.settings = settings or MoveSettings.of(runtime.settings.timeouts)
        self.changed, self.rounds, self.problem = Signal(), Signal(), Latest("")
        self.observations = Observations(self.settings, self._is_shared)
        self._runtime, self._sources = runtime, sources
        self._kept = KeptPlacements(runtime, file, self.observations.enter)
        self.placements = self._kept.latest
        self.placements.subscribe(self._placements_changed)
        self._moves = SplitRounds(runtime, self._kept, self.observations, sources, self.settings)
        self._published: Mapping[str, bool] | None = None  # by the names in the slices
        self._taints_dropped = False
        self._wake = Signal()
        self._problems = LogOnce(logger)

    @property
    def state(self) -> SplitState:
        return self._kept.state

    @property
    def is_deciding(self) -> bool:
        """Whether the placements are known and this process decides about them."""
        return self._moves.loaded

    def in_slices(self, devices: Mapping[str, Device]) -> Collection[str] | None:
        placements = self.placements.value
        left_out = (DeviceState.TAINTED,) if self._taints_dropped else ()
        if not placements:
            return None
        return frozenset(
            key for key, placement in placements.items() if placement.state.in_slice and placement.state not in left_out
        )

    def taints(self) -> Mapping[str, Mapping[str, str]]:
        placements = self.placements.value
        return {key: MOVING for key in sorted(placements) if placements[key].state is DeviceState.TAINTED}

    def unit(self, device_id: str) -> Unit:
        return self._moves.units.of(device_id)

    def confirm(self, published: Mapping[str, bool], *, taints_dropped: bool = False) -> None:
        """Receives the published devices. If the server drops taints, a moving device leaves the slices first."""
        dropped, self._taints_dropped = self._taints_dropped, taints_dropped
        self._published = published
        self._note_published()
        if dropped != taints_dropped:
            self.changed.notify()
        self._wake.notify()

    def _note_published(self) -> None:
        """Notes them by the present placements. Without any, the devices behind the slices' names are unknown."""
        placements = self.placements.value
        if self._published is None or not placements:
            return
        self._moves.units.name(placements)
        ids = self._moves.units.ids
        by_id = {ids[name]: tainted for name, tainted in self._published.items() if ids.get(name, "") in placements}
        self.observations.set_published(by_id, placements)

    def refusal(self, device_id: str) -> str:
        placement = self.placements.value.get(device_id)
        if placement is not None and placement.state.in_slice:
            return ""
        if placement is None:
            return f"{device_id}: it is not decided yet which API offers it"
        if placement.state is DeviceState.DISPUTED:
            return f"{device_id}: it is not clear who holds it; it is not offered until that is known"
        pod = next(filter(None, map(self.observations.pod, self.unit(device_id))), "")
        if pod:
            return f"{device_id} is held by {pod} through the device plugin API; the claim gets it when that pod ends"
        reason = f" ({self.problem.value})" if self.problem.value else ""
        return f"{device_id} is offered through the device plugin API; it moves when it is known to be free{reason}"

    async def arriving(self, names: Collection[str]) -> None:
        """Keeps each device on the claim's side, or moves it there if it is free, within some seconds."""
        ids = self._moves.units.ids
        for device_id in [ids[name] for name in names if ids.get(name, "") in self.placements.value]:
            for key in self.unit(device_id):
                self.observations.ask(key)
            if not self._state_of(device_id).in_slice:
                await self._until_moved(device_id)

    async def _until_moved(self, device_id: str) -> None:
        begun = self.rounds.count
        self._wake.notify()
        with suppress(TimeoutError):
            async with asyncio.timeout(self.settings.arrival):
                # The current round can have begun before the claim arrived.
                await self.rounds.until(lambda: self._state_of(device_id).in_slice or self.rounds.count > begun + 1)

    async def move(self, device_id: str, to: ServeMode) -> None:
        """Returns when the request is on disk."""
        self._check_moves()
        if device_id not in self.placements.value:
            names = some(sorted(self.placements.value))
            raise ConfigError(f"{self._runtime.resource} has no device {device_id!r} (it has: {names})")
        await self._retarget(dict.fromkeys(self.unit(device_id), to), self.state.handover, by_command=True)

    async def hand_over(self, to: ServeMode) -> None:
        """Moves all devices, including later ones, to one side; `both` returns them to the operator's split."""
        self._check_moves()
        targets = dict.fromkeys(self.placements.value, to)
        if to is ServeMode.BOTH:
            on_dra = [key for key, placement in self.placements.value.items() if placement.state.in_slice]
            held = await self._sources.pods.pods()
            split = self._runtime.serve.split
            targets |= first_states.targets_by_split(self._devices.values(), split, on_dra, held)
        await self._retarget(targets, None if to is ServeMode.BOTH else to)

    async def run(self) -> None:
        ends = [self._runtime.inventory.latest.subscribe(self._notice_devices)]
        ends.append(self._sources.prepared.latest.subscribe(self._notice_prepared))
        try:
            while True:
                seen = self._wake.count
                await self.round()
                await self._wake.wait(seen, self._pause())
        finally:
            for end in ends:
                end()
            self._moves.loaded = False
            self.close()

    def close(self) -> None:
        """Lets another process decide."""
        self._kept.close()

    async def round(self) -> None:
        """Moves every device that can move now."""
        if self._devices:
            try:
                self._set_problem(await self._moves.round())
            except (OSError, PlugwrightError) as error:
                self._set_problem(clean(error))
        self.rounds.notify()

    async def _retarget(
        self,
        targets: Mapping[str, ServeMode],
        handover: ServeMode | None,
        *,
        by_command: bool | msgspec.UnsetType = msgspec.UNSET,
    ) -> None:
        async with self._moves.changing:
            placements = dict(self.state.placements)
            placements |= {
                key: Placement(placements[key].state, to, by_command=by_command)
                for key, to in targets.items()
                if key in placements
            }
            await self._kept.commit(replace(self.state, placements=placements, handover=handover))
            await self._moves.advance()
        self._wake.notify()

    def _pause(self) -> float | None:
        """Seconds until something could be due, None if only a change can make it due."""
        now, due = self.settings.clock(), math.inf
        if not self._moves.loaded and self._devices:
            due = now + _FOLLOWING
        elif self.problem.value or self._moves.follows_policy:
            due = now + self.settings.interval
        if self._moves.loaded:
            placements, unsettled = self.state.placements, self._moves.unsettled()
            due = min([due, *(self.observations.next_time(unit, placements[unit[0]]) for unit in unsettled)])
        return None if math.isinf(due) else max(0.0, due - now)

    def _state_of(self, device_id: str) -> DeviceState:
        placement = self.placements.value.get(device_id)
        return placement.state if placement is not None else DeviceState.DISPUTED

    @property
    def _devices(self) -> Mapping[str, Device]:
        return self._moves.units.devices

    def _is_shared(self) -> bool:
        """Whether some devices stay in the kubelet's list while others leave it."""
        return self.state.handover is None

    def _placements_changed(self) -> None:
        self._note_published()
        self.changed.notify()

    def _notice_prepared(self) -> None:
        self._moves.note_prepared()
        self._wake.notify()

    def _notice_devices(self) -> None:
        """Reacts to new devices only, because the list is also published after decisions made here."""
        if self._devices.keys() - self.placements.value.keys():
            self._wake.notify()

    def _set_problem(self, problem: str) -> None:
        if problem:
            facts = {"resource": self._runtime.resource, "error": problem}
            self._problems.warning("devices do not move", problem, extra=facts)
        else:
            self._problems.recovered()
        self.problem.publish_if_changed(problem)

    def _check_moves(self) -> None:
        if not self._moves.loaded:
            raise ConfigError(f"{self._runtime.resource}: the state of its devices is not known yet")
