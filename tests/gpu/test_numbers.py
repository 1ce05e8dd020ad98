"""What the daemon needs on a real machine: memory with NVML loaded, and the time of an Allocate."""

import signal
import statistics
import time
from collections.abc import Callable
from pathlib import Path

from tests.cli.processes import ended, python, running

from plugwright.plugins.nvidia.gpus import Reading
from tiny_kubelet import TinyKubelet

MEMORY_BAR = 40  # MiB
CALLS = 1000


def resident(pid: int) -> float:
    """MiB."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * 4096 / 2**20


async def test_the_daemon_with_nvml_is_small_and_quick(
    kubelet: TinyKubelet, reading: Reading, tmp_path: Path, seen: Callable[[str], None]
) -> None:
    path = tmp_path / "plugwright.yaml"
    path.write_text("resources: [{name: nvidia.com/gpu, nvidia: {}}]\n")
    flags = ("--kubelet-dir", kubelet.paths.root, "--control-socket", kubelet.paths.root / "control.sock")
    state = ("--state-dir", tmp_path)
    await ended(python("-m", "plugwright", "run", "--check", "-c", path))  # what is compiled now is not measured
    async with running(python("-m", "plugwright", "run", "-c", path, *flags, *state)) as daemon:
        gpu = await kubelet.endpoint("nvidia.com/gpu", len(reading.gpus))
        first = next(iter(gpu.devices))
        times = []
        for _ in range(CALLS):
            began = time.perf_counter()
            await gpu.client.allocate([first])
            times.append((time.perf_counter() - began) * 1e6)
        memory = resident(daemon.pid)
        daemon.signal(signal.SIGTERM)
        assert await daemon.ends() == 0  # also while a thread waits for events in NVIDIA's library
    quantiles = statistics.quantiles(times, n=100)
    seen(f"RSS with NVML {memory:.1f} MiB (bar {MEMORY_BAR})")
    seen(f"Allocate p50 {quantiles[49]:.0f} µs, p99 {quantiles[98]:.0f} µs")
    assert memory <= MEMORY_BAR
