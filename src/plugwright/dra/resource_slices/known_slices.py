"""A publisher's knowledge of its slices and of the API server, and the timing of repairs after foreign changes."""

from collections.abc import Iterable

from plugwright.dra.resource_slices.slice_comparison import (
    Document,
    checked_slice,
    comparable,
    dropped_fields,
    needed_fields,
    taint_times,
    with_taint_times,
)
from plugwright.errors import MalformedMessage
from plugwright.kube.answers import SMALL
from plugwright.system.concurrency import Backoff

__all__ = ["DroppedFields", "KnownSlices", "Repairs"]

_KEPT = ("name", "uid", "resourceVersion", "generateName", "ownerReferences", "labels", "annotations", "finalizers")
_DROPPED_AGAIN = 3600.0  # seconds until dropped fields are sent again
_MOST_REMOVED = 20_000  # between two lists
_STEADY = 10.0  # seconds without a foreign change, after which the back-off starts again


class KnownSlices:
    """The slices by uid, from lists, watches and the responses to our own requests, whichever is the newest.

    `accepted` contains, by uid, the sent content and the API server's version of it if the two differ.
    """

    def __init__(self) -> None:
        self.slices: dict[str, Document] = {}
        self.accepted: dict[str, tuple[object, object]] = {}
        self._removed: set[str] = set()

    def replace_all(self, documents: Iterable[Document]) -> None:
        found = [checked_slice(document) for document in documents]
        self.slices = {document["metadata"]["uid"]: _trimmed(document) for document in found}
        self.accepted = {uid: pair for uid, pair in self.accepted.items() if uid in self.slices}
        self._removed.clear()

    def change(self, kind: str, document: Document) -> bool:
        """Takes a change from the watch; returns whether it is new. MalformedMessage if there are far too many."""
        uid = checked_slice(document)["metadata"]["uid"]
        if kind != "DELETED" or uid in self._removed:
            if uid not in self.slices and len(self.slices) >= SMALL.objects:
                raise MalformedMessage(f"there must be at most {SMALL.objects} slices of one driver and node")
            return self._take(document)
        self.removed(uid)  # also if the response to its creation is still missing
        if len(self._removed) > _MOST_REMOVED:
            raise MalformedMessage(f"a watch must remove at most {_MOST_REMOVED} slices of one driver and node")
        return True

    def answered(self, sent: Document, answer: Document) -> frozenset[str]:
        """Takes the response to a request of ours; returns the fields that differ from the sent ones."""
        uid, spec = checked_slice(answer)["metadata"]["uid"], answer["spec"]
        self._take(answer)
        self.accepted.pop(uid, None)
        timed = {**sent["spec"], "devices": with_taint_times(sent["spec"].get("devices") or (), taint_times([answer]))}
        wanted, there = comparable(timed), comparable(spec)
        if wanted == there:
            return frozenset()
        self.accepted[uid] = wanted, there
        return dropped_fields(timed, spec)

    def removed(self, uid: str) -> None:
        self.slices.pop(uid, None)
        self._removed.add(uid)  # the watch or a response can be outdated

    def _take(self, document: Document) -> bool:
        """Takes a slice; returns whether it is new, because the watch and the responses can overtake each other."""
        uid = document["metadata"]["uid"]
        if uid in self._removed or (uid in self.slices and not _is_newer(document, self.slices[uid])):
            return False
        self.slices[uid] = _trimmed(document)
        return True


class DroppedFields:
    """The fields that the API server drops, and those that it is known to keep."""

    def __init__(self) -> None:
        self.names: frozenset[str] = frozenset()
        self._kept: frozenset[str] = frozenset()
        self._until = float("inf")

    def forget(self) -> None:
        """Forgets everything, because the API server could be another one now."""
        self.names = self._kept = frozenset()

    def is_old(self, now: float) -> bool:
        return now >= self._until

    def add(self, names: frozenset[str], now: float) -> bool:
        """Adds fields; returns whether some of them are new."""
        if names <= self.names:
            return False
        self.names |= names
        self._until = now + _DROPPED_AGAIN
        return True

    def untried(self, devices: Iterable[Document]) -> tuple[Document, ...]:
        """A device for each combination of needed fields that have not been tried yet."""
        found: dict[frozenset[str], Document] = {}
        for device in devices:
            if needed := needed_fields(device) - self._kept - self.names:
                found.setdefault(needed, device)
        return tuple(found.values())

    def tried(self, sent: Document, answered: Document) -> frozenset[str]:
        """Notes the result of a try; returns the dropped fields."""
        dropped = dropped_fields(sent, answered)
        self._kept |= frozenset().union(*map(needed_fields, sent["devices"])) - dropped
        return dropped


class Repairs:
    """Delays of repairs: short at first, because a starting kubelet deletes slice by slice; longer if changes go on.

    `count` is the number of repairs in a row.
    """

    def __init__(self) -> None:
        self.count = 0
        self._backoff = Backoff(0.1, 30.0)
        self._delay, self._last = 0.0, float("-inf")
        self._due: float | None = None

    def wait(self, now: float) -> float:
        """Seconds until a detected change should be repaired."""
        if self._due is None:
            if now - self._last > max(_STEADY, 3 * self._delay):
                self._backoff.reset()
                self.count = 0
            self._delay = self._backoff.delay()
            self._due = now + self._delay
        return max(0.0, self._due - now)

    def done(self, now: float) -> None:
        self._due, self._last = None, now
        self.count += 1

    def not_needed(self) -> None:
        self._due = None


def _trimmed(document: Document) -> Document:
    """Without fields that only the API server needs: `managedFields` are larger than many a slice."""
    metadata = {name: value for name, value in document["metadata"].items() if name in _KEPT}
    return {"metadata": metadata, "spec": document["spec"]}


def _is_newer(document: Document, known: Document) -> bool:
    versions = [str(one["metadata"]["resourceVersion"]) for one in (document, known)]
    if all(version.isdecimal() for version in versions):
        return int(versions[0]) > int(versions[1])
    return versions[0] != versions[1]
