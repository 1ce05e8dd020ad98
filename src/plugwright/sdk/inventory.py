"""The device list of one resource.

Three sources contribute to a device's state: discovery lists it, an operator can cordon it, and the kubelet reports
that a pod holds it. `compose` merges them into one list; `Inventory` keeps them, publishes the list when it changes,
and logs changes of health. `removed_devices` decides when a removed device leaves the list; the ledger in `holdings`
decides which devices must not be allocated because their hardware is or could be held under another name.
"""

import logging
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress

import msgspec
from msgspec.structs import replace

from plugwright.errors import InvalidValue
from plugwright.model import NUMA_NODES, Device, natural_order, some
from plugwright.protocol import messages
from plugwright.sdk.cordons import CordonRule
from plugwright.sdk.driver_names import driver_name
from plugwright.sdk.holdings.ledger import Ledger
from plugwright.sdk.holdings.records import Closed, ServedResource
from plugwright.sdk.serve_settings import ServeMode
from plugwright.sdk.status import PLANNED_CODES, shown
from plugwright.system.latest import InProgress, Latest

__all__ = ["DeviceSources", "Inventory", "Snapshot", "compose"]

logger = logging.getLogger(__name__)

_GONE = "gone: discovery no longer finds it"
_LEFT_OUT = "no longer in the configuration: listed until no pod can hold it"
_HELD = "a pod holds it, but it is not found, or no longer in the configuration"
_LOGGED_APART = 8  # more changes of health at the same time than this are logged in one line
_CODE_OF_GONE = "gone"
_CODE_OF_LEFT_OUT = "unconfigured"
_UNDECIDED = "it is not decided yet which API offers it"
_MOST_COUNTS = 4096  # of failures by device and code
_LASTING = 60.0  # seconds; a reason that changes more often, such as one with a temperature, would fill the log


class DeviceSources(msgspec.Struct, frozen=True):
    """The facts about the devices of one resource, by source."""

    discovered: Mapping[str, Device] = {}
    removed: Mapping[str, Device] = {}  # listed as long as a pod could hold them
    cordons: Mapping[str, str] = {}  # device id → the operator's reason
    rules: Sequence[CordonRule] = ()  # cordons of the configuration
    failure: str = ""  # why the last list of discovery is no longer trusted
    faults: Mapping[str, str] = {}  # failed part of the resource → why
    kept_back: Mapping[str, Closed] = msgspec.field(
        default_factory=dict
    )  # device id → why its hardware is or could be held under another name
    withheld: Mapping[str, str] = msgspec.field(
        default_factory=dict
    )  # device id → why it is offered to claims, and not in this list
    offered: Collection[str] | None = None  # all other devices are withheld; None: only those with a reason

    def cordon(self, device: Device) -> str | None:
        """The reason of the device's cordon, None if it has none."""
        reason = self.cordons.get(device.id)
        if reason is None and self.rules:
            return next((rule.reason for rule in self.rules if rule.matches(device)), None)
        return reason


class Snapshot(msgspec.Struct, frozen=True):
    """The devices with the time of their last change; `encoded` is the list as the kubelet gets it."""

    devices: Mapping[str, Device]
    since: Mapping[str, float]
    encoded: bytes
    cordoned: Mapping[str, Device] = {}  # as they would be without their cordons
    resent: int = 0  # how often the same list was sent again
    withheld: Mapping[str, str] = {}  # devices that are Unhealthy in `encoded` only, with the reasons

    def listed(self, device_id: str) -> Device | None:
        """The device as in the kubelet's list."""
        device = self.devices.get(device_id)
        return device if device is None else _listed(device, self.withheld)


def compose(sources: DeviceSources) -> dict[str, Device]:
    """One sorted list: an operator's cordon has precedence, then failures of the resource, then the device's health."""
    discovered = list(sources.discovered.values())
    failure = sources.failure or next(iter(sources.faults.values()), "")
    if failure:
        code = "discovery" if sources.failure else "daemon"
        discovered = [device.unhealthy(failure, code) if device.healthy else device for device in discovered]
    if sources.kept_back:
        reasons = sources.kept_back
        discovered = [
            _kept_back(device, reasons[device.id]) if device.healthy and device.id in reasons else device
            for device in discovered
        ]
    composed = {}
    for device in sorted((*sources.removed.values(), *discovered), key=lambda device: natural_order(device.id)):
        reason = sources.cordon(device)
        composed[device.id] = device if reason is None else device.unhealthy(f"cordoned: {reason}", "cordoned")
    return composed


def _kept_back(device: Device, closed: Closed) -> Device:
    return device.unhealthy(closed.reason, "holders-unknown" if closed.waits else "held")


def _cordoned(sources: DeviceSources) -> dict[str, Device]:
    """The cordoned devices, as they would be without their cordons."""
    if not sources.cordons and not sources.rules:
        return {}
    without = compose(replace(sources, cordons={}, rules=()))
    return {key: device for key, device in without.items() if sources.cordon(device) is not None}


class Inventory:
    """Publishes the composed list. `clock` is for display, `elapsed` measures how long a device has been removed."""

    def __init__(
        self,
        resource: str,
        clock: Callable[[], float] = time.time,
        elapsed: Callable[[], float] = time.monotonic,
        ledger: Ledger | None = None,
    ) -> None:
        self.resource = resource
        self.served = ServedResource(ServeMode.DEVICE_PLUGIN, driver_name(resource))
        self.ledger = ledger
        self.latest: Latest[Snapshot | None] = Latest(None)
        self.refused = Latest("")  # why the last list was rejected
        self.unconfirmed = Latest("")  # why the health in the last list is no longer certain
        self.failures: Counter[tuple[str, str]] = Counter()  # by device id and code
        self._clock, self._elapsed = clock, elapsed
        self._sources = DeviceSources()
        self._removed_since: dict[str, float] = {}
        self._gone = _GONE, _CODE_OF_GONE  # reason and code of devices missing in the next list
        self.allocated: dict[str, float] = {}  # when Allocate last gave out a device, by `elapsed`
        self.allocating = ledger.allocating if ledger is not None else InProgress()

    @property
    def removed_since(self) -> Mapping[str, float]:
        """The devices no longer listed by discovery, with the time of removal by `elapsed`."""
        return self._removed_since

    @property
    def has_found(self) -> bool:
        """Whether the last list of discovery contains a device."""
        return bool(self._sources.discovered)

    def update(self, devices: object) -> None:
        """Takes a complete list of discovery, or rejects it completely: the last valid one then stays."""
        discovered = _by_id(self.resource, devices)
        if self.ledger is not None:
            self.ledger.offer(self.resource, discovered, self.served)
        before = self._sources
        removed = {
            device_id: device if device_id in before.removed else device.unhealthy(*self._gone)
            for device_id, device in {**before.removed, **before.discovered}.items()
            if device_id not in discovered
        }
        self._change(replace(before, discovered=discovered, removed=removed, failure=""), publish=True)
        now = self._elapsed()
        self._removed_since = {device_id: self._removed_since.get(device_id, now) for device_id in removed}
        self._gone = _GONE, _CODE_OF_GONE
        self.refused.publish_if_changed("")

    def reconfigure(self) -> None:
        """The next list follows another configuration: devices missing in it were removed by the operator."""
        self._gone = _LEFT_OUT, _CODE_OF_LEFT_OUT

    def add_held(self, held: Mapping[str, tuple[int, ...]]) -> None:
        """Lists held devices, with their NUMA nodes, as removed unless they are discovered."""
        sources = self._sources
        added = {}
        for device_id, nodes in held.items():
            if device_id not in sources.discovered and device_id not in sources.removed:
                with suppress(InvalidValue):  # an id made by another plugin, which this one could not make
                    near = [node for node in nodes if node in NUMA_NODES]
                    added[device_id] = Device(device_id, numa=near).unhealthy(_HELD, _CODE_OF_GONE)
        self._change(replace(sources, removed={**sources.removed, **added}))
        self._removed_since |= dict.fromkeys(added, self._elapsed())

    def forget(self, device_ids: Iterable[str]) -> None:
        """Removes devices from the list; the caller has checked for holders."""
        forgotten = set(device_ids)
        removed = {key: device for key, device in self._sources.removed.items() if key not in forgotten}
        self._change(replace(self._sources, removed=removed))
        self._removed_since = {key: since for key, since in self._removed_since.items() if key not in forgotten}

    def resend(self) -> None:
        """Sends the list again, although nothing in it has changed."""
        snapshot = self.latest.value
        if snapshot is not None:
            self.latest.publish(replace(snapshot, resent=snapshot.resent + 1))

    def distrust(self, reason: str) -> None:
        """Turns every device Unhealthy, because discovery has failed for too long; the next valid list ends this."""
        self._change(replace(self._sources, failure=reason))

    def add_fault(self, part: str, reason: str) -> None:
        """Turns every device Unhealthy until `remove_fault`, because `part` of the resource has failed."""
        self._change(replace(self._sources, faults={**self._sources.faults, part: reason}))

    def remove_fault(self, part: str) -> None:
        faults = {name: reason for name, reason in self._sources.faults.items() if name != part}
        self._change(replace(self._sources, faults=faults))

    def cordon(self, reasons: Mapping[str, str], rules: Sequence[CordonRule] = ()) -> None:
        """Replaces the cordons: device id → reason, and the rules of the configuration."""
        self._change(replace(self._sources, cordons=dict(reasons), rules=tuple(rules)))

    def withhold(self, reasons: Mapping[str, str], offered: Collection[str] | None = None) -> None:
        """Replaces the devices for claims only: in the kubelet's list they are Unhealthy, for these reasons.

        With `offered`, all other devices including new ones are withheld until an API is chosen for them.
        """
        offered = None if offered is None else frozenset(offered)
        self._change(replace(self._sources, withheld=dict(reasons), offered=offered))

    def compare_holders(self) -> None:
        """Applies a change in the holders of hardware under names no longer offered."""
        if self.ledger is None or self.latest.value is None:
            return
        if self.ledger.closed(self.resource, self._sources.discovered) != self._sources.kept_back:
            self._change(self._sources)

    def note_allocated(self, device_ids: Iterable[str]) -> None:
        self.allocated |= dict.fromkeys(device_ids, self._elapsed())

    def publish_without_list(self) -> None:
        """Publishes the known devices before discovery has listed anything."""
        if self.latest.value is None:
            self._change(self._sources, publish=True)

    def _change(self, sources: DeviceSources, publish: bool = False) -> None:
        before = self.latest.value
        if self.ledger is not None and (before is not None or publish):
            kept_back = self.ledger.closed(self.resource, sources.discovered)
            sources = replace(sources, kept_back=kept_back)
        # Nothing is published before the first list: the kubelet would take an empty list for complete.
        if before is not None or publish:
            devices, cordoned = compose(sources), _cordoned(sources)
            withheld = _withheld(sources, devices)
            if (
                before is None
                or before.withheld != withheld
                or not _is_same(devices, before.devices)
                or not _is_same(cordoned, before.cordoned)
            ):
                listed = [_listed(device, withheld) for device in devices.values()]
                encoded = messages.encode_devices(self.resource, listed)
                resent = before.resent if before is not None else 0
                self.latest.publish(Snapshot(devices, self._since(devices), encoded, cordoned, resent, withheld))
                self._log_changes(devices, before)
        self._sources = sources

    def _since(self, devices: Mapping[str, Device]) -> dict[str, float]:
        now, before = self._clock(), self.latest.value
        since = dict.fromkeys(devices, now)
        for device_id, old in before.devices.items() if before is not None else ():
            device = devices.get(device_id)
            if before is not None and device and (old.health, old.reason) == (device.health, device.reason):
                since[device_id] = before.since[device_id]
        return since

    def _log_changes(self, devices: Mapping[str, Device], before: Snapshot | None) -> None:
        """Logs each device with a changed health or lasting reason, or Unhealthy in the first list."""
        changed = [device for device in devices.values() if self._is_news(device, before)]
        self._count_failures(devices, before)
        if len(changed) <= _LOGGED_APART:
            for device in changed:
                facts = {"resource": self.resource, "device": device.id, "health": device.health.value}
                facts |= {"reason": device.reason, "code": device.code}
                logger.log(logging.INFO if device.healthy else logging.WARNING, "device changed health", extra=facts)
            return
        unhealthy = [device for device in changed if not device.healthy]
        counts: dict[str, object] = {
            "resource": self.resource,
            "unhealthy": len(unhealthy),
            "healthy": len(changed) - len(unhealthy),
            "devices": some(device.id for device in changed),
            "reason": unhealthy[0].reason if unhealthy else "",
            "code": unhealthy[0].code if unhealthy else "",
        }
        logger.log(logging.WARNING if unhealthy else logging.INFO, "devices changed health", extra=counts)

    def _count_failures(self, devices: Mapping[str, Device], before: Snapshot | None) -> None:
        for device in devices.values():
            if device.healthy or device.code in PLANNED_CODES:
                continue
            old = before.devices.get(device.id) if before is not None else None
            key = device.id, device.code
            is_new = old is None or old.code != device.code
            if is_new and (key in self.failures or len(self.failures) < _MOST_COUNTS):
                self.failures[key] += 1

    def _is_news(self, device: Device, before: Snapshot | None) -> bool:
        if before is None or device.id not in before.devices:
            return not device.healthy
        old = before.devices[device.id]
        if device.healthy or old.healthy:
            return device.healthy != old.healthy
        return device.reason != old.reason and self._clock() - before.since[device.id] >= _LASTING


def _listed(device: Device, withheld: Mapping[str, str]) -> Device:
    reason = withheld.get(device.id) if withheld else None
    return device if reason is None or not device.healthy else device.unhealthy(reason, "dra")


def _withheld(sources: DeviceSources, devices: Iterable[str]) -> Mapping[str, str]:
    if sources.offered is None:
        return sources.withheld
    return {key: sources.withheld.get(key, _UNDECIDED) for key in devices if key not in sources.offered}


def _by_id(resource: str, devices: object) -> dict[str, Device]:
    if isinstance(devices, Device):
        text = f"got the device {devices.id!r} alone: write `yield [device]`"
        raise InvalidValue(f"discover() of {resource} must yield lists of devices, {text}")
    if isinstance(devices, str) or not isinstance(devices, Iterable):
        raise InvalidValue(f"discover() of {resource} must yield lists of devices, got {devices!r}")
    by_id: dict[str, Device] = {}
    for device in devices:
        if not isinstance(device, Device):
            raise InvalidValue(f"discover() of {resource} must yield lists of devices, got {device!r} in a list")
        if device.id in by_id:
            raise InvalidValue(f"discover() of {resource} lists {device.id!r} twice")
        by_id[device.id] = device
    return by_id


def _is_same(devices: Mapping[str, Device], before: Mapping[str, Device]) -> bool:
    """Compares what the kubelet, claims and `status` get; a plugin's own objects could compare in any way."""
    return devices.keys() == before.keys() and all(
        device is old or (_is_alike(device, old) and _shows_the_same(device, old))
        for device, old in zip(devices.values(), before.values(), strict=True)  # both are sorted
    )


def _is_alike(device: Device, old: Device) -> bool:
    return _compared(device) == _compared(old)


def _compared(device: Device) -> tuple[object, ...]:
    listed = (device.id, device.health, device.reason, device.code, device.numa)
    return (*listed, device.capacity, device.allow_multiple, device.consumes)


def _shows_the_same(device: Device, old: Device) -> bool:
    before, after = old.attributes, device.attributes
    if after is before:
        return True
    # True equals 1, and a version can equal a string, but not for a claim.
    return shown(after) == shown(before) and [*map(type, after.values())] == [*map(type, before.values())]
