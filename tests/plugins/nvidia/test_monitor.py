"""What happens to GPUs is in the log: those that come, go or are cut anew, and why one is unfit."""

import logging

import pytest
from tests.plugins.nvidia.looking import listing, machine, resource

from plugwright.plugins.nvidia import monitor, simulated_machines
from plugwright.plugins.nvidia.driver import Gpu, Reading

T4 = simulated_machines.load("t4").gpus
CUT = simulated_machines.load("dgx-a100-mig").gpus


def told(before: tuple[Gpu, ...], after: tuple[Gpu, ...]) -> list[tuple[str, object]]:
    found = monitor.changes(Reading("580", gpus=before), Reading("580", gpus=after))
    return [(text, facts.get("profiles", facts["gpu"])) for text, facts in found]


def test_gpus_that_come_and_go_are_told() -> None:
    assert told(T4[:2], T4[1:3]) == [("GPU is gone", T4[0].uuid), ("GPU is new", T4[2].uuid)]


def test_a_gpu_that_is_cut_anew_is_told_by_its_profiles() -> None:
    anew = simulated_machines.partitioned(CUT[2], ["2g.10gb", "1g.5gb"])
    assert told(CUT, (*CUT[:2], anew, *CUT[3:])) == [("MIG layout has changed", "2g.10gb,1g.5gb")]


@pytest.mark.parametrize("gpus", [T4, ()])
def test_nothing_that_stays_is_told(gpus: tuple[Gpu, ...]) -> None:
    assert told(gpus, gpus) == []


def test_the_first_look_is_no_news() -> None:
    assert list(monitor.changes(Reading(), Reading("580", gpus=T4))) == []


async def test_why_a_gpu_is_unfit_is_told_once_and_so_is_its_end(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    plugin = resource(machine("t4"))
    async with listing(plugin) as lists:
        first, second, *_ = await lists.first()
        for command, reason in (("lose", "GPU is lost"), ("reset", "")):
            await plugin.command(command, {"id": first})
            await lists.reason(first, reason)
            await plugin.command("remap", {"id": second})  # a look that changes nothing for the first
    said = [each.message for each in caplog.records if "fit" in each.message]
    assert said == ["GPU is unfit", "GPU is fit again"]
