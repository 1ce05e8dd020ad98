"""The control socket of an embedded cluster: `status`, `stop-node`, `start-node` and `end`.

The protocol and the access control (mode 0600) are `system.json_lines`'.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from plugwright.cluster.api.kinds import NODES, PODS
from plugwright.cluster.embedded import EmbeddedCluster
from plugwright.cluster.store import Object
from plugwright.errors import ConfigError
from plugwright.system import json_lines
from plugwright.system.json_lines import Request

__all__ = ["ClusterController", "controlled", "extended_resources"]


@dataclass(frozen=True, slots=True)
class ClusterController:
    """Answers the requests; `stop` is set when the cluster is to end."""

    cluster: EmbeddedCluster
    stop: asyncio.Event

    async def handle(self, request: Request) -> object:
        node = str(request.get("node", ""))
        match request.get("do"):
            case "status":
                return self._status()
            case "stop-node":
                await self.cluster.stop_node(node)
            case "start-node":
                await self.cluster.start_node(node)
            case "end":
                self.stop.set()
            case other:
                raise ConfigError(f"unknown request: {other!r}")
        return "done"

    def _status(self) -> dict[str, object]:
        store = self.cluster.store
        pods = store.objects(PODS.qualified)
        phases = Counter(str((pod.get("status") or {}).get("phase") or "Pending") for pod in pods)
        nodes = [self._node_status(node) for node in store.objects(NODES.qualified)]
        return {"nodes": nodes, "pods": dict(sorted(phases.items()))}

    def _node_status(self, node: Object) -> dict[str, object]:
        name = node["metadata"]["name"]
        emulated = self.cluster.nodes.get(name)
        conditions = (node.get("status") or {}).get("conditions") or ()
        ready = {condition["type"]: condition["status"] for condition in conditions}.get("Ready")
        return {
            "name": name,
            "ready": ready == "True",
            "running": emulated is not None and emulated.is_running,
            "allocatable": extended_resources(node),
        }


@asynccontextmanager
async def controlled(controller: ClusterController, path: Path) -> AsyncIterator[None]:
    """Serves the control socket while inside."""
    async with json_lines.serving(path, json_lines.listen(path), controller.handle):
        yield


def extended_resources(node: Object) -> dict[str, int]:
    """The allocatable extended resources of a Node object."""
    allocatable = (node.get("status") or {}).get("allocatable") or {}
    return {name: int(number) for name, number in sorted(allocatable.items()) if "/" in name}
