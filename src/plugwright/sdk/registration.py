"""Registration of one resource with the kubelet: made, kept, and repeated after a restart of either side.

Serve first, then register: the kubelet connects to the plugin before it answers (1.25). Before the next registration,
the old streams are ended, because up to Kubernetes 1.36 the end of an old stream cuts off the new connection (2.22).

Socket names contain the resource; `remove_stale_sockets` removes sockets left by a killed run.
"""

import asyncio
import logging
import os
import re
import time
import zlib
from collections.abc import Callable, Mapping
from contextlib import suppress
from enum import StrEnum
from pathlib import Path

import msgspec

from plugwright.errors import ConfigError, PlugwrightError
from plugwright.protocol import device_plugin, registration
from plugwright.protocol.registration import PluginInfo, RegisterRequest
from plugwright.sdk.inventory import Inventory
from plugwright.sdk.metrics import ResourceMetrics
from plugwright.sdk.plugin import supported_options
from plugwright.sdk.service import PluginService
from plugwright.sdk.settings import Registration, Settings, Timeouts
from plugwright.system import sockets
from plugwright.system.concurrency import Backoff, first
from plugwright.system.inotify import Directory, Identity
from plugwright.system.latest import Latest, Signal
from plugwright.system.log_once import LogOnce
from plugwright.system.sockets import SocketFile

__all__ = [
    "LONGEST_SOCKET_NAME",
    "NEW_SOCKET",
    "RegistrationReport",
    "RegistrationState",
    "RegistrationStatus",
    "RegistrationTiming",
    "ResourceRegistration",
    "fixed_socket_name",
    "is_stale_socket",
    "other_sockets",
    "remove_stale_sockets",
    "unique_socket_name",
]

logger = logging.getLogger(__name__)

LONGEST_SOCKET_NAME = 56  # bytes of a name by unique_socket_name
NEW_SOCKET = 1.0  # seconds; a process can be about to listen on a socket younger than this
_PREFIX = "plugwright-"
_KUBELET = "kubelet.sock"
_REMOVED = "our socket was removed"  # the kubelet removes every socket in this directory when it starts (1.16)
_STEADY = 60.0  # seconds; a stream that lasted this long resets the back-off


class RegistrationState(StrEnum):
    STARTING = "starting"  # no device list yet
    WAITING = "waiting"  # no kubelet to register with
    REGISTERING = "registering"
    REGISTERED = "registered"
    REFUSED = "refused"  # failed, and will be retried
    STOPPED = "stopped"


class RegistrationStatus(msgspec.Struct, frozen=True):
    """The state of a registration, since when, and why."""

    state: RegistrationState
    since: float
    reason: str = ""


class RegistrationReport:
    """A registration as reported by `status`, metrics and the log; `subject` names the resource or driver as a fact."""

    def __init__(self, subject: Mapping[str, str], metrics: ResourceMetrics) -> None:
        self.status = Latest(RegistrationStatus(RegistrationState.STARTING, time.time()))
        self._subject, self._metrics = subject, metrics
        self._problems = LogOnce(logger)

    def set(self, state: RegistrationState, reason: str = "") -> None:
        before = self.status.value
        if (before.state, before.reason) != (state, reason):
            self.status.publish(RegistrationStatus(state, time.time(), reason))

    def registered(self, **facts: str) -> None:
        self._metrics.registrations["ok"] += 1
        self._problems.recovered()
        self.set(RegistrationState.REGISTERED)
        logger.info("registered", extra={**self._subject, **facts})

    def registering_again(self, reason: str) -> None:
        self.set(RegistrationState.REGISTERING, reason)
        self._warn("registering again", reason)

    def waiting(self, reason: str) -> None:
        self.set(RegistrationState.WAITING, reason)
        self._warn("waiting for the kubelet", reason)

    def failed(self, reason: str) -> None:
        self._metrics.registrations["failed"] += 1
        self.set(RegistrationState.REFUSED, reason)
        self._warn("not registered, retrying", reason)

    def _warn(self, message: str, reason: str) -> None:
        self._problems.warning(message, reason, extra={**self._subject, "reason": reason})


class RegistrationTiming(msgspec.Struct, frozen=True):
    """The waits before another attempt, and the clock for steady streams."""

    retry: Backoff  # after a failure
    lost_stream: Backoff  # after the kubelet ended ListAndWatch
    first_stream: Backoff  # after a registration without a stream
    now: Callable[[], float] = time.monotonic

    @classmethod
    def of(cls, timeouts: Timeouts) -> "RegistrationTiming":
        return cls(
            retry=Backoff(timeouts.retry, timeouts.longest),
            lost_stream=Backoff(timeouts.lost_stream, timeouts.longest),
            first_stream=Backoff(timeouts.first_stream, max(timeouts.first_stream, timeouts.longest)),
        )


class ResourceRegistration:
    """Keeps one resource registered. `timing` defaults to that of the settings."""

    def __init__(
        self,
        inventory: Inventory,
        service: PluginService,
        directory: Directory,
        settings: Settings,
        timing: RegistrationTiming | None = None,
    ) -> None:
        self.resource = inventory.resource
        self._report = RegistrationReport({"resource": self.resource}, service.metrics)
        self.status = self._report.status
        self.endpoint = ""
        self._inventory, self._service, self._directory, self._settings = inventory, service, directory, settings
        self._timing = timing or RegistrationTiming.of(settings.timeouts)
        self._options = Signal()  # the plugin's options have changed

    def register_again(self) -> None:
        """Registers again, because the options in the last registration are no longer true."""
        self._options.notify()

    async def run(self) -> None:
        await self._inventory.latest.until(lambda snapshot: snapshot is not None)
        try:
            while True:
                await self._run_once()
        finally:
            self._report.set(RegistrationState.STOPPED)

    async def announce(self) -> PluginInfo:
        """Answers the kubelet's plugin watcher."""
        return PluginInfo(self.resource)

    async def notify(self, registered: bool, error: str) -> None:
        """Receives the plugin watcher's result."""
        if registered:
            self._registered(self.endpoint)
        else:
            self._report.failed(error or "refused without a reason")

    async def _run_once(self) -> None:
        """One registration, from the creation of the socket until it must be repeated."""
        kubelet = self._directory.identity(_KUBELET)
        try:
            if self._settings.registration is Registration.DIRECT:
                reason = await self._register_directly()
            else:
                reason = await self._wait_for_watcher()
        except (PlugwrightError, OSError) as error:
            self._report.failed(str(error))
            await self._wait_before_retry(kubelet)
        else:
            self._report.registering_again(reason)

    async def _register_directly(self) -> str:
        """Registers with kubelet.sock; returns why the registration has ended."""
        options = self._options.count
        if self._directory.identity(_KUBELET) is None:
            self._report.waiting(f"no {_KUBELET} in {self._directory.path}")
        kubelet = await self._directory.appears(_KUBELET)
        path = self._directory.path / unique_socket_name(self.resource)
        async with device_plugin.serve(self._service, path, self._service.allocate_now) as served:
            self._report.set(RegistrationState.REGISTERING, self.status.value.reason)
            before = self._service.streams.value.opened
            replaced = await first(self._register(served), self._socket_replaced(served, kubelet))
            if replaced:
                return replaced
            self._timing.retry.reset()
            self._registered(served.path.name)
            return await first(
                self._socket_replaced(served, kubelet), self._stream_lost(before), self._options_changed(options)
            )

    async def _register(self, served: SocketFile) -> str:
        request = RegisterRequest(self.resource, served.path.name, supported_options(self._service.plugin))
        async with registration.connect(self._directory.path / _KUBELET) as kubelet:
            await kubelet.register(request, timeout=self._settings.timeouts.register)
        return ""

    async def _wait_for_watcher(self) -> str:
        """Is registered by the plugin watcher, which calls `announce` and `notify`; returns the reason for its end."""
        options = self._options.count
        if not self._directory.path.is_dir():
            self._report.waiting(f"no directory {self._directory.path}")
            await self._directory.changed.until(self._directory.path.is_dir)
        path = self._directory.path / fixed_socket_name(self.resource)
        if path.exists() and not is_stale_socket(path):
            raise ConfigError(f"{path.name} in {path.parent} belongs to another daemon")
        path.unlink(missing_ok=True)
        async with registration.serve_watched(self._service, self, path, self._service.allocate_now) as served:
            self.endpoint = served.path.name
            self._report.set(RegistrationState.REGISTERING, "the kubelet's plugin watcher has not asked yet")
            before = self._service.streams.value.opened
            return await first(self._socket_removed(served), self._stream_lost(before), self._options_changed(options))

    async def _socket_replaced(self, served: SocketFile, kubelet: Identity) -> str:
        """Returns when either socket differs from the socket known to the other side."""
        directory = self._directory
        await directory.changed.until(lambda: directory.has_changed_from(_KUBELET, kubelet) or not served.exists())
        if not directory.has_changed_from(_KUBELET, kubelet):
            return _REMOVED
        self._timing.lost_stream.reset()
        return f"{_KUBELET} was created again"

    async def _socket_removed(self, served: SocketFile) -> str:
        await served.removed(self._directory.changed)
        return _REMOVED

    async def _stream_lost(self, before: int) -> str:
        """Returns when the kubelet, having opened a stream after the first `before`, has had none for a while."""
        streams = self._service.streams
        try:
            async with asyncio.timeout(self._timing.first_stream.delay()):
                await streams.until(lambda counts: counts.opened > before)
        except TimeoutError:
            return "the kubelet has not called ListAndWatch"
        self._timing.first_stream.reset()
        while True:
            opened = self._timing.now()
            await streams.until(lambda counts: counts.open == 0)
            if self._timing.now() - opened > _STEADY:
                self._timing.lost_stream.reset()
            try:
                async with asyncio.timeout(self._timing.lost_stream.delay()):
                    await streams.until(lambda counts: counts.open > 0)
            except TimeoutError:
                return "the kubelet ended ListAndWatch"

    async def _options_changed(self, seen: int) -> str:
        await self._options.wait(seen)
        return "the plugin's options have changed"

    async def _wait_before_retry(self, kubelet: Identity | None) -> None:
        """Waits for the back-off, or until another kubelet appears."""
        with suppress(TimeoutError):
            async with asyncio.timeout(self._timing.retry.delay()):
                await self._directory.changes_from(_KUBELET, kubelet)
            self._timing.retry.reset()

    def _registered(self, endpoint: str) -> None:
        self.endpoint = endpoint
        self._report.registered(endpoint=endpoint, directory=str(self._directory.path))


def unique_socket_name(resource: str) -> str:
    """A new name for each socket: a kubelet can still be using the last socket."""
    return f"{_PREFIX}{_stem(resource)}-{os.urandom(3).hex()}.sock"


def fixed_socket_name(resource: str) -> str:
    """The fixed name of this resource's socket in plugins_registry."""
    return f"{_PREFIX}{_stem(resource)}.sock"


def _stem(resource: str) -> str:
    """Readable, different for different resources, and short enough for a socket's path."""
    readable = re.sub(r"[^a-z0-9]+", "_", resource.lower())[-24:].strip("_")
    return f"{readable}-{zlib.crc32(resource.encode()):08x}"


def remove_stale_sockets(directory: Path, now: Callable[[], float] = time.time) -> list[str]:
    """Removes our sockets without a listener; returns their names."""
    removed = []
    with suppress(OSError):
        for path in sorted(directory.glob(f"{_PREFIX}*.sock")):
            if is_stale_socket(path, now):
                path.unlink(missing_ok=True)
                removed.append(path.name)
    return removed


def other_sockets(directory: Path, resource: str, endpoint: str) -> list[str]:
    """Sockets of our other daemons for this resource, on which processes listen; `endpoint` is our own."""
    paths = directory.glob(f"{_PREFIX}{_stem(resource)}*.sock")
    return sorted(path.name for path in paths if path.name != endpoint and sockets.is_listening(path))


def is_stale_socket(path: Path, now: Callable[[], float] = time.time) -> bool:
    """Whether the path is a socket without a listener."""
    try:
        # If the clock was set back, an old socket is in the future: such a socket is not new.
        is_new = 0 <= now() - path.lstat().st_mtime < NEW_SOCKET
    except OSError:
        return False
    return path.is_socket() and not is_new and not sockets.is_listening(path)
