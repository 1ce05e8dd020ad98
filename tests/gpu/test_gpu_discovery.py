"""The driver reads the same values as `nvidia-smi`."""

import re
import subprocess
from collections.abc import Callable
from pathlib import Path

from plugwright.plugins.nvidia.driver import GpuSnapshot, RecoveryAction
from plugwright.plugins.nvidia.nvml import Nvml

_FIELDS = "index,uuid,name,memory.total,pci.bus_id,compute_mode,mig.mode.current,driver_version"


def nvidia_smi(*arguments: str) -> str:
    done = subprocess.run(["nvidia-smi", *arguments], capture_output=True, text=True, check=True, timeout=60)
    return done.stdout


def test_gpus_are_those_of_nvidia_smi(snapshot: GpuSnapshot) -> None:
    lines = nvidia_smi(f"--query-gpu={_FIELDS}", "--format=csv,noheader,nounits").splitlines()
    expected = [[cell.strip() for cell in line.split(",")] for line in lines]
    actual = [
        [
            str(gpu.index),
            gpu.uuid,
            gpu.model,
            str(gpu.memory // 2**20),
            f"0000{gpu.pci}".upper(),
            str(gpu.compute_mode),
            "Enabled" if gpu.mig_enabled else "Disabled",
            snapshot.driver,
        ]
        for gpu in snapshot.gpus
    ]
    for row in expected:
        row[6] = row[6].replace("[N/A]", "Disabled")
    assert actual == expected


def test_mig_devices_are_those_of_nvidia_smi(snapshot: GpuSnapshot) -> None:
    listed = re.findall(r"MIG (\S+)\s+Device\s+(\d+): \(UUID: (MIG-[^)]+)\)", nvidia_smi("-L"))
    actual = [(mig.profile, str(mig.index), mig.uuid) for gpu in snapshot.gpus for mig in gpu.mig]
    assert actual == listed


def test_what_claims_select_by_is_known(snapshot: GpuSnapshot, seen: Callable[[str], None]) -> None:
    for gpu in snapshot.gpus:
        seen(f"{gpu.model}: {gpu.brand}, {gpu.architecture}, {gpu.multiprocessors} multiprocessors, {gpu.standard}")
        assert gpu.brand
        assert gpu.architecture
        assert gpu.multiprocessors
        assert gpu.standard["resource.kubernetes.io/pciBusID"] == gpu.pci


def test_numa_nodes_are_the_kernels(snapshot: GpuSnapshot) -> None:
    for gpu in snapshot.gpus:
        node = int(Path(f"/sys/bus/pci/devices/{gpu.pci}/numa_node").read_text())
        assert gpu.numa == (node if node >= 0 else None)


def test_links_are_those_of_nvidia_smi(snapshot: GpuSnapshot) -> None:
    """NVLinks as `topo -m` counts them; where it shows none, the level over PCIe."""
    table = re.sub(r"\x1b\[[0-9;]*m", "", nvidia_smi("topo", "-m"))
    rows = {int(match[1]): match[2].split() for match in re.finditer(r"^GPU(\d+)[ \t]+(.+)$", table, re.MULTILINE)}
    for one in snapshot.gpus:
        for other in snapshot.gpus:
            if one.index < other.index:
                link = snapshot.links.between(one.uuid, other.uuid)
                cell = rows[one.index][other.index]
                assert cell == (f"NV{link.nvlinks}" if link.nvlinks else link.level.name)


def test_a_working_gpu_has_good_health_values(snapshot: GpuSnapshot, driver: Nvml, seen: Callable[[str], None]) -> None:
    for gpu in snapshot.gpus:
        values = driver.health(gpu.uuid)
        assert (values.fault, values.remap_failed or False) == ("", False)
        assert values.recovery in (RecoveryAction.NONE, RecoveryAction.UNKNOWN)
        seen(f"GPU {gpu.index}: {values}")


def test_a_second_read_gives_the_same_snapshot(snapshot: GpuSnapshot, driver: Nvml) -> None:
    assert driver.read() == snapshot
    driver.close()
    assert driver.read() == snapshot
