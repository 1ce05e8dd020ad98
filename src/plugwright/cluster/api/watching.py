"""A watch as a client reads it: one JSON object a line, for as long as it likes."""

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass

import msgspec

from plugwright.cluster.api.errors import from_store, status_object
from plugwright.cluster.api.selectors import Selector
from plugwright.cluster.store import Change, Expired, Object, Store

__all__ = ["Watch", "lines"]

_BOOKMARK_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Watch:
    """What is watched; `shown` makes of an object what the client sees."""

    kind: str
    namespace: str
    selector: Selector
    shown: Callable[[Object], Object]
    bookmark: Object | None  # an empty object of the kind, if the client wants to know how far it is
    timeout: float | None


async def lines(store: Store, watch: Watch, since: int | None) -> AsyncIterator[bytes]:
    """From a revision on; without one, beginning with everything that is there."""
    if since is None:
        since = store.revision
        for found in store.every(watch.kind, watch.namespace):
            if watch.selector(found):
                yield _line("ADDED", watch.shown(found))
    loop = asyncio.get_running_loop()
    end = loop.time() + watch.timeout if watch.timeout else None
    try:
        while end is None or loop.time() < end:
            left = _BOOKMARK_SECONDS if end is None else min(_BOOKMARK_SECONDS, end - loop.time())
            changes = await store.changes(since, left)
            for line in filter(None, (_told(watch, change) for change in changes)):
                yield line
            since = changes[-1].revision if changes else since
            if not changes and watch.bookmark is not None:
                yield _bookmark(watch.bookmark, since)
    except Expired as error:
        yield _line("ERROR", status_object(from_store(error)))


def _told(watch: Watch, change: Change) -> bytes:
    """What selects is told of its coming and going: an object that no longer matches is gone."""
    if change.key.kind != watch.kind or (watch.namespace and change.key.namespace != watch.namespace):
        return b""
    matched = change.before is not None and watch.selector(change.before)
    matches = watch.selector(change.object) and change.type != "DELETED"
    if matches:
        return _line("MODIFIED" if matched else "ADDED", watch.shown(change.object))
    return _line("DELETED", watch.shown(change.object)) if matched else b""


def _bookmark(empty: Object, revision: int) -> bytes:
    return _line("BOOKMARK", {**empty, "metadata": {"resourceVersion": str(revision), "creationTimestamp": None}})


def _line(kind: str, found: Object) -> bytes:
    return msgspec.json.encode({"type": kind, "object": found}) + b"\n"
