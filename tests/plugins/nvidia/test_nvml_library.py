"""The real pynvml with a library made for the test: loaded from the driver's root, and again after an update."""

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from plugwright.plugins.nvidia.driver import ComputeMode, EventKind, GpuEvent, GpuHealth, RecoveryAction
from plugwright.plugins.nvidia.nvml import Nvml

pytest.importorskip("pynvml", reason="needs the extra nvidia")
SOURCE = Path(__file__).with_name("library.c")
UUID = "GPU-11111111-2222-3333-4444-555555555555"

Install = Callable[[str], None]


@pytest.fixture
def install(tmp_path: Path) -> Install:
    """Installs a driver of this version."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("needs a C compiler")

    def make(version: str) -> None:
        path = tmp_path / "usr/lib64/libnvidia-ml.so.1"
        path.parent.mkdir(parents=True, exist_ok=True)
        new = path.with_suffix(".new")
        flags = ["-shared", "-fPIC", "-w", f'-DVERSION="{version}"', "-Wl,-soname,libnvidia-ml.so.1"]
        subprocess.run([compiler, *flags, "-o", str(new), str(SOURCE)], check=True)
        new.replace(path)

    return make


def test_a_gpu_is_read_through_the_real_binding(install: Install, tmp_path: Path) -> None:
    install("580.1")
    nvml = Nvml(tmp_path)
    reading = nvml.read()
    [gpu] = reading.gpus
    assert (reading.driver, reading.cuda) == ("580.1", "13.1")
    assert (gpu.uuid, gpu.index, gpu.minor, gpu.model, gpu.pci) == (UUID, 0, 5, "NVIDIA H200", "0000:5d:00.0")
    assert (gpu.memory, gpu.capability) == (143771 * 2**20, (9, 0))
    assert (gpu.compute_mode, gpu.mig_enabled, gpu.fault) == (ComputeMode.DEFAULT, False, "")
    assert nvml.health(UUID) == GpuHealth(
        ecc_uncorrected=3, remap_pending=True, remap_failed=False, recovery=RecoveryAction.RESET
    )
    assert nvml.health("GPU-9").away
    nvml.close()


def test_events_are_heard_through_the_real_binding(install: Install, tmp_path: Path) -> None:
    install("580.1")
    events = Nvml(tmp_path).events((UUID, "GPU-9"))
    assert (events.watched, list(events.unwatched)) == ({UUID}, ["GPU-9"])
    assert events.wait(1) == GpuEvent(EventKind.XID, UUID, 79)
    assert events.wait(0.01) is None
    events.close()


def test_a_driver_that_was_updated_is_used_with_its_own_library(install: Install, tmp_path: Path) -> None:
    nvml = Nvml(tmp_path)
    for version in ("580.1", "590.2"):
        install(version)
        assert nvml.read().driver == version
        nvml.close()
