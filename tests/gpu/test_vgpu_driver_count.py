"""On a real GPU: what CUDA features make the driver take never exceeds a vgpu share, by the driver's own count.

Each row runs twice: in a share of 4096 MiB, and without the limiter as a control that gets more, where one of one
process can. The rows are the table of docs/vgpu.md: PLUGWRIGHT_VGPU_CASES=docs/vgpu.md writes them there.
"""

import os
import re
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.gpu.conftest import Row
from tests.gpu.test_vgpu_limits import (
    LIMIT,
    TENANT,
    Make,
    artefact,
    baseline,
    driver_root,
    gpu,
    make,
)
from tests.plugins.nvidia.test_vgpu_limiter import Program

from plugwright.plugins.nvidia.driver import Gpu
from plugwright.plugins.nvidia.nvml_library import NvmlLibrary

__all__ = ["artefact", "baseline", "driver_root", "gpu", "make"]  # fixtures

OUT_OF_MEMORY, NO_DEVICE = 2, 100
GIB = 2**30
# What a program does, and what it may answer in the share. All of it exceeds the share.
CASES: dict[str, tuple[tuple[tuple[object, ...], ...], tuple[object, ...]]] = {
    "heap limit of 8 GiB": ((("limit", "heap", 8 * GIB), ("launch", "heap")), (OUT_OF_MEMORY, 0)),
    "stack limit of 64 KiB": ((("limit", "stack", 65536), ("launch", "empty")), (OUT_OF_MEMORY, 0)),
    "kernel with 128 KiB of local memory": ((("launch", "deep", 131072),), (OUT_OF_MEMORY,)),
    "export, release, import of 12 x 1 GiB": ((("reimport", 1024, 12),), ([3, OUT_OF_MEMORY],)),
    "captured graph that keeps 6 GiB": ((("graph_of", 1, 6144),), (OUT_OF_MEMORY,)),
    "managed pool of 6 GiB": ((("allocate", "managed_pool", 6144),), ([OUT_OF_MEMORY],)),
}


class Watch:
    """The most that the GPU used, in MiB, beside what it uses without any program."""

    def __init__(self, gpu: Gpu) -> None:
        self._library, self._uuid = NvmlLibrary(Path("/")), gpu.uuid
        self.peak = self._base = 0
        self._over = threading.Event()

    def now(self) -> int:
        handle = self._calls.required("nvmlDeviceGetHandleByUUID", self._uuid)
        return int(self._calls.required("nvmlDeviceGetMemoryInfo", handle).used) // 2**20

    @contextmanager
    def watching(self) -> Iterator["Watch"]:
        self._calls = self._library.acquire()
        self._base = self.now()
        thread = threading.Thread(target=self._sample)
        thread.start()
        try:
            yield self
        finally:
            self._over.set()
            thread.join()
            self._library.release()

    def _sample(self) -> None:
        while not self._over.is_set():
            self.peak = max(self.peak, self.now() - self._base)


@contextmanager
def unlimited() -> Iterator[Program]:
    command = [sys.executable, str(TENANT)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield Program(process)
        finally:
            process.kill()


def play(program: Program, commands: tuple[tuple[object, ...], ...]) -> list[object]:
    program.ready()
    return [program(*command) for command in commands]


def is_as_expected(answer: object, expected: object) -> bool:
    return (
        answer[: len(expected)] == expected
        if isinstance(expected, list) and isinstance(answer, list)
        else answer == expected
    )


@pytest.mark.parametrize("case", CASES)
def test_what_the_driver_takes_never_exceeds_the_share(make: Make, gpu: Gpu, row: Row, case: str) -> None:
    commands, expected = CASES[case]
    with Watch(gpu).watching() as watch, make(LIMIT).program() as program:
        answers = play(program, commands)
        limited = max(watch.peak, watch.now() - watch._base)
    with Watch(gpu).watching() as watch, unlimited() as program:
        play(program, commands)
        control = watch.peak
    row(case, limited, f"refused with CUDA's error; {control} MiB without the limiter")
    assert limited <= LIMIT
    assert control > LIMIT
    assert all(map(is_as_expected, answers, expected)), answers


# Without the limiter a library is loaded at its first use only, so there is nothing to compare it with.
@pytest.mark.parametrize("how", ["module", "library"])
def test_a_module_that_is_too_large_is_refused_before_it_is_loaded(make: Make, gpu: Gpu, row: Row, how: str) -> None:
    with Watch(gpu).watching() as watch, make(LIMIT).program() as program:
        free = program.ready()("memory")[0]
        code, _, after = program("variables", 6144, how)
        limited = watch.peak
    with Watch(gpu).watching() as watch, unlimited() as program:
        program.ready()("variables", 6144, how)
        control = watch.peak
    row(f"{how} with 6 GiB of variables", limited, f"refused with CUDA's error; {control} MiB without the limiter")
    assert limited <= LIMIT
    assert control > LIMIT or how == "library"
    assert code == OUT_OF_MEMORY
    assert after >= free - 64


def test_smaller_ones_are_counted_and_work(make: Make, gpu: Gpu, row: Row) -> None:
    with Watch(gpu).watching() as watch, make(LIMIT).program() as program:
        free = program.ready()("memory")[0]
        code, loaded, unloaded = program("variables", 3072, "module")
        assert code == 0
        assert free - 3072 - 64 <= loaded <= free - 3072
        assert unloaded >= free - 16
        code, loaded, _ = program("variables", 3072, "library")
        assert code == 0
        assert free - 3072 - 64 <= loaded <= free - 3072
        assert program("graph_of", 64, 512) == 0
        assert program("limit", "heap", GIB) == 0
        assert program("launch", "heap") == 0
        assert program("launch", "deep", 4096) == 0
        left = program("memory")[0]
        count = program("fill", 64)
        row(
            "graph of 64 x 512 MiB, heap, local memory, then all that is left",
            watch.peak,
            f"{count} of {left} / 64 pieces",
        )
        assert watch.peak <= LIMIT
        assert count >= left // 64 - 1


@pytest.mark.parametrize("kibibytes", [700, 300])
def test_small_pieces_never_exceed_the_share_and_all_come_back(make: Make, gpu: Gpu, row: Row, kibibytes: int) -> None:
    with Watch(gpu).watching() as watch, make(LIMIT).program() as program:
        free = program.ready()("memory")[0]
        count, full, half, empty = program("pieces", kibibytes)
        row(f"pieces of {kibibytes} KiB until refused", watch.peak, f"{count} pieces; {empty} of {free} MiB come back")
        assert watch.peak <= LIMIT
        assert full <= half < 8
        assert empty >= free - 4


def test_memory_passed_to_a_process_without_cuda_never_exceeds_the_share(
    make: Make, gpu: Gpu, row: Row, tmp_path: Path
) -> None:
    container, received, codes = make(LIMIT), [], []
    with Watch(gpu).watching() as watch, socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "socket"))
        listener.listen()
        for _ in range(4):
            with container.program() as producer:
                producer.ready()
                codes.append(producer("send", 2048, tmp_path / "socket"))
                if not codes[-1]:
                    connection, _ = listener.accept()
                    received += socket.recv_fds(connection, 1, 1)[1]
                    connection.close()
        row("4 producers pass 2 GiB to a process without CUDA and exit", watch.peak, f"{codes.count(0)} of 4 succeed")
        assert watch.peak <= LIMIT
        assert codes == [0] + [OUT_OF_MEMORY] * 3
        for descriptor in received:
            os.close(descriptor)
        with container.program() as last:
            last.ready()
            assert last("allocate", "plain", 3072)[0] == 0


def test_memory_of_killed_producers_never_exceeds_the_share(make: Make, gpu: Gpu, row: Row) -> None:
    container = make(LIMIT)
    with Watch(gpu).watching() as watch, container.program() as consumer:
        consumer.ready()
        codes = []
        for _ in range(3):
            with container.program() as producer:
                producer.ready()
                code, handle = producer("ipc_export", 1024)
                codes.append(code or consumer("ipc_open", handle))
        row("legacy IPC: 3 producers of 1 GiB killed, one consumer", watch.peak, f"{codes.count(0)} of 3 succeed")
        assert watch.peak <= LIMIT
        assert codes == [0, 0, OUT_OF_MEMORY]


BUSY = """
import ctypes, sys
from ctypes import byref, c_size_t as size_t, c_uint64 as u64
cuda = ctypes.CDLL("libcuda.so.1"); context, host = u64(), ctypes.c_void_p()
cuda.cuInit(0); cuda.cuDevicePrimaryCtxRetain(byref(context), 0); cuda.cuCtxSetCurrent(context)
held = []
while not cuda.cuMemAlloc_v2(byref(pointer := u64()), size_t(1 << 30)): held.append(pointer)
cuda.cuMemHostAlloc(byref(host), size_t(8 << 30), 0); print(len(held), flush=True)
while True: cuda.cuMemsetD8Async(held[0], ctypes.c_ubyte(1), size_t(1 << 30), u64(0))
"""


def test_memory_of_a_killed_busy_holder_returns_when_the_driver_has_freed_it(make: Make, gpu: Gpu, row: Row) -> None:
    container = make(60 * 1024)
    command = container.command(sys.executable, "-c", BUSY)
    with Watch(gpu).watching() as watch, container.program() as second:
        second.ready()
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=container.env()) as holder:
            assert holder.stdout
            held = int(holder.stdout.readline())
            holder.kill()
            got = 0
            while not got:  # refused while the holder is alive, in vain or not; waits while it ends
                got = second("fill", 1024)
        row(
            f"kill -9 of a busy holder of {held} GiB with pinned memory, share of 60 GiB",
            watch.peak,
            f"next: {got} GiB",
        )
        assert watch.peak <= container.limit
        assert got == 59


GRAPHS = """
import json, torch
model = torch.nn.Sequential(*[torch.nn.Linear(2048, 2048) for _ in range(4)]).cuda()
with torch.cuda.stream(torch.cuda.Stream()):
    for _ in range(3): model(torch.zeros(2048, 2048, device="cuda"))
torch.cuda.synchronize(); kept = []
for size in (2048, 1024, 512, 256):
    given, graph = torch.ones(size, 2048, device="cuda"), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph): result = model(given)
    graph.replay(); torch.cuda.synchronize(); kept.append((graph, given, result))
print(json.dumps({"graphs": len(kept)}), flush=True)
import os; os._exit(0)
"""


@pytest.mark.parametrize("allocator", ["", "expandable_segments:True", "backend:cudaMallocAsync"])
def test_pytorch_captures_graphs(make: Make, gpu: Gpu, row: Row, allocator: str) -> None:
    with Watch(gpu).watching() as watch:
        facts = make(LIMIT).run(GRAPHS, env={"PYTORCH_CUDA_ALLOC_CONF": allocator})
    row(
        f"PyTorch with CUDA graphs, allocator {allocator or 'default'}",
        watch.peak,
        f"{facts['graphs']} of 4 graphs work",
    )
    assert watch.peak <= LIMIT
    assert facts["graphs"] == 4


JAX = """
import json, os
os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"; os.environ["XLA_PYTHON_CLIENT_MEM_FRACTION"] = "0.9"
import jax, jax.numpy as jnp
held = []
try:
    while len(held) < 64: held.append(jnp.ones((128, 1024, 1024), jnp.uint8).block_until_ready())
except Exception: pass
print(json.dumps({"got": 128 * len(held)}))
"""
CUPY = """
import json, cupy
held = []
try:
    while len(held) < 64: held.append(cupy.ones(128 << 20, cupy.uint8))
except cupy.cuda.memory.OutOfMemoryError: pass
print(json.dumps({"got": 128 * len(held)}))
"""


@pytest.mark.parametrize("name", ["jax", "cupy"])
def test_frameworks_fill_their_share(make: Make, gpu: Gpu, row: Row, name: str) -> None:
    if subprocess.run([sys.executable, "-c", f"import {name}"], capture_output=True, check=False).returncode:
        pytest.skip(f"no {name} here")
    with Watch(gpu).watching() as watch:
        got = make(LIMIT).run({"jax": JAX, "cupy": CUPY}[name])["got"]
    row(f"{name} until refused", watch.peak, f"{got} MiB of arrays")
    assert watch.peak <= LIMIT
    assert got >= 2560


def test_two_halves_of_a_card_are_both_whole(make: Make, gpu: Gpu, row: Row) -> None:
    half = gpu.usable // 2 // 2**20
    with Watch(gpu).watching() as watch, make(half).program() as first, make(half, 1).program() as second:
        got = [program.ready()("fill", 256) for program in (first, second)]
        row(f"two shares of half a card, {half} MiB each", watch.peak, f"{got} pieces of 256 MiB")
        assert got[0] == got[1] >= (half - 1024) // 256


def test_nsight_compute_finds_no_gpu(make: Make, row: Row) -> None:
    program = next((path for path in ("/usr/local/cuda/bin/ncu", "/usr/bin/ncu") if Path(path).exists()), None)
    if program is None:
        pytest.skip("no Nsight Compute here")
    container = make(LIMIT)
    script = "import ctypes; print('cuInit', ctypes.CDLL('libcuda.so.1').cuInit(0))"
    command = container.command(program, sys.executable, "-c", script)
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=container.env(), check=False)
    row("Nsight Compute (`ncu`)", 0, "cuInit fails with a line on stderr: nothing runs unlimited")
    assert re.search(rf"cuInit {NO_DEVICE}", done.stdout), done.stdout
    assert "answers for libcuda.so.1" in done.stdout + done.stderr
