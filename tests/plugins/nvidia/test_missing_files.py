"""A GPU that Allocate could not hand out is Unhealthy with the reason, before any pod is refused."""

from pathlib import Path

import pytest
from tests.plugins.nvidia.binding import Binding
from tests.plugins.nvidia.driver_tree import install_driver
from tests.plugins.nvidia.harness import INTERVALS, listing
from tests.plugins.nvidia.test_nvml import cards, driver

from plugwright.plugins.nvidia.config import DeviceListStrategy, NvidiaCdi, NvidiaConfig, NvidiaDriver
from plugwright.plugins.nvidia.monitor import GpuMonitor
from plugwright.plugins.nvidia.plugin import Nvidia


@pytest.mark.parametrize("strategy", [DeviceListStrategy.DEVICE_NODES, DeviceListStrategy.CDI_CRI])
async def test_a_gpu_is_unhealthy_while_its_files_are_missing(tmp_path: Path, strategy: DeviceListStrategy) -> None:
    for name in ("nvidiactl", "nvidia0"):
        (tmp_path / "dev").mkdir(exist_ok=True)
        (tmp_path / "dev" / name).touch()
    config = NvidiaConfig(
        strategy=strategy,
        driver=NvidiaDriver(root=str(tmp_path), host="/", dev=str(tmp_path)),
        cdi=NvidiaCdi(dir=str(tmp_path / "cdi")),
    )
    async with listing(Nvidia("nvidia.com/gpu", config, GpuMonitor(driver(Binding(*cards(2))), INTERVALS))) as lists:
        await lists.reason("GPU-0", "/dev/nvidia-uvm does not exist")
        (tmp_path / "dev/nvidia-uvm").touch()
        await lists.reason("GPU-0", "no libcuda.so.1 under")
        install_driver(tmp_path)
        await lists.reason("GPU-0", "")
        await lists.reason("GPU-1", "/dev/nvidia1 does not exist")
        text = "not refreshed, TRITON_LIBCUDA_PATH is set instead"
        assert lists.devices["GPU-0"].attributes["notes"] == {"loader cache in containers": text}
        (tmp_path / "dev/nvidia1").touch()
        await lists.reason("GPU-1", "")
