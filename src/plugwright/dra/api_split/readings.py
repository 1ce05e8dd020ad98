"""What is known of the holders of a resource's devices, and since when: the evidence that `moves` decides by.

A reading counts only for the stay in a phase in which it was made: a device that was offered meanwhile may have been
given out since.
"""

from collections.abc import Callable, Iterable, Mapping

from plugwright.dra.api_split.departures import Departures
from plugwright.dra.api_split.move_settings import MoveSettings
from plugwright.dra.api_split.moves import Evidence, Phase, Placement
from plugwright.sdk.serve_settings import Api

__all__ = ["Readings"]

Unit = tuple[str, ...]
_Read = tuple[int, tuple[str, ...]]  # the stay in a phase, and the holders then


class Readings:
    """By device id, unless a name is said."""

    def __init__(self, settings: MoveSettings, clock: Callable[[], float], is_careful: Callable[[], bool]) -> None:
        self.departures = Departures(settings, clock, is_careful)
        self.prepared: Mapping[str, tuple[str, ...]] = {}  # the claims that are prepared
        self.pinned_until: dict[str, float] = {}
        self._settings, self._clock = settings, clock
        self._stays: dict[str, int] = {}
        self._asked: dict[str, float] = {}
        self._pods: dict[str, _Read] = {}
        self._claims: dict[str, _Read] = {}
        self._listings: dict[str, tuple[float, float]] = {}  # when claims may be listed again, and the interval
        self._published: Mapping[str, bool] | None = None
        self._tainted_since: dict[str, float] = {}

    def enter(self, device_id: str) -> None:
        """The device has entered another phase."""
        self._stays[device_id] = self.stay(device_id) + 1
        self._listings.pop(device_id, None)
        self._tainted_since.pop(device_id, None)

    def stay(self, device_id: str) -> int:
        return self._stays.get(device_id, 0)

    def ask(self, device_id: str) -> None:
        self._asked[device_id] = self._clock() + self._settings.asked

    def is_asked(self, device_id: str) -> bool:
        return self._asked.get(device_id, 0.0) > self._clock()

    def asked(self) -> list[str]:
        return [key for key in self._asked if self.is_asked(key)]

    def set_prepared(self, prepared: Mapping[str, tuple[str, ...]]) -> None:
        for device_id in self.prepared.keys() - prepared.keys():
            self._asked.pop(device_id, None)  # it was served, and is over
        self.prepared = prepared

    def forget_free(self) -> None:
        """That a device is free must have been read just now; that it is held may be shown until then."""
        self._pods = {key: read for key, read in self._pods.items() if read[1]}
        self._claims = {key: read for key, read in self._claims.items() if read[1]}

    def set_pods(self, stays: Mapping[str, int], pods: Mapping[str, str]) -> None:
        """`stays` are the devices that were read, with their stays when that began."""
        self._pods |= {key: (stay, (pods[key],) if key in pods else ()) for key, stay in stays.items()}

    def set_claims(self, stays: Mapping[str, int], claims: Mapping[str, Iterable[str]]) -> None:
        self._claims |= {key: (stay, tuple(claims.get(key, ()))) for key, stay in stays.items()}
        self.postpone(stays)

    def postpone(self, device_ids: Iterable[str]) -> None:
        """Claims are not listed again for these devices for a while."""
        now = self._clock()
        for key in device_ids:
            _, interval = self._listings.get(key, (0.0, self._settings.interval / 2))
            interval = min(interval * 2, self._settings.longest)
            self._listings[key] = (now + interval, interval)

    def set_published(self, published: Mapping[str, bool], placements: Mapping[str, Placement]) -> None:
        """The devices that are in the slices of the API server, and whether with the taint of a move."""
        self._published = dict(published)
        self.note_tainted(placements)

    def note_tainted(self, placements: Mapping[str, Placement]) -> None:
        """A device that is not in the slices at all is as good as tainted."""
        published, now = self._published, self._clock()
        for key, placement in placements.items() if published is not None else ():
            if placement.phase is Phase.TAINTED and published is not None and published.get(key, True):
                self._tainted_since.setdefault(key, now)
            else:
                self._tainted_since.pop(key, None)

    def pod(self, device_id: str) -> str:
        """The pod that was found to hold the device in its present stay; empty if none is known."""
        stay, pods = self._pods.get(device_id, (-1, ()))
        return pods[0] if pods and stay == self.stay(device_id) else ""

    def claims(self, device_id: str) -> tuple[str, ...]:
        stay, claims = self._claims.get(device_id, (-1, ()))
        return claims if stay == self.stay(device_id) else ()

    def in_slices(self, device_id: str) -> bool | None:
        return None if self._published is None else device_id in self._published

    def is_taint_seen(self, device_id: str) -> bool:
        return device_id in self._tainted_since

    def evidence(self, unit: Unit) -> Evidence:
        now, stay = self._clock(), self.stay(unit[0])
        return Evidence(
            asked=any(map(self.is_asked, unit)),
            prepared=any(key in self.prepared for key in unit),
            pinned=any(self.pinned_until.get(key, 0.0) > now for key in unit),
            held_by_pod=self._held(self._pods, unit),
            held_by_claim=self._held(self._claims, unit),
            in_flight_over=all(self._in_flight_until(key) <= now for key in unit),
            published=None if self._published is None else any(key in self._published for key in unit),
            may_leave=self.departures.may_leave(unit, stay),
            needed=self.departures.is_needed(unit, stay),
            counted=self.departures.is_counted(unit, stay),
        )

    def waits_for_pods(self, unit: Unit, placement: Placement) -> bool:
        evidence = self.evidence(unit)
        claimed = evidence.asked or evidence.prepared
        wanted = claimed or (placement.target is Api.DRA and not evidence.counted)
        return placement.phase is Phase.DISPUTED or (placement.phase is Phase.WITHHELD and wanted)

    def departs(self, unit: Unit, placement: Placement) -> bool:
        """Whether it is to leave the list when that costs no pod its device."""
        evidence = self.evidence(unit)
        if evidence.asked or evidence.prepared or evidence.pinned or placement.target is not Api.DRA:
            return False
        return placement.phase in (Phase.LISTED, Phase.WITHHELD)

    def waits_for_room(self, unit: Unit, placement: Placement) -> bool:
        """Whether it is to be seen what pods need of the list."""
        is_counted = placement.phase is Phase.LISTED or self.evidence(unit).counted
        return is_counted and self.departs(unit, placement)

    def waits_for_claims(self, unit: Unit, placement: Placement) -> bool:
        """Whether claims are to be listed for it now."""
        evidence, now = self.evidence(unit), self._clock()
        if evidence.asked or evidence.prepared or any(self._listings.get(key, (0.0, 0.0))[0] > now for key in unit):
            return False
        if placement.phase is Phase.DISPUTED:
            return evidence.held_by_pod is False
        return placement.phase is Phase.TAINTED and placement.target is not Api.DRA and evidence.in_flight_over

    def next_time(self, unit: Unit, placement: Placement) -> float:
        """When something may be due for it, by the clock; infinite if only a change can make it so."""
        now = self._clock()
        times = [
            until for table in (self._asked, self.pinned_until) for key in unit if (until := table.get(key, 0)) > now
        ]
        if self.waits_for_pods(unit, placement):
            asked = any(map(self.is_asked, unit))
            times.append(now + min(self._settings.interval, 1.0 if asked else self._settings.interval))
        if self.waits_for_room(unit, placement):
            times.append(now + self._settings.look)
        if placement.phase in (Phase.TAINTED, Phase.DISPUTED):
            times += [until for key in unit if (until := self._listings.get(key, (0.0, 0.0))[0]) > now]
            times += [until for key in unit if now < (until := self._in_flight_until(key)) < float("inf")]
        return min(times, default=float("inf"))

    def _in_flight_until(self, device_id: str) -> float:
        since = self._tainted_since.get(device_id)
        return float("inf") if since is None else since + self._settings.in_flight

    def _held(self, table: Mapping[str, _Read], unit: Unit) -> bool | None:
        """Held if one of them is, free if all are known to be."""
        reads = [table.get(key, (-1, ())) for key in unit]
        if any(stay == self.stay(key) and holders for key, (stay, holders) in zip(unit, reads, strict=True)):
            return True
        known = all(stay == self.stay(key) for key, (stay, _) in zip(unit, reads, strict=True))
        return False if known else None
