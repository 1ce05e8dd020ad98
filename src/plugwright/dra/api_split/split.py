"""Which API offers each device of a resource: kept on disk, changed by operators, a policy, and claims that arrive.

This is what the driver, operators and claims see of it; when and why a device moves is `split_rounds`, and every phase
is on disk before it takes effect. Where a source cannot be read, devices stay where they are, and `status` says why.
Allocate and Prepare refuse what the other API has, whatever happens here.
"""

import asyncio
import logging
import math
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from plugwright.dra.api_split import adoption
from plugwright.dra.api_split.holders import ApiReader, PodHolders, Prepared
from plugwright.dra.api_split.kept_placements import KeptPlacements
from plugwright.dra.api_split.move_settings import MoveSettings
from plugwright.dra.api_split.moves import Phase, Placement
from plugwright.dra.api_split.readings import Readings
from plugwright.dra.api_split.split_file import SplitFile, SplitState
from plugwright.dra.api_split.split_rounds import SplitRounds
from plugwright.errors import ConfigError, PlugwrightError
from plugwright.model import Device, some
from plugwright.sdk.daemon import ResourceRuntime
from plugwright.sdk.serve_settings import Api
from plugwright.sdk.sysfs import BOOT_ID
from plugwright.system.latest import Latest
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
        api: ApiReader,
        settings: MoveSettings | None = None,
        clock: Callable[[], float] = time.monotonic,
        boot_id: Path = BOOT_ID,
        holders: PodHolders | None = None,
    ) -> None:
        """`pool` is the driver's name and the pool's."""
        self.problem = Latest("")
        self.settings = settings or MoveSettings.of(runtime.settings.timeouts)
        self.readings = Readings(self.settings, clock, self._is_shared)
        self._runtime, self._prepared, self._clock = runtime, prepared, clock
        self._kept = KeptPlacements(runtime, SplitFile(path, boot_id), self.readings)
        self.placements = self._kept.latest
        self._holders = holders or PodHolders(runtime, self.settings.stored, clock)
        self._rounds = SplitRounds(runtime, self._kept, self.readings, self._holders, (prepared, api, pool), clock)
        self._taints_dropped = False
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
        return self._rounds.units.of(device_id)

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
        device_id = self._rounds.units.ids.get(name, "")
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
            targets |= adoption.targets_by_split(self._devices.values(), split, on_dra, held)
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
            self._rounds.loaded = False
            self._kept.close()

    async def _round(self) -> None:
        if not self._devices:
            return
        try:
            self._set_problem(await self._rounds.round(self.settings.readmission))
        except (OSError, PlugwrightError) as error:
            self._set_problem(clean(error))

    async def _retarget(self, targets: Mapping[str, Api], handover: Api | None) -> None:
        async with self._rounds.changing:
            placements = dict(self.state.placements)
            placements |= {
                key: Placement(placements[key].phase, to) for key, to in targets.items() if key in placements
            }
            await self._kept.commit(replace(self.state, placements=placements, handover=handover))
            await self._rounds.advance()
        self._notice()

    async def _pause(self, seen: int) -> None:
        """Until something changes, or until something may be due."""
        now, due = self._clock(), math.inf
        if not self._rounds.loaded and self._devices:
            due = now + _FOLLOWING
        elif self.problem.value or self._rounds.follows_policy:
            due = now + self.settings.interval
        if self._rounds.loaded:
            placements, unsettled = self.state.placements, self._rounds.unsettled()
            due = min([due, *(self.readings.next_time(unit, placements[unit[0]]) for unit in unsettled)])
        with suppress(TimeoutError):
            async with asyncio.timeout(None if math.isinf(due) else max(0.0, due - now)):
                await self._wake.until(lambda count: count != seen)

    def _phase(self, device_id: str) -> Phase:
        placement = self.placements.value.get(device_id)
        return placement.phase if placement is not None else Phase.DISPUTED

    @property
    def _devices(self) -> Mapping[str, Device]:
        return self._rounds.units.devices

    def _is_shared(self) -> bool:
        """Whether devices stay in the kubelet's list while others leave it."""
        return self._runtime.serve.api is Api.BOTH and self.state.handover is None

    def _notice(self) -> None:
        self._wake.publish(self._wake.value + 1)

    def _notice_prepared(self) -> None:
        self._rounds.note_prepared()
        self._notice()

    def _notice_devices(self) -> None:
        """Only new devices are of interest; the list is also published because of what is decided here."""
        if self._devices.keys() - self.placements.value.keys():
            self._notice()

    def _set_problem(self, problem: str) -> None:
        if problem and problem != self.problem.value:
            logger.warning("devices do not move", extra={"resource": self._runtime.resource, "error": problem})
        self.problem.publish_if_changed(problem)

    def _check_moves(self) -> None:
        if self._runtime.serve.api is not Api.BOTH:
            text = f"{self._runtime.resource} is served by {self._runtime.serve.api} alone"
            raise ConfigError(f"{text}: devices move where the operator's file has `serve: both`")
        if not self._rounds.loaded:
            raise ConfigError(f"{self._runtime.resource}: it is not known yet where its devices are")
