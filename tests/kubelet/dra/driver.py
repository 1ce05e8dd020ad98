"""A DRA driver that does what a test says, on real sockets."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from plugwright.errors import PeerRefused
from plugwright.protocol import dra, dra_health, registration, transport
from plugwright.protocol.dra import Claim, PreparedDevice
from plugwright.protocol.dra_health import ReportedHealth
from plugwright.protocol.paths import KubeletPaths
from plugwright.protocol.registration import PluginInfo
from plugwright.system.latest import Latest

DRIVER = "gpu.example.com"
V1, V1BETA1 = dra.VERSIONS


class Node(Protocol):
    """A kubelet, real or emulated."""

    @property
    def paths(self) -> KubeletPaths: ...


@dataclass
class ScriptedDriver:
    """`answer` are the devices of every claim, or the text of the error; `extra` are entries nobody asked for.

    With `refusal` calls fail as a whole.
    """

    answer: Sequence[PreparedDevice] | str = (PreparedDevice("node", "gpu-0", ("gpu",), ("example.com/gpu=0",)),)
    unprepare_error: str = ""
    refusal: str = ""
    skipped: frozenset[str] = frozenset()  # uids that the answers leave out
    answers_none: bool = False  # leaves out every claim
    extra: Mapping[str, Sequence[PreparedDevice]] = field(default_factory=dict)
    name: str = DRIVER
    services: tuple[str, ...] = dra.VERSIONS
    prepared: list[list[Claim]] = field(default_factory=list)
    unprepared: list[list[Claim]] = field(default_factory=list)
    held: asyncio.Event | None = None  # NodePrepareResources waits for it
    registered: Latest[tuple[bool, str] | None] = field(default_factory=lambda: Latest(None))
    health: Latest[Sequence[ReportedHealth] | None] = field(default_factory=lambda: Latest(None))

    async def prepare(self, claims: Sequence[Claim]) -> Mapping[str, Sequence[PreparedDevice] | str]:
        self.prepared.append(list(claims))
        if self.held is not None:
            await self.held.wait()
        if self.refusal:
            raise PeerRefused("INTERNAL", self.refusal)
        answered = [claim.uid for claim in claims if claim.uid not in self.skipped and not self.answers_none]
        return dict.fromkeys(answered, self.answer) | dict(self.extra)

    async def unprepare(self, claims: Sequence[Claim]) -> Mapping[str, str]:
        self.unprepared.append(list(claims))
        return {claim.uid: self.unprepare_error for claim in claims if claim.uid not in self.skipped}

    async def watch(self) -> AsyncGenerator[Sequence[ReportedHealth], None]:
        async for devices in self.health.changes():
            if devices is not None:
                yield devices

    async def notify(self, registered: bool, error: str) -> None:
        self.registered.publish((registered, error))

    async def until_registered(self) -> None:
        registered, error = await self.registered.until(lambda said: said is not None) or (False, "")
        assert registered, error


@dataclass
class Announcement:
    driver: ScriptedDriver
    endpoint: Path

    async def announce(self) -> PluginInfo:
        return PluginInfo(self.driver.name, dra.DRA_PLUGIN, str(self.endpoint), self.driver.services)

    async def notify(self, registered: bool, error: str) -> None:
        await self.driver.notify(registered, error)


@asynccontextmanager
async def serving(
    driver: ScriptedDriver, kubelet: Node, suffix: str = "", *, kept: bool = False
) -> AsyncIterator[ScriptedDriver]:
    """The driver on both of its sockets, the service's first; not yet registered. `kept`: they stay, as if killed."""
    directory = kubelet.paths.root / "plugins" / driver.name
    for needed in (directory, kubelet.paths.plugins_registry):
        needed.mkdir(parents=True, exist_ok=True)
    async with serving_service(driver, directory / f"dra{suffix}.sock", kept=kept) as endpoint:
        announcement = registration.announcement_methods(Announcement(driver, endpoint))
        socket = kubelet.paths.plugins_registry / f"{driver.name}{suffix}-reg.sock"
        socket.unlink(missing_ok=True)
        async with transport.serve(socket, announcement, kept=kept):
            yield driver


@asynccontextmanager
async def serving_service(driver: ScriptedDriver, socket: Path, *, kept: bool = False) -> AsyncIterator[Path]:
    versions = [service for service in driver.services if service in dra.VERSIONS]
    health = [service for service in driver.services if service in dra_health.VERSIONS]
    methods = [*dra.methods(driver, versions), *dra_health.methods(driver, health)]
    socket.unlink(missing_ok=True)  # of one that was killed
    async with transport.serve(socket, methods, kept=kept):
        yield socket


@asynccontextmanager
async def registered(
    driver: ScriptedDriver, kubelet: Node, suffix: str = "", *, kept: bool = False
) -> AsyncIterator[ScriptedDriver]:
    async with serving(driver, kubelet, suffix, kept=kept):
        await driver.until_registered()
        yield driver
