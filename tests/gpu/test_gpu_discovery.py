"""What we find is what NVIDIA's own program finds."""

import re
import subprocess
from collections.abc import Callable
from pathlib import Path

from plugwright.plugins.nvidia.driver import Reading, Recovery
from plugwright.plugins.nvidia.nvml import Nvml

_FIELDS = "index,uuid,name,memory.total,pci.bus_id,compute_mode,mig.mode.current,driver_version"


def nvidia_smi(*arguments: str) -> str:
    done = subprocess.run(["nvidia-smi", *arguments], capture_output=True, text=True, check=True, timeout=60)
    return done.stdout


def test_gpus_are_those_of_nvidia_smi(reading: Reading) -> None:
    lines = nvidia_smi(f"--query-gpu={_FIELDS}", "--format=csv,noheader,nounits").splitlines()
    told = [[cell.strip() for cell in line.split(",")] for line in lines]
    found = [
        [
            str(gpu.index),
            gpu.uuid,
            gpu.model,
            str(gpu.memory // 2**20),
            f"0000{gpu.pci}".upper(),
            str(gpu.compute_mode),
            "Enabled" if gpu.mig_enabled else "Disabled",
            reading.driver,
        ]
        for gpu in reading.gpus
    ]
    for row in told:
        row[6] = row[6].replace("[N/A]", "Disabled")
    assert found == told


def test_parts_are_those_of_nvidia_smi(reading: Reading) -> None:
    listed = re.findall(r"MIG (\S+)\s+Device\s+(\d+): \(UUID: (MIG-[^)]+)\)", nvidia_smi("-L"))
    found = [(mig.profile, str(mig.index), mig.uuid) for gpu in reading.gpus for mig in gpu.mig]
    assert found == listed


def test_numa_nodes_are_the_kernels(reading: Reading) -> None:
    for gpu in reading.gpus:
        node = int(Path(f"/sys/bus/pci/devices/{gpu.pci}/numa_node").read_text())
        assert gpu.numa == (node if node >= 0 else None)


def test_links_are_those_of_nvidia_smi(reading: Reading) -> None:
    """NVLinks as `topo -m` counts them; where it shows none, the level over PCIe."""
    drawn = re.sub(r"\x1b\[[0-9;]*m", "", nvidia_smi("topo", "-m"))
    rows = {int(found[1]): found[2].split() for found in re.finditer(r"^GPU(\d+)[ \t]+(.+)$", drawn, re.MULTILINE)}
    for one in reading.gpus:
        for other in reading.gpus:
            if one.index < other.index:
                link = reading.links.between(one.uuid, other.uuid)
                cell = rows[one.index][other.index]
                assert cell == (f"NV{link.nvlinks}" if link.nvlinks else link.level.name)


def test_a_gpu_that_works_says_so(reading: Reading, driver: Nvml, seen: Callable[[str], None]) -> None:
    for gpu in reading.gpus:
        facts = driver.facts(gpu.uuid)
        assert (facts.fault, facts.remap_failed or False) == ("", False)
        assert facts.recovery in (Recovery.NONE, Recovery.UNKNOWN)
        seen(f"GPU {gpu.index}: {facts}")


def test_reading_again_gives_the_same(reading: Reading, driver: Nvml) -> None:
    assert driver.read() == reading
    driver.close()
    assert driver.read() == reading
