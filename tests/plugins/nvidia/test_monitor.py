"""The monitor logs GPUs that come or go, and new MIG layouts."""

import pytest

from plugwright.plugins.nvidia import monitor, simulated_machines
from plugwright.plugins.nvidia.driver import Gpu, GpuSnapshot

T4 = simulated_machines.load("t4").gpus
MIG = simulated_machines.load("dgx-a100-mig").gpus


def logged(before: tuple[Gpu, ...], after: tuple[Gpu, ...]) -> list[tuple[str, object]]:
    changes = monitor.changes(GpuSnapshot("580", gpus=before), GpuSnapshot("580", gpus=after))
    return [(text, facts.get("profiles", facts["gpu"])) for text, facts in changes]


def test_gpus_that_come_and_go_are_logged() -> None:
    assert logged(T4[:2], T4[1:3]) == [("GPU is gone", T4[0].uuid), ("GPU is new", T4[2].uuid)]


def test_a_new_mig_layout_is_logged_with_its_profiles() -> None:
    changed = simulated_machines.partition_gpu(MIG[2], ["2g.10gb", "1g.5gb"])
    assert logged(MIG, (*MIG[:2], changed, *MIG[3:])) == [("MIG layout has changed", "2g.10gb,1g.5gb")]


@pytest.mark.parametrize("gpus", [T4, ()])
def test_an_unchanged_machine_logs_nothing(gpus: tuple[Gpu, ...]) -> None:
    assert logged(gpus, gpus) == []


def test_the_first_snapshot_logs_no_changes() -> None:
    assert list(monitor.changes(GpuSnapshot(), GpuSnapshot("580", gpus=T4))) == []
