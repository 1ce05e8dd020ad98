"""One plugin as a kubelet sees it: dialled, asked for its options, listened to and called.

What its lists mean is `stock`'s; what becomes of a plugin that went away is `manager`'s.

The plugins a kubelet is connected to: dialling back, and listening until the stream ends.

What a list or an end means for the node is `manager`'s; how one plugin is called is `endpoint`'s.

The real kubelet's words for what went wrong between it and a plugin.

Users, tests and plugins match on them; gRPC errors read as Go prints them.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from plugwright.errors import AllocationFailed, MalformedMessage, PeerGone, PeerRefused, PeerSilent, PlugwrightError
from plugwright.kubelet.devicemanager.context import Context
from plugwright.kubelet.events import Call, Trace
from plugwright.kubelet.settings import Timing
from plugwright.model import Options, PreferenceRequest
from plugwright.protocol import device_plugin, messages
from plugwright.protocol.device_plugin import DevicePluginClient
from plugwright.protocol.messages import AllocateResponse, ListedDevice

__all__ = ["Connections", "Endpoint", "Listener", "dialled", "options_of", "status_text"]

_SPELLINGS = {"CANCELLED": "Canceled"}  # Go spells all the others as one would guess
_MALFORMED = "grpc: failed to unmarshal the received message: proto: cannot parse invalid wire-format data"


def status_text(error: PlugwrightError) -> str:
    """As in `rpc error: code = Unknown desc = hw fault`."""
    code, message = _status(error)
    return f"rpc error: code = {code} desc = {message}"


def _status(error: PlugwrightError) -> tuple[str, str]:
    if isinstance(error, PeerSilent) or _gave_up_with_us(error):
        return "DeadlineExceeded", "context deadline exceeded"
    if isinstance(error, PeerRefused):
        return _SPELLINGS.get(error.code, error.code.title().replace("_", "")), error.message
    if isinstance(error, PeerGone):
        return "Unavailable", error.message or "error reading from server: EOF"
    if isinstance(error, MalformedMessage):
        return "Internal", _MALFORMED
    return "Unknown", str(error)


def _gave_up_with_us(error: PlugwrightError) -> bool:
    """A plugin knows our deadline, and its own word for it may arrive first."""
    return isinstance(error, PeerRefused) and error.code == "DEADLINE_EXCEEDED" and not error.message


_FIRST_RETRY, _GROWTH, _MOST_RETRY = 1.0, 1.6, 120.0  # of Go's gRPC library


@dataclass(slots=True, eq=False)
class Endpoint:
    """`client` is None for a resource that only the checkpoint remembers. `stopped_at` is when the plugin went."""

    resource: str
    socket: Path | None
    client: DevicePluginClient | None
    options: Options
    trace: Trace = field(repr=False)
    stopped_at: float | None = None
    task: asyncio.Task[None] | None = field(default=None, repr=False)

    async def lists(self) -> AsyncGenerator[list[ListedDevice], None]:
        async with aclosing(self._client().list_and_watch()) as lists:
            async for devices in lists:
                yield devices

    async def prefer(self, request: PreferenceRequest) -> list[str]:
        """The ids of the first answer; an empty wish is a wish (3.29)."""
        client = self._client()
        with self.trace.timing("GetPreferredAllocation", self.resource, request.available):
            wishes = await client.prefer(request)
        return wishes[0] if wishes else []

    async def answers(self, device_ids: Sequence[str]) -> list[bytes]:
        client = self._client()
        with self.trace.timing("Allocate", self.resource, tuple(device_ids)):
            return await client.allocate_encoded(device_ids)

    async def allocate(self, device_ids: Sequence[str]) -> AllocateResponse:
        """Allocate as it is, outside of any admission: nothing is recorded."""
        given = await self.answers(device_ids)
        if not given:
            raise AllocationFailed("no containers return in allocation response")
        return messages.decode(given[0])

    async def pre_start(self, device_ids: Sequence[str], timeout: float) -> None:
        client = self._client()
        with self.trace.timing("PreStartContainer", self.resource, tuple(device_ids)):
            await client.pre_start(device_ids, timeout)

    def _client(self) -> DevicePluginClient:
        if self.client is None or self.stopped_at is not None:
            raise AllocationFailed(f"endpoint {self.resource} has been stopped")  # 2.17
        return self.client


@asynccontextmanager
async def dialled(socket: Path, timing: Timing) -> AsyncIterator[DevicePluginClient]:
    """A connected plugin; raises what a kubelet answers to Register when nobody can be reached (1.32)."""
    try:
        async with device_plugin.connect(socket) as client:
            await _dial(client, timing.dial)
            yield client
    except _Unreachable:
        raise PeerRefused("UNKNOWN", "failed to dial device plugin: context deadline exceeded") from None


class _Unreachable(Exception):
    """Nobody answered in time."""


async def _dial(client: DevicePluginClient, limit: float) -> None:
    wait = _FIRST_RETRY
    try:
        async with asyncio.timeout(limit):
            while not await _reached(client):
                await asyncio.sleep(wait)
                wait = min(wait * _GROWTH, _MOST_RETRY)
    except TimeoutError:
        raise _Unreachable from None


async def _reached(client: DevicePluginClient) -> bool:
    try:
        await client.dial()
    except PeerGone:
        return False
    return True


async def options_of(client: DevicePluginClient, *, may_be_missing: bool) -> Options | None:
    """What the plugin supports; None for one of the first days, which has no such method (1.33)."""
    try:
        return await client.options()
    except PlugwrightError as error:
        if may_be_missing and isinstance(error, PeerRefused) and error.code == "UNIMPLEMENTED":
            return None
        text = f"failed to get device plugin options: {status_text(error)}"
        raise PeerRefused("UNKNOWN", text) from error


class Listener(Protocol):
    """Who hears what the plugins say."""

    async def listed(self, endpoint: Endpoint, devices: list[ListedDevice]) -> None: ...

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
            async with dialled(socket, self._context.settings.timing) as client:
                with self._context.trace.timing("GetDevicePluginOptions", resource):
                    may_be_missing = self._context.profile.options_may_be_missing
                    options = await options_of(client, may_be_missing=may_be_missing)
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
