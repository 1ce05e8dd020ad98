"""Applies cordons to the devices of a daemon: operators' cordons from the control socket, and the configured rules.

Threads read and write the file (`cordons`). Until it has been read, no device is Healthy, because any device could be
cordoned. One timer ends all cordons whose time is over; without such cordons there is no timer.
"""

import asyncio
import logging
import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import aclosing, suppress
from functools import partial
from pathlib import Path

from plugwright.errors import CallNotStarted, CallTimedOut, CallUnfinished, ConfigError
from plugwright.model import Device, some
from plugwright.sdk.cordons import CORDONS_FILE, Cordon, CordonRule, Cordons
from plugwright.sdk.inventory import Inventory
from plugwright.sdk.settings import Settings
from plugwright.sdk.status import CordonStatus
from plugwright.system.blocking import BlockingCalls
from plugwright.system.concurrency import Backoff
from plugwright.system.inotify import settled_changes
from plugwright.system.latest import Signal
from plugwright.text import clean

__all__ = ["CordonController", "utc"]

logger = logging.getLogger(__name__)

_LONGEST_WAIT = 3600.0  # seconds; the clock can be set while a cordon waits for its end
_RETRY = 60.0  # seconds


class CordonController:
    """`rules` are the configured ones; `changed` is notified when a cordon was added, removed or has ended."""

    def __init__(self, settings: Settings, clock: Callable[[], float] = time.time) -> None:
        self.changed = Signal()
        self._settings, self._clock = settings, clock
        self._directory = settings.node_directory
        self._stored = Cordons(self._directory / CORDONS_FILE if self._directory is not None else None)
        self.rules: Sequence[CordonRule] = settings.cordons
        self._active_rules: Sequence[CordonRule] = ()
        self._inventories: dict[str, Inventory] = {}
        self._disk = BlockingCalls("access to the cordons", settings.limits.command, at_once=1)
        self._disk.hung.subscribe(self._apply_all)  # an abandoned call can still have changed them

    @property
    def unreadable(self) -> str:
        """Why the cordons of an earlier run are not known; empty if they are."""
        return self._stored.unreadable

    def attach(self, inventory: Inventory) -> None:
        """Cordons the devices of this inventory from now on."""
        self._inventories[inventory.resource] = inventory
        self._apply(inventory)

    def detach(self, resource: str) -> None:
        self._inventories.pop(resource, None)

    def declare(self, rules: Sequence[CordonRule]) -> None:
        """Replaces the rules of the configuration."""
        if list(rules) != list(self.rules):
            self.rules = tuple(rules)
            self._apply_all()

    async def add(self, resource: str, device_id: str, cordon: Cordon) -> None:
        """Returns when the cordon is on disk and is being sent to the kubelet."""
        devices = _devices(self._inventory(resource))
        if device_id not in devices:
            raise ConfigError(f"{resource} has no device {device_id!r} (it has: {some(devices)})")
        if cordon.is_over(self._clock()):
            raise ConfigError(f"a cordon must end in the future, got {utc(cordon.until)}")
        await self._change(partial(self._stored.add, resource, device_id, cordon))
        logger.info("device cordoned", extra=_facts(resource, device_id, cordon))

    async def remove(self, resource: str, device_id: str, by: str = "") -> str:
        """Removes a cordon, also of an unserved resource; returns the reason of a remaining rule."""
        rule = self._rule_for(resource, device_id)
        if device_id not in self._stored.of(resource) and not self.unreadable:
            if resource not in self._stored.all:
                self._inventory(resource)  # raises, with the names of the served resources
            if rule is not None:
                text = f"is cordoned by the configuration file ({rule.reason}): remove it there"
                raise ConfigError(f"{device_id!r} of {resource} {text}")
            raise ConfigError(f"{device_id!r} of {resource} is not cordoned")
        await self._change(partial(self._stored.remove, resource, device_id))
        logger.info("device no longer cordoned", extra={"resource": resource, "device": device_id, "by": by})
        return rule.reason if rule is not None else ""

    def listed(self) -> list[CordonStatus]:
        """Every cordon, also of unserved resources, followed by the configured rules."""
        now = self._clock()
        return [*self._listed_devices(now), *self._listed_rules(now)]

    async def load(self) -> None:
        """Reads the file in at most one thread. A hanging disk does not delay the lists of resources."""
        if not self.unreadable:
            return
        try:
            await self._disk.join(self._stored.load)
        except CallTimedOut as error:
            self._stored.fail(f"no answer within {error.limit:g} s")
        except CallNotStarted as error:
            self._stored.fail(clean(error.reason))
        self._apply_all()

    async def run(self) -> None:
        """Retries until the cordons are known, then ends those whose time is over; runs forever."""
        backoff = Backoff(self._settings.timeouts.retry, self._settings.timeouts.longest)
        while self.unreadable:
            await asyncio.sleep(backoff.delay())
            await self.load()
        async with asyncio.TaskGroup() as group:
            if self._directory is not None:
                group.create_task(self._follow(self._directory))
            while True:
                await self._end_cordons()
                await self._until_next_end()

    async def _follow(self, directory: Path) -> None:
        """Applies the cordons added and removed by other daemons of the node."""
        async with aclosing(settled_changes(directory)) as changes:
            async for _ in changes:
                with suppress(CallUnfinished):  # the next change is read
                    if await self._disk.join(self._stored.read_again, "again"):
                        self._apply_all()

    async def _until_next_end(self) -> None:
        """Waits for the next end of a cordon, for a change, or until the clock could have been set."""
        seen = self.changed.count
        ends = [cordon.until for cordons in self._stored.all.values() for cordon in cordons.values()]
        wait = min([*ends, *(rule.until for rule in self._active_rules)], default=math.inf) - self._clock()
        await self.changed.wait(seen, None if math.isinf(wait) else min(max(wait, 0.0), _LONGEST_WAIT))

    async def _end_cordons(self) -> None:
        now = self._clock()
        over = [rule for rule in self._active_rules if rule.is_over(now)]
        is_over = any(cordon.is_over(now) for cordons in self._stored.all.values() for cordon in cordons.values())
        if over or is_over:
            self._apply_all()  # first, because the end of a cordon does not wait for a disk
        for rule in over:
            facts = {"resource": rule.resource, "device": _shown_ids(rule), "reason": rule.reason}
            logger.info("cordon has expired", extra=facts)
        if not is_over:
            return
        ended: list[tuple[str, str, Cordon]] = []
        try:
            await self._change(lambda: ended.extend(self._stored.remove_ended(now)))
        except ConfigError as error:  # no thread could be started
            logger.warning("expired cordons are still in the file", extra={"error": str(error)})
            await asyncio.sleep(_RETRY)
        for resource, device_id, cordon in ended:
            logger.info("cordon has expired", extra=_facts(resource, device_id, cordon))

    async def _change(self, change: Callable[[], None]) -> None:
        """Keeps disk and served devices consistent, even if the operator disconnects or the disk is slow."""
        try:
            await self._disk.run(change)
        except CallTimedOut as error:
            raise ConfigError(f"{error}; it may still take effect") from error
        except CallNotStarted as error:
            raise ConfigError(f"{error}; nothing was changed") from error
        finally:
            self._apply_all()  # the file can have been read just now

    def _apply_all(self) -> None:
        self._apply(*self._inventories.values())

    def _apply(self, *inventories: Inventory) -> None:
        now = self._clock()
        self._active_rules = [rule for rule in self.rules if not rule.is_over(now)]
        for inventory in inventories:
            cordons = self._stored.of(inventory.resource)
            reasons = {key: cordon.reason for key, cordon in cordons.items() if not cordon.is_over(now)}
            inventory.cordon(reasons, [rule for rule in self._active_rules if rule.is_for(inventory.resource)])
            if self.unreadable:
                inventory.add_fault("cordons", self.unreadable)
            else:
                inventory.remove_fault("cordons")
        self.changed.notify()

    def _inventory(self, resource: str) -> Inventory:
        if resource not in self._inventories:
            served = some(sorted(self._inventories))
            raise ConfigError(f"no resource {resource!r} is served here (served: {served})")
        return self._inventories[resource]

    def _rule_for(self, resource: str, device_id: str) -> CordonRule | None:
        inventory = self._inventories.get(resource)
        device = _devices(inventory).get(device_id) if inventory is not None else None
        rules = (rule for rule in self._active_rules if device is not None and rule.is_for(resource))
        return next((rule for rule in rules if device is not None and rule.matches(device)), None)

    def _listed_devices(self, now: float) -> Iterator[CordonStatus]:
        for resource, cordons in sorted(self._stored.all.items()):
            for device_id, cordon in sorted(cordons.items()):
                if not cordon.is_over(now):
                    yield CordonStatus(
                        resource=resource,
                        id=device_id,
                        reason=cordon.reason,
                        by=cordon.by,
                        since=cordon.since or None,
                        until=_finite(cordon.until),
                        declared=False,
                        served=resource in self._inventories,
                    )

    def _listed_rules(self, now: float) -> Iterator[CordonStatus]:
        for rule in self.rules:
            if not rule.is_over(now):
                yield CordonStatus(
                    resource=rule.resource,
                    id=_shown_ids(rule),
                    reason=rule.reason,
                    by="",
                    since=None,
                    until=_finite(rule.until),
                    declared=True,
                    served=any(map(rule.is_for, self._inventories)),
                )


def utc(seconds: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))


def _devices(inventory: Inventory) -> dict[str, Device]:
    snapshot = inventory.latest.value
    return dict(snapshot.devices) if snapshot is not None else {}


def _finite(seconds: float) -> float | None:
    return seconds if math.isfinite(seconds) else None


def _shown_ids(rule: CordonRule) -> str:
    """The selected devices in one line: `GPU-1c2d,GPU-8f6d model=*h200*`"""
    patterns = [f"{name}={','.join(texts)}" for name, texts in rule.attributes.items()]
    return " ".join([",".join(rule.ids), *patterns]).strip() or "*"


def _facts(resource: str, device_id: str, cordon: Cordon) -> dict[str, object]:
    facts = {"resource": resource, "device": device_id, "reason": clean(cordon.reason), "by": clean(cordon.by)}
    return {**facts, "until": utc(cordon.until)} if math.isfinite(cordon.until) else dict(facts)
