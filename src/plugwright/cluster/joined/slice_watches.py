"""The API server for the DRA drivers of joined nodes: each sees its own slices, and all share one watch.

A separate driver watches the slices of its node. Hundreds of them in one process would have hundreds of connections and
threads, so the slices of a driver are watched for all nodes together and divided here.
"""

import asyncio
from collections import defaultdict
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass, field

from plugwright.errors import MalformedMessage, PeerGone, PeerRefused
from plugwright.kube.answers import Document
from plugwright.kube.api_client import ApiClient
from plugwright.system.latest import Signal

__all__ = ["DriverClient", "SliceWatches"]

_SELECTOR = "spec.driver={},spec.nodeName={}"


@dataclass(slots=True)
class _NodeSlices:
    """The newest change of each slice of one node, by its name, with its resource version."""

    changes: dict[str, tuple[int, str, Document]] = field(default_factory=dict)
    changed: Signal = field(default_factory=Signal)


class _DriverSlices:
    """The changes received by one watch since the resource version of its start."""

    def __init__(self, version: str) -> None:
        self.begin, self.error = _number(version), ""
        self._nodes: defaultdict[str, _NodeSlices] = defaultdict(_NodeSlices)

    def take(self, kind: str, document: Document) -> None:
        metadata, spec = document["metadata"], document.get("spec")
        node = self._nodes[str(spec.get("nodeName") if isinstance(spec, dict) else None)]
        node.changes[metadata["name"]] = _number(metadata.get("resourceVersion")), kind, document
        node.changed.notify()

    def end(self, error: str) -> None:
        self.error = error
        for node in self._nodes.values():
            node.changed.notify()

    async def after(self, node: str, version: int) -> AsyncGenerator[tuple[str, Document], None]:
        """Changes of the node's slices after a version, only the newest for each slice; raises `PeerGone`."""
        found = self._nodes[node]
        while True:
            seen = found.changed.count
            for newer, kind, document in sorted(found.changes.values(), key=lambda change: change[0]):
                if newer > version:
                    version = newer
                    yield kind, document
            if self.error:
                raise PeerGone(self.error)
            await found.changed.wait(seen)


def _number(version: object) -> int:
    """A resource version as a number, which API servers increase."""
    try:
        return int(str(version))
    except ValueError as error:
        raise MalformedMessage(f"a resource version must be a number, got {version!r:.40}") from error


class SliceWatches:
    """Inside `async with`; `client` is for the driver of one node."""

    def __init__(self, api: ApiClient) -> None:
        self._api = api
        self._drivers: dict[str, _DriverSlices] = {}
        self._tasks = asyncio.TaskGroup()
        self._running: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> "SliceWatches":
        await self._tasks.__aenter__()
        return self

    async def __aexit__(self, *error: object) -> None:
        for task in self._running:
            task.cancel()
        await self._tasks.__aexit__(None, None, None)

    def of_driver(self, driver: str, path: str, version: str) -> _DriverSlices:
        """The running watch, or a new watch; raises `PeerGone` if it started after the version."""
        slices = self._drivers.get(driver)
        if slices is None or slices.error:
            slices = self._drivers[driver] = _DriverSlices(version)
            task = self._tasks.create_task(self._follow(slices, driver, path, version))
            self._running.add(task)
            task.add_done_callback(self._running.discard)
        if _number(version) < slices.begin:
            raise PeerGone("the watch of all slices began later")
        return slices

    async def _follow(self, slices: _DriverSlices, driver: str, path: str, version: str) -> None:
        try:
            selector = f"spec.driver={driver}"
            async with aclosing(self._api.watch(path, version, fieldSelector=selector)) as changes:
                async for kind, document in changes:
                    slices.take(kind, document)
        except (PeerGone, PeerRefused, MalformedMessage) as error:
            slices.end(str(error))


class DriverClient:
    """A `dra.resource_api_client.ResourceClient`; all requests use one shared client."""

    def __init__(self, api: ApiClient, watches: SliceWatches, node: str) -> None:
        self._watches, self._node, self._api = watches, node, api
        self.get, self.list, self.create = api.get, api.list, api.create
        self.update, self.patch, self.delete = api.update, api.patch, api.delete
        self.close: Callable[[], None] = lambda: None  # the client is shared

    async def watch(self, path: str, resource_version: str, **query: str) -> AsyncGenerator[tuple[str, Document], None]:
        driver = query.get("fieldSelector", "").removeprefix("spec.driver=").partition(",")[0]
        if query != {"fieldSelector": _SELECTOR.format(driver, self._node)}:
            watched = self._api.watch(path, resource_version, **query)
        else:
            slices = self._watches.of_driver(driver, path, resource_version)
            watched = slices.after(self._node, _number(resource_version))
        async with aclosing(watched) as changes:
            async for change in changes:
                yield change
