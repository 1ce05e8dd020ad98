"""Observed holders of a resource's devices, with times: the evidence on which `states` decides."""

from collections.abc import Callable, Iterable, Mapping

from plugwright.dra.both.leaving import Leaving
from plugwright.dra.both.move_settings import MoveSettings
from plugwright.dra.both.states import Evidence, Placement, Unit
from plugwright.dra.device_placement import DeviceState
from plugwright.sdk.serve_settings import ServeMode

__all__ = ["Observations"]

Holders = tuple[str, ...]


class Observations:
    """Observations by device id, discarded when the device changes state: it could have been allocated since."""

    def __init__(self, settings: MoveSettings, is_careful: Callable[[], bool]) -> None:
        self.leaving = Leaving(settings, is_careful)
        self.prepared: Mapping[str, tuple[str, ...]] = {}  # the prepared claims
        self.pinned_until: dict[str, float] = {}
        self._settings, self._clock = settings, settings.clock
        self._entries: dict[str, int] = {}  # how often each device has changed state
        self._asked: dict[str, float] = {}
        self._pods: dict[str, Holders] = {}
        self._claims: dict[str, Holders] = {}
        self._listings: dict[str, tuple[float, float]] = {}  # when claims may be listed again, and the interval
        self._published: Mapping[str, bool] | None = None
        self._tainted_since: dict[str, float] = {}

    def enter(self, device_id: str) -> None:
        """Records that the device has entered another state."""
        self._entries[device_id] = self.entry(device_id) + 1
        for table in (self._pods, self._claims, self._listings, self._tainted_since):
            table.pop(device_id, None)

    def entry(self, device_id: str) -> int:
        """A number that differs after each change of state."""
        return self._entries.get(device_id, 0)

    def entries(self, units: Iterable[Unit]) -> dict[str, int]:
        """The entries of all devices of the units; to be taken before anything about the devices is read."""
        return {key: self.entry(key) for unit in units for key in unit}

    def ask(self, device_id: str) -> None:
        self._asked[device_id] = self._clock() + self._settings.asked

    def is_asked(self, device_id: str) -> bool:
        return self._asked.get(device_id, 0.0) > self._clock()

    def asked(self) -> list[str]:
        return [key for key in self._asked if self.is_asked(key)]

    def set_prepared(self, prepared: Mapping[str, tuple[str, ...]]) -> None:
        for device_id in self.prepared.keys() - prepared.keys():
            self._asked.pop(device_id, None)  # the request was served
        self.prepared = prepared

    def forget_free(self) -> None:
        """Forgets free devices: only a fresh read proves that a device is free; held ones can be shown until then."""
        self._pods = {key: pods for key, pods in self._pods.items() if pods}
        self._claims = {key: claims for key, claims in self._claims.items() if claims}

    def set_pods(self, entries: Mapping[str, int], pods: Mapping[str, str]) -> None:
        """`entries` are those of the devices that were read, taken before the read."""
        self._pods |= {key: (pods[key],) if key in pods else () for key in self._unchanged(entries)}

    def set_claims(self, entries: Mapping[str, int], claims: Mapping[str, Iterable[str]]) -> None:
        self._claims |= {key: tuple(claims.get(key, ())) for key in self._unchanged(entries)}
        self.postpone(entries)

    def postpone(self, device_ids: Iterable[str]) -> None:
        """Postpones the next list of claims for these devices."""
        now = self._clock()
        for key in device_ids:
            _, interval = self._listings.get(key, (0.0, self._settings.interval / 2))
            interval = min(interval * 2, self._settings.longest)
            self._listings[key] = (now + interval, interval)

    def set_published(self, published: Mapping[str, bool], placements: Mapping[str, Placement]) -> None:
        """Records the devices in the slices of the API server, each with whether it has the taint of a move."""
        self._published = dict(published)
        self.note_tainted(placements)

    def note_tainted(self, placements: Mapping[str, Placement]) -> None:
        """Updates the times of taints. A device that is in no slice counts as tainted."""
        published, now = self._published, self._clock()
        for key, placement in placements.items() if published is not None else ():
            if placement.state is DeviceState.TAINTED and published is not None and published.get(key, True):
                self._tainted_since.setdefault(key, now)
            else:
                self._tainted_since.pop(key, None)

    def pod(self, device_id: str) -> str:
        """The pod that was observed to hold the device; empty if none is known."""
        return next(iter(self._pods.get(device_id, ())), "")

    def claims(self, device_id: str) -> Holders:
        return self._claims.get(device_id, ())

    def is_taint_seen(self, device_id: str) -> bool:
        return device_id in self._tainted_since

    def evidence(self, unit: Unit) -> Evidence:
        now, entry = self._clock(), self.entry(unit[0])
        return Evidence(
            asked=any(map(self.is_asked, unit)),
            prepared=any(key in self.prepared for key in unit),
            pinned=any(self.pinned_until.get(key, 0.0) > now for key in unit),
            held_by_pod=_held(self._pods, unit),
            held_by_claim=_held(self._claims, unit),
            in_flight_over=all(self._in_flight_until(key) <= now for key in unit),
            published=None if self._published is None else any(key in self._published for key in unit),
            may_leave=self.leaving.may_leave(unit, entry),
            needed=self.leaving.is_needed(unit, entry),
            counted=self.leaving.is_counted(unit, entry),
        )

    def waits_for_pods(self, unit: Unit, placement: Placement) -> bool:
        evidence = self.evidence(unit)
        claimed = evidence.asked or evidence.prepared
        wanted = claimed or (placement.target is ServeMode.DRA and not evidence.counted)
        return placement.state is DeviceState.DISPUTED or (placement.state is DeviceState.WITHHELD and wanted)

    def leaves(self, unit: Unit, placement: Placement) -> bool:
        """Whether it should leave the list as soon as that costs no pod its device."""
        evidence = self.evidence(unit)
        if evidence.asked or evidence.prepared or evidence.pinned or placement.target is not ServeMode.DRA:
            return False
        return placement.state in (DeviceState.LISTED, DeviceState.WITHHELD)

    def waits_for_room(self, unit: Unit, placement: Placement) -> bool:
        """Whether the pods' need of the list must be observed for it."""
        is_counted = placement.state is DeviceState.LISTED or self.evidence(unit).counted
        return is_counted and self.leaves(unit, placement)

    def waits_for_claims(self, unit: Unit, placement: Placement) -> bool:
        """Whether claims must be listed for it now."""
        evidence, now = self.evidence(unit), self._clock()
        if evidence.asked or evidence.prepared or any(self._listings.get(key, (0.0, 0.0))[0] > now for key in unit):
            return False
        if placement.state is DeviceState.DISPUTED:
            return evidence.held_by_pod is False
        return (
            placement.state is DeviceState.TAINTED and placement.target is not ServeMode.DRA and evidence.in_flight_over
        )

    def next_time(self, unit: Unit, placement: Placement) -> float:
        """When something could be due for it, by the clock; infinite if only a change can make it due."""
        now = self._clock()
        times = [
            until for table in (self._asked, self.pinned_until) for key in unit if (until := table.get(key, 0)) > now
        ]
        if self.waits_for_pods(unit, placement):
            asked = any(map(self.is_asked, unit))
            times.append(now + min(self._settings.interval, 1.0 if asked else self._settings.interval))
        if self.waits_for_room(unit, placement):
            times.append(now + self._settings.look)
        if placement.state in (DeviceState.TAINTED, DeviceState.DISPUTED):
            times += [until for key in unit if (until := self._listings.get(key, (0.0, 0.0))[0]) > now]
            times += [until for key in unit if now < (until := self._in_flight_until(key)) < float("inf")]
        return min(times, default=float("inf"))

    def _in_flight_until(self, device_id: str) -> float:
        since = self._tainted_since.get(device_id)
        return float("inf") if since is None else since + self._settings.in_flight

    def _unchanged(self, entries: Mapping[str, int]) -> list[str]:
        return [key for key, entry in entries.items() if entry == self.entry(key)]


def _held(table: Mapping[str, Holders], unit: Unit) -> bool | None:
    """True if one of the devices is held, False if all are known to be free, None otherwise."""
    if any(table.get(key) for key in unit):
        return True
    return False if all(key in table for key in unit) else None
