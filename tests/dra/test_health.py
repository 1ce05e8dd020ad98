"""The health of devices, as a kubelet gets it in either version of the service."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path

import pytest
from tests.sdk.actors import TAPE

from plugwright import Device, Plugin, Settings, serving
from plugwright.dra.health import HealthService, reported
from plugwright.model import Health
from plugwright.protocol import dra_health, transport
from plugwright.protocol.dra_health import VERSIONS, HealthStatus, ReportedHealth
from plugwright.sdk import daemon_status
from plugwright.sdk.inventory import Inventory
from plugwright.system.latest import Latest

BROKEN = Device("st0", Health.UNHEALTHY, "worn out", code="ecc")


def listing(*devices: Device) -> Inventory:
    inventory = Inventory(TAPE, clock=lambda: 1_700_000_000.9)
    inventory.update(devices)
    return inventory


def reports(inventory: Inventory) -> list[ReportedHealth]:
    snapshot = inventory.latest.value
    assert snapshot is not None
    return reported("n1", snapshot)


def test_a_device_is_named_as_in_its_slice_and_has_the_reason_with_its_code() -> None:
    assert reports(listing(BROKEN, Device("st1"))) == [
        ReportedHealth("n1", "st0", HealthStatus.UNHEALTHY, "worn out (ecc)", 1_700_000_000),
        ReportedHealth("n1", "st1", HealthStatus.HEALTHY, "", 1_700_000_000),
    ]
    (odd,) = reports(listing(Device("GPU-5c_1")))
    assert odd.name.startswith("gpu-5c-1-")


def test_a_cordoned_device_that_works_is_healthy_and_says_so() -> None:
    inventory = listing(BROKEN, Device("st1"))
    inventory.cordon({"st0": "fan", "st1": "fan"})
    broken, works = reports(inventory)
    assert (broken.health, broken.message) == (HealthStatus.UNHEALTHY, "worn out (ecc); cordoned: fan")
    assert (works.health, works.message) == (HealthStatus.HEALTHY, "cordoned: fan")


def test_a_message_is_never_longer_than_the_kubelet_shows() -> None:
    (device,) = reports(listing(Device("st0", Health.UNHEALTHY, "ü" * 1024)))
    assert device.message == "ü" * 512


async def test_a_stream_has_the_full_list_at_once_and_at_every_change() -> None:
    inventory = listing(Device("st0"), Device("st1"))
    async with asyncio.timeout(60), aclosing(HealthService(inventory, "n1").watch()) as states:
        assert [device.health for device in await anext(states)] == [HealthStatus.HEALTHY] * 2
        inventory.update([BROKEN, Device("st1")])
        assert [device.health for device in await anext(states)] == [HealthStatus.UNHEALTHY, HealthStatus.HEALTHY]
        inventory.update([Device("st0"), Device("st1")])
        assert [device.health for device in await anext(states)] == [HealthStatus.HEALTHY] * 2


async def test_a_cordoned_device_that_breaks_is_a_change() -> None:
    inventory = listing(Device("st0"))
    inventory.cordon({"st0": "fan"})
    async with asyncio.timeout(60), aclosing(HealthService(inventory, "n1").watch()) as states:
        assert (await anext(states))[0].health is HealthStatus.HEALTHY
        inventory.update([BROKEN])
        assert (await anext(states))[0].health is HealthStatus.UNHEALTHY


async def test_the_list_comes_again_although_nothing_changes() -> None:
    service = HealthService(listing(BROKEN), "n1", repeat=0.01)
    async with asyncio.timeout(60), aclosing(service.watch()) as states:
        assert await anext(states) == await anext(states) == await anext(states)


async def test_nothing_is_said_before_the_devices_are_known() -> None:
    inventory = Inventory(TAPE)
    async with asyncio.timeout(60), aclosing(HealthService(inventory, "n1", repeat=0.001).watch()) as states:
        first = asyncio.ensure_future(anext(states))
        done, _ = await asyncio.wait((first,), timeout=0.05)
        assert not done
        inventory.update([])
        assert await first == []


@pytest.mark.parametrize("version", VERSIONS)
async def test_a_kubelet_of_either_version_reads_it(version: str, root: Path) -> None:
    inventory = listing(Device("st0"))
    async with (
        asyncio.timeout(60),
        transport.serve(root / "s", dra_health.methods(HealthService(inventory, "n1"))),
        transport.connect(root / "s") as connection,
        aclosing(dra_health.watch(connection, version)) as states,
    ):
        assert (await anext(states))[0].health is HealthStatus.HEALTHY
        inventory.update([BROKEN])
        (device,) = await anext(states)
        assert device == ReportedHealth("n1", "st0", HealthStatus.UNHEALTHY, "worn out (ecc)", 1_700_000_000)


class Quiet(Plugin):
    """Yields a list, and the same again whenever the test asks for it."""

    def __init__(self, resource: str, lease: float) -> None:
        self.resource, self.health_lease = resource, lease
        self.asked = Latest(0)

    async def discover(self) -> AsyncIterator[list[Device]]:
        async for _ in self.asked.changes():
            yield [Device("st0"), BROKEN.replace(id="st1")]


async def test_health_that_is_not_confirmed_within_its_lease_is_unknown_and_reported(settings: Settings) -> None:
    leased, silent = Quiet(TAPE, 0.2), Quiet("example.com/silent", 0)
    reason = "discover() has not confirmed the devices for 0.2 s"
    async with asyncio.timeout(60), serving(leased, silent, settings=settings) as daemon:
        inventory = daemon.resource(TAPE).inventory
        async with aclosing(HealthService(inventory, "n1").watch()) as states:
            devices = await anext(states)
            while devices[0].health is not HealthStatus.UNKNOWN:
                devices = await anext(states)
            assert [(device.health, device.message) for device in devices] == [
                (HealthStatus.UNKNOWN, reason),
                (HealthStatus.UNHEALTHY, "worn out (ecc)"),  # a failure that was seen
            ]
            status = {entry["name"]: entry["discovery"] for entry in daemon_status.report(daemon)["resources"]}
            assert status == {TAPE: reason, "example.com/silent": ""}  # without a lease, no list means no change
            leased.health_lease = 0  # the next list is the last that this test looks at
            leased.asked.publish(1)
            assert (await anext(states))[0].health is HealthStatus.HEALTHY
        assert inventory.latest.value is not None
        assert inventory.latest.value.devices["st0"].healthy  # the kubelet's list has no Unknown


async def test_a_device_list_that_was_refused_confirms_nothing(settings: Settings) -> None:
    class Repeating(Quiet):
        async def discover(self) -> AsyncIterator[list[Device]]:
            yield [Device("st0")]
            while True:
                yield [Device("st0"), Device("st0")]
                await asyncio.sleep(0.02)

    async with asyncio.timeout(60), serving(Repeating(TAPE, 0.2), settings=settings) as daemon:
        await daemon.resource(TAPE).inventory.unconfirmed.until(bool)
