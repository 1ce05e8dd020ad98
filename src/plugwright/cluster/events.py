"""Events about pods and nodes, as the components of a real cluster write them.

What happens again is counted in the event that is there. Who may write what is `api.writing`'s.

How the parts of the embedded cluster reach its objects: they read the store and write as a client would.
"""

import time
from collections import OrderedDict
from contextlib import suppress
from dataclasses import dataclass

from plugwright.cluster import clock
from plugwright.cluster.api.errors import StatusError
from plugwright.cluster.api.kinds import EVENTS
from plugwright.cluster.api.registry import ResourcePath, Writer
from plugwright.cluster.clock import Clock
from plugwright.cluster.store import NotFound, Object, Store
from plugwright.errors import ClusterError

__all__ = ["MALFORMED", "Access", "Happening", "Recorder", "Teller"]

_REMEMBERED = 2048  # happenings that may still be counted


@dataclass(frozen=True, slots=True)
class Teller:
    """Which component tells; `host` is the node's name, `series` how the newer ones count."""

    component: str
    host: str = ""
    series: bool = False
    manager: str = ""


@dataclass(frozen=True, slots=True)
class Happening:
    """`container` is a field's path, as in `spec.containers{main}`; `action` is told by the newer components."""

    reason: str
    message: str
    type: str = "Normal"
    container: str = ""
    action: str = ""


class Recorder:
    def __init__(self, writer: Writer, teller: Teller, now: Clock = clock.now) -> None:
        self._writer = writer
        self._teller = teller
        self._now = now
        self._told: OrderedDict[tuple[str, Happening], ResourcePath] = OrderedDict()

    def tell(self, about: Object, happening: Happening) -> None:
        """Never in the way of what it tells of: in a namespace that is gone nothing can be told."""
        metadata = about["metadata"]
        key = (str(metadata.get("uid") or metadata["name"]), happening)
        try:
            if key in self._told:
                with suppress(NotFound):  # cleared away in the meantime
                    self._count(key)
                    return
            self._told[key] = self._create(about, happening)
        except (ClusterError, StatusError):
            self._told.pop(key, None)
        if len(self._told) > _REMEMBERED:
            self._told.popitem(last=False)

    def _create(self, about: Object, happening: Happening) -> ResourcePath:
        metadata = about["metadata"]
        namespace = metadata.get("namespace") or "default"
        name = f"{metadata['name']}.{time.time_ns():x}"
        content = {"metadata": {"name": name}, **self._content(about, happening)}
        place = ResourcePath(EVENTS, namespace, name)
        self._writer.create(place, content, self._manager)
        return place

    def _content(self, about: Object, happening: Happening) -> Object:
        teller, metadata = self._teller, about["metadata"]
        involved = {
            "kind": about["kind"],
            "namespace": metadata.get("namespace"),
            "name": metadata["name"],
            "uid": metadata.get("uid"),
            "apiVersion": about.get("apiVersion"),
            "resourceVersion": metadata.get("resourceVersion"),
            "fieldPath": happening.container,
        }
        content: Object = {
            "involvedObject": {key: value for key, value in involved.items() if value},
            "reason": happening.reason,
            "message": happening.message,
            "type": happening.type,
            "reportingComponent": teller.component,
        }
        return content | self._times(happening)

    def _times(self, happening: Happening) -> Object:
        teller, now = self._teller, self._now()
        if teller.series:
            return {
                "source": {},
                "firstTimestamp": None,
                "lastTimestamp": None,
                "eventTime": clock.micro_time(now),
                "action": happening.action,
                "reportingInstance": teller.component,
            }
        source = {"component": teller.component, "host": teller.host}
        return {
            "source": {key: value for key, value in source.items() if value},
            "firstTimestamp": clock.timestamp(now),
            "lastTimestamp": clock.timestamp(now),
            "count": 1,
            "eventTime": None,
            "reportingInstance": teller.host,
        }

    def _count(self, key: tuple[str, Happening]) -> None:
        now = self._now()

        def counted(event: Object) -> Object:
            if self._teller.series:
                count = (event.get("series") or {}).get("count", 1) + 1
                return {**event, "series": {"count": count, "lastObservedTime": clock.micro_time(now)}}
            return {**event, "count": event.get("count", 1) + 1, "lastTimestamp": clock.timestamp(now)}

        self._writer.change(self._told[key], counted, self._manager)
        self._told.move_to_end(key)

    @property
    def _manager(self) -> str:
        return self._teller.manager or self._teller.component


# What reading an object raises that is not built as its kind is: clients can store such ones, and nobody may fall over
# them but the object itself.
MALFORMED = (ArithmeticError, AttributeError, KeyError, TypeError, ValueError)


@dataclass(frozen=True, slots=True)
class Access:
    store: Store
    writer: Writer
    now: Clock = clock.now

    def stamp(self) -> str:
        return clock.timestamp(self.now())
