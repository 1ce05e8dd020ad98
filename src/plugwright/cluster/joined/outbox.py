"""Pending writes of joined nodes to the API server, in order for each object, and coalesced.

A node does not wait for its writes: the mirror shows a write immediately, and it is sent as soon as a request is free.
Of several changes of an object only the newest is sent, as the difference from the server's version. While the server
is unreachable, writes wait here, once per object: leases and statuses catch up later. Leases and nodes are sent before
pods, pods before events, of which the oldest are dropped if too many wait.
pods before events, of which the oldest are dropped when too many wait.
"""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field

from plugwright.apiserver.kinds import EVENTS, LEASES, NODES
from plugwright.apiserver.registry import DeleteOptions, ResourcePath
from plugwright.apiserver.store import Object, ObjectKey
from plugwright.cluster.joined.differences import difference
from plugwright.cluster.joined.mirror import Mirror
from plugwright.errors import AlreadyExists, MalformedMessage, PeerGone, PeerRefused
from plugwright.kube.api_client import ApiClient, segment
from plugwright.system.concurrency import Backoff
from plugwright.system.latest import Signal
from plugwright.system.log_once import LogOnce

__all__ = ["Outbox", "url_of"]

logger = logging.getLogger(__name__)

_AT_ONCE = 8  # requests
_EVENTS = 5_000  # maximum number of waiting events
_CONFLICTS = 5  # in a row, after which a write is abandoned
_FIRST_DELAY, _LONGEST_DELAY = 0.2, 5.0  # seconds between requests to an unreachable server
_OTHER = ("Conflict", "Invalid")  # errors of different versions for a patch with the uid of another object
_FIRST, _LAST = (NODES.qualified, LEASES.qualified), (EVENTS.qualified,)


def url_of(path: ResourcePath) -> str:
    """The path of an object or, without a name, of its collection."""
    kind = path.kind
    parts = [kind.root]
    if kind.namespaced and path.namespace:
        parts += ["namespaces", segment(path.namespace)]
    parts.append(kind.plural)
    parts += [segment(path.name)] if path.name else []
    parts += [path.subresource] if path.subresource else []
    return "/".join(parts)


@dataclass(slots=True)
class _Writes:
    """The pending writes of an object: its creation, changes and deletion, in this order."""

    path: ResourcePath
    creation: Object | None = None
    changes: dict[str, Object] = field(default_factory=dict)  # parts by subresource
    deletion: DeleteOptions | None = None
    conflicts: int = 0

    @property
    def is_empty(self) -> bool:
        return self.creation is None and not self.changes and self.deletion is None


class Outbox:
    """Implements `create`, `change` and `delete` of the embedded cluster's writer; `run` sends until cancelled."""

    def __init__(self, api: ApiClient, mirror: Mirror, at_once: int = _AT_ONCE) -> None:
        self._api, self._mirror, self._at_once = api, mirror, at_once
        self._waiting: dict[ObjectKey, _Writes] = {}
        self._queues: tuple[OrderedDict[ObjectKey, None], ...] = (OrderedDict(), OrderedDict(), OrderedDict())
        self._busy: set[ObjectKey] = set()
        self._changed = Signal()  # notified when a write waits or has been sent
        self._problems = LogOnce(logger)
        self.deleted: set[str] = set()  # uids of objects that can still be visible because of finalizers

    def create(self, path: ResourcePath, content: Object, manager: str) -> Object:
        if self._mirror.get(path.key) is not None:
            raise AlreadyExists(path.key.kind, path.key.name)
        metadata = {**content["metadata"], **({"namespace": path.namespace} if path.namespace else {})}
        complete = {"apiVersion": path.kind.api_version, "kind": path.kind.name, **content, "metadata": metadata}
        self._mirror.created(path.key, complete)
        self._writes(path).creation = complete
        self._enqueue(path.key)
        return complete

    def change(self, path: ResourcePath, change: Callable[[Object], Object], manager: str) -> Object:
        before = self._mirror.require(path.key)
        after = change(before)
        names = ("status",) if path.subresource == "status" else tuple(after)
        parts = {name: after[name] for name in names if after.get(name) is not before.get(name)}
        if not parts:
            return before
        writes = self._waiting.get(path.key)
        if writes is not None and writes.creation is not None:
            writes.creation = {**writes.creation, **parts}
        else:
            self._writes(path).changes.setdefault(path.subresource, {}).update(parts)
            self._enqueue(path.key)
        return self._mirror.changed(path.key, parts)

    def delete(self, path: ResourcePath, options: DeleteOptions) -> tuple[Object, bool]:
        """Deletes an object, which stays in the mirror until the server reports its deletion."""
        before = self._mirror.require(path.key)
        self.deleted.add(before["metadata"]["uid"])
        self._writes(path).deletion = options
        self._enqueue(path.key)
        return before, True

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            async for _ in self._changed.notifications():
                while len(self._busy) < self._at_once and (key := self._next()) is not None:
                    self._busy.add(key)
                    tasks.create_task(self._send_all(key))

    async def until_sent(self) -> None:
        """Returns when nothing waits."""
        await self._changed.until(lambda: not self._waiting)

    def _writes(self, path: ResourcePath) -> _Writes:
        key = path.key
        if key not in self._waiting:
            self._waiting[key] = _Writes(ResourcePath(path.kind, path.namespace, path.name))
        return self._waiting[key]

    def _enqueue(self, key: ObjectKey) -> None:
        queue = self._queue(key)
        queue[key] = None
        if key.kind in _LAST and len(queue) > _EVENTS:
            oldest, _ = queue.popitem(last=False)
            self._waiting.pop(oldest, None)
            self._mirror.removed(oldest)
        self._changed.notify()

    def _queue(self, key: ObjectKey) -> OrderedDict[ObjectKey, None]:
        return self._queues[0 if key.kind in _FIRST else 2 if key.kind in _LAST else 1]

    def _next(self) -> ObjectKey | None:
        for queue in self._queues:
            for key in queue:
                if key not in self._busy:
                    del queue[key]
                    return key
        return None

    async def _send_all(self, key: ObjectKey) -> None:
        """Sends all writes of one object, including those arriving meanwhile."""
        delay = Backoff(_FIRST_DELAY, _LONGEST_DELAY)
        writes = self._waiting[key]
        try:
            while not writes.is_empty:
                try:
                    await self._send(key, writes)
                    delay.reset()
                except PeerGone as error:
                    self._unanswered(error)
                    await asyncio.sleep(delay.delay())
                except (PeerRefused, MalformedMessage) as error:
                    self._refused(key, writes, error)
                else:
                    self._answered()
        finally:
            self._waiting.pop(key, None)
            self._queue(key).pop(key, None)  # writes that arrived meanwhile were sent too
            self._busy.discard(key)
            self._changed.notify()

    async def _send(self, key: ObjectKey, writes: _Writes) -> None:
        if writes.creation is not None:
            await self._create(key, writes)
        elif writes.changes:
            await self._patch(key, writes, next(iter(writes.changes)))
        elif (options := writes.deletion) is not None:
            writes.deletion = None
            try:
                await self._api.delete(url_of(writes.path), options.uid, options.version, options.grace)
            except PeerGone:
                writes.deletion = options
                raise

    async def _create(self, key: ObjectKey, writes: _Writes) -> None:
        creation = writes.creation
        assert creation is not None
        path = writes.path
        try:
            created = await self._api.create(url_of(ResourcePath(path.kind, path.namespace)), creation)
        except PeerRefused as error:
            if error.code != "AlreadyExists" or path.kind is EVENTS:
                raise
            created = await self._api.get(url_of(path))
            writes.changes.setdefault("", {}).update({name: creation[name] for name in ("spec",) if name in creation})
        self._mirror.received(key, created)
        self._mirror.sent(key, creation)
        if writes.creation is not creation:  # changed in the meantime
            assert writes.creation is not None
            changed = {name: part for name, part in writes.creation.items() if creation.get(name) is not part}
            writes.changes.setdefault("", {}).update(changed)
        writes.creation = None

    async def _patch(self, key: ObjectKey, writes: _Writes, subresource: str) -> None:
        parts = writes.changes.pop(subresource)
        before = self._mirror.on_server(key)
        patch = difference(before, parts) if before is not None else {}
        if before is None or not patch:
            self._mirror.sent(key, parts)
            return
        path = ResourcePath(writes.path.kind, writes.path.namespace, writes.path.name, subresource)
        # The uid is a precondition, to leave another object of the same name unchanged.
        body = {"metadata": {"uid": before["metadata"]["uid"]}, **patch}
        try:
            after = await self._api.patch(url_of(path), body, "strategic-merge-patch")
        except PeerRefused as error:
            if error.code not in _OTHER or not await self._is_same(key, writes) or error.code != "Conflict":
                raise
            writes.changes[subresource] = {**parts, **writes.changes.get(subresource, {})}
            return
        except PeerGone:
            writes.changes[subresource] = {**parts, **writes.changes.get(subresource, {})}
            raise
        writes.conflicts = 0
        self._mirror.answered(key, after)
        self._mirror.sent(key, parts)

    async def _is_same(self, key: ObjectKey, writes: _Writes) -> bool:
        """After a conflict: reads the object again, and returns whether it is still the same."""
        writes.conflicts += 1
        before = self._mirror.on_server(key)
        found = await self._api.get(url_of(writes.path))
        assert before is not None
        if found["metadata"]["uid"] != before["metadata"]["uid"]:
            raise PeerRefused("NotFound", f"{key.name} is another object now")
        if writes.conflicts > _CONFLICTS:
            return False
        self._mirror.answered(key, found)
        return True

    def _refused(self, key: ObjectKey, writes: _Writes, error: PeerRefused | MalformedMessage) -> None:
        """Drops the write; if the object was deleted or replaced, drops everything waiting for it."""
        code = error.code if isinstance(error, PeerRefused) else ""
        is_known = self._mirror.on_server(key) is not None
        if not is_known or code == "NotFound":
            self._mirror.removed(key)
        if not is_known or code in ("NotFound", "Conflict"):
            writes.creation, writes.deletion = None, None
            writes.changes.clear()
        if code in ("NotFound", "Conflict", "AlreadyExists") or key.kind in _LAST:
            return
        facts = {"kind": key.kind, "object": key.name, "error": str(error)}
        self._problems.warning("API server refuses a write, it is dropped", code, key=(code, key.kind), extra=facts)

    def _unanswered(self, error: PeerGone) -> None:
        self._problems.warning("API server is unavailable, writes wait", "away", extra={"error": str(error)})

    def _answered(self) -> None:
        if self._problems.recovered():
            logger.warning("API server is back", extra={"objects": len(self._waiting)})
