"""Machines that do not exist are like real ones, and a drawing of a real one can be taken instead."""

from itertools import combinations
from pathlib import Path

import pytest

from plugwright import ConfigError
from plugwright.plugins.nvidia import simulated_machines
from plugwright.plugins.nvidia.driver import Link, PcieLevel, Reading

DRAWING = """\
\t\x1b[4mGPU0\tGPU1\tGPU2\tNIC0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\x1b[0m
GPU0\t X \tNV12\tSYS\tPXB\t0-31\t0\t\tN/A
GPU1\tNV12\t X \tPHB\tSYS\t0-31\t0\t\tN/A
GPU2\tSYS\tPHB\t X \tSYS\t32-63\t1\t\tN/A
NIC0\tPXB\tSYS\tSYS\t X \t\t\t\t

Legend:
  X    = Self
"""
LISTING = "GPU 1: NVIDIA H200 (UUID: GPU-6d8c5c1c-1b0e-4f0c-a3ae-0c7a0d6e1f52)\n"


def link(reading: Reading, one: int, other: int) -> Link:
    return reading.links.between(reading.gpus[one].uuid, reading.gpus[other].uuid)


@pytest.mark.parametrize("name", sorted(simulated_machines.MACHINES))
def test_a_machine_is_whole_and_always_the_same(name: str) -> None:
    reading = simulated_machines.load(name)
    assert reading == simulated_machines.load(name)
    uuids = [gpu.uuid for gpu in reading.gpus] + [mig.uuid for gpu in reading.gpus for mig in gpu.mig]
    assert len(set(uuids)) == len(uuids)
    assert len({gpu.pci for gpu in reading.gpus}) == len(reading.gpus)
    assert [gpu.index for gpu in reading.gpus] == list(range(len(reading.gpus)))
    pairs = {tuple(sorted((one.uuid, other.uuid))) for one, other in combinations(reading.gpus, 2)}
    assert set(reading.links.pairs) == pairs


def test_machines_differ_in_what_they_are_known_for() -> None:
    dgx2, cube, t4 = (simulated_machines.load(name) for name in ("dgx-2", "dgx-1", "t4"))
    assert (len(dgx2.gpus), link(dgx2, 0, 15)) == (16, Link(PcieLevel.SYS, 6))
    assert link(dgx2, 0, 1).level is PcieLevel.PIX
    assert [sum(link(cube, one, other).nvlinks for other in range(8) if other != one) for one in range(8)] == [6] * 8
    assert {each.nvlinks for each in t4.links.pairs.values()} == {0}


def test_a_pair_is_the_same_from_both_ends() -> None:
    reading = simulated_machines.load("dgx-a100")
    assert all(link(reading, one, other) == link(reading, other, one) for one, other in combinations(range(8), 2))


def test_a_drawing_of_a_real_machine_is_taken(tmp_path: Path) -> None:
    path = tmp_path / "topo.txt"
    path.write_text(DRAWING + LISTING)
    reading = simulated_machines.load(str(path))
    assert [gpu.numa for gpu in reading.gpus] == [0, 0, 1]
    assert (reading.gpus[1].model, reading.gpus[1].uuid) == ("NVIDIA H200", "GPU-6d8c5c1c-1b0e-4f0c-a3ae-0c7a0d6e1f52")
    assert link(reading, 0, 1) == Link(PcieLevel.NODE, 12)
    assert (link(reading, 0, 2).level, link(reading, 1, 2).level) == (PcieLevel.SYS, PcieLevel.PHB)


def test_an_older_drawing_has_fewer_columns(tmp_path: Path) -> None:
    path = tmp_path / "topo.txt"
    path.write_text("\tGPU0\tGPU1\tCPU Affinity\nGPU0\t X \tPIX\t0-31\nGPU1\tPIX\t X \t0-31\n")
    reading = simulated_machines.load(str(path))
    assert ([gpu.numa for gpu in reading.gpus], link(reading, 0, 1)) == ([None, None], Link(PcieLevel.PIX))


@pytest.mark.parametrize("text", ["", "hello", "GPU0\t X \tFOO\nGPU1\tFOO\t X \n", "GPU1\t X \t0\n"])
def test_what_is_no_drawing_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "topo.txt"
    path.write_text(text)
    with pytest.raises(ConfigError, match="topo -m"):
        simulated_machines.load(str(path))


def test_a_machine_that_nobody_knows_is_refused() -> None:
    with pytest.raises(ConfigError, match="hgx-h100"):
        simulated_machines.load("dgx-9000")
    with pytest.raises(ConfigError, match="cannot read /nowhere/topo"):
        simulated_machines.load("/nowhere/topo")


def test_a_gpu_is_cut_by_profiles() -> None:
    [gpu] = simulated_machines.load("h200").gpus
    cut = simulated_machines.partitioned(gpu, ["3g.71gb", "1g.18gb+me"])
    assert [(mig.profile, mig.memory // 2**30, mig.index) for mig in cut.mig] == [
        ("3g.71gb", 71, 0),
        ("1g.18gb+me", 18, 1),
    ]
    with pytest.raises(ConfigError, match="MIG profile"):
        simulated_machines.partitioned(gpu, ["large"])
