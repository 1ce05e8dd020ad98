"""Rules of registration: a DRA driver's announcements in plugins_registry, and their times."""

import asyncio
import re
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from plugwright.conformance.asking import expect, expect_answers
from plugwright.conformance.dra.claim_calls import ClaimAllocation, allocated, devices_in, prepare, some_devices
from plugwright.conformance.dra.driver_session import DriverSession, PublishedDevice
from plugwright.conformance.dra.driver_verifier import DriverRule, DriverVerifier
from plugwright.conformance.rule import Level, Rule
from plugwright.conformance.verifier import Verifier
from plugwright.errors import PeerGone, PeerRefused, PluginNotRunning, RuleNotApplicable
from plugwright.kubelet.events import Call
from plugwright.protocol import dra, registration
from plugwright.protocol.registration import PluginInfo
from plugwright.system import sockets
from plugwright.system.concurrency import first
from plugwright.system.inotify import Directory
from plugwright.system.sockets import PATH_LIMIT

__all__ = ["RULES"]

_KUBELET = Path("/var/lib/kubelet")
_OTHERS_MAY = 0o022  # connecting to a socket needs the right to write
_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?")
_NAME_LIMIT = 63
_LOOK = 0.01  # seconds
_CONNECTIONS = 3
_GET_INFO = 1.0  # seconds of the kubelet (1.45)


@dataclass(frozen=True, slots=True)
class Announcement:
    """The first response to GetInfo, before any kubelet has called it, with the facts at that time."""

    path: Path
    info: PluginInfo
    seconds: float
    listening: bool
    modes: tuple[tuple[str, int], ...]


async def announcement(verifier: Verifier) -> Announcement:
    """The announcement, even of a driver that a kubelet does not register, if it creates a socket."""
    assert isinstance(verifier, DriverVerifier)
    if not verifier.resources and not _sockets((await verifier.start()).paths.plugins_registry):
        raise PluginNotRunning(f"the plugin is not registered: {verifier.failure}")
    async with verifier.fresh_driver(registers=False) as session:
        await session.kubelet.stop()
        session.paths.plugins_registry.mkdir(exist_ok=True)
        directory = Directory(session.paths.plugins_registry)
        async with directory.watching():
            program = await session.start_program()
            found: list[Path] = []

            def appeared() -> bool:
                found[:] = _sockets(directory.path)
                return bool(found)

            with suppress(TimeoutError):
                async with asyncio.timeout(verifier.limits.start):
                    await first(directory.changed.until(appeared), program.ends())
            if not found:
                raise PluginNotRunning(f"no socket in plugins_registry: {program.ending}")
        return await _announced(session, found[0])


def _sockets(directory: Path) -> list[Path]:
    return [path for path in sorted(directory.rglob("*")) if path.is_socket()]


async def _announced(session: DriverSession, path: Path) -> Announcement:
    with suppress(TimeoutError):
        async with asyncio.timeout(session.limits.call):
            while not sockets.is_listening(path):  # noqa: ASYNC110  its file exists before it listens
                await asyncio.sleep(_LOOK)
    began = time.monotonic()
    async with registration.connect_watched(path) as client:
        info = await client.announce(session.limits.call)
    endpoint = session.on_host(Path(info.endpoint or path))
    listening = endpoint.is_socket() and sockets.is_listening(endpoint)
    modes = tuple((one.name, one.stat().st_mode) for one in dict.fromkeys([path, endpoint]) if one.exists())
    return Announcement(path, info, time.monotonic() - began, listening, modes)


class DriverRegisters(DriverRule):
    id, level, facts = "DRG-01", Level.MUST, ("11.1",)
    title = "The driver registers, and publishes a ResourceSlice"
    why = "Without both, no pod gets a device of this node."
    fix = "Create a socket in plugins_registry that answers GetInfo with type DRAPlugin, and create a ResourceSlice."

    async def check_driver(self, verifier: DriverVerifier) -> None:
        await verifier.start()
        expect(not verifier.failure, "a registration and a ResourceSlice", verifier.failure)


class HasName(DriverRule):
    id, level, facts = "DRG-02", Level.MUST, ("11.1",)
    title = "The driver's name is a DNS name in lower case of at most 63 bytes"
    why = "It is a field of slices and claims, for which the API server refuses other names or warns about them."
    fix = "Use your own domain, such as gpu.example.com."

    async def check_driver(self, verifier: DriverVerifier) -> None:
        name = (await verifier.remembered(announcement)).info.name
        kept = _NAME.fullmatch(name) and len(name) <= _NAME_LIMIT and ".." not in name
        expect(kept, "a DNS name in lower case of at most 63 bytes", f"{name!r}")


class ServesBeforeAnnouncing(DriverRule):
    id, level, facts, alone, observation = "DRG-03", Level.MUST, ("11.3",), True, "announcement"
    title = "The service socket listens before the registration socket exists"
    why = (
        "The kubelet connects to the endpoint immediately; a claim that arrives before the service listens "
        "fails, and is retried after a minute."
    )
    fix = "Start the DRA service, then the registration socket."

    async def check_driver(self, verifier: DriverVerifier) -> None:
        seen = await verifier.remembered(announcement)
        expect(seen.listening, "a socket that listens at the endpoint", f"none at {seen.info.endpoint or seen.path}")


class ListsNewestFirst(DriverRule):
    id, level, facts = "DRG-04", Level.MUST, ("11.2", "11.4")
    title = "v1.DRAPlugin is listed before v1beta1.DRAPlugin"
    why = "The kubelet calls the first version that it supports, not the newest; v1beta1 has no share_id."
    fix = "Put v1.DRAPlugin first in supported_versions."

    async def check_driver(self, verifier: DriverVerifier) -> None:
        services = (await verifier.remembered(announcement)).info.versions
        known = [service for service in services if service in dra.VERSIONS]
        expect(known[:1] == ["v1.DRAPlugin"], "v1.DRAPlugin as the first", f"{', '.join(services) or 'nothing'}")


class ServesWhatItLists(DriverRule):
    id, level, facts = "DRG-05", Level.MUST, ("11.2",)
    title = "Every listed DRAPlugin service is served"
    why = "An older kubelet calls v1beta1, and no pod with a claim starts."
    fix = "Register the service with the gRPC server, or do not list it."

    async def check_driver(self, verifier: DriverVerifier) -> None:
        session, drivers = await verifier.drivers()
        for driver in drivers:
            for version in (service for service in driver.services if service in dra.VERSIONS):
                async with allocated(session, driver, ClaimAllocation(some_devices(session, driver))) as [claim]:
                    try:
                        devices_in(await prepare(session, driver, claim, version=version), claim)
                    except PeerRefused as error:
                        expect(False, f"an answer of {version}", str(error))


class AnswersGetInfo(DriverRule):
    id, level, facts, alone, observation = "DRG-06", Level.MUST, ("1.45",), True, "announcement"
    title = "GetInfo is answered within a second"
    why = "The kubelet gives up after a second and retries, but never registers the driver."
    fix = "Answer from memory: do no work in GetInfo."

    async def check_driver(self, verifier: DriverVerifier) -> None:
        seconds = (await verifier.remembered(announcement)).seconds
        expect(seconds < _GET_INFO, "an answer within a second", f"{seconds:.1f} s")


class TakesStatus(DriverRule):
    id, level, facts = "DRG-07", Level.MUST, ("1.47",)
    title = "NotifyRegistrationStatus is answered"
    why = "If this call fails, the kubelet deregisters the driver."
    fix = "Implement the method; log the error that it contains."

    async def check_driver(self, verifier: DriverVerifier) -> None:
        calls = [call for call in (await verifier.start()).kubelet.calls if call.method == "NotifyRegistrationStatus"]
        if not calls:
            raise RuleNotApplicable("NotifyRegistrationStatus was not called")
        expect_answers(calls)


class SocketsArePrivate(DriverRule):
    id, level, alone, observation = "DRG-08", Level.SHOULD, True, "announcement"
    title = "Sockets are closed to other users"
    why = "Any user who can write to them can have the claims of others unprepared."
    fix = "Set the umask to at least 022 before you listen, or chmod the sockets to 0600."

    async def check_driver(self, verifier: DriverVerifier) -> None:
        modes = (await verifier.remembered(announcement)).modes
        open_ones = [f"{name} with mode {mode & 0o777:04o}" for name, mode in modes if mode & _OTHERS_MAY]
        expect(not open_ones, "sockets that others cannot use", ", ".join(open_ones))


class PathsFit(DriverRule):
    id, level = "DRG-09", Level.MUST
    title = "The paths of both sockets are short enough under /var/lib/kubelet"
    why = "The path of a Unix socket has at most 107 bytes: on a node, the driver could not listen."
    fix = "Shorten the names: a digest of the pod's uid is as good as the uid."

    async def check_driver(self, verifier: DriverVerifier) -> None:
        session, drivers = await verifier.drivers()
        for driver in drivers:
            for path in (driver.socket, driver.endpoint):
                if path.is_relative_to(session.paths.root):
                    real = _KUBELET / path.relative_to(session.paths.root)
                    size = len(str(real).encode())
                    expect(size <= PATH_LIMIT, f"at most {PATH_LIMIT} bytes", f"{size} bytes: {real}")


class DriverIsFoundAgain(DriverRule):
    id, level, facts, waits = "DRG-10", Level.MUST, ("11.8",), 2
    title = "A kubelet that was restarted finds the driver"
    why = "Upgrades restart kubelets; no claim could be prepared until someone restarts the driver."
    fix = "Keep both sockets and their servers for as long as the program runs."

    async def check_driver(self, verifier: DriverVerifier) -> None:
        session, drivers = await verifier.drivers()
        names, mark = {driver.name for driver in drivers}, session.mark
        devices = {name: set(session.devices(name)) for name in names}
        await session.kubelet.restart()
        try:
            await session.kubelet.until(lambda: session.registered(mark) >= names, verifier.limits.register, "none")
        except PeerGone:
            refused = [call.outcome for call in session.kubelet.recorded[mark:] if isinstance(call, Call)]
            seen = f"none within {verifier.limits.register:g} s: {', '.join(refused[-1:])} {session.ending}"
            expect(False, "a registration", seen)
        finally:
            back = partial(self._are_back, session, devices)
            await session.api.until(back, verifier.limits.republish)  # for the following rules

    @staticmethod
    def _are_back(session: DriverSession, devices: Mapping[str, set[PublishedDevice]]) -> bool:
        return all(set(session.devices(name)) == published for name, published in devices.items())


class OutlivesConnections(DriverRule):
    id, level, facts = "DRG-11", Level.MUST, ("11.6",)
    title = "A connection that ends does no harm"
    why = "Kubelets that crash and probes leave ended connections behind."
    fix = "Do not end the program or the server when a peer disconnects."

    async def check_driver(self, verifier: DriverVerifier) -> None:
        try:
            session, drivers = await verifier.drivers()
        except PluginNotRunning as error:
            ended = await self._ending(verifier)
            expect(not ended, "answers on the next connection", f"{error}; {ended}")
            raise
        for driver in drivers:
            for number in range(_CONNECTIONS):
                try:
                    async with driver.connect() as client:
                        await client.unprepare([], verifier.limits.call)
                except PeerRefused:
                    continue
                except PeerGone as error:
                    expect(number == 0, "answers on the next connection", f"{error}; {session.ending}")
            async with allocated(session, driver, ClaimAllocation(some_devices(session, driver))) as [claim]:
                devices_in(await prepare(session, driver, claim), claim)

    @staticmethod
    async def _ending(verifier: DriverVerifier) -> str:
        """How a registered program ended when GetInfo, the last call, had been answered; empty if it runs."""
        session = verifier.current
        if verifier.failure or session is None or not session.programs:
            return ""
        with suppress(TimeoutError):
            async with asyncio.timeout(verifier.limits.quick):
                await session.program.ends()
        return session.ending if session.program.crashed else ""


RULES: tuple[type[Rule], ...] = (
    DriverRegisters,
    HasName,
    ServesBeforeAnnouncing,
    ListsNewestFirst,
    ServesWhatItLists,
    AnswersGetInfo,
    TakesStatus,
    SocketsArePrivate,
    PathsFit,
    DriverIsFoundAgain,
    OutlivesConnections,
)
