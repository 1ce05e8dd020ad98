"""Answers that a plugin has at hand: the same as others to the kubelet, the ledger and the metrics."""

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest
from msgspec.structs import replace
from tests.observed_kubelet import ObservedKubelet
from tests.sdk.test_service import REFUSED, refusal

from plugwright import Allocation, Device, Plugin, Settings, serving
from plugwright.errors import PeerRefused

TAPE, WHOLE, HALF = "example.com/tape", "example.com/whole", "example.com/half"


class Quick(Plugin):
    """Knows the answer for st0 and st1 alone; remembers which method was asked."""

    resource = TAPE

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.known = {name: Allocation(env={"TAPES": name}) for name in ("st0", "st1")}

    async def discover(self) -> AsyncIterator[list[Device]]:
        yield [*(Device(f"st{number}") for number in range(3)), Device("st3", "Unhealthy", "no tape")]

    async def allocate(self, devices: Sequence[Device]) -> Allocation:
        self.asked.append("allocate")
        return Allocation(env={"TAPES": ",".join(device.id for device in devices), "SLOWLY": "yes"})

    def allocate_now(self, devices: Sequence[Device]) -> Allocation | None:
        self.asked.append("now")
        return self.known.get(",".join(device.id for device in devices))


async def test_an_answer_at_hand_is_given_without_allocate(kubelet: ObservedKubelet, settings: Settings) -> None:
    plugin = Quick()
    async with asyncio.timeout(60), serving(plugin, settings=settings) as daemon:
        tape = await kubelet.endpoint(TAPE)
        assert await tape.client.allocate(["st0"]) == [Allocation(env={"TAPES": "st0"})]
        assert await tape.client.allocate(["st1"], ["st0"]) == [plugin.known["st1"], plugin.known["st0"]]
        assert plugin.asked == ["now", "now", "now"]
        runtime = daemon.resource(TAPE)
        assert runtime.service.metrics.calls["Allocate", "ok"] == 2
        assert set(runtime.inventory.allocated) == {"st0", "st1"}


async def test_allocate_is_called_if_the_answer_is_not_at_hand(kubelet: ObservedKubelet, settings: Settings) -> None:
    plugin = Quick()
    async with asyncio.timeout(60), serving(plugin, settings=settings) as daemon:
        tape = await kubelet.endpoint(TAPE)
        [answer] = await tape.client.allocate(["st2"])
        assert answer.env == {"TAPES": "st2", "SLOWLY": "yes"}
        assert plugin.asked == ["now", "allocate"]
        assert daemon.resource(TAPE).service.metrics.calls["Allocate", "ok"] == 1, "counted once"


async def test_every_refusal_stays_and_the_plugin_is_not_asked(kubelet: ObservedKubelet, settings: Settings) -> None:
    plugin = Quick()
    async with asyncio.timeout(60), serving(plugin, settings=settings) as daemon:
        tape = await kubelet.endpoint(TAPE)
        for what, (containers, message) in REFUSED.items():
            assert await refusal(tape, *containers) == ("INVALID_ARGUMENT", message), what
        assert daemon.resource(TAPE).service.metrics.calls["Allocate", "refused"] == len(REFUSED)
    assert plugin.asked == []


class Other(Quick):
    """A subclass whose author does not know of allocate_now()."""

    async def allocate(self, devices: Sequence[Device]) -> Allocation:
        return Allocation(env={"OTHER": "yes"})


class Releasing(Quick):
    async def release(self, devices: Sequence[Device]) -> None:
        """Called some time after the pod has gone."""


class Broken(Quick):
    def allocate_now(self, devices: Sequence[Device]) -> Allocation | None:
        raise OSError("bus error")


class Odd(Quick):
    def allocate_now(self, devices: Sequence[Device]) -> Allocation | None:
        return {"TAPES": "st0"}  # type: ignore[return-value]


@pytest.mark.parametrize(("plugin", "variable"), [(Other(), "OTHER"), (Releasing(), "SLOWLY"), (Odd(), "SLOWLY")])
async def test_allocate_is_called_for_plugins_whose_answer_may_differ(
    plugin: Quick, variable: str, kubelet: ObservedKubelet, settings: Settings
) -> None:
    async with asyncio.timeout(60), serving(plugin, settings=settings):
        [answer] = await (await kubelet.endpoint(TAPE)).client.allocate(["st0"])
    assert variable in answer.env


async def test_a_failing_allocate_now_is_logged_once_and_allocate_answers(
    kubelet: ObservedKubelet, settings: Settings, caplog: pytest.LogCaptureFixture
) -> None:
    async with asyncio.timeout(60), serving(Broken(), settings=settings):
        tape = await kubelet.endpoint(TAPE)
        for _ in range(2):
            [answer] = await tape.client.allocate(["st0"])
            assert answer.env["SLOWLY"] == "yes"
    failed = [record for record in caplog.records if record.message == "allocate_now() failed"]
    assert [(record.levelno, record.__dict__["error"]) for record in failed] == [(logging.ERROR, "OSError: bus error")]


async def test_an_answer_is_logged_at_the_latest_when_the_daemon_stops(
    kubelet: ObservedKubelet, settings: Settings, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "plugwright.sdk.service")
    async with asyncio.timeout(60), serving(Quick(), settings=settings):
        await (await kubelet.endpoint(TAPE)).client.allocate(["st0"])
    assert [record.__dict__["devices"] for record in caplog.records if record.message == "allocated"] == [["st0"]]


class Card(Quick):
    """One card, offered whole and as a half of it: the same hardware."""

    def __init__(self, resource: str) -> None:
        super().__init__()
        self.resource, self.known = resource, {"card": Allocation()}

    async def discover(self) -> AsyncIterator[list[Device]]:
        yield [Device("card", physical=["pci:0000:01:00.0"])]


async def test_a_device_is_held_from_its_instant_answer_on(
    kubelet: ObservedKubelet, settings: Settings, tmp_path: Path
) -> None:
    settings = replace(settings, state_dir=tmp_path / "state")
    async with asyncio.timeout(60), serving(Card(WHOLE), settings=settings) as earlier:
        before = await kubelet.endpoint(WHOLE)
        await earlier.ledger.memory.written()
    whole, half = Card(WHOLE), Card(HALF)  # offered as before, so that no allocation of that run is in doubt
    async with asyncio.timeout(60), serving(whole, settings=settings) as daemon:
        await kubelet.until(lambda seen: seen.endpoints[WHOLE] is not before)
        whole_now = await kubelet.endpoint(WHOLE)
        await daemon.ledger.memory.written()
        await whole_now.client.allocate(["card"])
        await daemon.apply([whole, half])
        with pytest.raises(PeerRefused, match="card"):
            await (await kubelet.endpoint(HALF)).client.allocate(["card"])
    assert whole.asked == ["now"]
