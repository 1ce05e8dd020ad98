"""Cordons end by themselves, and those of the configuration come and go with it."""

import asyncio
import fcntl
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import pytest
from msgspec.structs import replace
from tests.observed_kubelet import ObservedKubelet
from tests.sdk.actors import TAPE, ListingPlugin, recorded_log

from plugwright import ConfigError, Device, Settings, serving
from plugwright.sdk.cordon_controller import CordonController
from plugwright.sdk.cordons import Cordon, CordonRule, Cordons
from plugwright.sdk.inventory import Inventory
from plugwright.sdk.prometheus import page
from plugwright.system.concurrency import cancel


class Clock:
    def __init__(self) -> None:
        self.now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@asynccontextmanager
async def controlled(settings: Settings, clock: Clock) -> AsyncIterator[tuple[CordonController, Inventory]]:
    controller, inventory = CordonController(settings, clock), Inventory(TAPE)
    controller.attach(inventory)
    inventory.update([Device("st0"), Device("st1")])
    await controller.load()
    running = asyncio.create_task(controller.run())
    try:
        yield controller, inventory
    finally:
        running.cancel()
        await asyncio.wait((running,))


async def healthy(inventory: Inventory, *ids: str) -> None:
    """Waits until these devices and no others are Healthy."""

    def is_so(_: object) -> bool:
        snapshot = inventory.latest.value
        return snapshot is not None and [key for key, device in snapshot.devices.items() if device.healthy] == [*ids]

    async with asyncio.timeout(60):
        await inventory.latest.until(is_so)


@pytest.fixture
def kept(settings: Settings, tmp_path: Path) -> Settings:
    return replace(settings, state_dir=tmp_path / "state")


async def test_a_cordon_ends_by_itself_and_is_logged(
    kept: Settings, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    with recorded_log("plugwright.sdk.cordon_controller", caplog) as log:
        async with controlled(kept, clock) as (controller, inventory):
            await controller.add(TAPE, "st0", Cordon("fan", by="root", since=clock.now, until=clock.now + 0.01))
            await healthy(inventory, "st1")
            for _ in range(10):
                await asyncio.sleep(0)  # the controller has seen the cordon, and waits for its end
            clock.now += 1
            await healthy(inventory, "st0", "st1")
            await log.until("cordon has expired")
    assert kept.state_dir is not None
    stored = Cordons(kept.state_dir / "cordons.json")
    stored.load()
    assert stored.all == {}
    cordoned, *_, ended = [record for record in caplog.records if "cordon" in record.name]
    assert (cordoned.getMessage(), ended.getMessage()) == ("device cordoned", "cordon has expired")
    facts = {"resource": TAPE, "device": "st0", "reason": "fan", "by": "root", "until": "1970-01-12T13:46:40Z"}
    for record in (cordoned, ended):
        assert {key: vars(record)[key] for key in facts} == facts


async def test_a_cordon_that_ended_while_no_daemon_ran_is_never_applied(kept: Settings, clock: Clock) -> None:
    assert kept.state_dir is not None
    Cordons(kept.state_dir / "cordons.json").add(TAPE, "st0", Cordon("fan", until=clock.now - 1))
    Cordons(kept.state_dir / "cordons.json").add(TAPE, "st1", Cordon("rack", until=clock.now + 1000))
    async with controlled(kept, clock) as (_, inventory):
        await healthy(inventory, "st0")


@contextmanager
def hanging(directory: Path) -> Iterator[None]:
    """Whatever changes a file in this directory waits, as on a disk that does not answer."""
    directory.mkdir(exist_ok=True)
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


async def test_a_cordon_on_a_disk_that_hangs_fails_and_takes_effect_when_it_is_written(
    kept: Settings, clock: Clock
) -> None:
    assert kept.state_dir is not None
    quick = replace(kept, limits=replace(kept.limits, command=0.05))
    async with controlled(quick, clock) as (controller, inventory):
        with hanging(kept.state_dir):
            with pytest.raises(ConfigError, match=r"did not end within 0.05 s; it may still take effect"):
                await controller.add(TAPE, "st0", Cordon("fan"))
            with pytest.raises(ConfigError, match=r"1 earlier call still hangs in .*; nothing was changed"):
                await controller.add(TAPE, "st1", Cordon("fan"))
            await healthy(inventory, "st0", "st1")
        await healthy(inventory, "st1")


async def test_a_cordon_takes_effect_though_the_operator_hangs_up(kept: Settings, clock: Clock) -> None:
    assert kept.state_dir is not None
    async with controlled(kept, clock) as (controller, inventory):
        with hanging(kept.state_dir):
            adding = asyncio.create_task(controller.add(TAPE, "st0", Cordon("fan")))
            await asyncio.sleep(0)
            adding.cancel()
            await asyncio.wait((adding,))
        await healthy(inventory, "st1")


async def test_an_end_in_the_past_is_refused(settings: Settings, clock: Clock) -> None:
    async with controlled(settings, clock) as (controller, inventory):
        with pytest.raises(ConfigError, match=r"must end in the future, got 1970-01-12T13:46:39Z"):
            await controller.add(TAPE, "st0", Cordon("fan", until=clock.now - 1))
        await healthy(inventory, "st0", "st1")


async def test_a_rule_of_the_configuration_cordons_until_it_ends_or_is_removed(
    settings: Settings, clock: Clock
) -> None:
    rules = (CordonRule("example.com/*", "recalled", ids=("st1",), until=clock.now + 0.01),)
    async with controlled(replace(settings, cordons=rules), clock) as (controller, inventory):
        await healthy(inventory, "st0")
        with pytest.raises(ConfigError, match=r"cordoned by the configuration file \(recalled\): remove it there"):
            await controller.remove(TAPE, "st1")
        await controller.add(TAPE, "st1", Cordon("fan"))
        assert await controller.remove(TAPE, "st1") == "recalled"
        clock.now += 1
        await healthy(inventory, "st0", "st1")
        assert controller.listed() == []
        controller.declare((CordonRule(TAPE, "all of them"),))
        await healthy(inventory)
        [listed] = controller.listed()
        assert (listed["resource"], listed["id"], listed["declared"], listed["served"]) == (TAPE, "*", True, True)
        controller.declare(())
        await healthy(inventory, "st0", "st1")


async def test_cordoned_devices_are_counted_apart_from_unhealthy_ones(
    kubelet: ObservedKubelet, settings: Settings
) -> None:
    async with serving(ListingPlugin(), settings=settings) as daemon:
        await kubelet.endpoint(TAPE, 2)
        await daemon.cordons.add(TAPE, "st0", Cordon("fan"))
        text = page(daemon)()[1].decode()
    for health, count in (("Cordoned", 1), ("Healthy", 1), ("Unhealthy", 0)):
        assert f'plugwright_devices{{health="{health}",resource="{TAPE}"}} {count}.0' in text
    assert 'plugwright_build_info{python="3.' in text


async def test_cordons_of_two_daemons_are_merged_and_each_applies_those_of_the_other(tmp_path: Path) -> None:
    first, second = (CordonController(Settings(state_dir=tmp_path)) for _ in range(2))
    inventories = [Inventory("example.com/tape"), Inventory("example.com/disk")]
    for inventory in inventories:
        inventory.update([Device("st0")])
    for controller in (first, second):
        await controller.load()
    for controller in (first, second):
        for inventory in inventories:
            controller.attach(inventory)
    shared = Inventory("example.com/tape")
    shared.update([Device("st0")])
    second.attach(shared)
    running = asyncio.create_task(second.run())
    try:
        await first.add("example.com/tape", "st0", Cordon("fan"))
        await shared.latest.until(lambda snapshot: snapshot is not None and not snapshot.devices["st0"].healthy)
        await second.add("example.com/disk", "st0", Cordon("noise"))
        await first.remove("example.com/tape", "st0")
        await shared.latest.until(lambda snapshot: snapshot is not None and snapshot.devices["st0"].healthy)
    finally:
        await cancel(running)
    stored = Cordons(tmp_path / "cordons.json")
    stored.load()
    assert {resource: list(cordons) for resource, cordons in stored.all.items()} == {"example.com/disk": ["st0"]}
