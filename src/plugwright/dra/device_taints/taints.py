"""The taints of a resource's devices in its ResourceSlices: of failed, cordoned and moving devices.

`taint_budget` decides which effect a failure has, and when. This module evicts no pods: Kubernetes' own controller
does, for a taint with NoExecute. A taint with NoSchedule is published immediately, one with NoExecute once it is on
disk. One timer waits for the next timed change; without such a change there is none.
"""

import logging
import math
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import TypeAlias

import msgspec
from msgspec.structs import replace

from plugwright.dra.device_taints.taint_budget import (
    Moment,
    Observed,
    TaintDecision,
    TaintRecord,
    TaintState,
    decide,
    evictions,
)
from plugwright.dra.device_taints.taint_file import TaintFile, moment
from plugwright.errors import PluginError, StateFileLocked
from plugwright.model import Device, natural_order, some
from plugwright.sdk.cordon_controller import utc
from plugwright.sdk.inventory import Inventory, Snapshot
from plugwright.sdk.serve_settings import TaintSettings
from plugwright.system.blocking import BlockingCalls
from plugwright.system.latest import Latest, Signal
from plugwright.system.log_once import LogOnce
from plugwright.text import clean

__all__ = ["CORDONED", "UNHEALTHY", "Taint", "TaintController", "observed", "taints_for"]

logger = logging.getLogger(__name__)

Taint: TypeAlias = Mapping[str, str]

UNHEALTHY = "plugwright.dev/unhealthy"
CORDONED = "plugwright.dev/cordoned"
# Failures that a vendor's own driver reports under its own key, by the prefix of their code; as KEP-5055 advises.
_VENDOR_KEYS = {"xid-": "gpu.nvidia.com/xid"}
# The plugin, the daemon or the configuration fails, not the device: its pods work and are left alone.
_NOT_OF_THE_DEVICE = frozenset({"daemon", "discovery", "held", "holders-unknown", "unconfigured"})
_DISK_LIMIT = 2.0  # seconds
_RETRY = 60.0  # seconds until a NoExecute that could not be written is tried again


def observed(resource: str, snapshot: Snapshot) -> Observed:
    devices = {**snapshot.devices, **snapshot.cordoned}
    failed = {key: device.code not in _NOT_OF_THE_DEVICE for key, device in devices.items() if not device.healthy}
    return Observed(resource, failed, frozenset(snapshot.cordoned))


def taints_for(device: Device, record: TaintRecord) -> tuple[Taint, ...]:
    """The taints of one device, passed without its cordon; sorted by key."""
    taints: list[Taint] = []
    if record.cordoned:
        taints.append({"key": CORDONED, "effect": "NoSchedule", "timeAdded": utc(record.cordoned)})
    if record.effect and not device.healthy:
        added = utc(record.added)
        taints.append({"key": UNHEALTHY, "value": device.code, "effect": record.effect, "timeAdded": added})
        taints += [
            {"key": key, "value": device.code.removeprefix(start), "effect": record.effect, "timeAdded": added}
            for start, key in _VENDOR_KEYS.items()
            if device.code.startswith(start)
        ]
    return tuple(sorted(taints, key=lambda taint: taint["key"]))


class TaintController:
    """Publishes each tainted device's taints in `taints`; None until earlier taints and the devices are known.

    All resources of a daemon have the same `path`, so that they share the budget; without one, each has its own budget.
    `pool_content` adds the taint of a moving device.
    """

    def __init__(
        self, inventory: Inventory, settings: TaintSettings, path: Path | None, clock: Callable[[], Moment] = moment
    ) -> None:
        self.taints: Latest[Mapping[str, tuple[Taint, ...]] | None] = Latest(None)
        self._inventory, self._settings, self._clock = inventory, settings, clock
        self._file = TaintFile(path)
        self._disk = BlockingCalls(f"taints of {inventory.resource}", _DISK_LIMIT)
        self._state = TaintState()
        self._held_back: Mapping[str, str] = {}
        self._unwritten = ""  # why taints are not on disk
        self._write_problems, self._held_back_logged = LogOnce(logger), LogOnce(logger)
        self._wake = Signal()

    def status(self) -> dict[str, object]:
        now = self._clock().elapsed
        unknown = self._file.unreadable if now < self._state.unknown_until else ""
        return {
            "effect": self._settings.effect,
            "budget": self._settings.budget,
            "evictions": len(evictions(self._state, now)),
            "held_back": dict(self._held_back),
            "devices": {key: list(taints) for key, taints in sorted((self.taints.value or {}).items())},
            "error": unknown or self._unwritten,
        }

    async def run(self) -> None:
        """Runs forever."""
        await self._load()
        unsubscribe = self._inventory.latest.subscribe(self._wake.notify)
        try:
            while True:
                seen = self._wake.count
                next_change = await self._apply()
                await self._until(seen, next_change)
        finally:
            unsubscribe()

    async def _until(self, seen: int, next_change: float) -> None:
        """Waits for a change of the devices since `seen`, or for the time `next_change`."""
        wait = max(0.0, next_change - self._clock().elapsed)
        await self._wake.wait(seen, None if math.isinf(wait) else wait)

    async def _load(self) -> None:
        try:
            self._state = await self._disk.run(partial(self._file.load, self._clock()))
        except (PluginError, StateFileLocked) as error:
            facts = {"resource": self._inventory.resource, "error": clean(error)}
            logger.error("earlier taints are not known", extra=facts)

    async def _apply(self) -> float:
        """Publishes the changes due now; returns the time of the next timed change."""
        snapshot = self._inventory.latest.value
        if snapshot is None:
            return math.inf
        seen, now = observed(self._inventory.resource, snapshot), self._clock()
        without_new = decide(self._state, seen, msgspec.structs.replace(self._settings, budget=0), now)
        due = decide(self._state, seen, self._settings, now)
        if due.state == self._state:
            decision = due
        else:
            self._publish(snapshot, without_new.state)  # before the disk, which can be slow
            decision = await self._written(seen, due, without_new, now)
        self._state, self._held_back = decision.state, decision.held_back
        self._publish(snapshot, decision.state)
        self._log(decision)
        return decision.next_change

    async def _written(
        self, seen: Observed, due: TaintDecision, without_new: TaintDecision, now: Moment
    ) -> TaintDecision:
        change = partial(decide, observed=seen, settings=self._settings, now=now)
        try:
            decision = await self._disk.run(partial(self._file.update, seen.resource, without_new.state, change, now))
        except (PluginError, OSError) as error:
            self._unwritten = f"taints cannot be written to {self._file.path}: {clean(error)}"
            facts = {"resource": seen.resource, "path": str(self._file.path), "error": clean(error)}
            text = "taints cannot be written, no further device gets NoExecute"
            self._write_problems.error(text, self._unwritten, extra=facts)
            reasons = dict.fromkeys(due.granted, "it cannot be written down")
            return replace(
                due,
                state=without_new.state,
                held_back={**due.held_back, **reasons},
                next_change=min(due.next_change, now.elapsed + _RETRY) if due.granted else due.next_change,
            )
        self._unwritten = ""
        self._write_problems.recovered()
        return decision

    def _publish(self, snapshot: Snapshot, state: TaintState) -> None:
        records = state.of(self._inventory.resource)
        devices = {**snapshot.devices, **snapshot.cordoned}
        taints = {key: taints_for(device, records.get(key, TaintRecord())) for key, device in devices.items()}
        self.taints.publish_if_changed({key: tainted for key, tainted in taints.items() if tainted})

    def _log(self, decision: TaintDecision) -> None:
        """Logs devices that get NoExecute, and once those that do not, by reason: a whole node can fail at once."""
        resource = self._inventory.resource
        if decision.granted:
            facts = {"resource": resource, "devices": _names(decision.granted)}
            logger.warning("devices have the taint NoExecute, their pods will be evicted", extra=facts)
        news: dict[str, list[str]] = {}
        for device_id, reason in decision.held_back.items():
            if self._held_back_logged.is_news(reason, device_id):
                news.setdefault(reason, []).append(device_id)
        for reason, device_ids in sorted(news.items()):
            facts = {"resource": resource, "devices": _names(device_ids), "reason": reason}
            logger.warning("devices keep the taint NoSchedule, their pods are not evicted", extra=facts)
        self._held_back_logged.keep_only(decision.held_back.keys())


def _names(device_ids: Iterable[str]) -> str:
    return some(sorted(device_ids, key=natural_order))
