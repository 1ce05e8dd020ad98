"""What this node has of one resource: the newest list, and why each device is as it is.

Several know something about a device: discovery found it, an operator cordoned it, the kubelet says that a pod still
holds it. `compose` makes one list of that; `Inventory` keeps the parts and publishes the list when it changes.
"""

import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace

from plugwright.errors import InvalidValue
from plugwright.model import Device, Health, natural_order
from plugwright.protocol import wire
from plugwright.sdk.newest import Newest

__all__ = ["Inventory", "Knowledge", "Snapshot", "compose"]

_GONE = "gone: discovery no longer finds it"
_HELD = "gone: a pod holds it, discovery does not find it"


@dataclass(frozen=True, slots=True)
class Knowledge:
    """All that is known of the devices of one resource."""

    found: Mapping[str, Device] = field(default_factory=dict)
    departed: Mapping[str, Device] = field(default_factory=dict)  # no longer found; listed until nobody can hold them
    cordons: Mapping[str, str] = field(default_factory=dict)
    failure: str = ""  # why discovery cannot be trusted any more


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The list as the kubelet is told it, and since when each device has been as it is."""

    devices: Mapping[str, Device]
    since: Mapping[str, float]
    encoded: wire.DeviceList
    resent: int = 0  # how often the same list was to be sent once more


def compose(knowledge: Knowledge) -> dict[str, Device]:
    """One list, sorted: the operator's word first, then a failing discovery, then what the device itself says."""
    untrusted = knowledge.failure
    found = (each.unhealthy(untrusted) if untrusted and each.healthy else each for each in knowledge.found.values())
    composed = {}
    for device in sorted((*knowledge.departed.values(), *found), key=lambda each: natural_order(each.id)):
        reason = knowledge.cordons.get(device.id)
        composed[device.id] = device if reason is None else device.unhealthy(f"cordoned: {reason}")
    return composed


class Inventory:
    def __init__(
        self, resource: str, clock: Callable[[], float] = time.time, elapsed: Callable[[], float] = time.monotonic
    ) -> None:
        """`clock` is told to people, `elapsed` measures how long a device has been gone."""
        self.resource = resource
        self.refused = Newest("")  # why the last list was not taken
        self._clock, self._elapsed = clock, elapsed
        self._knowledge = Knowledge()
        self._departures: dict[str, float] = {}
        self.newest: Newest[Snapshot | None] = Newest(None)

    @property
    def departures(self) -> Mapping[str, float]:
        """The devices that discovery no longer finds, and since when, on a clock that nobody sets."""
        return self._departures

    def find(self, devices: object) -> None:
        """Takes a complete list of devices, or refuses it whole: the last good one then stays."""
        found = _by_id(self.resource, devices)
        known = self._knowledge
        missing = {each: device for each, device in {**known.departed, **known.found}.items() if each not in found}
        departed = {
            each: device if each in known.departed else device.unhealthy(_GONE) for each, device in missing.items()
        }
        self._take(replace(known, found=found, departed=departed, failure=""), publish=True)
        now = self._elapsed()
        self._departures = {each: self._departures.get(each, now) for each in departed}
        self.refused.become("")

    def hold(self, held: Mapping[str, tuple[int, ...]]) -> None:
        """Lists devices that pods hold, with their NUMA nodes, as departed unless they are found."""
        known = self._knowledge
        absent = {}
        for each, nodes in held.items():
            if each not in known.found and each not in known.departed:
                with suppress(InvalidValue):  # an id that another plugin made and we never could
                    absent[each] = Device(each, Health.UNHEALTHY, _HELD, nodes)
        self._take(replace(known, departed={**known.departed, **absent}))
        self._departures |= dict.fromkeys(absent, self._elapsed())

    def drop(self, device_ids: Iterable[str]) -> None:
        """Forgets departed devices; whoever calls knows that no pod holds them."""
        gone = set(device_ids)
        departed = {each: device for each, device in self._knowledge.departed.items() if each not in gone}
        self._take(replace(self._knowledge, departed=departed))
        self._departures = {each: since for each, since in self._departures.items() if each not in gone}

    def resend(self) -> None:
        """Has the list sent once more, though nothing in it has changed."""
        snapshot = self.newest.value
        if snapshot is not None:
            self.newest.publish(replace(snapshot, resent=snapshot.resent + 1))

    def fail(self, reason: str) -> None:
        """Discovery has failed for so long that its last list cannot be trusted."""
        self._take(replace(self._knowledge, failure=reason))

    def cordon(self, reasons: Mapping[str, str]) -> None:
        self._take(replace(self._knowledge, cordons=dict(reasons)))

    def settle(self) -> None:
        """Publishes what is known so far, if nothing has been published yet."""
        if self.newest.value is None:
            self._take(self._knowledge, publish=True)

    def _take(self, knowledge: Knowledge, publish: bool = False) -> None:
        before = self.newest.value
        if before is None and not publish:
            # Nothing is told before the first list: an empty one would be taken for the truth.
            self._knowledge = knowledge
            return
        devices = compose(knowledge)
        if before is None or devices != before.devices:
            encoded = wire.encode_devices(self.resource, list(devices.values()))
            resent = before.resent if before is not None else 0
            self.newest.publish(Snapshot(devices, self._since(devices), encoded, resent))
        self._knowledge = knowledge

    def _since(self, devices: Mapping[str, Device]) -> dict[str, float]:
        now, before = self._clock(), self.newest.value
        if before is None:
            return dict.fromkeys(devices, now)
        return {
            each: before.since[each] if _same_state(before.devices.get(each), device) else now
            for each, device in devices.items()
        }


def _same_state(before: Device | None, device: Device) -> bool:
    return before is not None and (before.health, before.reason) == (device.health, device.reason)


def _by_id(resource: str, devices: object) -> dict[str, Device]:
    if isinstance(devices, str) or not isinstance(devices, Iterable):
        raise InvalidValue(f"discover() of {resource} yields lists of devices, not {devices!r}")
    found: dict[str, Device] = {}
    for device in devices:
        if not isinstance(device, Device):
            raise InvalidValue(f"discover() of {resource} yields lists of devices, not of {device!r}")
        if device.id in found:
            raise InvalidValue(f"discover() of {resource} lists {device.id!r} twice")
        found[device.id] = device
    return found
