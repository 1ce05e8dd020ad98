"""The control socket of an embedded cluster: one JSON object a line in, one a line out, as the daemon's own.

`status`, `stop-node`, `start-node` and `end`. Who may open the socket (mode 0600) may do all of it.

How an embedded cluster stands, as plain values: its nodes with what they offer, and its pods by phase.
"""

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from plugwright.cluster.api.kinds import NODES, PODS
from plugwright.cluster.embedded import EmbeddedCluster
from plugwright.cluster.store import Object
from plugwright.errors import ConfigError, PlugwrightError
from plugwright.protocol import transport

__all__ = ["Controller", "controlled", "offers", "report"]


def report(cluster: EmbeddedCluster) -> dict[str, object]:
    phases = Counter(
        str((pod.get("status") or {}).get("phase") or "Pending") for pod in cluster.store.every(PODS.qualified)
    )
    nodes = [_node(cluster, node) for node in cluster.store.every(NODES.qualified)]
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


_LINE_LIMIT = 64 * 1024


@dataclass(frozen=True, slots=True)
class Controller:
    """What can be done to a cluster from outside; `stop` is set when it is to end."""

    cluster: EmbeddedCluster
    stop: asyncio.Event

    async def answer(self, line: bytes) -> Mapping[str, object]:
        try:
            return {"ok": await self._do(_request(line))}
        except PlugwrightError as error:
            return {"error": str(error)}

    async def _do(self, request: Mapping[str, object]) -> object:
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
                raise ConfigError(f"cannot do {other!r}")
        return "done"


@asynccontextmanager
async def controlled(controller: Controller, path: Path) -> AsyncIterator[None]:
    """Answers while inside."""
    talks: set[asyncio.Task[None]] = set()

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        talks.add(task)
        try:
            with suppress(ConnectionError, ValueError, asyncio.CancelledError):
                while line := await reader.readline():
                    writer.write(json.dumps(await controller.answer(line)).encode() + b"\n")
                    await writer.drain()
        finally:
            talks.discard(task)
            writer.close()

    server = await asyncio.start_unix_server(talk, sock=transport.listen(path), limit=_LINE_LIMIT)
    try:
        yield
    finally:
        path.unlink(missing_ok=True)
        server.close()
        for task in talks:
            task.cancel()
        await asyncio.gather(*talks, return_exceptions=True)


def _request(line: bytes) -> Mapping[str, object]:
    try:
        request = json.loads(line)
    except ValueError as error:
        raise ConfigError(f"not JSON: {error}") from error
    if not isinstance(request, dict):
        raise ConfigError("a request is a JSON object")
    return request
