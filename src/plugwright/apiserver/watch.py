"""Watches: a stream of events, one JSON object per line or protobuf frames, until the client or its timeout ends it."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass

import msgspec

from plugwright.apiserver.errors import from_cluster_error, status_object
from plugwright.apiserver.kinds import Kind
from plugwright.apiserver.list_options import Predicate
from plugwright.apiserver.store import Change, Object, Store
from plugwright.errors import Expired, StatusError

__all__ = ["Watch", "WatchOptions", "watch_events"]

logger = logging.getLogger(__name__)
_INITIAL_EVENTS_END = {"k8s.io/initial-events-end": "true"}


def _json_line(event_type: str, content: Object) -> bytes:
    return msgspec.json.encode({"type": event_type, "object": content}) + b"\n"


@dataclass(frozen=True, slots=True)
class WatchOptions:
    """`initial_events` requests a bookmark after the existing objects; times are in seconds."""

    bookmarks: bool = False
    initial_events: bool = False
    timeout: float | None = None
    bookmark_interval: float = 60.0


@dataclass(frozen=True, slots=True)
class Watch:
    """`present` converts an object into the client's form, `event` encodes it with the type of the event."""

    kind: Kind
    namespace: str
    matches: Predicate
    present: Callable[[Object], Object]
    options: WatchOptions = WatchOptions()
    event: Callable[[str, Object], bytes] = _json_line


async def watch_events(store: Store, watch: Watch, since: int | None) -> AsyncIterator[bytes]:
    """The changes after a revision; without one, all existing objects and then the changes."""
    try:
        if since is None:
            since = store.revision
            for event in _initial_events(store, watch, since):
                yield event
        async for event in _changes(store, watch, since):
            yield event
    except Expired as error:
        yield watch.event("ERROR", status_object(from_cluster_error(error)))
    except Exception:
        # The response has begun: only an event can still report the error.
        logger.exception("watch failed", extra={"kind": watch.kind.qualified})
        error_status = StatusError(500, "InternalError", "Internal error occurred: the watch failed")
        yield watch.event("ERROR", status_object(error_status))
        raise


def _initial_events(store: Store, watch: Watch, revision: int) -> Iterator[bytes]:
    for content in store.objects(watch.kind.storage.qualified, watch.namespace):
        if watch.matches(content):
            yield watch.event("ADDED", watch.present(content))
    if watch.options.initial_events:
        yield _bookmark(watch, revision, _INITIAL_EVENTS_END)


async def _changes(store: Store, watch: Watch, since: int) -> AsyncIterator[bytes]:
    loop, options = asyncio.get_running_loop(), watch.options
    end = loop.time() + options.timeout if options.timeout else float("inf")
    next_bookmark = loop.time() + options.bookmark_interval
    while loop.time() < end:
        changes = await store.changes(since, max(0.0, min(next_bookmark, end) - loop.time()))
        for change in changes:
            if event := _event(watch, change):
                yield event
        since = changes[-1].revision if changes else since
        if loop.time() >= min(next_bookmark, end):
            next_bookmark = loop.time() + options.bookmark_interval
            if options.bookmarks:
                yield _bookmark(watch, since)


def _event(watch: Watch, change: Change) -> bytes:
    """The event, empty for a change irrelevant to the watch; an object that no longer matches is deleted for it."""
    if change.key.kind != watch.kind.storage.qualified or (watch.namespace and change.key.namespace != watch.namespace):
        return b""
    before, content = change.before, change.object
    matched = before is not None and watch.matches(before)
    matches = change.type != "DELETED" and watch.matches(content)
    if matches:
        return watch.event("MODIFIED" if matched else "ADDED", watch.present(content))
    if before is None or not matched:
        return b""
    deleted = content if change.type == "DELETED" else _at_version_of(content, before)
    return watch.event("DELETED", watch.present(deleted))


def _at_version_of(content: Object, before: Object) -> Object:
    """The object as it matched, at the version of the change."""
    version = {"resourceVersion": content["metadata"]["resourceVersion"]}
    return {**before, "metadata": {**before["metadata"], **version}}


def _bookmark(watch: Watch, revision: int, annotations: Object | None = None) -> bytes:
    metadata: Object = {"resourceVersion": str(revision), "creationTimestamp": None}
    metadata |= {"annotations": annotations} if annotations else {}
    return watch.event(
        "BOOKMARK", {"kind": watch.kind.name, "apiVersion": watch.kind.api_version, "metadata": metadata}
    )
