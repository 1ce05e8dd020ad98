"""The API server's objects for the page, updated by watches.

Objects are stored without managed fields and heartbeat times, so that 1,000 nodes that report every ten seconds change
nothing.
"""

import asyncio
from collections.abc import Callable, Iterator, Mapping
from contextlib import aclosing, suppress
from typing import Any

from plugwright.errors import MalformedMessage, PeerGone, PeerRefused
from plugwright.explain.reading import PATHS, RULE_PATHS, UNREADABLE
from plugwright.explain.world import ApiObject, ObjectId, World, identity
from plugwright.kube.api_client import ApiClient, segment
from plugwright.system.concurrency import Backoff
from plugwright.text import clean

__all__ = ["KINDS", "ClusterObjects"]

KINDS = (*PATHS, "taint_rules")  # fields of `World`
_OF_NAMESPACE = ("pods", "claims")  # read in one namespace if the whole cluster is not readable
_REFUSED_AGAIN = 60.0  # seconds between requests for a kind that is not readable or not served
_FIRST_RETRY, _LONGEST_RETRY = 0.2, 10.0
_WATCH_AGAIN = 0.5  # seconds between the end of a watch and the next list
_FINAL = ("Forbidden", "NotFound")
_DROPPED = ("managedFields", "resourceVersion", "selfLink", "generation")
_VOLATILE = ("lastHeartbeatTime", "lastProbeTime")

Changed = Callable[[str, ApiObject | None, ApiObject | None], object]  # kind, the object before and now


class ClusterObjects:
    """`run` follows every kind until cancelled; `changed` is called for each changed object."""

    def __init__(self, api: ApiClient, namespace: str, changed: Changed) -> None:
        self._api, self._namespace, self._changed = api, namespace, changed
        self._objects: dict[str, dict[ObjectId, ApiObject]] = {kind: {} for kind in KINDS}
        self._unseen: dict[str, str] = {}
        self._problems: dict[str, str] = {}
        self._listed: set[str] = set()
        self.version = ""

    @property
    def is_complete(self) -> bool:
        """Whether each kind was listed, or cannot be listed."""
        return len(self._listed) == len(KINDS)

    @property
    def problems(self) -> list[str]:
        """Why objects could be outdated."""
        return sorted(set(self._problems.values()))

    def of(self, kind: str) -> Mapping[ObjectId, ApiObject]:
        return self._objects[kind]

    def world(self, **other: Any) -> World:
        """All objects; `other` replaces fields."""
        fields = {kind: tuple(found.values()) for kind, found in self._objects.items()}
        known = {"unseen": self.unseen, "hidden": self.hidden, "version": self.version or "1.37"}
        return World(**{**fields, **known, **other})

    @property
    def unseen(self) -> tuple[str, ...]:
        return tuple(text for kind in KINDS if (text := self._unseen.get(kind)))

    @property
    def hidden(self) -> frozenset[str]:
        """The kinds whose objects cannot all be listed."""
        return frozenset(self._unseen)

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            for kind in KINDS:
                tasks.create_task(self._keep(kind))

    async def _keep(self, kind: str) -> None:
        backoff = Backoff(first=_FIRST_RETRY, longest=_LONGEST_RETRY)
        while True:
            try:
                path, items, version = await self._list(kind)
                if not self.version:
                    self.version = str((await self._api.get("/version")).get("gitVersion") or "")
            except PeerRefused as error:
                self._cannot_read(kind, error)
                await asyncio.sleep(_REFUSED_AGAIN if error.code in _FINAL else backoff.delay())
            except (PeerGone, MalformedMessage) as error:
                self._problems[kind] = f"the API server does not answer: {clean(error)}"
                self._changed(kind, None, None)
                await asyncio.sleep(backoff.delay())
            else:
                backoff.reset()
                self._problems.pop(kind, None)
                self._replace(kind, items)
                with suppress(
                    PeerGone, PeerRefused, MalformedMessage
                ):  # its time limit is reached, or the server ended it: list again
                    await self._watch(kind, path, version)
                await asyncio.sleep(_WATCH_AGAIN)

    async def _watch(self, kind: str, path: str, version: str) -> None:
        async with aclosing(self._api.watch(path, version)) as changes:
            async for change, item in changes:
                self._take(kind, _kept(kind, item), is_deleted=change == "DELETED")

    async def _list(self, kind: str) -> tuple[str, list[dict[str, Any]], str]:
        """The objects of a kind with their path, from the first readable path."""
        refused: PeerRefused | None = None
        for path in self._paths(kind):
            try:
                items, version = await self._api.list(path)
            except PeerRefused as error:
                if error.code not in _FINAL:
                    raise
                refused = refused or error
                continue
            if refused is not None and kind in UNREADABLE:
                self._unseen[kind] = UNREADABLE[kind]
            else:
                self._unseen.pop(kind, None)
            return path, items, version
        assert refused is not None  # each kind has a path
        raise refused

    def _paths(self, kind: str) -> Iterator[str]:
        if kind == "taint_rules":
            yield from RULE_PATHS
            return
        yield PATHS[kind]
        if kind in _OF_NAMESPACE:
            base, _, plural = PATHS[kind].rpartition("/")
            yield f"{base}/namespaces/{segment(self._namespace)}/{plural}"

    def _cannot_read(self, kind: str, error: PeerRefused) -> None:
        if error.code not in _FINAL:
            self._problems[kind] = f"the API server refuses {kind}: {clean(error)}"
            self._changed(kind, None, None)
            return
        if error.code == "Forbidden" and kind in UNREADABLE:
            self._unseen[kind] = UNREADABLE[kind]
        self._replace(kind, [])

    def _replace(self, kind: str, items: list[dict[str, Any]]) -> None:
        present = {identity(item): _kept(kind, item) for item in items}
        for key, known in list(self._objects[kind].items()):
            if key not in present:
                self._take(kind, known, is_deleted=True)
        for item in present.values():
            self._take(kind, item, is_deleted=False)
        self._listed.add(kind)
        self._changed(kind, None, None)

    def _take(self, kind: str, item: ApiObject, *, is_deleted: bool) -> None:
        found, key = self._objects[kind], identity(item)
        before = found.get(key)
        if is_deleted:
            if found.pop(key, None) is not None:
                self._changed(kind, before, None)
        elif item != before:
            found[key] = item
            self._changed(kind, before, item)


def _kept(kind: str, item: Mapping[str, Any]) -> ApiObject:
    metadata = {name: value for name, value in (item.get("metadata") or {}).items() if name not in _DROPPED}
    kept: dict[str, Any] = {"metadata": metadata}
    kept |= {name: item[name] for name in ("spec", "status") if name in item}
    if kind == "nodes" and isinstance(kept.get("status"), dict):
        conditions = kept["status"].get("conditions") or ()
        kept["status"] = {
            **{name: value for name, value in kept["status"].items() if name != "images"},
            "conditions": [
                {name: value for name, value in condition.items() if name not in _VOLATILE} for condition in conditions
            ],
        }
    return kept
