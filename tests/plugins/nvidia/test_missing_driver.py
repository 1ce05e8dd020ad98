"""A node with NVIDIA cards and without their driver: idle, and not silent."""

from pathlib import Path

import pytest
from tests.plugins.nvidia.harness import listing

from plugwright.errors import HardwareMissing
from plugwright.plugins.nvidia.config import NvidiaConfig, NvidiaDriver
from plugwright.plugins.nvidia.monitor import GpuMonitor
from plugwright.plugins.nvidia.nvml import KernelPaths, Nvml
from plugwright.plugins.nvidia.plugin import Nvidia


def test_cards_on_the_bus_are_named_if_their_driver_is_missing(tmp_path: Path) -> None:
    """Not those that virtual machines have, other vendors' and NVIDIA's other devices."""
    functions = {
        "0000:17:00.0": ("0x10de", "0x030200", ""),
        "0000:3d:00.0": ("0x10de", "0x030000", "nouveau"),
        "0000:60:00.0": ("0x10de", "0x030200", "vfio-pci"),
        "0000:61:00.0": ("0x10de", "0x068000", ""),  # an NVSwitch
        "0000:70:00.0": ("0x1002", "0x030000", ""),
    }
    for address, (vendor, kind, driver) in functions.items():
        directory = tmp_path / "bus/pci/devices" / address
        directory.mkdir(parents=True)
        (directory / "vendor").write_text(f"{vendor}\n")
        (directory / "class").write_text(f"{kind}\n")
        if driver:
            (directory / "driver").symlink_to(f"../../drivers/{driver}")
    nvml = Nvml(paths=KernelPaths(tmp_path, tmp_path))
    assert nvml.cards_on_bus() == "NVIDIA cards on the PCI bus (0000:17:00.0, 0000:3d:00.0)"


async def test_an_idle_resource_names_the_cards_of_the_node(tmp_path: Path) -> None:
    directory = tmp_path / "bus/pci/devices/0000:17:00.0"
    directory.mkdir(parents=True)
    (directory / "vendor").write_text("0x10de\n")
    (directory / "class").write_text("0x030200\n")
    config = NvidiaConfig(driver=NvidiaDriver(root=str(tmp_path)))
    plugin = Nvidia("nvidia.com/gpu", config, GpuMonitor(Nvml(tmp_path, KernelPaths(tmp_path, tmp_path))))
    with pytest.raises(HardwareMissing) as missing:
        async with listing(plugin) as lists:
            await lists.first()
    assert missing.value.on_bus == "NVIDIA cards on the PCI bus (0000:17:00.0)"
