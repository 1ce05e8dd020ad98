"""What a publisher knows of its slices and of the API server, and when it repairs what others have changed."""

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
from plugwright.system.concurrency import Backoff

__all__ = ["DroppedFields", "KnownSlices", "Repairs"]

_KEPT = ("name", "uid", "resourceVersion", "generateName", "ownerReferences", "labels", "annotations", "finalizers")
_DROPPED_AGAIN = 3600.0  # seconds until fields that were dropped are sent again
_STEADY = 10.0  # seconds without a change by others, after which the next one is not one of many


class KnownSlices:
    """The slices by uid, from lists, watches and the answers to our own requests, whichever is the newest.

    `accepted` by uid is what was sent, and what the API server has made of it, where that is not the same.
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
        """A change from the watch: whether it was not known yet."""
        uid = checked_slice(document)["metadata"]["uid"]
        if kind != "DELETED" or uid in self._removed:
            return self._take(document)
        self.removed(uid)  # also of one whose creation is not answered yet
        return True

    def answered(self, sent: Document, answer: Document) -> frozenset[str]:
        """Takes in the answer to a request of ours; the fields that did not come back as they were sent."""
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
        self._removed.add(uid)  # the watch or an answer may still be behind

    def _take(self, document: Document) -> bool:
        """Whether it is news: the watch and the answers overtake each other."""
        uid = document["metadata"]["uid"]
        if uid in self._removed or (uid in self.slices and not _is_newer(document, self.slices[uid])):
            return False
        self.slices[uid] = _trimmed(document)
        return True


class DroppedFields:
    """Which fields the API server drops, and which it has been seen to keep."""

    def __init__(self) -> None:
        self.names: frozenset[str] = frozenset()
        self._kept: frozenset[str] = frozenset()
        self._until = float("inf")

    def forget(self) -> None:
        """For an API server that may be another one now."""
        self.names = self._kept = frozenset()

    def is_old(self, now: float) -> bool:
        return now >= self._until

    def add(self, names: frozenset[str], now: float) -> bool:
        """Whether there are new ones among them."""
        if names <= self.names:
            return False
        self.names |= names
        self._until = now + _DROPPED_AGAIN
        return True

    def untried(self, devices: Iterable[Document]) -> tuple[Document, ...]:
        """A device for each kind of those that need fields of which nothing is known yet."""
        found: dict[frozenset[str], Document] = {}
        for device in devices:
            if needed := needed_fields(device) - self._kept - self.names:
                found.setdefault(needed, device)
        return tuple(found.values())

    def tried(self, sent: Document, answered: Document) -> frozenset[str]:
        """The fields that were dropped."""
        dropped = dropped_fields(sent, answered)
        self._kept |= frozenset().union(*map(needed_fields, sent["devices"])) - dropped
        return dropped


class Repairs:
    """Soon at first, since a kubelet that starts deletes slice by slice; ever later where others go on.

    `count` is that of the repairs since it was quiet.
    """

    def __init__(self) -> None:
        self.count = 0
        self._backoff = Backoff(0.1, 30.0)
        self._delay, self._last = 0.0, float("-inf")
        self._due: float | None = None

    def wait(self, now: float) -> float:
        """Seconds until what was found changed is to be repaired."""
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
    """Without what the API server keeps for itself: `managedFields` are larger than many a slice."""
    metadata = {name: value for name, value in document["metadata"].items() if name in _KEPT}
    return {"metadata": metadata, "spec": document["spec"]}


def _is_newer(document: Document, known: Document) -> bool:
    versions = [str(one["metadata"]["resourceVersion"]) for one in (document, known)]
    if all(version.isdecimal() for version in versions):
        return int(versions[0]) > int(versions[1])
    return versions[0] != versions[1]
