"""Simulated machines: the built-in ones, and those from the output of `nvidia-smi topo -m`."""

from itertools import combinations
from pathlib import Path

import pytest

from plugwright import ConfigError
from plugwright.plugins.nvidia import simulated_machines
from plugwright.plugins.nvidia.driver import GpuLink, GpuSnapshot, PcieLevel

TOPOLOGY = """\
\t\x1b[4mGPU0\tGPU1\tGPU2\tNIC0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\x1b[0m
GPU0\t X \tNV12\tSYS\tPXB\t0-31\t0\t\tN/A
GPU1\tNV12\t X \tPHB\tSYS\t0-31\t0\t\tN/A
GPU2\tSYS\tPHB\t X \tSYS\t32-63\t1\t\tN/A
NIC0\tPXB\tSYS\tSYS\t X \t\t\t\t

Legend:
  X    = Self
"""
LISTING = "GPU 1: NVIDIA H200 (UUID: GPU-6d8c5c1c-1b0e-4f0c-a3ae-0c7a0d6e1f52)\n"


def link(snapshot: GpuSnapshot, one: int, other: int) -> GpuLink:
    return snapshot.links.between(snapshot.gpus[one].uuid, snapshot.gpus[other].uuid)


@pytest.mark.parametrize("name", sorted(simulated_machines.MACHINES))
def test_a_machine_is_complete_and_always_the_same(name: str) -> None:
    snapshot = simulated_machines.load(name)
    assert snapshot == simulated_machines.load(name)
    uuids = [gpu.uuid for gpu in snapshot.gpus] + [mig.uuid for gpu in snapshot.gpus for mig in gpu.mig]
    assert len(set(uuids)) == len(uuids)
    assert len({gpu.pci for gpu in snapshot.gpus}) == len(snapshot.gpus)
    assert [gpu.index for gpu in snapshot.gpus] == list(range(len(snapshot.gpus)))
    pairs = {tuple(sorted((one.uuid, other.uuid))) for one, other in combinations(snapshot.gpus, 2)}
    assert set(snapshot.links.pairs) == pairs


def test_machines_have_their_own_links() -> None:
    dgx2, cube, t4 = (simulated_machines.load(name) for name in ("dgx-2", "dgx-1", "t4"))
    assert (len(dgx2.gpus), link(dgx2, 0, 15)) == (16, GpuLink(PcieLevel.SYS, 6))
    assert link(dgx2, 0, 1).level is PcieLevel.PIX
    assert [sum(link(cube, one, other).nvlinks for other in range(8) if other != one) for one in range(8)] == [6] * 8
    assert {pair.nvlinks for pair in t4.links.pairs.values()} == {0}


def test_newer_machines_are_as_their_owners_have_shown_them() -> None:
    l40s, b200, gb200 = (simulated_machines.load(name) for name in ("l40s", "hgx-b200", "gb200"))
    assert [
        (gpu.model, gpu.memory // 2**20, gpu.capability) for gpu in (l40s.gpus[0], b200.gpus[0], gb200.gpus[0])
    ] == [
        ("NVIDIA L40S", 46068, (8, 9)),
        ("NVIDIA B200", 183359, (10, 0)),
        ("NVIDIA GB200", 189471, (10, 0)),
    ]
    assert (link(l40s, 0, 1), link(l40s, 1, 2)) == (GpuLink(PcieLevel.NODE), GpuLink(PcieLevel.SYS))
    assert (link(b200, 0, 7).nvlinks, link(gb200, 0, 3).nvlinks) == (18, 18)
    assert [gpu.pci for gpu in gb200.gpus] == ["0008:01:00.0", "0009:01:00.0", "0018:01:00.0", "0019:01:00.0"]


def test_links_are_symmetric() -> None:
    snapshot = simulated_machines.load("dgx-a100")
    assert all(link(snapshot, one, other) == link(snapshot, other, one) for one, other in combinations(range(8), 2))


def test_a_topology_file_becomes_a_machine(tmp_path: Path) -> None:
    path = tmp_path / "topo.txt"
    path.write_text(TOPOLOGY + LISTING)
    snapshot = simulated_machines.load(str(path))
    assert [gpu.numa for gpu in snapshot.gpus] == [0, 0, 1]
    assert (snapshot.gpus[1].model, snapshot.gpus[1].uuid) == (
        "NVIDIA H200",
        "GPU-6d8c5c1c-1b0e-4f0c-a3ae-0c7a0d6e1f52",
    )
    assert link(snapshot, 0, 1) == GpuLink(PcieLevel.NODE, 12)
    assert (link(snapshot, 0, 2).level, link(snapshot, 1, 2).level) == (PcieLevel.SYS, PcieLevel.PHB)


def test_an_older_topology_file_has_fewer_columns(tmp_path: Path) -> None:
    path = tmp_path / "topo.txt"
    path.write_text("\tGPU0\tGPU1\tCPU Affinity\nGPU0\t X \tPIX\t0-31\nGPU1\tPIX\t X \t0-31\n")
    snapshot = simulated_machines.load(str(path))
    assert ([gpu.numa for gpu in snapshot.gpus], link(snapshot, 0, 1)) == ([None, None], GpuLink(PcieLevel.PIX))


@pytest.mark.parametrize("text", ["", "hello", "GPU0\t X \tFOO\nGPU1\tFOO\t X \n", "GPU1\t X \t0\n"])
def test_a_file_without_a_topology_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "topo.txt"
    path.write_text(text)
    with pytest.raises(ConfigError, match="topo -m"):
        simulated_machines.load(str(path))


def test_an_unknown_machine_is_refused() -> None:
    with pytest.raises(ConfigError, match="hgx-h100"):
        simulated_machines.load("dgx-9000")
    with pytest.raises(ConfigError, match="cannot read /nowhere/topo"):
        simulated_machines.load("/nowhere/topo")


def test_a_gpu_is_partitioned_by_profiles() -> None:
    [gpu] = simulated_machines.load("h200").gpus
    partitioned = simulated_machines.partition_gpu(gpu, ["3g.71gb", "1g.18gb+me"])
    assert [(mig.profile, mig.memory // 2**30, mig.index) for mig in partitioned.mig] == [
        ("3g.71gb", 71, 0),
        ("1g.18gb+me", 18, 1),
    ]
    with pytest.raises(ConfigError, match="MIG profile"):
        simulated_machines.partition_gpu(gpu, ["large"])
