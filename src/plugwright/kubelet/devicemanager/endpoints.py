"""The endpoints: the plugins a kubelet is connected to, dialled, watched and called.

As upstream, an endpoint belongs to a resource and keeps its stop time after the plugin is gone. From 1.37 on a resource
may have several endpoints, one for each socket, of which one is called. What a device list or the end of the last
stream means for the node is `manager`'s decision, behind `EndpointHandler`. Errors are the real kubelet's texts,
because users and plugins match on them; gRPC errors read as Go prints them.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from plugwright.errors import AllocationFailed, MalformedMessage, PeerGone, PeerRefused, PeerSilent, PlugwrightError
from plugwright.kubelet.events import Call, EventLog
from plugwright.kubelet.settings import KubeletContext
from plugwright.model import Options, PreferenceRequest
from plugwright.protocol import device_plugin, messages
from plugwright.protocol.device_plugin import DevicePluginClient
from plugwright.protocol.messages import AllocateResponse, ListedDevice

__all__ = ["Endpoint", "EndpointHandler", "Endpoints", "dial", "grpc_status_text", "plugin_options"]

_FIRST_RETRY, _GROWTH, _MAX_RETRY = 1.0, 1.6, 120.0  # of Go's gRPC library
_GO_CODES = {"CANCELLED": "Canceled"}  # the other codes are the same words in camel case
_MALFORMED = "grpc: failed to unmarshal the received message: proto: cannot parse invalid wire-format data"


@dataclass(slots=True, eq=False)
class Endpoint:
    """`client` is None for a resource known only from the checkpoint. `stopped_at` is when the stream ended."""

    resource: str
    socket: Path | None
    client: DevicePluginClient | None
    options: Options
    event_log: EventLog = field(repr=False)
    stopped_at: float | None = None
    task: asyncio.Task[None] | None = field(default=None, repr=False)

    async def device_lists(self) -> AsyncGenerator[list[ListedDevice], None]:
        async with aclosing(self._client().list_and_watch()) as lists:
            async for devices in lists:
                yield devices

    async def prefer(self, request: PreferenceRequest) -> list[str]:
        """The ids of the first container response; an empty answer is allowed (3.29)."""
        client = self._client()
        with self.event_log.record_call("GetPreferredAllocation", self.resource, request.available):
            preferences = await client.prefer(request)
        return preferences[0] if preferences else []

    async def allocate_encoded(self, device_ids: Sequence[str]) -> list[bytes]:
        """The container responses of Allocate, as encoded messages."""
        client = self._client()
        with self.event_log.record_call("Allocate", self.resource, tuple(device_ids)):
            return await client.allocate_encoded(device_ids)

    async def allocate(self, device_ids: Sequence[str]) -> AllocateResponse:
        """Calls Allocate outside of any admission: the device manager records nothing."""
        responses = await self.allocate_encoded(device_ids)
        if not responses:
            raise AllocationFailed("no containers return in allocation response")
        return messages.decode(responses[0])

    async def pre_start(self, device_ids: Sequence[str], timeout: float) -> None:
        client = self._client()
        with self.event_log.record_call("PreStartContainer", self.resource, tuple(device_ids)):
            await client.pre_start(device_ids, timeout)

    def _client(self) -> DevicePluginClient:
        # Calls to a stopped endpoint fail without reaching the plugin (2.17).
        if self.client is None or self.stopped_at is not None:
            raise AllocationFailed(f"endpoint {self.resource} has been stopped")
        return self.client


class EndpointHandler(Protocol):
    """Receives a plugin's device lists, and the end of its stream."""

    async def list_received(self, endpoint: Endpoint, devices: list[ListedDevice]) -> None: ...

    def disconnected(self, endpoint: Endpoint, reason: str) -> None: ...


class Endpoints:
    """The called endpoint of each resource, the newest; an older endpoint's stream is read until it ends (2.22)."""

    def __init__(self, context: KubeletContext, tasks: asyncio.TaskGroup, handler: EndpointHandler) -> None:
        self._context = context
        self._tasks = tasks
        self._handler = handler
        self._newest: dict[str, Endpoint] = {}
        self._connected: dict[str, dict[Path, Endpoint]] = {}  # those of 1.37, by socket, the oldest first

    def __iter__(self) -> Iterator[Endpoint]:
        return iter([endpoint for _, endpoint in sorted(self._newest.items())])

    def get(self, resource: str) -> Endpoint | None:
        return self._newest.get(resource)

    def restore(self, resources: list[str]) -> None:
        """Adds a stopped endpoint for each resource of the checkpoint, until its plugin registers again (1.20)."""
        now = self._context.settings.clock()
        for resource in resources:
            self._newest[resource] = Endpoint(resource, None, None, Options(), self._context.event_log, now)

    def remove(self, resource: str) -> None:
        del self._newest[resource]

    async def connect(self, resource: str, socket: Path) -> None:
        """Dials the plugin and gets its options, then reads its lists in the background."""
        connected: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        task = self._tasks.create_task(self._serve(resource, socket, connected))
        try:
            await connected
        except asyncio.CancelledError:
            task.cancel()
            raise
        except PlugwrightError as error:
            self._report_forgotten(resource, socket, error)
            raise

    def disconnect(self, resource: str, socket: Path) -> None:
        """Cancels the stream of a plugin whose socket was removed from plugins_registry (1.50)."""
        endpoint = self._connected.get(resource, {}).get(socket) or self._newest.get(resource)
        if endpoint is None or endpoint.task is None or endpoint.stopped_at is not None:
            return
        if endpoint.socket == socket:
            self._stop(endpoint, f"{socket.name} was removed from plugins_registry")
            endpoint.task.cancel()
            return
        if self._context.profile.endpoint_by_socket:
            return
        self._context.findings.report(
            "1.52",
            resource,
            f"{socket.name} went away, while another plugin serves the resource",
            "cuts off that other plugin",
        )

    def hang_up(self, resource: str) -> None:
        """Ends the stream and the connection of the called plugin."""
        endpoint = self._newest.get(resource)
        if endpoint is not None and endpoint.task is not None and endpoint.stopped_at is None:
            self._stop(endpoint, "the kubelet ended the connection")
            endpoint.task.cancel()

    async def _serve(self, resource: str, socket: Path, connected: "asyncio.Future[None]") -> None:
        try:
            async with dial(socket, self._context.settings.timing.dial) as client:
                with self._context.event_log.record_call("GetDevicePluginOptions", resource):
                    may_be_missing = self._context.profile.options_may_be_missing
                    options = await plugin_options(client, may_be_missing=may_be_missing)
                if options is None:
                    self._report_missing_options(resource)
                if connected.cancelled():  # the plugin gave up its Register call in this very moment
                    return
                endpoint = Endpoint(resource, socket, client, options or Options(), self._context.event_log)
                self._add(endpoint)
                connected.set_result(None)
                await self._list_and_watch(endpoint)
        except PlugwrightError as error:
            if not connected.done():
                connected.set_exception(error)

    async def _list_and_watch(self, endpoint: Endpoint) -> None:
        """Reads the lists until the stream ends; the kubelet never calls ListAndWatch a second time (2.15)."""
        self._context.event_log.add(Call("ListAndWatch", endpoint.resource, outcome="open"))
        reason = "the plugin ended its list"
        try:
            async for devices in endpoint.device_lists():
                await self._handler.list_received(endpoint, devices)
        except PlugwrightError as error:
            reason = str(error)
        self._stop(endpoint, reason)

    def _add(self, endpoint: Endpoint) -> None:
        if self._context.profile.endpoint_by_socket:
            assert endpoint.socket is not None
            connected = self._connected.setdefault(endpoint.resource, {})
            if endpoint.socket in connected:  # only now: the plugin was dialled and has answered (1.35)
                raise PeerRefused("UNKNOWN", f"device plugin already connected: {endpoint.socket}")
            connected[endpoint.socket] = endpoint
        endpoint.task = asyncio.current_task()
        self._newest[endpoint.resource] = endpoint

    def _stop(self, endpoint: Endpoint, reason: str) -> None:
        if endpoint.stopped_at is not None:
            return
        endpoint.stopped_at = self._context.settings.clock()
        newest = self._newest.get(endpoint.resource)
        if self._promoted(endpoint):
            return
        if newest is endpoint:
            self._handler.disconnected(endpoint, reason)
        elif newest and newest.stopped_at is None:
            self._context.findings.report(
                "2.22",
                endpoint.resource,
                "the stream of an older plugin ended while a newer one is connected",
                "tears down the newer connection and sets allocatable to 0",
            )

    def _promoted(self, gone: Endpoint) -> bool:
        """Whether another plugin of the resource is called from now on; its devices stay as they are (2.22)."""
        connected = self._connected.get(gone.resource, {})
        if gone.socket is None or connected.pop(gone.socket, None) is None or not connected:
            return False
        if self._newest.get(gone.resource) is gone:  # the real kubelet takes any of them
            self._newest[gone.resource] = survivor = list(connected.values())[-1]
            assert survivor.socket is not None
            self._context.record("promoted", gone.resource, f"calls go to {survivor.socket.name}")
        return True

    def _report_missing_options(self, resource: str) -> None:
        self._context.findings.report(
            "1.33",
            resource,
            "the plugin has no GetDevicePluginOptions, as the first ones had none",
            "of today refuses it",
        )

    def _report_forgotten(self, resource: str, socket: Path, error: PlugwrightError) -> None:
        by_socket = self._context.profile.endpoint_by_socket
        endpoint = self._connected.get(resource, {}).get(socket) if by_socket else self._newest.get(resource)
        if endpoint is None or endpoint.stopped_at is not None:
            return
        refused = ", and this socket is refused until the kubelet restarts" if by_socket else " and Allocate fails"
        self._context.findings.report(
            "1.37",
            resource,
            f"a second registration failed ({error}) while an older plugin is connected",
            f"forgets the older one: when it ends, its devices stay advertised{refused}",
        )


@asynccontextmanager
async def dial(socket: Path, timeout: float) -> AsyncIterator[DevicePluginClient]:
    """A connected plugin; raises the kubelet's answer to Register when nothing listens at the endpoint (1.32)."""
    try:
        async with device_plugin.connect(socket) as client:
            await _wait_until_reachable(client, timeout)
            yield client
    except _Unreachable:
        raise PeerRefused("UNKNOWN", "failed to dial device plugin: context deadline exceeded") from None


class _Unreachable(Exception):
    """Nothing accepted the connection within the timeout."""


async def _wait_until_reachable(client: DevicePluginClient, timeout: float) -> None:
    wait = _FIRST_RETRY
    try:
        async with asyncio.timeout(timeout):
            while not await _is_reachable(client):
                await asyncio.sleep(wait)
                wait = min(wait * _GROWTH, _MAX_RETRY)
    except TimeoutError:
        raise _Unreachable from None


async def _is_reachable(client: DevicePluginClient) -> bool:
    try:
        await client.dial()
    except PeerGone:
        return False
    return True


async def plugin_options(client: DevicePluginClient, *, may_be_missing: bool) -> Options | None:
    """The plugin's options; None for the first plugins, which lack GetDevicePluginOptions (1.33)."""
    try:
        return await client.options()
    except PlugwrightError as error:
        if may_be_missing and isinstance(error, PeerRefused) and error.code == "UNIMPLEMENTED":
            return None
        text = f"failed to get device plugin options: {grpc_status_text(error)}"
        raise PeerRefused("UNKNOWN", text) from error


def grpc_status_text(error: PlugwrightError) -> str:
    """The error as Go prints it, such as `rpc error: code = Unknown desc = hw fault`."""
    code, message = _go_status(error)
    return f"rpc error: code = {code} desc = {message}"


def _go_status(error: PlugwrightError) -> tuple[str, str]:
    if isinstance(error, PeerSilent) or _is_our_deadline(error):
        return "DeadlineExceeded", "context deadline exceeded"
    if isinstance(error, PeerRefused):
        return _GO_CODES.get(error.code, error.code.title().replace("_", "")), error.message
    if isinstance(error, PeerGone):
        return "Unavailable", error.message or "error reading from server: EOF"
    if isinstance(error, MalformedMessage):
        return "Internal", _MALFORMED
    return "Unknown", str(error)


def _is_our_deadline(error: PlugwrightError) -> bool:
    # The plugin knows our deadline too, and its status for it may arrive before our own timeout.
    return isinstance(error, PeerRefused) and error.code == "DEADLINE_EXCEEDED" and not error.message
