"""A small API server for tests: nodes and their status, pods, device classes.

It treats JSON patches, versions and managed fields as the real one was seen to do. `serving` puts it behind
HTTP, `kubelet` behind a node.
"""

import json
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import unquote

from plugwright.extended_resources.changes import Clock

__all__ = ["Cluster", "Json", "Refusal", "Time", "pod"]

EPOCH = datetime(2026, 11, 15, tzinfo=UTC)
Json = dict[str, Any]


class Refusal(Exception):
    def __init__(self, code: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.status = {
            "kind": "Status",
            "apiVersion": "v1",
            "status": "Failure",
            "message": message,
            "reason": reason,
            "code": code,
        }


class Time:
    """A clock that advances only in `sleep`, and calls `every_second` after every second."""

    def __init__(self) -> None:
        self.now = 0.0
        self.every_second: list[Callable[[], None]] = []

    @property
    def clock(self) -> Clock:
        return Clock(now=lambda: self.now, sleep=self.sleep)

    def sleep(self, seconds: float) -> None:
        end = self.now + seconds
        while self.now < end:
            self.now = min(end, self.now + 1.0)
            for action in list(self.every_second):
                action()


class Cluster:
    """What the API server stores. `forbidden` holds "verb resource"; `before` is called with every such text."""

    def __init__(self, time: Time) -> None:
        self.time = time
        self.nodes: dict[str, Json] = {}
        self.pods: list[Json] = []
        self.classes: list[Json] | None = []
        self.forbidden: set[str] = set()
        self.before: Callable[[str], None] = lambda asked: None
        self.asked: list[str] = []
        self.objects: dict[str, Json] = {}
        self.deleted: list[tuple[str, str]] = []  # path, propagation policy
        self._version = 0

    def add_node(self, name: str, ready: str = "True", boot_id: str = "boot") -> Json:
        self.nodes[name] = {
            "metadata": {"name": name, "managedFields": []},
            "status": {
                "capacity": {"cpu": "2", "pods": "110", "hugepages-2Mi": "0"},
                "allocatable": {"cpu": "2", "pods": "110", "hugepages-2Mi": "0"},
                "conditions": [{"type": "Ready", "status": ready, "lastHeartbeatTime": "2026-11-15T09:00:00Z"}],
                "nodeInfo": {"bootID": boot_id},
            },
        }
        self.touch(name)
        return self.nodes[name]

    def set(
        self, name: str, manager: str, capacity: Mapping[str, int | None], allocatable: Mapping[str, int | None]
    ) -> None:
        """Writes the status as `manager`; None removes the key."""
        for part, counts in (("capacity", capacity), ("allocatable", allocatable)):
            stored = self.nodes[name]["status"].setdefault(part, {})
            for resource, count in counts.items():
                self._write(stored, resource, count)
                self._own(name, manager, part, resource, keep=count is not None)
        self.touch(name)

    def counts(self, name: str, resource: str) -> tuple[str | None, str | None]:
        status = self.nodes[name]["status"]
        return status["capacity"].get(resource), status["allocatable"].get(resource)

    def touch(self, name: str) -> None:
        self._version += 1
        self.nodes[name]["metadata"]["resourceVersion"] = str(self._version)

    def patch_status(self, name: str, manager: str, operations: list[Json]) -> Json:
        old = self._node(name)
        new = json.loads(json.dumps(old))
        for operation in operations:
            _apply(new, operation)
        if new["metadata"]["resourceVersion"] != old["metadata"]["resourceVersion"]:
            raise Refusal(
                409, "Conflict", f'Operation cannot be fulfilled on nodes "{name}": the object has been modified'
            )
        self._take_over(name, manager, old["status"], new["status"])
        self.touch(name)
        return self.nodes[name]

    def answer(self, verb: str, path: str, query: Mapping[str, str], body: Any) -> Json:
        if path in self.objects or verb == "delete" or "/namespaces/" in path:
            return self._answer_object(verb, path, body)
        parts = [unquote(part) for part in path.strip("/").split("/")]
        resource = "/".join(parts[2:3] + parts[4:]) if parts[0] == "api" else parts[3]
        verb = "list" if verb == "get" and resource == parts[-1] else verb
        asked = f"{verb} {resource}"
        self.asked.append(asked)
        self.before(asked)
        if asked in self.forbidden:
            raise Refusal(403, "Forbidden", f'{resource} is forbidden: User "me" cannot {verb} resource "{resource}"')
        if asked == "patch nodes/status":
            return self.patch_status(parts[3], query["fieldManager"], body)
        if asked == "get nodes":
            return self._node(parts[3])
        return {"items": self._listed(resource, query.get("fieldSelector", "")), "metadata": {}}

    def _answer_object(self, verb: str, path: str, body: Json) -> Json:
        """Objects that are none of nodes, pods and classes: read, patched and deleted by their paths alone."""
        if path not in self.objects:
            raise Refusal(404, "NotFound", f"{path} not found")
        if verb != "get":
            self.asked.append(f"{verb} {path}")
        if verb == "patch":
            self.objects[path]["metadata"] |= body["metadata"]
        if verb == "delete":
            self.deleted.append((path, body["propagationPolicy"]))
            return self.objects.pop(path)
        return self.objects[path]

    def _listed(self, resource: str, selector: str) -> list[Json]:
        if resource == "nodes":
            return list(self.nodes.values())
        if resource == "pods":
            return [pod for pod in self.pods if _selected(pod, selector)]
        if resource == "deviceclasses" and self.classes is not None:
            return self.classes
        raise Refusal(404, "NotFound", "the server could not find the requested resource")

    def _node(self, name: str) -> Json:
        if name not in self.nodes:
            raise Refusal(404, "NotFound", f'nodes "{name}" not found')
        return self.nodes[name]

    def _take_over(self, name: str, manager: str, old: Json, new: Json) -> None:
        """The manager that changes a value owns it."""
        self.nodes[name]["status"] = new
        for part in ("capacity", "allocatable"):
            before, after = old.get(part, {}), new.get(part, {})
            for resource in {*before, *after}:
                if before.get(resource) != after.get(resource):
                    self._own(name, manager, part, resource, keep=resource in after)

    def _own(self, name: str, manager: str, part: str, resource: str, keep: bool) -> None:
        entries = self.nodes[name]["metadata"]["managedFields"]
        for entry in entries:
            entry["fieldsV1"]["f:status"].get(f"f:{part}", {}).pop(f"f:{resource}", None)
        mine = next((entry for entry in entries if entry["manager"] == manager), None)
        if mine is None:
            mine = {"manager": manager, "operation": "Update", "subresource": "status", "fieldsV1": {"f:status": {}}}
            entries.append(mine)
        mine["time"] = f"{EPOCH + timedelta(seconds=self.time.now):%Y-%m-%dT%H:%M:%SZ}"
        if keep:
            mine["fieldsV1"]["f:status"].setdefault(f"f:{part}", {})[f"f:{resource}"] = {}

    @staticmethod
    def _write(stored: Json, resource: str, count: int | None) -> None:
        if count is None:
            stored.pop(resource, None)
        else:
            stored[resource] = str(count)


def pod(name: str, node: str, *requests: Mapping[str, int], phase: str = "Running", **more: Any) -> Json:
    """One container for each of `requests`."""
    containers = [
        {"name": f"c{number}", "resources": {"requests": {key: str(value) for key, value in request.items()}}}
        for number, request in enumerate(requests)
    ]
    return {
        "metadata": {"namespace": "default", "name": name},
        "spec": {"nodeName": node, "containers": containers, **more.get("spec", {})},
        "status": {"phase": phase, **more.get("status", {})},
    }


def _selected(pod: Json, selector: str) -> bool:
    values = {"spec.nodeName": pod["spec"].get("nodeName", ""), "status.phase": pod["status"]["phase"]}
    for term in filter(None, selector.split(",")):
        name, wanted = term.split("!=" if "!=" in term else "=")
        if (values[name] == wanted) == ("!=" in term):
            return False
    return True


def _apply(document: Json, operation: Json) -> None:
    *steps, last = [part.replace("~1", "/").replace("~0", "~") for part in operation["path"].split("/")[1:]]
    parent = document
    for step in steps:
        if step not in parent:
            raise _invalid()
        parent = parent[step]
    if operation["op"] == "add":
        parent[last] = operation["value"]
    elif last not in parent or operation["op"] not in ("remove", "replace"):
        raise _invalid()
    elif operation["op"] == "remove":
        del parent[last]
    else:
        parent[last] = operation["value"]


def _invalid() -> Refusal:
    return Refusal(422, "Invalid", "the server rejected our request due to an error in our request")
