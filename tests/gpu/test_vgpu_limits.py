"""On a real GPU: programs with a vgpu share of our own library get their share and no more, in what Allocate gave them.

They run in a mount namespace with the allocation's mounts. Nothing asks for more managed memory than the GPU has free,
and no setting of the GPU is changed. Each limit has its control: the same program without the limiter gets more.
"""

import asyncio
import json
import os
import random
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import pytest
from tests.plugins.nvidia.harness import listing
from tests.plugins.nvidia.test_vgpu_limiter import SOURCE, Program

from plugwright import Allocation
from plugwright.plugins.nvidia.config import NvidiaConfig, NvidiaDriver, NvidiaShare, NvidiaVgpu, SharingStrategy
from plugwright.plugins.nvidia.driver import Gpu, GpuSnapshot
from plugwright.plugins.nvidia.driver_libraries import ORIGINALS
from plugwright.plugins.nvidia.monitor import GpuMonitor, PollIntervals
from plugwright.plugins.nvidia.nvml import Nvml
from plugwright.plugins.nvidia.plugin import Nvidia
from plugwright.plugins.nvidia.vgpu import VgpuSharing

MIB = 2**20
LIMIT = 4096  # MiB
TENANT = Path(__file__).parents[1] / "plugins" / "nvidia" / "limited_program.py"
LIBRARIES = "/usr/local/plugwright/lib64"  # in the container; the program's LD_LIBRARY_PATH
ENCLOSE = """
mount --make-rprivate / && mkdir -p /usr/local/plugwright && mount -t tmpfs none /usr/local/plugwright || exit 9
while [ "$1" != -- ]; do
  mkdir -p "$(dirname "$2")" && touch "$2" && mount --bind "$1" "$2" || exit 9
  shift 2
done
shift
exec "$@"
"""
ALLOCATORS = {
    "default": "",
    "expandable": "expandable_segments:True",
    "async": "backend:cudaMallocAsync",
}


@pytest.fixture(scope="module")
def gpu(snapshot: GpuSnapshot) -> Gpu:
    if os.geteuid() != 0 or not shutil.which("unshare"):
        pytest.skip("mount namespaces are root's to make")
    return snapshot.gpus[0]


@pytest.fixture(scope="module")
def baseline(gpu: Gpu) -> int:
    """What the GPU uses without any program, in MiB."""
    return used(gpu)


def used(gpu: Gpu) -> int:
    """By the driver itself, in MiB."""
    command = ["nvidia-smi", "-i", gpu.uuid, "--query-gpu=memory.free", "--format=csv,noheader,nounits"]
    free = int(subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout)
    return gpu.memory // MIB - free


@pytest.fixture(scope="module")
def artefact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("artefact")
    if prebuilt := os.environ.get("PLUGWRIGHT_VGPU"):
        return Path(prebuilt)
    if not shutil.which("cc") and not shutil.which("gcc"):
        pytest.skip("needs a C compiler, or PLUGWRIGHT_VGPU with the directory of `make vgpu`")
    subprocess.run(["make", "-s", "-C", str(SOURCE), f"OUT={directory}"], check=True)
    return directory


@pytest.fixture(scope="module")
def driver_root(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The driver where the loader finds it, under a root of its own: not every machine has it in a usual directory."""
    script = "import ctypes; ctypes.CDLL('libcuda.so.1'); print(open('/proc/self/maps').read())"
    maps = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    library = next(line.split()[-1] for line in maps.splitlines() if "libcuda.so" in line)
    root = tmp_path_factory.mktemp("driver")
    (root / "usr").mkdir()
    (root / "usr/lib64").symlink_to(Path(library).parent)
    return str(root)


@dataclass(frozen=True)
class Container:
    allocation: Allocation
    limit: int  # MiB

    def command(self, *program: str) -> list[str]:
        mounts = [path for mount in self.allocation.mounts for path in (mount.host_path, mount.container_path)]
        return ["unshare", "--mount", "sh", "-c", ENCLOSE, "enclose", *mounts, "--", *program]

    def env(self, more: Mapping[str, str] | None = None) -> dict[str, str]:
        return {**os.environ, **self.allocation.env, "LD_LIBRARY_PATH": LIBRARIES, **(more or {})}

    def run(self, script: str, *arguments: str, env: Mapping[str, str] | None = None) -> dict[str, Any]:
        return run(self.command(sys.executable, "-c", script, *arguments), self.env(env))

    @contextmanager
    def program(self, *wrapper: str) -> Iterator[Program]:
        with subprocess.Popen(
            [*wrapper, *self.command(sys.executable, str(TENANT))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=self.env(),
        ) as process:
            try:
                yield Program(process)
            finally:
                process.kill()


def run(command: Sequence[str], env: Mapping[str, str]) -> dict[str, Any]:
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=env, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    facts: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return facts


class Make(Protocol):
    def __call__(self, mebibytes: int, number: int = 0) -> Container: ...


@pytest.fixture
def make(gpu: Gpu, artefact: Path, driver_root: str, tmp_path: Path) -> Make:
    """A container with one share of so many MiB: the first of its GPU, or another one."""

    async def allocate(share: NvidiaShare, number: int) -> Allocation:
        config = NvidiaConfig(share=share, driver=NvidiaDriver(root=driver_root, dev="/", libraries=[LIBRARIES]))
        monitor = GpuMonitor(Nvml(), PollIntervals(event_wait=1))
        plugin = Nvidia("nvidia.com/vgpu", config, monitor, VgpuSharing("nvidia.com/vgpu", share))
        async with listing(plugin) as lists:
            first = (await lists.first())[f"{gpu.uuid}::{share.memory_bytes // MIB}m-{percent(share)}c-{number}"]
            assert not first.reason, first.reason
            return await plugin.allocate([first])

    def percent(share: NvidiaShare) -> int:
        return 100 // (gpu.usable // share.memory_bytes)

    def made(mebibytes: int, number: int = 0) -> Container:
        vgpu = NvidiaVgpu(builtin=str(artefact), root=str(tmp_path / "vgpu"))
        share = NvidiaShare(by=SharingStrategy.VGPU, memory=mebibytes * MIB, vgpu=vgpu)
        return Container(asyncio.run(allocate(share, number)), mebibytes)

    return made


@pytest.fixture(scope="module", autouse=True)
def pytorch() -> None:
    if subprocess.run([sys.executable, "-c", "import torch"], capture_output=True, check=False).returncode:
        pytest.skip("no PyTorch here")


TORCH = """
import json, os, subprocess, sys, torch
def info(): return [value >> 20 for value in torch.cuda.mem_get_info()]
facts = {"at start": info(), "total": torch.cuda.get_device_properties(0).total_memory >> 20, "refused": False}
pieces = []
try:
    while len(pieces) < 256: pieces.append(torch.ones(32 << 20, dtype=torch.uint8, device="cuda"))
except torch.OutOfMemoryError: facts["refused"] = True
torch.cuda.synchronize()
facts |= {"got": 32 * len(pieces), "full": info()}
smi = dict(os.environ); smi["LD_LIBRARY_PATH"] = ""
query = ["nvidia-smi", "--query-gpu=memory.free", "--format=csv,noheader,nounits"]
facts["left on the GPU"] = int(subprocess.run(query, capture_output=True, text=True, env=smi).stdout)
pieces.clear(); torch.cuda.empty_cache(); torch.cuda.synchronize()
facts["empty"] = info()
again = torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
if sys.argv[1:]: facts["compiled"] = torch.compile(lambda x: x.sin() + 1)(torch.ones(8, device="cuda")).sum().item()
print(json.dumps(facts))
"""


@pytest.mark.parametrize("allocator", ALLOCATORS)
def test_pytorch_gets_its_share_with_every_allocator(
    make: Make, gpu: Gpu, baseline: int, allocator: str, seen: Callable[[str], None]
) -> None:
    facts = make(LIMIT).run(TORCH, "compile", env={"PYTORCH_CUDA_ALLOC_CONF": ALLOCATORS[allocator]})
    taken = gpu.memory // MIB - facts["left on the GPU"] - baseline
    seen(f"vgpu, {LIMIT} MiB, PyTorch's allocator {allocator}: {facts}, {taken} MiB by the driver's count")
    assert facts["total"] == facts["at start"][1] == LIMIT
    assert facts["refused"]
    assert LIMIT - 1024 <= facts["got"] <= LIMIT
    assert taken <= LIMIT
    assert facts["empty"][0] >= facts["at start"][0] - 256  # what modules and workspaces keep
    assert round(facts["compiled"], 2) == 14.73


@pytest.mark.parametrize("allocator", ALLOCATORS)
def test_the_control_without_the_limiter_gets_more(allocator: str) -> None:
    env = {**os.environ, "PYTORCH_CUDA_ALLOC_CONF": ALLOCATORS[allocator]}
    facts = run([sys.executable, "-c", TORCH], env)
    assert not facts["refused"]
    assert facts["got"] == 256 * 32 > LIMIT


IPC = """
import json, torch, torch.multiprocessing as mp
def child(queue, done):
    tensor = queue.get(); torch.cuda.synchronize()
    done.put([value >> 20 for value in torch.cuda.mem_get_info()]); queue.get(); del tensor
if __name__ == "__main__":
    mp.set_start_method("spawn"); queue, done = mp.Queue(), mp.Queue()
    process = mp.Process(target=child, args=(queue, done)); process.start()
    tensor = torch.ones(1 << 30, dtype=torch.uint8, device="cuda")
    alone = torch.cuda.mem_get_info()[0] >> 20
    queue.put(tensor); both = done.get(); queue.put(0); process.join()
    print(json.dumps({"alone": alone, "both": both}))
"""


def test_memory_shared_between_processes_counts_once(make: Make, tmp_path: Path, seen: Callable[[str], None]) -> None:
    program = tmp_path / "ipc.py"
    program.write_text(IPC)
    container = make(LIMIT)
    facts = run(container.command(sys.executable, str(program)), container.env())
    seen(f"vgpu, 1024 MiB shared with another process: {facts}")
    assert facts["alone"] - 1024 < facts["both"][0] < facts["alone"]  # its context, and no second gibibyte


KINDS = (
    "plain",
    "pitched",
    "managed",
    "array",
    "array3d",
    "mipmapped",
    "physical",
    "asynchronous",
    "per_thread",
    "pooled",
    "graph",
    "captured",
    "managed_pool",
)


@pytest.mark.parametrize("kind", KINDS)
def test_every_way_to_allocate_is_counted(make: Make, gpu: Gpu, baseline: int, kind: str) -> None:
    with make(LIMIT).program() as program:
        program.ready()
        free = program("memory")[0]
        code, number = program("allocate", kind, 2048)
        assert code == 0
        assert free - 2048 - 64 <= program("memory")[0] <= free - 2000
        assert used(gpu) - baseline <= LIMIT
        assert program("allocate", kind, 2048)[0] == 2
        assert program("free", number) == 0
        assert program("memory")[0] == free
        assert program("allocate", kind, 2048)[0] == 0


def test_twenty_processes_killed_at_random_never_exceed_the_limit_nor_leak(
    make: Make, gpu: Gpu, baseline: int, seen: Callable[[str], None]
) -> None:
    choice, container, samples = random.Random(11), make(24 * 1024), [0]
    watching = threading.Event()

    def watch() -> None:
        while not watching.is_set():
            samples.append(used(gpu) - baseline)

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        with ExitStack() as stack:
            programs = [stack.enter_context(container.program()) for _ in range(20)]
            for program in programs:
                program.ready()
            kills = refused = 0
            for _ in range(600):
                number = choice.randrange(20)
                if choice.random() < 0.08:
                    programs[number].kill()
                    programs[number] = stack.enter_context(container.program()).ready()
                    kills += 1
                else:
                    kind = choice.choice(("plain", "asynchronous", "pitched", "array3d"))
                    refused += programs[number]("allocate", kind, choice.choice((100, 500, 2000)))[0] == 2
            for program in programs:
                program.kill()
            last = stack.enter_context(container.program()).ready()
            context = container.limit - last("memory")[0]
            pieces = last("fill", 256)
    finally:
        watching.set()
        watcher.join()
    seen(
        f"vgpu, 20 processes, {kills} killed, {refused} refused, {len(samples)} samples: at most {max(samples)} of "
        f"{container.limit} MiB; the last process got {256 * pieces} MiB beside its context of {context} MiB"
    )
    assert refused
    assert max(samples) <= container.limit
    assert context < 1024
    assert pieces == (container.limit - context) // 256


COSTS = """
import ctypes, json, statistics, sys, time
limited, driver = ctypes.CDLL("libcuda.so.1"), ctypes.CDLL(sys.argv[1] + "/libcuda.so.1")
u64, size_t, byref = ctypes.c_uint64, ctypes.c_size_t, ctypes.byref
context, stream = u64(), u64()
limited.cuInit(0); limited.cuDevicePrimaryCtxRetain(byref(context), 0); limited.cuCtxSetCurrent(context)
limited.cuStreamCreate(byref(stream), 0)
pool, keep = u64(), u64(2**64 - 1)
limited.cuDeviceGetDefaultMemPool(byref(pool), 0); limited.cuMemPoolSetAttribute(pool, 4, byref(keep))
def plain(library, size):
    pointer = u64(); start = time.perf_counter()
    assert library.cuMemAlloc_v2(byref(pointer), size_t(size)) == 0
    between = time.perf_counter(); library.cuMemFree_v2(pointer)
    return between - start, time.perf_counter() - between
def pooled(library, size):
    pointer = u64(); start = time.perf_counter()
    assert library.cuMemAllocAsync(byref(pointer), size_t(size), stream) == 0
    between = time.perf_counter(); library.cuMemFreeAsync(pointer, stream)
    return between - start, time.perf_counter() - between
def cost(function, size):
    times = {id(limited): [], id(driver): []}
    for number in range(4000):
        for library in (limited, driver) if number % 2 else (driver, limited):
            times[id(library)].append(function(library, size))
    half = lambda library, part: statistics.median(pair[part] for pair in times[id(library)][500:]) * 1e6
    return [round(half(library, part), 2) for part in (0, 1) for library in (driver, limited)]
def address(library, name): return ctypes.cast(getattr(library, name), ctypes.c_void_p).value
names = ("cuLaunchKernel", "cuLaunchKernelEx", "cuMemcpyHtoDAsync_v2", "cuLaunchCooperativeKernel")
procedure = ctypes.c_void_p()
limited.cuGetProcAddress_v2(b"cuLaunchKernel", byref(procedure), 13000, u64(0), None)
print(json.dumps({
    "same": all(address(limited, name) == address(driver, name) for name in names),
    "same by cuGetProcAddress": procedure.value == address(driver, "cuLaunchKernel"),
    "cuMemAlloc 1 KiB": cost(plain, 1024), "cuMemAlloc 3 MiB": cost(plain, 3 << 20),
    "cuMemAllocAsync 1 MiB": cost(pooled, 1 << 20),
}))
"""


LAUNCHES = """
import json, time, torch
x = torch.zeros(1, device="cuda"); times = []
for _ in range(12):
    torch.cuda.synchronize(); start = time.perf_counter()
    for _ in range(20000): x.add_(1)
    torch.cuda.synchronize(); times.append((time.perf_counter() - start) / 20000 * 1e6)
print(json.dumps({"fastest": min(times), "median": sorted(times)[6]}))
"""


def test_launches_are_the_drivers_own(make: Make, seen: Callable[[str], None]) -> None:
    """Costs of launches and allocations are noted, the fastest of several runs, in turns: others use the machine."""
    container = make(LIMIT)
    facts = container.run(COSTS, ORIGINALS)
    seen(f"vgpu, microseconds to allocate without and with, to free without and with: {facts}")
    assert facts["same"]
    assert facts["same by cuGetProcAddress"]
    without, limited = [], []
    for _ in range(3):
        without.append(run([sys.executable, "-c", LAUNCHES], os.environ)["fastest"])
        limited.append(container.run(LAUNCHES)["fastest"])
    seen(f"vgpu, microseconds per launch: {min(without):.2f} without, {min(limited):.2f} with")


def test_a_process_finds_itself_in_nvml_beside_one_with_the_same_number(
    make: Make, seen: Callable[[str], None]
) -> None:
    """Containers have PID namespaces of their own: every main program is process 1."""
    container = make(LIMIT)
    namespace = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"]
    with container.program(*namespace) as first, container.program(*namespace) as second:
        first.ready()
        second.ready()
        assert first("allocate", "plain", 2048)[0] == 0
        assert second("memory")[0] == first("memory")[0]
        left = second("memory")[0]
        assert second("allocate", "plain", left - 128)[0] == 0  # so little is left that the limiter asks NVML
        seen(f"vgpu, two processes 1: {left} MiB left, {second('memory')[0]} after {left - 128} more")
        assert second("memory")[0] >= 64


def test_nvidia_smi_shows_the_share(make: Make) -> None:
    container = make(LIMIT)
    done = subprocess.run(
        container.command("nvidia-smi"), capture_output=True, text=True, env=container.env(), check=True
    )
    assert re.search(rf"0MiB / +{LIMIT}MiB", done.stdout), done.stdout


def test_the_variables_of_the_tenant_can_only_tighten(make: Make) -> None:
    container = make(LIMIT)
    script = "import json, torch; print(json.dumps({'total': torch.cuda.mem_get_info()[1] >> 20}))"
    for value, total in (("64g", LIMIT), ("2048m", 2048), ("0", LIMIT)):
        assert container.run(script, env={"CUDA_DEVICE_MEMORY_LIMIT_0": value})["total"] == total
