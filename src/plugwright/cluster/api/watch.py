"""A watch as a client reads it: one JSON object a line, for as long as it likes."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass

import msgspec

from plugwright.cluster.api.errors import Refused, from_store, status_object
from plugwright.cluster.api.kinds import Kind
from plugwright.cluster.api.list_options import Selector
from plugwright.cluster.store import Change, Expired, Object, Store

__all__ = ["Telling", "Watch", "watch_lines"]

logger = logging.getLogger(__name__)
_END_OF_INITIAL = {"k8s.io/initial-events-end": "true"}


@dataclass(frozen=True, slots=True)
class Telling:
    """What is told beside changes: how far the client is, and when it has seen all that was there."""

    bookmarks: bool = False
    initial: bool = False
    timeout: float | None = None
    bookmark_seconds: float = 60.0


@dataclass(frozen=True, slots=True)
class Watch:
    """What is watched; `shown` makes of an object what the client sees."""

    kind: Kind
    namespace: str
    selector: Selector
    shown: Callable[[Object], Object]
    telling: Telling = Telling()


async def watch_lines(store: Store, watch: Watch, since: int | None) -> AsyncIterator[bytes]:
    """From a revision on; without one, beginning with everything that is there."""
    try:
        if since is None:
            since = store.revision
            for line in _initial(store, watch, since):
                yield line
        async for line in _changes(store, watch, since):
            yield line
    except Expired as error:
        yield _line("ERROR", status_object(from_store(error)))
    except Exception:
        # The answer has begun: the stream itself is the only place left to say it.
        logger.exception("watch failed", extra={"kind": watch.kind.qualified})
        yield _line("ERROR", status_object(Refused(500, "InternalError", "Internal error occurred: the watch failed")))
        raise


def _initial(store: Store, watch: Watch, revision: int) -> Iterator[bytes]:
    for found in store.every(watch.kind.qualified, watch.namespace):
        if watch.selector(found):
            yield _line("ADDED", watch.shown(found))
    if watch.telling.initial:
        yield _bookmark(watch.kind, revision, _END_OF_INITIAL)


async def _changes(store: Store, watch: Watch, since: int) -> AsyncIterator[bytes]:
    loop, telling = asyncio.get_running_loop(), watch.telling
    end = loop.time() + telling.timeout if telling.timeout else float("inf")
    due = loop.time() + telling.bookmark_seconds
    while loop.time() < end:
        changes = await store.changes(since, max(0.0, min(due, end) - loop.time()))
        for change in changes:
            if line := _told(watch, change):
                yield line
        since = changes[-1].revision if changes else since
        if loop.time() >= min(due, end):
            due = loop.time() + telling.bookmark_seconds
            if telling.bookmarks:
                yield _bookmark(watch.kind, since)


def _told(watch: Watch, change: Change) -> bytes:
    """What selects is told of its coming and going: an object that no longer matches is gone."""
    if change.key.kind != watch.kind.qualified or (watch.namespace and change.key.namespace != watch.namespace):
        return b""
    matched = change.before is not None and watch.selector(change.before)
    matches = change.type != "DELETED" and watch.selector(change.object)
    if matches:
        return _line("MODIFIED" if matched else "ADDED", watch.shown(change.object))
    return _line("DELETED", watch.shown(change.object)) if matched else b""


def _bookmark(kind: Kind, revision: int, annotations: Object | None = None) -> bytes:
    metadata: Object = {"resourceVersion": str(revision), "creationTimestamp": None}
    metadata |= {"annotations": annotations} if annotations else {}
    return _line("BOOKMARK", {"kind": kind.name, "apiVersion": kind.api_version, "metadata": metadata})


def _line(kind: str, found: Object) -> bytes:
    return msgspec.json.encode({"type": kind, "object": found}) + b"\n"
