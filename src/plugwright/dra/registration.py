"""Registration of a DRA driver with the kubelet: serves its two sockets for as long as the driver runs.

The service socket comes first, because the kubelet connects to it as soon as it knows the path (11.3). Both have fixed
names, so that the kubelet continues with the driver after a restart of either side; sockets left by a killed run are
removed first. During a rolling update two instances run side by side, and then the names of each contain the uid of its
pod.

When the driver ends, calls in progress get a moment to finish before the sockets are removed; when the daemon stops, it
waits longer for them (`finish`).
"""

import asyncio
import logging
import re
import time
import zlib
from collections.abc import Awaitable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

import msgspec

from plugwright.errors import ConfigError, PathTooLong, PeerGone, PlugwrightError
from plugwright.protocol import dra, dra_health, registration, transport
from plugwright.protocol.dra import DRA_PLUGIN, Claim, DRAPluginService, PreparedDevice
from plugwright.protocol.dra_health import DRAHealthService
from plugwright.protocol.paths import KubeletPaths
from plugwright.protocol.registration import PluginInfo
from plugwright.sdk.metrics import ResourceMetrics
from plugwright.sdk.registration import RegistrationReport, RegistrationState, is_stale_socket
from plugwright.system import sockets
from plugwright.system.concurrency import Backoff, first
from plugwright.system.inotify import Directory
from plugwright.system.latest import InProgress, Latest
from plugwright.system.sockets import SocketFile
from plugwright.text import clean

__all__ = ["DriverRegistration", "DriverServices", "DriverSockets", "RunningCalls"]

logger = logging.getLogger(__name__)

T = TypeVar("T")
_UID = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9]{0,62}[A-Za-z0-9])?")
_UNASKED = "the kubelet's plugin watcher has not asked yet"
_LONGEST_RETRY = 30.0  # seconds
_FINISH_LIMIT = 1.5  # seconds for calls in progress when only the driver ends; a resource has two to stop


class DriverSockets(msgspec.Struct, frozen=True):
    """The paths of a driver's two sockets."""

    service: Path
    registration: Path

    @classmethod
    def of(cls, paths: KubeletPaths, driver: str, instance: str = "") -> "DriverSockets":
        """The longest possible names; `instance` is the uid of a pod that can serve the driver beside another."""
        if instance and not _UID.fullmatch(instance):
            raise ConfigError(f"the uid of the pod must be letters, digits and dashes, got {instance!r}")
        short = f"dra-{_digest(f'{driver} {instance}')}"
        if not instance:
            services, registrations = ["dra.sock"], [f"{driver}-reg.sock"]
        else:
            ends = (instance, _digest(instance))
            services = [f"dra-{end}.sock" for end in ends]
            registrations = [f"{driver}-{end}-reg.sock" for end in ends]
        directory = paths.plugins / driver
        return cls(
            _first_that_fits([*(directory / name for name in services), paths.plugins / f"{short}.sock"]),
            _first_that_fits([paths.plugins_registry / name for name in (*registrations, f"{short}-reg.sock")]),
        )

    def remove_stale(self, driver: str) -> list[str]:
        """Removes the sockets of this driver that no process listens on; returns their names."""
        uid = r"[A-Za-z0-9][-A-Za-z0-9]*"
        ours = {
            self.registration.parent: re.compile(rf"{re.escape(driver)}(-([0-9a-f]{{8}}|[0-9a-f-]{{36}}))?-reg\.sock"),
            self.service.parent: re.compile(rf"dra(-{uid})?\.sock") if self.service.parent.name == driver else None,
        }
        removed = []
        for directory, pattern in ours.items():
            with suppress(OSError):
                for path in sorted(directory.iterdir()):
                    is_ours = path in (self.service, self.registration) or (pattern and pattern.fullmatch(path.name))
                    if is_ours and is_stale_socket(path):
                        path.unlink(missing_ok=True)
                        removed.append(path.name)
        return removed

    def check_free(self) -> None:
        """Raises `ConfigError` if another process serves one of them."""
        for path in (self.service, self.registration):
            if path.exists() and sockets.is_listening(path):
                raise ConfigError(
                    f"{path} belongs to another instance of the driver; "
                    "for a rolling update each must know the uid of its pod (POD_UID)"
                )
            path.unlink(missing_ok=True)  # too young for `remove_stale`, but no process listens


class DriverServices(msgspec.Struct, frozen=True):
    """The services on the service socket."""

    plugin: DRAPluginService
    health: DRAHealthService


class RunningCalls:
    """A driver's service with its calls counted; refuses calls once it is closed."""

    def __init__(self, service: DRAPluginService, metrics: ResourceMetrics) -> None:
        self._service, self._metrics = service, metrics
        self._running = InProgress()
        self._closed = False

    @property
    def count(self) -> int:
        return self._running.count

    async def prepare(self, claims: Sequence[Claim]) -> Mapping[str, Sequence[PreparedDevice] | str]:
        return await self._counted("NodePrepareResources", self._service.prepare(claims))

    async def unprepare(self, claims: Sequence[Claim]) -> Mapping[str, str]:
        return await self._counted("NodeUnprepareResources", self._service.unprepare(claims))

    async def close(self, limit: float) -> None:
        """Refuses further calls, and waits up to `limit` seconds for those in progress."""
        with suppress(TimeoutError):
            async with asyncio.timeout(limit):
                await self.finish()

    async def finish(self) -> None:
        """Refuses further calls, and returns when those in progress have ended."""
        self._closed = True
        await self._running.ended()

    async def _counted(self, method: str, answer: "Awaitable[T]") -> T:
        if self._closed:
            getattr(answer, "close", lambda: None)()
            raise PeerGone("the driver is stopping")
        start, outcome = time.perf_counter(), "failed"
        self._running.begin()
        try:
            result = await answer
        except asyncio.CancelledError:
            outcome = "cancelled"
            raise
        else:
            errors = result.values() if isinstance(result, Mapping) else ()
            outcome = "ok"
            if problem := next((error for error in errors if isinstance(error, str) and error), ""):
                outcome = "failed"
                self._metrics.note_failure(method, clean(problem))
            return result
        finally:
            self._running.end()
            self._metrics.count_call(method, outcome, time.perf_counter() - start)


class DriverRegistration:
    """Serves a driver's services on its sockets. Implements `protocol.registration.AnnouncementService`."""

    def __init__(
        self, driver: str, sockets: DriverSockets, services: DriverServices, metrics: ResourceMetrics | None = None
    ) -> None:
        self.sockets = sockets
        self._driver, self._services, self._metrics = driver, services, metrics or ResourceMetrics()
        self._report = RegistrationReport({"driver": driver}, self._metrics)
        self.status = self._report.status
        self._service_directory = Directory(self.sockets.service.parent)
        self._registry = Directory(self.sockets.registration.parent)
        self._retry = Backoff(0.1, _LONGEST_RETRY)
        self._calls: RunningCalls | None = None
        self._is_stopping = False

    async def run(self) -> None:
        async with self._service_directory.watching(), self._registry.watching():
            try:
                while True:
                    await self._run_once()
            finally:
                self._report.set(RegistrationState.STOPPED)

    async def announce(self) -> PluginInfo:
        # The kubelet uses the first version in this list that it knows, not the newest (11.4).
        versions = (*dra.VERSIONS, *dra_health.VERSIONS)
        return PluginInfo(self._driver, DRA_PLUGIN, str(self.sockets.service), versions)

    async def notify(self, registered: bool, error: str) -> None:
        if not registered:
            self._report.failed(error or "refused without a reason")
            return
        self._retry.reset()
        self._report.registered(endpoint=str(self.sockets.service))

    async def finish(self) -> None:
        """Called when the daemon stops: refuses further calls, and returns when those in progress have ended."""
        self._is_stopping = True
        if self._calls is not None:
            if self._calls.count:
                facts = {"driver": self._driver, "calls": self._calls.count}
                logger.info("finishing claims before the stop", extra=facts)
            await self._calls.finish()

    async def _run_once(self) -> None:
        """Serves until one of the sockets is removed, or waits after a failure."""
        try:
            reason = await self._serve()
        except (PlugwrightError, OSError) as error:
            self._report.failed(str(error))
            await asyncio.sleep(self._retry.delay())
        else:
            self._report.registering_again(reason)

    async def _serve(self) -> str:
        """Serves the sockets; returns why they must be made again."""
        registry = self._registry
        if not registry.path.is_dir():
            self._report.waiting(f"no directory {registry.path}")
            await registry.changed.until(registry.path.is_dir)
        self.sockets.service.parent.mkdir(mode=0o750, parents=True, exist_ok=True)
        removed = self.sockets.remove_stale(self._driver)
        if removed:
            logger.info("sockets of an earlier run removed", extra={"driver": self._driver, "sockets": removed})
        self.sockets.check_free()
        calls, connected = RunningCalls(self._services.plugin, self._metrics), Latest(0)
        self._calls = calls
        methods = [*dra.methods(calls), *dra_health.methods(self._services.health)]
        announcing = registration.announcement_methods(self)
        async with (
            transport.serve(self.sockets.service, methods, connected=connected) as service,
            transport.serve(self.sockets.registration, announcing) as announced,
        ):
            self._report.set(RegistrationState.REGISTERING, self.status.value.reason or _UNASKED)
            try:
                return await first(self._gone(service), self._gone(announced), self._follow(connected))
            finally:
                await calls.close(0 if self._is_stopping else _FINISH_LIMIT)

    async def _gone(self, served: SocketFile) -> str:
        directory = self._registry if served.path == self.sockets.registration else self._service_directory
        await served.removed(directory.changed)
        return f"{served.path.name} was removed"

    async def _follow(self, connected: Latest[int]) -> str:
        """Runs forever: a kubelet that has disconnected finds the sockets when it returns."""
        while True:
            await connected.until(lambda count: count > 0)
            await connected.until(lambda count: count == 0)
            if self.status.value.state is RegistrationState.REGISTERED:
                self._report.waiting("the kubelet has ended its connection")


def _first_that_fits(paths: Sequence[Path]) -> Path:
    for path in paths[:-1]:
        with suppress(PathTooLong):
            return sockets.check_path(path)
    return sockets.check_path(paths[-1])


def _digest(text: str) -> str:
    return f"{zlib.crc32(text.encode()):08x}"
