"""The taints of devices that fail, are cordoned or move, as they are published."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tests.sdk.actors import TAPE, recorded_log

from plugwright import Device
from plugwright.dra.device_taints.taint_budget import Moment, TaintRecord
from plugwright.dra.device_taints.taints import Taint, TaintController, observed, taints_for
from plugwright.model import Health
from plugwright.sdk.inventory import Inventory
from plugwright.sdk.serve_settings import TaintSettings

EVICTING = TaintSettings(effect="NoExecute", grace=0.01, budget=1)
WORKS = Device("st1")


class Clock:
    """Both times of the node, set by the test."""

    def __init__(self) -> None:
        self.elapsed, self.wall = 1000.0, 1_700_000_000.5

    def __call__(self) -> Moment:
        return Moment(self.elapsed, self.wall)

    def advance(self, seconds: float) -> None:
        self.elapsed += seconds
        self.wall += seconds


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state" / "taints.json"


def failed(device_id: str = "st0", code: str = "ecc") -> Device:
    return Device(device_id, Health.UNHEALTHY, "worn out", code=code)


def listing(*devices: Device, resource: str = TAPE) -> Inventory:
    inventory = Inventory(resource)
    inventory.update(devices)
    return inventory


@asynccontextmanager
async def controlled(
    inventory: Inventory, clock: Clock, settings: TaintSettings = EVICTING, path: Path | None = None
) -> AsyncIterator[TaintController]:
    controller = TaintController(inventory, settings, path, clock)
    running = asyncio.create_task(controller.run())
    try:
        async with asyncio.timeout(60):
            yield controller
    finally:
        running.cancel()
        await asyncio.wait((running,))


async def until(controller: TaintController, accept: Callable[[Mapping[str, tuple[Taint, ...]]], bool]) -> None:
    await controller.taints.until(lambda taints: taints is not None and accept(taints))


async def has_effect(controller: TaintController, device_id: str, effect: str) -> Taint:
    await until(controller, lambda taints: any(taint["effect"] == effect for taint in taints.get(device_id, ())))
    taints = controller.taints.value
    assert taints is not None
    (taint,) = (taint for taint in taints[device_id] if taint["key"] != "gpu.nvidia.com/xid")
    return taint


def test_a_taint_says_why_and_since_when() -> None:
    record = TaintRecord(since=1.0, effect="NoSchedule", added=1_700_000_000)
    assert taints_for(failed(code="xid-79"), record) == (
        {
            "key": "gpu.nvidia.com/xid",
            "value": "79",
            "effect": "NoSchedule",
            "timeAdded": "2023-11-14T22:13:20Z",
        },
        {
            "key": "plugwright.dev/unhealthy",
            "value": "xid-79",
            "effect": "NoSchedule",
            "timeAdded": "2023-11-14T22:13:20Z",
        },
    )


def test_a_cordon_is_a_taint_beside_it() -> None:
    record = TaintRecord(since=1.0, effect="NoExecute", added=1_700_000_000, cordoned=1_700_000_001)
    keys = [taint["key"] for taint in taints_for(failed(), record)]
    assert keys == ["plugwright.dev/cordoned", "plugwright.dev/unhealthy"]


def test_a_cordoned_device_has_failed_only_if_it_would_have_without_the_cordon() -> None:
    inventory = listing(failed(), WORKS)
    inventory.cordon({"st0": "fan", "st1": "fan"})
    snapshot = inventory.latest.value
    assert snapshot is not None
    assert observed(TAPE, snapshot).failed == {"st0": True}
    assert observed(TAPE, snapshot).cordoned == {"st0", "st1"}


@pytest.mark.parametrize("code", ["daemon", "discovery", "held", "unconfigured"])
def test_what_fails_in_the_daemon_evicts_nobody(code: str) -> None:
    snapshot = listing(failed(code=code)).latest.value
    assert snapshot is not None
    assert observed(TAPE, snapshot).failed == {"st0": False}


async def test_a_device_that_fails_is_tainted_and_its_taint_goes_when_it_recovers(clock: Clock, path: Path) -> None:
    inventory = listing(Device("st0"), WORKS)
    async with controlled(inventory, clock, TaintSettings(), path) as controller:
        await until(controller, lambda taints: not taints)
        inventory.update([failed(), WORKS])
        assert await has_effect(controller, "st0", "NoSchedule") == {
            "key": "plugwright.dev/unhealthy",
            "value": "ecc",
            "effect": "NoSchedule",
            "timeAdded": "2023-11-14T22:13:20Z",
        }
        inventory.update([Device("st0"), WORKS])
        await until(controller, lambda taints: not taints)


async def test_a_rehearsal_has_an_effect_that_does_nothing(clock: Clock) -> None:
    async with controlled(listing(failed()), clock, TaintSettings(effect="None")) as controller:
        assert (await has_effect(controller, "st0", "None"))["key"] == "plugwright.dev/unhealthy"


async def test_no_execute_follows_by_itself_after_the_grace(clock: Clock, path: Path) -> None:
    settings = TaintSettings(effect="NoExecute", grace=0.05)
    async with controlled(listing(failed()), clock, settings, path) as controller:
        first = await has_effect(controller, "st0", "NoSchedule")
        clock.advance(60)
        taint = await has_effect(controller, "st0", "NoExecute")
    assert (first["timeAdded"], taint["timeAdded"]) == ("2023-11-14T22:13:20Z", "2023-11-14T22:14:20Z")


async def test_another_code_is_another_value_of_the_same_taint(clock: Clock) -> None:
    inventory = listing(failed())
    async with controlled(inventory, clock, TaintSettings()) as controller:
        await has_effect(controller, "st0", "NoSchedule")
        clock.advance(100)
        inventory.update([failed(code="xid-79")])
        await until(controller, lambda taints: taints["st0"][-1]["value"] == "xid-79")
        assert (await has_effect(controller, "st0", "NoSchedule"))["timeAdded"] == "2023-11-14T22:13:20Z"


async def test_a_restart_changes_no_taint(clock: Clock, path: Path) -> None:
    inventory = listing(failed(), WORKS)
    inventory.cordon({"st1": "fan"})
    async with controlled(inventory, clock, EVICTING, path) as controller:
        await until(controller, bool)
        clock.advance(60)
        await has_effect(controller, "st0", "NoExecute")
        before = controller.taints.value
    clock.advance(600)
    async with controlled(inventory, clock, EVICTING, path) as controller:
        await until(controller, lambda _: True)
        assert controller.taints.value == before


async def test_nothing_is_published_before_the_devices_are_known(clock: Clock, path: Path) -> None:
    inventory = Inventory(TAPE)
    async with controlled(inventory, clock, EVICTING, path) as controller:
        await asyncio.sleep(0)
        assert controller.taints.value is None
        inventory.update([WORKS])
        await until(controller, lambda taints: not taints)


async def test_beyond_the_budget_is_said_once_and_in_the_status(
    clock: Clock, path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    inventory = listing(failed("st0"), failed("st1"), failed("st2"))
    with recorded_log("plugwright.dra.device_taints.taints", caplog) as log:
        async with controlled(inventory, clock, EVICTING, path) as controller:
            await has_effect(controller, "st0", "NoSchedule")
            clock.advance(1)
            await has_effect(controller, "st0", "NoExecute")
            inventory.update([failed("st0"), failed("st1"), failed("st2", "lost")])
            await until(controller, lambda taints: taints["st2"][0]["value"] == "lost")
            reason = "the budget of 1 devices an hour is spent"
            status = controller.status()
            assert status.pop("devices") == {
                key: [dict(taint) for taint in taints] for key, taints in (controller.taints.value or {}).items()
            }
            assert status == {
                "effect": "NoExecute",
                "budget": 1,
                "evictions": 1,
                "held_back": {"st1": reason, "st2": reason},
                "error": "",
            }
    evicted, held_back = (record for record in caplog.records if record.name == "plugwright.dra.device_taints.taints")
    assert log.lines == [
        "devices have the taint NoExecute, their pods will be evicted: ",
        "devices keep the taint NoSchedule, their pods are not evicted: ",
    ]
    assert (vars(evicted)["devices"], vars(held_back)["devices"]) == ("st0", "st1, st2")


async def test_resources_of_one_daemon_share_the_budget(clock: Clock, path: Path) -> None:
    tapes, disks = listing(failed()), listing(Device("sda"), resource="example.com/disk")
    async with controlled(tapes, clock, EVICTING, path) as first, controlled(disks, clock, EVICTING, path) as second:
        await has_effect(first, "st0", "NoSchedule")
        clock.advance(1)
        await has_effect(first, "st0", "NoExecute")
        disks.update([failed("sda")])
        await has_effect(second, "sda", "NoSchedule")
        clock.advance(1)
        disks.update([failed("sda", "lost")])
        await until(second, lambda taints: taints["sda"][0]["value"] == "lost")
        assert (await has_effect(second, "sda", "NoSchedule"))["value"] == "lost"
        assert second.status()["held_back"] == {"sda": "the budget of 1 devices an hour is spent"}


async def test_a_disk_that_cannot_be_written_keeps_pods_and_not_the_taint(
    clock: Clock, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").touch()
    settings = TaintSettings(effect="NoExecute", grace=0)
    path = tmp_path / "file" / "taints.json"
    with recorded_log("plugwright.dra.device_taints.taints", caplog) as log:
        async with controlled(listing(failed()), clock, settings, path) as controller:
            await has_effect(controller, "st0", "NoSchedule")
            await log.until("taints cannot be written, no further device gets NoExecute")
            await has_effect(controller, "st0", "NoSchedule")
            assert str(controller.status()["error"]).startswith(f"cannot read {path}: ")


async def test_a_damaged_record_is_shown_in_the_status(clock: Clock, path: Path) -> None:
    path.parent.mkdir()
    path.write_text("{")
    async with controlled(listing(failed()), clock, EVICTING, path) as controller:
        await has_effect(controller, "st0", "NoSchedule")
        assert str(controller.status()["error"]).startswith(f"cannot read {path}: ")
        clock.advance(3601)
        assert controller.status()["error"] == ""


async def test_the_record_is_small_and_readable(clock: Clock, path: Path) -> None:
    async with controlled(listing(failed(), *(Device(f"d{number}") for number in range(500))), clock, path=path) as it:
        await has_effect(it, "st0", "NoSchedule")
        clock.advance(1)
        await has_effect(it, "st0", "NoExecute")
    content = json.loads(path.read_text())
    assert content["resources"] == {
        TAPE: {
            "st0": {
                "since": 1000.0,
                "effect": "NoExecute",
                "added": 1_700_000_001,
                "executed": 1001.0,
                "cleared": None,
                "cordoned": 0,
            }
        }
    }
