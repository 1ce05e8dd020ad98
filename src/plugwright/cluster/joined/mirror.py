"""The objects of another API server as its joined nodes read them: the server's, overlaid by our own writes.

A node reads and writes as if the store were local. Its writes are visible immediately; the server's version is kept as
well: a write is sent as the difference, and only while there is a difference. `watches` receives the server's versions,
`outbox` sends our writes. There can be tens of thousands of objects: only the parts read by nodes are kept, and equal
strings are shared.
"""

import sys
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Any

from plugwright.apiserver.kinds import EVENTS, PODS
from plugwright.apiserver.store import Object, ObjectKey
from plugwright.errors import NotFound

__all__ = ["Mirror"]

_EVENTS = 4096  # of ours, whose repetitions can be counted
_SHORT = 64  # characters of a string that other objects can also contain


def _is_newer(content: Object, than: Object | None) -> bool:
    """Whether the server wrote it later: responses and watches can overtake each other."""
    if than is None or content["metadata"].get("uid") != than["metadata"].get("uid"):
        return True
    try:
        return int(content["metadata"]["resourceVersion"]) > int(than["metadata"]["resourceVersion"])
    except (KeyError, ValueError):
        return True


@dataclass(slots=True)
class _Entry:
    """`server` is None until the server has it; `ours` are the top-level parts still missing there."""

    server: Object | None = None
    ours: dict[str, object] = field(default_factory=dict)

    @property
    def content(self) -> Object:
        return {**(self.server or {}), **self.ours} if self.ours or self.server is None else self.server


class Mirror:
    """`get`, `version`, `require` and `objects` are those of the embedded cluster's store."""

    def __init__(self) -> None:
        self._entries: dict[str, OrderedDict[ObjectKey, _Entry]] = {}
        self._bound: dict[str, set[ObjectKey]] = {}  # pods, by node

    def get(self, key: ObjectKey) -> Object | None:
        entry = self._entry(key)
        return entry.content if entry is not None else None

    def version(self, key: ObjectKey) -> str | None:
        """The resource version on the server; empty while there is none."""
        entry = self._entry(key)
        return None if entry is None else str((entry.server or {}).get("metadata", {}).get("resourceVersion", ""))

    def require(self, key: ObjectKey) -> Object:
        found = self.get(key)
        if found is None:
            raise NotFound(key.kind, key.name)
        return found

    def objects(self, kind: str, namespace: str = "") -> list[Object]:
        """The objects sorted by namespace and name; of all namespaces by default."""
        entries = self._entries.get(kind, OrderedDict())
        return [entries[key].content for key in sorted(entries) if not namespace or key.namespace == namespace]

    def bound_pods(self, node: str) -> list[Object]:
        """The pods bound to a node, sorted as `objects`."""
        entries = self._entries.get(PODS.qualified, OrderedDict())
        return [entries[key].content for key in sorted(self._bound.get(node, ()))]

    def on_server(self, key: ObjectKey) -> Object | None:
        """The server's last version of the object."""
        entry = self._entry(key)
        return entry.server if entry is not None else None

    def received(self, key: ObjectKey, content: Object) -> None:
        """Takes the server's version unless it is outdated. An object with another uid loses our writes."""
        entry = self._entries.setdefault(key.kind, OrderedDict()).setdefault(key, _Entry())
        if not _is_newer(content, entry.server):
            return
        if entry.server is not None and entry.server["metadata"].get("uid") != content["metadata"].get("uid"):
            self.removed(key)
            entry = self._entries[key.kind][key] = _Entry()
        content["metadata"].pop("managedFields", None)
        entry.server = _compact(content)
        if key.kind == PODS.qualified:
            self._bound.setdefault(str(content["spec"].get("nodeName")), set()).add(key)

    def answered(self, key: ObjectKey, content: Object) -> None:
        """Takes the response to a change of ours, unless the watch has reported its deletion."""
        if self.on_server(key) is not None:
            self.received(key, content)

    def created(self, key: ObjectKey, content: Object) -> None:
        """Adds an object of ours before it is on the server."""
        entries = self._entries.setdefault(key.kind, OrderedDict())
        entries[key] = _Entry(None, dict(content))
        if key.kind == EVENTS.qualified and len(entries) > _EVENTS:
            entries.popitem(last=False)

    def changed(self, key: ObjectKey, parts: Object) -> Object:
        """Overlays top-level parts of ours; returns the complete object."""
        entry = self._entry(key)
        if entry is None:
            raise NotFound(key.kind, key.name)
        entry.ours.update(parts)
        return entry.content

    def sent(self, key: ObjectKey, parts: Object) -> None:
        """Stops overlaying these parts, which the server now has, unless they have changed again since."""
        entry = self._entry(key)
        if entry is not None:
            entry.ours = {name: value for name, value in entry.ours.items() if parts.get(name) is not value}

    def removed(self, key: ObjectKey) -> None:
        entry = self._entries.get(key.kind, OrderedDict()).pop(key, None)
        if entry is not None and key.kind == PODS.qualified:
            self._bound.get(str(entry.content["spec"].get("nodeName")), set()).discard(key)

    def _entry(self, key: ObjectKey) -> _Entry | None:
        return self._entries.get(key.kind, OrderedDict()).get(key)


def _compact(content: Any) -> Any:
    if isinstance(content, dict):
        return {sys.intern(name): _compact(value) for name, value in content.items()}
    if isinstance(content, list):
        return [_compact(item) for item in content]
    return sys.intern(content) if isinstance(content, str) and len(content) <= _SHORT else content
