"""A node whose daemon, kubelet and API server are real, and `node-events` between them."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

from msgspec.structs import replace
from tests.kube.serving import ServedApi, served_api

from plugwright import Plugin
from plugwright.kube.api_client import ApiClient, Document
from plugwright.kubelet import Pod
from plugwright.node_events.program import NodeEventsSettings, report_node
from plugwright.sdk.control import serve_control_socket
from plugwright.system import json_lines
from plugwright.system.concurrency import cancel, in_thread
from plugwright.testing import pod_requesting, running
from plugwright.testing.harness import PluginKubelet

__all__ = ["GPU", "TYPE", "ReportedNode", "reported_node"]

GPU, TYPE = "example.com/gpu", "plugwright.dev/example.com_gpu"
_LIMIT = 30.0  # seconds; only a test that fails waits for so long


class ReportedNode:
    def __init__(self, kubelet: PluginKubelet, served: ServedApi, client: ApiClient, socket: Path) -> None:
        self.kubelet, self.served, self.client, self.socket = kubelet, served, client, socket
        self.settings = NodeEventsSettings(
            node="node", socket=socket, release="plugwright/gpus", pause=0.01, patience=0.3, ask=0.2
        )
        self._tasks: list[asyncio.Task[None]] = []
        self._serving = AsyncExitStack()

    async def serve(self) -> None:
        await self._serving.enter_async_context(serve_control_socket(self.kubelet.daemon, self.socket))

    async def stop_serving(self) -> None:
        await self._serving.aclose()

    async def report(self, **changes: Any) -> None:
        """Starts `node-events` again, with other settings."""
        await self.stop_reporting()
        self._tasks = [asyncio.create_task(report_node(replace(self.settings, **changes), self.client))]

    async def stop_reporting(self) -> None:
        await cancel(*self._tasks)

    async def command(self, name: str, **arguments: str) -> None:
        await self.ask({"do": "plugin", "resource": GPU, "name": name, "arguments": arguments})

    async def ask(self, request: dict[str, object]) -> Any:
        return await in_thread("request", lambda: json_lines.ask(self.socket, request))

    async def admitted(self, name: str) -> tuple[Pod, str]:
        """A pod with one device, once the daemon knows that."""
        pod = await self.kubelet.admit(pod_requesting({GPU: 1}, name=name))
        async with asyncio.timeout(_LIMIT):
            while True:
                for device in (await self.ask({"do": "report"}))["resources"][0]["devices"]:
                    if any(holder["pod"] == name for holder in device["holders"]):
                        return pod, str(device["id"])
                await asyncio.sleep(0.02)

    async def conditions(self) -> dict[str, Document]:
        node = await self.client.get("/api/v1/nodes/node")
        return {condition["type"]: condition for condition in node["status"].get("conditions") or ()}

    async def condition(self, accept: Callable[[Document], bool], kind: str = TYPE) -> Document:
        """The condition, once it is as wanted; {} if there is none."""
        async with asyncio.timeout(_LIMIT):
            while not accept(found := (await self.conditions()).get(kind, {})):
                await asyncio.sleep(0.02)
        return found

    async def events(self, reason: str, namespace: str = "default") -> list[Document]:
        found, _ = await self.client.list(f"/api/v1/namespaces/{namespace}/events")
        return [event for event in found if event["reason"] == reason]

    async def event(self, reason: str, kind: str, count: int = 1) -> Document:
        """The one event of this reason about an object of this kind, once it was seen so often."""
        async with asyncio.timeout(_LIMIT):
            while True:
                found = [each for each in await self.events(reason) if each["involvedObject"]["kind"] == kind]
                if found and found[0]["count"] >= count:
                    [event] = found
                    return event
                await asyncio.sleep(0.02)


@asynccontextmanager
async def reported_node(plugin: Plugin, directory: Path) -> AsyncIterator[ReportedNode]:
    """`node-events` is not started yet."""
    (directory / "api").mkdir()
    async with running(plugin, directory) as kubelet, served_api(directory / "api") as served:
        client = served.client()
        node = ReportedNode(kubelet, served, client, directory / "control.sock")
        await node.serve()
        try:
            yield node
        finally:
            await node.stop_reporting()
            await node.stop_serving()
            client.close()
