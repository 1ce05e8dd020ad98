"""An API server's objects of the joined nodes: one watch of their Node objects, one of the pods bound to them.

Pods are watched for all nodes together and selected here, because separate watches would cost a connection per node.
After the end of a watch, the objects are listed again and compared with the mirror, so no change is missed.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable
from contextlib import aclosing
from dataclasses import dataclass

from plugwright.apiserver.kinds import Kind
from plugwright.apiserver.store import Object, ObjectKey
from plugwright.cluster.joined.mirror import Mirror
from plugwright.errors import MalformedMessage, PeerGone, PeerRefused
from plugwright.kube.api_client import ApiClient
from plugwright.system.concurrency import Backoff

__all__ = ["ObjectWatch", "WatchedObjects"]

logger = logging.getLogger(__name__)

_FIRST_DELAY, _LONGEST_DELAY = 0.2, 5.0  # seconds until objects are listed again


@dataclass(frozen=True, slots=True)
class WatchedObjects:
    """The `wanted` objects of a kind, matching the selectors."""

    kind: Kind
    wanted: Callable[[Object], bool]
    labels: str = ""
    fields: str = ""

    @property
    def query(self) -> dict[str, str]:
        selectors = {"labelSelector": self.labels, "fieldSelector": self.fields}
        return {name: text for name, text in selectors.items() if text}


class ObjectWatch:
    """Updates the mirror; calls `changed` and `deleted` after each change of it, with the visible object."""

    def __init__(
        self,
        api: ApiClient,
        mirror: Mirror,
        watched: WatchedObjects,
        changed: Callable[[Object], None],
        deleted: Callable[[Object], None],
    ) -> None:
        self._api, self._mirror, self._watched = api, mirror, watched
        self._changed, self._deleted = changed, deleted
        self._path = f"{watched.kind.root}/{watched.kind.plural}"

    async def list(self) -> str:
        """Brings the mirror up to date; returns the resource version to watch from."""
        items, version = await self._api.list(self._path, **self._watched.query)
        self._compare(items)
        return version

    async def run(self, version: str) -> None:
        """Follows the changes after a resource version, until cancelled; retries after errors."""
        delay = Backoff(_FIRST_DELAY, _LONGEST_DELAY)
        while True:
            try:
                version = version or await self.list()
                delay.reset()
                await self._follow(version)
            except (PeerGone, PeerRefused, MalformedMessage) as error:
                logger.info("watch ended", extra={"kind": self._watched.kind.plural, "error": str(error)})
                version = ""
                await asyncio.sleep(delay.delay())

    async def _follow(self, version: str) -> None:
        async with aclosing(self._api.watch(self._path, version, **self._watched.query)) as changes:
            async for kind, content in changes:
                self._take(kind, content)

    def _take(self, kind: str, content: Object) -> None:
        key = self._key(content)
        if kind == "DELETED":
            self._remove(key, content)
        elif self._watched.wanted(content):
            # The items of a list omit their kind.
            content |= {"apiVersion": self._watched.kind.api_version, "kind": self._watched.kind.name}
            self._replace_other(key, content)
            # Even if the mirror has it already: the response to a write of ours can contain changes by others.
            self._mirror.received(key, content)
            self._changed(self._mirror.require(key))

    def _compare(self, items: Iterable[Object]) -> None:
        present = {self._key(content): content for content in items if self._watched.wanted(content)}
        for known in self._mirror.objects(self._watched.kind.qualified):
            key = self._key(known)
            if key not in present and self._mirror.on_server(key) is not None:
                self._remove(key, known)
        for content in present.values():
            self._take("MODIFIED", content)

    def _replace_other(self, key: ObjectKey, content: Object) -> None:
        """Removes a known object, replaced by another of the same name without a deletion event."""
        known = self._mirror.on_server(key)
        if known is not None and known["metadata"]["uid"] != content["metadata"]["uid"]:
            self._remove(key, known)

    def _remove(self, key: ObjectKey, content: Object) -> None:
        known = self._mirror.on_server(key)
        if known is not None and known["metadata"]["uid"] == content["metadata"]["uid"]:
            self._mirror.removed(key)
            self._deleted(known)

    def _key(self, content: Object) -> ObjectKey:
        metadata = content["metadata"]
        return ObjectKey(self._watched.kind.qualified, str(metadata.get("namespace") or ""), str(metadata["name"]))
