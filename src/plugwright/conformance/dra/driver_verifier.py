"""The verifier of DRA drivers, and the base of their rules: `DriverRule`."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

from plugwright.conformance.dra.driver_session import DriverSession, RegisteredDriver, driver_session
from plugwright.conformance.rule import Rule
from plugwright.conformance.session import Session
from plugwright.conformance.verifier import Verifier
from plugwright.errors import PluginNotRunning
from plugwright.system import sockets
from plugwright.system.concurrency import unwrapped

__all__ = ["DriverRule", "DriverVerifier"]

_THOROUGH_WAIT = 44.0  # seconds; the kubelet accepts a driver's response until 45 (11.11)


class DriverVerifier(Verifier):
    """Like `Verifier`; `resources` are the names of the drivers."""

    async def start(self) -> DriverSession:
        """The shared session at its start, whether the driver is registered or not."""
        return _of_driver(await self.started())

    async def drivers(self) -> tuple[DriverSession, list[RegisteredDriver]]:
        """The shared session and its drivers; raises PluginNotRunning if there are none."""
        session = _of_driver(await self.running())
        return session, await self.drivers_of(session)

    async def drivers_of(self, session: DriverSession) -> list[RegisteredDriver]:
        found = [driver for driver in await session.drivers() if driver.name in self.resources]
        if not found:
            raise PluginNotRunning("no driver answers on a socket in plugins_registry")
        return found

    @asynccontextmanager
    async def fresh_driver(self, *, registers: bool = True) -> AsyncIterator[DriverSession]:
        """A separate session with the program not started yet, which must be one that `registers`, or any."""
        try:
            async with self.fresh(registers=registers) as session:
                yield _of_driver(session)
        except ExceptionGroup as group:  # the API server's task group wraps a rule's exceptions
            raise unwrapped(group) from None

    @asynccontextmanager
    async def fresh_running(self) -> AsyncIterator[tuple[DriverSession, RegisteredDriver]]:
        """A separate session with the program registered, and the first of its drivers."""
        async with self.fresh_driver() as session:
            await session.start_program()
            await session.until_registered(self.resources, limit=self.limits.start)
            await session.settle()
            yield session, (await self.drivers_of(session))[0]

    def _connected(self, shared: Session) -> set[str]:
        return _of_driver(shared).registered()

    async def _silence(self, shared: Session) -> str:
        """The drivers that do not answer GetInfo, or do not listen on their service socket."""
        drivers = {driver.name: driver for driver in await _of_driver(shared).drivers()}
        for name in sorted(self.resources):
            if name not in drivers:
                return f"no socket in plugins_registry answers GetInfo for {name}"
            if not sockets.is_listening(drivers[name].endpoint):
                return f"nothing listens on {drivers[name].endpoint}"
        return ""

    @asynccontextmanager
    async def _session(self) -> AsyncIterator[Session]:
        options = self.options
        limits = replace(self.limits, wait=_THOROUGH_WAIT) if options.thorough else self.limits
        async with driver_session(self.target, options.version, limits, options.directory) as opened:
            opened.parameters = options.parameters
            yield opened


class DriverRule(Rule):
    """A rule for DRA drivers, which kubelets call from 1.34 on."""

    since = "1.34"

    async def check(self, verifier: Verifier) -> None:
        assert isinstance(verifier, DriverVerifier)
        await self.check_driver(verifier)

    async def check_driver(self, verifier: DriverVerifier) -> None:
        raise NotImplementedError


def _of_driver(session: Session) -> DriverSession:
    assert isinstance(session, DriverSession)
    return session
