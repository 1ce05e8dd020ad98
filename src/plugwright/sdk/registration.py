"""Keeps one resource registered with the kubelet, whatever happens to either.

Serve first, then register: the kubelet calls back before it answers. When it has to be done again, the old streams
are ended before, because up to Kubernetes 1.36 the end of an old stream cuts off the new connection.

The names of our sockets, and clearing away those that a killed run left behind.
"""

import asyncio
import logging
import os
import re
import time
import zlib
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TypeVar

from plugwright.errors import ConfigError, PeerGone, PlugwrightError
from plugwright.protocol import device_plugin, registration
from plugwright.protocol.registration import PluginInfo, RegisterRequest
from plugwright.sdk.inventory import Inventory
from plugwright.sdk.plugin import announced
from plugwright.sdk.service import PluginService
from plugwright.sdk.settings import Registration, Settings
from plugwright.system import sockets
from plugwright.system.concurrency import Backoff, Latest, first
from plugwright.system.inotify import Directory, Identity
from plugwright.system.sockets import SocketFile

__all__ = [
    "RegistrationState",
    "RegistrationStatus",
    "ResourceRegistration",
    "fixed_name",
    "fresh_name",
    "is_dead",
    "remove_stale",
]

_PREFIX = "plugwright-"
_NEWBORN = 1.0  # a socket younger than this may belong to someone who is about to listen


def fresh_name(resource: str) -> str:
    """A name no socket had before: a kubelet may still be busy with the last one."""
    return f"{_PREFIX}{_stem(resource)}-{os.urandom(3).hex()}.sock"


def fixed_name(resource: str) -> str:
    """The one name this resource has in plugins_registry."""
    return f"{_PREFIX}{_stem(resource)}.sock"


def _stem(resource: str) -> str:
    """Readable, and different for different resources, within the room that the kernel leaves."""
    readable = re.sub(r"[^a-z0-9]+", "_", resource.lower())[-24:].strip("_")
    return f"{readable}-{zlib.crc32(resource.encode()):08x}"


def remove_stale(directory: Path) -> list[str]:
    """Removes sockets of ours that nobody listens on any more: what a killed run left behind."""
    removed = []
    with suppress(OSError):
        for path in sorted(directory.glob(f"{_PREFIX}*.sock")):
            if is_dead(path):
                path.unlink(missing_ok=True)
                removed.append(path.name)
    return removed


def is_dead(path: Path, now: Callable[[], float] = time.time) -> bool:
    """Whether it is a socket that nobody listens on any more."""
    try:
        is_young = now() - path.lstat().st_ctime < _NEWBORN
    except OSError:
        return False
    return path.is_socket() and not is_young and not sockets.is_listening(path)


logger = logging.getLogger(__name__)

T = TypeVar("T")
_STEADY = 60.0  # a stream that lasted this long makes the next loss a first one again
_KUBELET = "kubelet.sock"


class RegistrationState(StrEnum):
    STARTING = "starting"  # no device list yet
    WAITING = "waiting"  # no kubelet to register with
    REGISTERING = "registering"
    REGISTERED = "registered"
    REFUSED = "refused"  # tried, and will be tried again
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True)
class RegistrationStatus:
    """How it stands between this resource and the kubelet."""

    state: RegistrationState
    since: float
    reason: str = ""


class ResourceRegistration:
    def __init__(self, inventory: Inventory, service: PluginService, directory: Directory, settings: Settings) -> None:
        self.resource = inventory.resource
        self.standing = Latest(RegistrationStatus(RegistrationState.STARTING, time.time()))
        self.endpoint = ""
        self._inventory, self._service, self._directory, self._settings = inventory, service, directory, settings
        patience = settings.timeouts
        self._retry = Backoff(patience.retry, patience.longest)
        self._loss = Backoff(patience.lost_stream, patience.longest)
        self._first_stream = Backoff(patience.first_stream, max(patience.first_stream, patience.longest))
        self._again = asyncio.Event()
        self._said = ""

    def register_again(self) -> None:
        """What the kubelet was told at registration is no longer true."""
        self._again.set()

    async def run(self) -> None:
        await self._inventory.newest.until(lambda snapshot: snapshot is not None)
        try:
            while True:
                await self._once()
        finally:
            self._stand(RegistrationState.STOPPED)

    async def _once(self) -> None:
        """One registration, from the socket's making to the reason why it must be made anew."""
        self._again.clear()
        seen = self._directory.identity(_KUBELET)
        try:
            if self._settings.registration is Registration.DIRECT:
                lost = await self._direct()
            else:
                lost = await self._watched()
        except (PlugwrightError, OSError) as error:
            self._failed(error)
            await self._pause(seen)
        else:
            self._stand(RegistrationState.REGISTERING, lost)
            self._say("registering again", lost)

    async def _direct(self) -> str:
        if self._directory.identity(_KUBELET) is None:
            self._waiting(f"no {_KUBELET} in {self._directory.path}")
        kubelet = await self._directory.appears(_KUBELET)
        path = self._directory.path / fresh_name(self.resource)
        async with device_plugin.serve(self._service, path) as serving:
            self._stand(RegistrationState.REGISTERING, self.standing.value.reason)
            before = self._service.streams.value.opened
            lost = await first(self._register(serving), self._moved(serving, kubelet))
            if lost:
                return lost
            self._registered(serving)
            return await first(self._moved(serving, kubelet), self._stream_lost(before), self._told_to())

    async def _register(self, serving: SocketFile) -> str:
        request = RegisterRequest(self.resource, serving.path.name, announced(self._service.plugin))
        async with registration.connect(self._directory.path / _KUBELET) as kubelet:
            await kubelet.register(request, timeout=self._settings.timeouts.register)
        return ""

    async def _watched(self) -> str:
        """The kubelet finds the socket by itself and asks who we are; see `announce` and `notify`."""
        if not self._directory.path.is_dir():
            self._waiting(f"no directory {self._directory.path}")
            await self._directory.ticks.until(lambda _: self._directory.path.is_dir())
        path = self._directory.path / fixed_name(self.resource)
        if path.exists() and not is_dead(path):
            raise ConfigError(f"{path.name} in {path.parent} belongs to another daemon")
        path.unlink(missing_ok=True)
        async with registration.serve_watched(self._service, self, path) as serving:
            self.endpoint = serving.path.name
            self._stand(RegistrationState.REGISTERING, "the kubelet's plugin watcher has not asked yet")
            before = self._service.streams.value.opened
            return await first(self._removed(serving), self._stream_lost(before), self._told_to())

    async def announce(self) -> PluginInfo:
        return PluginInfo(self.resource)

    async def notify(self, registered: bool, error: str) -> None:
        if registered:
            self._settled(self.endpoint)
        else:
            self._failed(PeerGone(error or "refused without a reason"))

    async def _moved(self, serving: SocketFile, kubelet: Identity) -> str:
        """Returns when either socket is no longer what the other side knows."""
        return await first(self._kubelet_anew(kubelet), self._removed(serving))

    async def _kubelet_anew(self, kubelet: Identity) -> str:
        await self._directory.changes_from(_KUBELET, kubelet)
        self._loss.reset()
        return f"{_KUBELET} was made anew"

    async def _removed(self, serving: SocketFile) -> str:
        await self._directory.ticks.until(lambda _: not serving.exists())
        return "our socket was removed"

    async def _stream_lost(self, before: int) -> str:
        """Returns when the kubelet, having opened a stream after the first `before`, has had none for a while."""
        streams = self._service.streams
        try:
            async with asyncio.timeout(self._first_stream.delay()):
                await streams.until(lambda count: count.opened > before)
        except TimeoutError:
            return "the kubelet has asked for no device list"
        self._first_stream.reset()
        while True:
            opened = time.monotonic()
            await streams.until(lambda count: count.open == 0)
            if time.monotonic() - opened > _STEADY:
                self._loss.reset()
            try:
                async with asyncio.timeout(self._loss.delay()):
                    await streams.until(lambda count: count.open > 0)
            except TimeoutError:
                return "the kubelet ended its device list"

    async def _told_to(self) -> str:
        await self._again.wait()
        return "the plugin's options have changed"

    async def _pause(self, seen: Identity | None) -> None:
        """Waits before the next try, but not longer than until there is another kubelet."""
        with suppress(TimeoutError):
            async with asyncio.timeout(self._retry.delay()):
                await self._directory.changes_from(_KUBELET, seen)
            self._retry.reset()

    def _registered(self, serving: SocketFile) -> None:
        self._retry.reset()
        self._settled(serving.path.name)

    def _settled(self, endpoint: str) -> None:
        self._service.tally.registrations["ok"] += 1
        self.endpoint, self._said = endpoint, ""
        self._stand(RegistrationState.REGISTERED)
        logger.info("registered", extra={"resource": self.resource, "endpoint": endpoint})

    def _waiting(self, reason: str) -> None:
        self._stand(RegistrationState.WAITING, reason)
        self._say("waiting for the kubelet", reason)

    def _failed(self, error: Exception) -> None:
        self._service.tally.registrations["failed"] += 1
        self._stand(RegistrationState.REFUSED, str(error))
        self._say("not registered, trying again", str(error))

    def _say(self, message: str, reason: str) -> None:
        """Once for each reason: an operator needs to read it, not every retry of it."""
        level = logging.DEBUG if reason == self._said else logging.WARNING
        logger.log(level, message, extra={"resource": self.resource, "reason": reason})
        self._said = reason

    def _stand(self, state: RegistrationState, reason: str = "") -> None:
        before = self.standing.value
        if (before.state, before.reason) != (state, reason):
            self.standing.publish(RegistrationStatus(state, time.time(), reason))
