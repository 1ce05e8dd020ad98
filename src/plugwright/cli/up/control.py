"""The control socket of an embedded cluster: one JSON object a line in, one a line out, as the daemon's own.

`status`, `stop-node`, `start-node` and `end`. Who may open the socket (mode 0600) may do all of it.

How an embedded cluster stands, as plain values: its nodes with what they offer, and its pods by phase.
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

__all__ = ["Controller", "controlled", "offers", "report"]


def report(cluster: EmbeddedCluster) -> dict[str, object]:
    phases = Counter(
        str((pod.get("status") or {}).get("phase") or "Pending") for pod in cluster.store.objects(PODS.qualified)
    )
    nodes = [_node(cluster, node) for node in cluster.store.objects(NODES.qualified)]
    return {"nodes": nodes, "pods": dict(sorted(phases.items()))}


def offers(node: Object) -> dict[str, int]:
    """The extended resources of a node, as far as they can be had."""
    allocatable = (node.get("status") or {}).get("allocatable") or {}
    return {name: int(number) for name, number in sorted(allocatable.items()) if "/" in name}


def _node(cluster: EmbeddedCluster, node: Object) -> dict[str, object]:
    name = node["metadata"]["name"]
    agent = cluster.nodes.get(name)
    conditions = {each["type"]: each["status"] for each in (node.get("status") or {}).get("conditions") or ()}
    return {
        "name": name,
        "ready": conditions.get("Ready") == "True",
        "running": agent is not None and agent.is_running,
        "allocatable": offers(node),
    }


@dataclass(frozen=True, slots=True)
class Controller:
    """What can be done to a cluster from outside; `stop` is set when it is to end."""

    cluster: EmbeddedCluster
    stop: asyncio.Event

    async def handle(self, request: Request) -> object:
        node = str(request.get("node", ""))
        match request.get("do"):
            case "status":
                return report(self.cluster)
            case "stop-node":
                await self.cluster.stop_node(node)
            case "start-node":
                await self.cluster.start_node(node)
            case "end":
                self.stop.set()
            case other:
                raise ConfigError(f"unknown request: {other!r}")
        return "done"


@asynccontextmanager
async def controlled(controller: Controller, path: Path) -> AsyncIterator[None]:
    """Serves the control socket while inside."""
    async with json_lines.serving(path, json_lines.listen(path), controller.handle):
        yield
