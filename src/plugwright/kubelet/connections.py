"""The plugins a kubelet is connected to: dialling back, and listening until the stream ends.

What a list or an end means for the node is `manager`'s; how one plugin is called is `endpoint`'s.
"""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

from plugwright.errors import PeerRefused, PlugwrightError
from plugwright.kubelet import endpoint as endpoints
from plugwright.kubelet.context import Context
from plugwright.kubelet.endpoint import Endpoint
from plugwright.kubelet.trace import Call
from plugwright.model import Options
from plugwright.protocol.wire import Listed

__all__ = ["Connections", "Listener"]


class Listener(Protocol):
    """Who hears what the plugins say."""

    async def listed(self, endpoint: Endpoint, devices: list[Listed]) -> None: ...

    def ended(self, endpoint: Endpoint, reason: str) -> None: ...


class Connections:
    """One endpoint for each resource, the newest; an older one is listened to until its stream ends (2.22)."""

    def __init__(self, context: Context, tasks: asyncio.TaskGroup, listener: Listener) -> None:
        self._context = context
        self._tasks = tasks
        self._listener = listener
        self._newest: dict[str, Endpoint] = {}

    def __iter__(self) -> Iterator[Endpoint]:
        return iter([endpoint for _, endpoint in sorted(self._newest.items())])

    def get(self, resource: str) -> Endpoint | None:
        return self._newest.get(resource)

    def restore(self, resources: list[str]) -> None:
        """After a start: plugins that the checkpoint remembers are stopped until they come back (1.20)."""
        now = self._context.settings.clock()
        for resource in resources:
            self._newest[resource] = Endpoint(resource, None, None, Options(), self._context.trace, now)

    def drop(self, resource: str) -> None:
        del self._newest[resource]

    async def connect(self, resource: str, socket: Path) -> None:
        """Dials back and asks for the options, then listens; raises with the kubelet's own words."""
        self._refuse_connected(resource, socket)
        connected: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        talk = self._tasks.create_task(self._talk(resource, socket, connected))
        try:
            await connected
        except asyncio.CancelledError:
            talk.cancel()
            raise
        except PlugwrightError as error:
            self._report_forgotten(resource, error)
            raise

    def disconnect(self, resource: str, socket: Path) -> None:
        """A socket left plugins_registry: its plugin's stream is cancelled (1.50)."""
        endpoint = self._newest.get(resource)
        if endpoint is None or endpoint.task is None or endpoint.stopped_at is not None:
            return
        if endpoint.socket == socket:
            self._stop(endpoint, f"{socket.name} was removed from plugins_registry")
            endpoint.task.cancel()
            return
        self._context.findings.report(
            "1.52",
            resource,
            f"{socket.name} went away, while another plugin serves the resource",
            "cuts off that other plugin",
        )

    async def _talk(self, resource: str, socket: Path, connected: "asyncio.Future[None]") -> None:
        try:
            async with endpoints.dialled(socket, self._context.settings.timing) as client:
                with self._context.trace.timing("GetDevicePluginOptions", resource):
                    may_be_missing = self._context.profile.options_may_be_missing
                    options = await endpoints.options_of(client, may_be_missing=may_be_missing)
                if options is None:
                    self._report_first(resource)
                endpoint = Endpoint(resource, socket, client, options or Options(), self._context.trace)
                endpoint.task = asyncio.current_task()
                self._newest[resource] = endpoint
                connected.set_result(None)
                await self._listen(endpoint)
        except PlugwrightError as error:
            if not connected.done():
                connected.set_exception(error)

    async def _listen(self, endpoint: Endpoint) -> None:
        """Until the stream ends, for whatever reason: a kubelet never asks a second time (2.15)."""
        self._context.trace.add(Call("ListAndWatch", endpoint.resource, outcome="open"))
        reason = "the plugin ended its list"
        try:
            async for devices in endpoint.lists():
                await self._listener.listed(endpoint, devices)
        except PlugwrightError as error:
            reason = str(error)
        self._stop(endpoint, reason)

    def _stop(self, endpoint: Endpoint, reason: str) -> None:
        endpoint.stopped_at = self._context.settings.clock()
        newest = self._newest.get(endpoint.resource)
        if newest is endpoint:
            self._listener.ended(endpoint, reason)
        elif newest and newest.stopped_at is None and not self._context.profile.endpoint_by_socket:
            self._context.findings.report(
                "2.22",
                endpoint.resource,
                "the stream of an older plugin ended while a newer one is connected",
                "tears down the newer connection and sets allocatable to 0",
            )

    def _refuse_connected(self, resource: str, socket: Path) -> None:
        endpoint = self._newest.get(resource)
        if endpoint is None or endpoint.stopped_at is not None:
            return
        if self._context.profile.endpoint_by_socket and endpoint.socket == socket:
            raise PeerRefused("UNKNOWN", "device plugin already connected")

    def _report_first(self, resource: str) -> None:
        self._context.findings.report(
            "1.33",
            resource,
            "the plugin has no GetDevicePluginOptions, as the first ones had none",
            "of today refuses it",
        )

    def _report_forgotten(self, resource: str, error: PlugwrightError) -> None:
        endpoint = self._newest.get(resource)
        if endpoint is not None and endpoint.stopped_at is None:
            self._context.findings.report(
                "1.37",
                resource,
                f"a second registration failed ({error}) while an older plugin is connected",
                "forgets the older one: when it ends, its devices stay advertised and Allocate fails",
            )
