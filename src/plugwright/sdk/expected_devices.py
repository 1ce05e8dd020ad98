"""Whether a resource has the expected devices.

The expected number comes from `expect` in the operator's file, and from the devices found by the last run of this
daemon with the same configuration (`found-devices.json` in the state directory). `status`, `/readyz` and the metrics
report a shortfall. The daemon is not ready if the operator chose this, or if devices have been missing since this
start: a rollout then stops at the node. Later failures and devices already missing at an earlier start are reported
too, but do not make the daemon unready.
"""

import logging
from collections.abc import Mapping
from fnmatch import fnmatchcase
from pathlib import Path

import msgspec

from plugwright.errors import PlugwrightError
from plugwright.model import Device, natural_order, some
from plugwright.sdk.discovery import Discovery
from plugwright.sdk.inventory import Inventory
from plugwright.sdk.plugin import Plugin
from plugwright.sdk.serve_settings import Expectation
from plugwright.system.blocking import BlockingCalls
from plugwright.system.latest import Latest, Signal
from plugwright.system.log_once import LogOnce
from plugwright.system.state_file import JsonFormat, StateFile
from plugwright.text import clean

__all__ = ["ExpectedDevices", "FoundInRun", "Shortfall", "shortfall_of"]

logger = logging.getLogger(__name__)

_FILE = "found-devices.json"
_LIMIT = 5.0  # seconds; a disk that hangs must not keep devices out of service


class Shortfall(msgspec.Struct, frozen=True):
    """The difference between the found and the expected devices of a resource.

    `code` is `missing`, `unexpected`, `other-model`, `fewer-than-before` or `driver-missing`.
    """

    code: str
    reason: str
    missing: int = 0  # number of missing devices
    is_blocking: bool = False  # the daemon is not ready


class FoundInRun(msgspec.Struct, frozen=True):
    """The devices of a resource found by a run: the latest list, and those missing since a start."""

    configured: str = ""  # digest of the configuration: another configuration expects other devices
    devices: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()


class FoundDevices(msgspec.Struct, frozen=True):
    """The found devices by resource; the content of the state file."""

    resources: dict[str, FoundInRun] = {}


class Listing(msgspec.Struct, frozen=True):
    """The present result of discovery; `devices` is None before its first list."""

    devices: Mapping[str, Device] | None = None
    problem: str = ""  # why there is no list, or why the node has nothing to list
    on_bus: str = ""  # hardware of the resource that the node has, although the resource is idle
    seen: frozenset[str] = frozenset()  # devices listed by this run at any time


def shortfall_of(expect: Expectation | None, listing: Listing, before: FoundInRun) -> Shortfall | None:
    """The most serious deviation; None if there is none, or discovery has no result yet."""
    if listing.devices is None and not listing.problem:
        return None
    devices = listing.devices or {}
    because = f": {listing.problem}" if listing.problem else ""
    lost = [device_id for device_id in before.devices if device_id not in devices]
    never_seen = not listing.seen.issuperset(lost)  # a device that fails later must not stop a rollout
    if expect is not None:
        found = _deviation(expect, devices, because)
        if found is None:
            return None
        return msgspec.structs.replace(found, is_blocking=expect.not_ready or (found.missing > 0 and never_seen))
    absent = [device_id for device_id in before.missing if device_id not in devices and device_id not in lost]
    if lost or absent:
        ids = sorted([*lost, *absent], key=natural_order)
        total = len(devices) + len(ids)
        start = "the last" if lost else "an earlier"
        reason = f"{len(ids)} of {total} devices found before {start} start are missing"
        return Shortfall("fewer-than-before", f"{reason}: {some(ids)}{because}", len(ids), is_blocking=never_seen)
    if listing.on_bus and not devices:
        return Shortfall("driver-missing", f"the node has {listing.on_bus}{because}")
    return None


def _deviation(expect: Expectation, devices: Mapping[str, Device], because: str) -> Shortfall | None:
    if expect.model:
        others = [device.id for device in devices.values() if not _is_model(device, expect.model)]
        if others:
            text = f"{len(others)} devices are no {expect.model!r}: {some(others)}"
            return Shortfall("other-model", text, max(0, expect.least - len(devices) + len(others)))
    count = len(devices)
    if count < expect.least:
        return Shortfall("missing", f"expected {expect.words}, found {count}{because}", expect.least - count)
    if expect.most is not None and count > expect.most:
        return Shortfall("unexpected", f"expected {expect.words}, found {count}")
    return None


def _is_model(device: Device, pattern: str) -> bool:
    """Compares without regard to case; a device without a model does not match."""
    model = device.attributes.get("model") or device.attributes.get("productName")
    return model is not None and fnmatchcase(str(model).lower(), pattern.lower())


class ExpectedDevices:
    """Compares the devices of one resource with the expected ones; `shortfall` is the latest result."""

    def __init__(self, plugin: Plugin, inventory: Inventory, discovery: Discovery, directory: Path | None) -> None:
        self.shortfall: Latest[Shortfall | None] = Latest(None)
        self._inventory, self._discovery = inventory, discovery
        self._plugin = plugin
        self._before = FoundInRun()  # the state at this start
        self._kept: FoundInRun | None = None  # the state on disk
        self._changed = Signal()
        form = JsonFormat(FoundDevices, 1, indent=None)
        self._file = StateFile(directory / _FILE, form) if directory is not None else None
        self._disk = BlockingCalls("found devices", _LIMIT)
        self._problems = LogOnce(logger)
        self._is_read = False
        self._seen: frozenset[str] = frozenset()
        for source in (inventory.latest, discovery.idle, discovery.failing):
            source.subscribe(self._changed.notify)

    def replace_plugin(self, plugin: Plugin) -> None:
        """Discards what the previous configuration found."""
        if plugin.configured != self._plugin.configured:
            self._before, self._seen = FoundInRun(), frozenset()
        self._plugin = plugin
        self._changed.notify()

    async def run(self) -> None:
        """Runs forever."""
        await self._read()
        async for _ in self._changed.notifications():
            self._compare()
            await self._remember()

    def _listing(self) -> Listing:
        snapshot, removed = self._inventory.latest.value, self._inventory.removed_since
        problem = self._discovery.idle.value or self._discovery.failing.value
        if snapshot is None or (self._discovery.idle.value and not self._inventory.has_found):
            return Listing(None, problem, self._discovery.on_bus)
        found = {key: device for key, device in snapshot.devices.items() if key not in removed}
        if not self._seen.issuperset(found):
            self._seen |= found.keys()
        return Listing(found, problem if not found else "", seen=self._seen)

    def _compare(self) -> None:
        plugin, before = self._plugin, self.shortfall.value
        found = shortfall_of(plugin.expect, self._listing(), self._before)
        if found == before:
            return
        self.shortfall.publish(found)
        facts: dict[str, object] = {"resource": self._inventory.resource}
        if found is None:
            logger.info("the expected devices are found", extra=facts)
        elif before is None or found.reason != before.reason:
            logger.warning("not the expected devices", extra={**facts, "reason": found.reason, "code": found.code})

    async def _read(self) -> None:
        if self._file is None or self._is_read:
            return
        self._is_read = True  # a restarted part compares with the same earlier run
        try:
            content = await self._disk.run(self._file.read)
        except (OSError, PlugwrightError) as error:
            facts = {"path": str(self._file.path), "error": clean(error)}
            logger.warning("devices of the last run are unknown", extra=facts)
            return
        kept = content.resources.get(self._inventory.resource) if content is not None else None
        self._kept = kept
        if kept is not None and kept.configured == self._plugin.configured:
            self._before = kept

    async def _remember(self) -> None:
        """Stores the latest list, and the devices missing since this start or an earlier one.

        On an idle node all of them are missing. While discovery fails, the stored state stays.
        """
        file, devices = self._file, self._listing().devices
        if devices is None and self._discovery.idle.value:
            devices = {}
        if file is None or devices is None:
            return
        missing = {*self._before.devices, *self._before.missing, *self._seen} - devices.keys()
        if self._plugin.expect is not None:
            missing = set()
        found = FoundInRun(self._plugin.configured, tuple(sorted(devices)), tuple(sorted(missing)))
        is_empty = not devices and not missing  # as on every node without the hardware
        if found == self._kept or (is_empty and self._kept is None):
            return
        resource = self._inventory.resource

        def changed(content: FoundDevices | None) -> FoundDevices:
            return FoundDevices({**(content.resources if content is not None else {}), resource: found})

        try:
            await self._disk.run(lambda: file.change(changed))
            self._kept = found
            self._problems.recovered()
        except (OSError, PlugwrightError) as error:
            facts = {"path": str(file.path), "error": clean(error)}
            self._problems.error("found devices cannot be saved", clean(error), extra=facts)
