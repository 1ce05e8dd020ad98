"""The cost of the daemon on a real machine: memory with NVML loaded, and the time of an Allocate."""

import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.cli.processes import ended, python, running
from tests.observed_kubelet import ObservedKubelet

from plugwright.plugins.nvidia.driver import GpuSnapshot

MEMORY_BAR = 40  # MiB, with NVML
CALLS = 1000
SETTLED = 2.0  # seconds, after which the daemon has given back what loading took
# The memory of NVIDIA's library alone.
LIBRARY = """
import pynvml
def resident(): return int(open("/proc/self/statm").read().split()[1]) * 4096 / 2**20
before = resident()
pynvml.nvmlInit()
pynvml.nvmlDeviceGetHandleByIndex(0)
print(resident() - before)
"""


def resident(pid: int) -> float:
    """MiB."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * 4096 / 2**20


@pytest.mark.parametrize("strategy", ["envvar", "device-nodes"])
async def test_the_daemon_with_nvml_is_small_and_quick(
    kubelet: ObservedKubelet, snapshot: GpuSnapshot, tmp_path: Path, strategy: str, seen: Callable[[str], None]
) -> None:
    path = tmp_path / "plugwright.yaml"
    path.write_text(f"resources: [{{name: nvidia.com/gpu, nvidia: {{strategy: {strategy}}}}}]\n")
    flags = (
        "--log-level",
        "warning",
        "--kubelet-dir",
        kubelet.paths.root,
        "--control-socket",
        kubelet.paths.root / "control.sock",
    )
    state = ("--state-dir", tmp_path)
    await ended(python("-m", "plugwright", "run", "--check", "-c", path))  # what is compiled now is not measured
    async with running(python("-m", "plugwright", "run", "-c", path, *flags, *state)) as daemon:
        gpu = await kubelet.endpoint("nvidia.com/gpu", len(snapshot.gpus))
        first = next(iter(gpu.devices))
        times: list[float] = []
        started = time.monotonic()
        while len(times) < CALLS or time.monotonic() - started < SETTLED:
            began = time.perf_counter()
            await gpu.client.allocate([first])
            times.append((time.perf_counter() - began) * 1e6)
        memory = resident(daemon.pid)
        daemon.signal(signal.SIGTERM)
        assert await daemon.ends() == 0  # also while a thread waits for events in NVIDIA's library
    quantiles = statistics.quantiles(times, n=100)
    library = float(subprocess.run([sys.executable, "-c", LIBRARY], capture_output=True, check=True).stdout)
    seen(f"{strategy}: RSS {memory:.1f} MiB (bar {MEMORY_BAR}), of which NVIDIA's library {library:.1f}")
    seen(f"{strategy}: Allocate, both ends in Python, p50 {quantiles[49]:.0f} µs, p99 {quantiles[98]:.0f} µs")
    assert memory < 2 * MEMORY_BAR  # the summary has the number; this much would be a leak
