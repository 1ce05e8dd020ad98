"""One plugin as a kubelet sees it: dialled, asked for its options, listened to and called.

What its lists mean is `stock`'s; what becomes of a plugin that went away is `manager`'s.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from plugwright.errors import AllocationFailed, PeerGone, PeerRefused, PlugwrightError
from plugwright.kubelet.settings import Timing
from plugwright.kubelet.texts import status_text
from plugwright.kubelet.trace import Trace
from plugwright.model import Options, PreferenceRequest
from plugwright.protocol import answers, device_plugin
from plugwright.protocol.answers import Answer
from plugwright.protocol.device_plugin import DevicePluginClient
from plugwright.protocol.wire import Listed

__all__ = ["Endpoint", "dialled", "options_of"]

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

    async def lists(self) -> AsyncGenerator[list[Listed], None]:
        async with aclosing(self._client().listed()) as lists:
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
            return await client.answers(device_ids)

    async def allocate(self, device_ids: Sequence[str]) -> Answer:
        """Allocate as it is, outside of any admission: nothing is recorded."""
        given = await self.answers(device_ids)
        if not given:
            raise AllocationFailed("no containers return in allocation response")
        return answers.decode(given[0])

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
