"""Events about pods and nodes as written by the components of a real cluster, and their client.

Repetitions are counted in the existing Event object. `api.registry` decides which writes are allowed.
"""

import time
from collections import OrderedDict
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

from plugwright.apiserver import clock
from plugwright.apiserver.clock import Clock
from plugwright.apiserver.kinds import EVENTS
from plugwright.apiserver.registry import ObjectWriter, ResourcePath, Writer
from plugwright.apiserver.store import Object, ObjectReader, Store
from plugwright.errors import ClusterError, NotFound

__all__ = [
    "MALFORMED",
    "ClusterClient",
    "EventRecord",
    "EventRecorder",
    "EventSource",
    "NodeClient",
]

# Raised while reading an object with an unexpected structure. Clients can store such objects; a component must then
# continue with the others.
MALFORMED = (ArithmeticError, AttributeError, KeyError, TypeError, ValueError)

_REMEMBERED = 2048  # events whose repetitions are counted


class NodeClient(Protocol):
    """A node's access to the objects of its cluster, embedded or remote."""

    @property
    def store(self) -> ObjectReader: ...

    @property
    def writer(self) -> ObjectWriter: ...

    @property
    def now(self) -> Clock: ...

    def stamp(self) -> str: ...


@dataclass(frozen=True, slots=True)
class ClusterClient:
    """A component's access to the cluster's objects: reads the store, writes as an API client would."""

    store: Store
    writer: Writer
    now: Clock = clock.now

    def stamp(self) -> str:
        return clock.timestamp(self.now())


@dataclass(frozen=True, slots=True)
class EventSource:
    """The reporting component. `host` is a node's name; with `series`, repetitions are counted as in events.k8s.io."""

    component: str
    host: str = ""
    series: bool = False
    manager: str = ""  # in managedFields; the component if empty


@dataclass(frozen=True, slots=True)
class EventRecord:
    """`field_path` names a container, as in `spec.containers{main}`; `action` is for components counting series."""

    reason: str
    message: str
    type: str = "Normal"
    field_path: str = ""
    action: str = ""


class EventRecorder:
    def __init__(self, client: NodeClient, source: EventSource) -> None:
        self._client = client
        self._source = source
        self._manager = source.manager or source.component
        self._recorded: OrderedDict[tuple[str, EventRecord], ResourcePath] = OrderedDict()

    def record(self, regarding: Object, event: EventRecord) -> None:
        """Writes an event; a refused write, for example in a deleted namespace, is dropped."""
        metadata = regarding["metadata"]
        key = (str(metadata.get("uid") or metadata["name"]), event)
        try:
            if key in self._recorded:
                with suppress(NotFound):  # the Event object has expired
                    self._count(key)
                    return
            self._recorded[key] = self._create(regarding, event)
        except ClusterError:
            self._recorded.pop(key, None)
        if len(self._recorded) > _REMEMBERED:
            self._recorded.popitem(last=False)

    def _create(self, regarding: Object, event: EventRecord) -> ResourcePath:
        metadata = regarding["metadata"]
        name = f"{metadata['name']}.{time.time_ns():x}"
        path = ResourcePath(EVENTS, metadata.get("namespace") or "default", name)
        content = {"metadata": {"name": name}, **self._content(regarding, event)}
        self._client.writer.create(path, content, self._manager)
        return path

    def _content(self, regarding: Object, event: EventRecord) -> Object:
        metadata = regarding["metadata"]
        involved = {
            "kind": regarding["kind"],
            "namespace": metadata.get("namespace"),
            "name": metadata["name"],
            "uid": metadata.get("uid"),
            "apiVersion": regarding.get("apiVersion"),
            "resourceVersion": metadata.get("resourceVersion"),
            "fieldPath": event.field_path,
        }
        content: Object = {
            "involvedObject": {key: value for key, value in involved.items() if value},
            "reason": event.reason,
            "message": event.message,
            "type": event.type,
            "reportingComponent": self._source.component,
        }
        return content | self._source_and_times(event)

    def _source_and_times(self, event: EventRecord) -> Object:
        source, now = self._source, self._client.now()
        if source.series:
            return {
                "source": {},
                "firstTimestamp": None,
                "lastTimestamp": None,
                "eventTime": clock.micro_time(now),
                "action": event.action,
                "reportingInstance": source.component,
            }
        component_and_host = {"component": source.component, "host": source.host}
        return {
            "source": {key: value for key, value in component_and_host.items() if value},
            "firstTimestamp": clock.timestamp(now),
            "lastTimestamp": clock.timestamp(now),
            "count": 1,
            "eventTime": None,
            "reportingInstance": source.host,
        }

    def _count(self, key: tuple[str, EventRecord]) -> None:
        now = self._client.now()

        def counted(event: Object) -> Object:
            if self._source.series:
                count = (event.get("series") or {}).get("count", 1) + 1
                return {**event, "series": {"count": count, "lastObservedTime": clock.micro_time(now)}}
            return {**event, "count": event.get("count", 1) + 1, "lastTimestamp": clock.timestamp(now)}

        self._client.writer.change(self._recorded[key], counted, self._manager)
        self._recorded.move_to_end(key)
