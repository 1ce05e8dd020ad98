"""Rules of devices that fail and recover, if the operator provides commands for it."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager, suppress

from plugwright.conformance.asking import expect
from plugwright.conformance.dra.driver_session import DriverSession, PublishedDevice, RegisteredDriver
from plugwright.conformance.dra.driver_verifier import DriverRule, DriverVerifier
from plugwright.conformance.dra.rules.reporting import with_health
from plugwright.conformance.rule import Level, Rule
from plugwright.errors import PeerGone, RuleNotApplicable
from plugwright.model import some
from plugwright.protocol import dra_health, transport

__all__ = ["HEALTH_RULES", "SLICE_RULES"]


def _chosen(verifier: DriverVerifier, session: DriverSession, driver: RegisteredDriver) -> PublishedDevice:
    """The device that is made to fail: the first one that is not shared."""
    if not verifier.options.fail or not verifier.options.recover:
        raise RuleNotApplicable("needs --fail-command and --recover-command")
    devices = session.devices(driver.name)
    if len(devices) < 2:
        raise RuleNotApplicable("fewer than 2 devices are published")
    return next((device for device in devices if not device.is_shared), devices[0])


@asynccontextmanager
async def _failed(verifier: DriverVerifier, driver: RegisteredDriver, device: PublishedDevice) -> AsyncIterator[None]:
    await verifier.run_command(verifier.options.fail, device.name, driver.name)
    try:
        yield
    finally:
        await verifier.run_command(verifier.options.recover, device.name, driver.name)


class PublishesFailure(DriverRule):
    id, level, holds = "SLC-18", Level.MUST, True
    title = "A device that fails gets a taint or leaves its slice, and returns when it recovers"
    why = (
        "Otherwise the scheduler continues to allocate it, and each pod that gets it fails; the health in a "
        "pod's status does not prevent this."
    )
    fix = "Publish the slices again at each change of health, with a taint for each failed device."

    async def check_driver(self, verifier: DriverVerifier) -> None:
        session, [driver, *_] = await verifier.drivers()
        device, before = _chosen(verifier, session, driver), set(session.devices(driver.name))
        async with _failed(verifier, driver, device):
            gone = await self._until(verifier, session, lambda: device not in session.devices(driver.name))
            expect(gone, f"{device.name} with a taint, or not published", "it is published as before")
            await self._check_others(verifier, session, driver, before - {device})
        back = await self._until(verifier, session, lambda: device in session.devices(driver.name))
        expect(back, f"{device.name} without a taint after its recovery", "it is tainted or not published")
        await self._check_others(verifier, session, driver, before)

    @staticmethod
    async def _until(verifier: DriverVerifier, session: DriverSession, condition: Callable[[], bool]) -> bool:
        return await session.api.until(condition, verifier.limits.register)

    async def _check_others(
        self, verifier: DriverVerifier, session: DriverSession, driver: RegisteredDriver, expected: set[PublishedDevice]
    ) -> None:
        """The pool stays complete, with each other device."""
        await self._until(
            verifier,
            session,
            lambda: expected <= set(session.devices(driver.name)) and session.has_whole_pools(driver.name),
        )
        lost = sorted(device.name for device in expected - set(session.devices(driver.name)))
        expect(not lost, "the other devices as before", f"no {some(lost)}")
        expect(session.has_whole_pools(driver.name), "complete pools", "slices that do not belong together")


class ReportsFailedDevice(DriverRule):
    id, level, facts, holds = "DRH-06", Level.MUST, ("11.24",), True
    title = "A device that fails is reported as Unhealthy, and as Healthy when it recovers"
    why = "Otherwise the pod's status shows the old health, and its owner searches for the fault in the program."
    fix = "Send the list at each change of health, with the current state of each device."

    async def check_driver(self, verifier: DriverVerifier) -> None:
        session, [(driver, service), *_] = await with_health(verifier)
        device = _chosen(verifier, session, driver)
        async with _failed(verifier, driver, device):
            await self._check(verifier, driver, service, device, healthy=False)
        await self._check(verifier, driver, service, device, healthy=True)

    @staticmethod
    async def _check(
        verifier: DriverVerifier, driver: RegisteredDriver, service: str, device: PublishedDevice, *, healthy: bool
    ) -> None:
        """Raises RuleViolated unless a stream reports the device in this state, with a stream opened now."""
        last = "no report"
        async with transport.connect(driver.endpoint, transport.MESSAGE_LIMIT) as connection:
            stream = dra_health.watch(connection, service)
            with suppress(TimeoutError, PeerGone):
                async with aclosing(stream), asyncio.timeout(verifier.limits.register):
                    async for reports in stream:
                        for report in reports:
                            if (report.pool, report.name) == (device.pool, device.name):
                                last = report.health.name.capitalize()
                        if last != "no report" and (last == "Healthy") == healthy:
                            return
        expect(False, f"{device.name} as {'Healthy' if healthy else 'Unhealthy'}", last)


SLICE_RULES: tuple[type[Rule], ...] = (PublishesFailure,)
HEALTH_RULES: tuple[type[Rule], ...] = (ReportsFailedDevice,)
