"""`python -m bench.manager`: allocations per second of the emulated device manager, every record durable.

Pods with one device are admitted one after the other until none is left, through a plugin in a process of its own: the
Go yardstick where it was built, else `plugwright run` with mock devices. The real kubelet's device manager takes turns
with it where it was built. The numbers are reported and not judged.
"""

import argparse
import asyncio
import gc
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from statistics import median

from bench import real_manager, table
from bench.table import Row, Samples

from plugwright.kubelet import ContainerSpec, Kubelet, KubeletSettings, PodSpec

__all__ = ["main"]

FULL, QUICK = (100, 1_000, 4_000), (100, 1_000)
REAL = {100: 333, 1_000: 108, 4_000: 30}  # the real kubelet's own code, on a machine of this class
FACTORS = {100: 1.5, 1_000: 5, 4_000: 12}
_YARDSTICK = Path("build/yardstick")
_MANY_DEVICES = 64_000
_CONFIG = "resources:\n  - name: mock/gpu\n    mock: {{count: {count}}}\n"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.manager", description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="fewer devices, one repeat")
    parser.add_argument("--repeat", type=int, metavar="N", help="repeats (default 3, quick 1)")
    options = parser.parse_args(arguments)
    sizes = QUICK if options.quick else FULL
    samples: dict[str, list[float]] = {}
    for _ in range(options.repeat or (1 if options.quick else 3)):
        for size in sizes:
            samples.setdefault(f"fill_{size}", []).append(asyncio.run(_fill(size)))
            if not real_manager.obstacle():
                samples.setdefault(f"real_{size}", []).append(real_manager.allocations_per_second(size))
        for key, value in asyncio.run(_churn()).items():
            samples.setdefault(key, []).append(value)
        samples.setdefault("many_ms", []).append(asyncio.run(_list_many()))
    print(f"- plugin: {'yardstick, in Go' if _YARDSTICK.exists() else 'plugwright run, mock devices'}")
    obstacle = real_manager.obstacle()
    print(f"- the real kubelet's code: {f'as measured elsewhere ({obstacle})' if obstacle else 'in the same run'}\n")
    print(_table(sizes, samples))
    return 0


def _table(sizes: Sequence[int], samples: Samples) -> str:
    lines = ["| devices | allocations/s | the real kubelet's code | ratio | bar |", "| --- | --- | --- | --- | --- |"]
    for size in sizes:
        ours, real = samples[f"fill_{size}"], samples.get(f"real_{size}") or [REAL[size]]
        cells = [f"{size:,}", _spread(ours), _spread(real), f"{median(ours) / median(real):.1f}", f"≥ {FACTORS[size]}"]
        lines.append(f"| {' | '.join(cells)} |")
    rows = [
        Row(f"{_MANY_DEVICES:,} devices registered in one list", "many_ms", "ms", digits=0),
        Row("1,000 pods admitted and removed, five times: RSS after the first", "first_mib", "MiB"),
        Row("RSS after the last, with a restart in between each", "last_mib", "MiB"),
    ]
    return "\n".join([*lines, "", table.render(rows, samples, None)])


def _spread(values: Sequence[float]) -> str:
    if len(values) == 1:
        return f"{values[0]:,.0f}"
    return f"{median(values):,.0f} ({min(values):,.0f}-{max(values):,.0f})"


async def _fill(count: int) -> float:
    async with _kubelet(count) as (kubelet, resource):
        pods = [_pod(number, resource) for number in range(count)]
        began = time.perf_counter()
        for pod in pods:
            await kubelet.admit(pod)
        return count / (time.perf_counter() - began)


async def _churn() -> dict[str, float]:
    """Admits and removes a thousand pods, with a restart of the kubelet in between."""
    rss = {}
    async with _kubelet(1_000) as (kubelet, resource):
        for turn in range(5):
            admitted = [await kubelet.admit(_pod(number, resource)) for number in range(1_000)]
            await kubelet.restart()
            await kubelet.allocatable(resource, 1_000)
            for pod in admitted:
                await kubelet.remove(pod)
            gc.collect()
            rss["first_mib" if not turn else "last_mib"] = _rss_mib()
    return rss


async def _list_many() -> float:
    began = time.perf_counter()
    async with _kubelet(_MANY_DEVICES, timeout=60):
        return (time.perf_counter() - began) * 1000


def _rss_mib() -> float:
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmRSS"))
    return int(line.split()[1]) / 1024


def _pod(number: int, resource: str) -> PodSpec:
    return PodSpec(f"pod-{number}", (ContainerSpec("main", {resource: "1"}),))


@asynccontextmanager
async def _kubelet(count: int, timeout: float = 20) -> AsyncIterator[tuple[Kubelet, str]]:
    with tempfile.TemporaryDirectory(prefix="bench-") as directory:
        root = Path(directory, "k")
        async with Kubelet(root, KubeletSettings(timeout=timeout)) as kubelet:
            resource = "example.com/yardstick" if _YARDSTICK.exists() else "mock/gpu"
            plugin = subprocess.Popen(_command(root, count), stderr=subprocess.DEVNULL)
            try:
                await kubelet.allocatable(resource, count)
                yield kubelet, resource
            finally:
                plugin.kill()
                plugin.wait()


def _command(root: Path, count: int) -> list[str]:
    if _YARDSTICK.exists():
        return [str(_YARDSTICK), "-dir", str(root / "device-plugins"), "-count", str(count)]
    config = root.parent / "config.yaml"
    config.write_text(_CONFIG.format(count=count))
    return [sys.executable, "-m", "plugwright", "run", "-c", str(config), "--kubelet-dir", str(root)]


if __name__ == "__main__":
    sys.exit(main())
