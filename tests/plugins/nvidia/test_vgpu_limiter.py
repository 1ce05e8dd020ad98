"""The vGPU limiter, built from `native/vgpu`, in programs that use a driver made for the test."""

import json
import mmap
import os
import random
import shutil
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
SOURCE = HERE.parents[2] / "native" / "vgpu"
UUIDS = tuple("GPU-{0}-{1}-{1}-{1}-{2}".format(str(n) * 8, str(n) * 4, str(n) * 12) for n in (1, 2))
CONTEXT = 308  # MiB: what the driver made for the test takes, and 8 that the limiter adds
LIMIT = 1024
OUT_OF_MEMORY, OPERATING_SYSTEM = 2, 304
KINDS = [
    "plain",
    "pitched",
    "managed",
    "array",
    "array3d",
    "mipmapped",
    "physical",
    "sparse",
    "asynchronous",
    "per_thread",
    "pooled",
    "graph",
    "captured",
    "managed_pool",
]


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The limiter and the driver, compiled once: the limiter knows its directory from then on."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None or shutil.which("make") is None:
        pytest.skip("needs a C compiler and make")
    root = tmp_path_factory.mktemp("vgpu")
    make = [
        "make",
        "-s",
        "-C",
        str(SOURCE),
        f"CC={compiler}",
        f"OUT={root / 'lib'}",
        f"ROOT={root}",
        f"CONTROL={root / 'control'}",
    ]
    subprocess.run(make, check=True)
    (root / "vgpu/driver").mkdir(parents=True)
    (root / "control").touch()
    for soname in ("libcuda.so.1", "libnvidia-ml.so.1"):
        # As NVIDIA links its own: calls within the library stay there.
        flags = ["-shared", "-fPIC", "-w", "-Wl,-Bsymbolic", f"-Wl,-soname,{soname}"]
        command = [compiler, *flags, "-o", str(root / "vgpu/driver" / soname), str(HERE / "fake_driver.c")]
        subprocess.run(command, check=True)
    return root


@dataclass
class Program:
    """A process of the container."""

    process: subprocess.Popen[str]

    def __call__(self, *command: object) -> Any:
        assert self.process.stdin
        assert self.process.stdout
        self.process.stdin.write(" ".join(map(str, command)) + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def ready(self, device: int = 0) -> "Program":
        assert self("init") == 0
        assert self("context", device) == 0
        return self

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


@dataclass
class Container:
    root: Path
    gpu: Path

    @contextmanager
    def program(self, env: Mapping[str, str] | None = None, *wrapper: str) -> Iterator[Program]:
        more = {"LD_LIBRARY_PATH": str(self.root / "lib"), "FAKE_GPU": str(self.gpu)}
        more |= {"FAKE_CONTROL": str(self.root / "control"), **(env or {})}
        clean = {name: text for name, text in os.environ.items() if not name.startswith("CUDA_")}
        with subprocess.Popen(
            [*wrapper, sys.executable, str(HERE / "limited_program.py")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**clean, **more},
        ) as process:
            try:
                yield Program(process)
            finally:
                process.kill()

    def set_limits(self, text: str | None) -> None:
        (self.root / "vgpu" / "limits").unlink(missing_ok=True)
        if text is not None:
            (self.root / "vgpu" / "limits").write_text(text)

    def peak(self, gpu: int = 0) -> int:
        """The most that all processes held of the GPU at once, in MiB, by the driver's own count."""
        with self.gpu.open("rb") as file:
            content = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            return int(struct.unpack_from("<2Q", content, 256 * 48)[gpu]) // 2**20


@pytest.fixture
def container(built: Path, tmp_path: Path) -> Container:
    (built / "vgpu").mkdir(exist_ok=True)
    (built / "vgpu" / "usage").write_bytes(b"")
    container = Container(built, tmp_path / "gpu")
    container.set_limits(f"{UUIDS[0]} {LIMIT * 2**20}\n{UUIDS[1]} {2 * LIMIT * 2**20}\n")
    return container


def test_the_share_is_what_a_program_sees(container: Container) -> None:
    with container.program() as program:
        program.ready()
        assert program("memory") == [LIMIT - CONTEXT, LIMIT]
        assert (program("total", 0), program("total", 1)) == (LIMIT, 2 * LIMIT)
        assert program("allocate", "plain", 100)[0] == 0
        assert program("nvml", 0) == [LIMIT, LIMIT - CONTEXT - 100, CONTEXT + 100]
        assert program("nvml", 1) == [2 * LIMIT, 2 * LIMIT, 0]


@pytest.mark.parametrize("kind", KINDS)
def test_every_way_to_allocate_is_counted_and_given_back(container: Container, kind: str) -> None:
    with container.program() as program:
        program.ready()
        free = program("memory")[0]
        code, number = program("allocate", kind, 512)
        assert code == 0
        assert free - 512 - 32 <= program("memory")[0] <= free - 500
        assert program("allocate", kind, 512)[0] == OUT_OF_MEMORY
        assert program("allocate", "plain", 512)[0] == OUT_OF_MEMORY
        assert program("free", number) == 0
        assert program("memory")[0] == free
        assert program("allocate", kind, 512)[0] == 0
    assert container.peak() <= LIMIT


def test_memory_that_a_pool_keeps_is_counted_and_trimmed_before_a_refusal(container: Container) -> None:
    with container.program() as program:
        program.ready()
        for _ in range(3):
            code, number = program("allocate", "asynchronous", 600)
            assert code == 0
            program("free", number)
        assert program("allocate", "plain", 600)[0] == 0
    assert container.peak() <= LIMIT


def test_a_context_is_counted_and_takes_its_memory_along(container: Container) -> None:
    with container.program() as program:
        program.ready()
        assert program("allocate", "plain", 512)[0] == 0
        assert program("release", 0) == 0
        assert program("context", 0) == 0
        assert program("memory") == [LIMIT - CONTEXT, LIMIT]
    container.set_limits(f"{UUIDS[0]} {200 * 2**20}\n")
    with container.program() as program:
        assert program("init") == 0
        assert program("context", 0) == OUT_OF_MEMORY


def test_the_code_of_kernels_is_counted_when_little_is_left(container: Container) -> None:
    """No call asks for its memory: the driver takes it at a launch."""
    with container.program() as program:
        program.ready()
        assert program("kernels", 200) == 0
        assert program("allocate", "plain", 500)[0] == 0
        assert program("memory")[0] == LIMIT - CONTEXT - 200 - 500
        assert program("allocate", "plain", 100)[0] == OUT_OF_MEMORY
    assert container.peak() <= LIMIT


def test_the_code_of_kernels_is_counted_for_others_when_a_program_waits_for_its_gpu(container: Container) -> None:
    with container.program() as first, container.program() as second:
        first.ready(), second.ready()
        assert first("kernels", 100) == 0
        while second("memory")[0] != LIMIT - 2 * CONTEXT - 100:  # until enough time has passed for another look
            assert first("synchronize") == 0


DEEP = 200_000  # bytes of local memory, 1.6 GiB for the 8192 threads of the driver made for the test


@pytest.mark.parametrize(("limit", "kernel"), [("heap", "heap"), ("fifo", "print")])
def test_a_heap_that_does_not_fit_is_refused_and_a_smaller_one_is_counted(
    container: Container, limit: str, kernel: str
) -> None:
    with container.program() as program:
        free = program.ready()("memory")[0]
        assert program("limit", limit, 8 * 2**30) == OUT_OF_MEMORY
        assert program("limit", limit, 256 * 2**20) == 0
        assert free - 270 <= program("memory")[0] <= free - 256
        assert program("launch", kernel) == 0
        assert program("allocate", "plain", 480)[0] == OUT_OF_MEMORY
        assert program("allocate", "plain", 400)[0] == 0
    assert container.peak() <= LIMIT


def test_stacks_that_do_not_fit_are_refused_and_smaller_ones_are_counted(container: Container) -> None:
    with container.program() as program:
        free = program.ready()("memory")[0]
        assert program("limit", "stack", DEEP) == OUT_OF_MEMORY
        assert program("limit", "stack", 1024 + 32 * 1024) == 0
        assert program("memory")[0] == free - 256
        assert program("limit", "stack", 1024) == 0
        assert program("memory")[0] == free
        assert program("launch", "empty") == 0
    assert container.peak() <= LIMIT


def test_a_kernel_whose_local_memory_does_not_fit_is_refused(container: Container) -> None:
    with container.program() as program:
        free = program.ready()("memory")[0]
        assert program("launch", "deep", DEEP) == OUT_OF_MEMORY
        assert program("launch", "deep", 1024 + 32 * 1024) == 0
        assert free - 260 <= program("memory")[0] <= free - 256
        assert program("allocate", "plain", 470)[0] == OUT_OF_MEMORY
    assert container.peak() <= LIMIT


@pytest.mark.parametrize("how", ["module", "library"])
def test_the_variables_of_a_module_are_counted(container: Container, how: str) -> None:
    with container.program() as program:
        free = program.ready()("memory")[0]
        code, loaded, unloaded = program("variables", 300, how)
        assert code == 0
        assert loaded == free - 300
        assert unloaded >= loaded
        assert program("variables", 1500, how)[0] == OUT_OF_MEMORY
        assert program("memory")[0] >= loaded
    assert container.peak() <= LIMIT


def test_a_kernel_that_is_asked_for_without_a_context_is_checked_in_the_next_one(container: Container) -> None:
    with container.program() as program:
        program.ready()
        assert program("launch", "empty") == 0
        assert program("early", 300) == [0, 0, 0]
    with container.program() as program:
        program.ready()
        assert program("launch", "empty") == 0
        assert program("early", 1500) == [OUT_OF_MEMORY, 0, OUT_OF_MEMORY]
    assert container.peak() <= LIMIT


def test_memory_that_is_exported_released_and_imported_stays_counted(container: Container) -> None:
    with container.program() as program:
        free = program.ready()("memory")[0]
        done, code = program("reimport", 100, 20)
        assert (done, code) == (free // 100, OUT_OF_MEMORY)
        assert program("memory")[0] == free % 100
        for number in range(done):
            assert program("free", number) == 0
        assert program("memory")[0] == free
    assert container.peak() <= LIMIT


def test_memory_counts_while_a_program_without_cuda_has_its_descriptor(container: Container, tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "socket"))
        listener.listen()
        with container.program() as producer:
            producer.ready()
            assert producer("send", 500, tmp_path / "socket") == 0
            connection, _ = listener.accept()
            _, [descriptor], _, _ = socket.recv_fds(connection, 1, 1)
            producer.kill()
        with container.program() as second:
            second.ready()
            assert second("memory")[0] == LIMIT - CONTEXT - 500
            assert second("allocate", "plain", 300)[0] == OUT_OF_MEMORY
            os.close(descriptor)
            assert second("memory")[0] == LIMIT - CONTEXT
            assert second("allocate", "plain", 600)[0] == 0
        connection.close()
    assert container.peak() <= LIMIT


def test_memory_of_a_killed_producer_counts_while_a_consumer_has_it_open(container: Container) -> None:
    with container.program() as producer, container.program() as consumer:
        producer.ready()
        code, handle = producer("ipc_export", 200)
        assert code == 0
        consumer.ready()
        assert consumer("ipc_open", handle) == 0
        assert consumer("memory")[0] == LIMIT - 2 * CONTEXT - 200  # once
        producer.kill()
        with container.program() as third:
            third.ready()
            assert third("memory")[0] == LIMIT - 2 * CONTEXT - 200
            assert consumer("free", 0) == 0
            assert third("memory")[0] == LIMIT - 2 * CONTEXT
    assert container.peak() <= LIMIT


@pytest.mark.parametrize("kibibytes", [700, 300, 1024])
def test_small_pieces_are_counted_by_their_pages_and_all_come_back(container: Container, kibibytes: int) -> None:
    container.set_limits(f"{UUIDS[0]} {600 * 2**20}\n")
    with container.program() as program:
        free = program.ready()("memory")[0]
        count, full, half, empty = program("pieces", kibibytes)
        of_a_page = 2048 // kibibytes
        assert (free // 2 - 1) * of_a_page < count <= free // 2 * of_a_page  # a piece may need a page of its own
        assert full == 0
        assert half <= 2  # every page still has a piece, but perhaps the last one
        assert empty == free
    assert container.peak() <= 600


def test_a_graph_that_frees_what_it_allocates_needs_its_peak(container: Container) -> None:
    with container.program() as program:
        free = program.ready()("memory")[0]
        assert program("graph_of", 64, 512) == 0
        assert free - 512 - 32 <= program("memory")[0] <= free - 512
        assert program("graph_of", 8, 256) == 0  # after the driver has given back what the first one kept
        assert free - 256 - 32 <= program("memory")[0] <= free - 256
        assert program("graph_of", 1, 900) == OUT_OF_MEMORY
        assert program("allocate", "plain", 600)[0] == 0  # graphs that do not run need no memory
        assert program("graph_of", 1, 200) == OUT_OF_MEMORY
    assert container.peak() <= LIMIT


def test_a_function_that_a_tool_has_put_in_the_drivers_place_is_found_by_name(container: Container) -> None:
    with container.program({"FAKE_TOOL": "cuMemFree"}) as program:
        program.ready()
        assert program("procedure", "cuMemFree")
        assert program("procedure", "cuMemAlloc")


TOOL = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <string.h>
int cuInit(unsigned flags) { return 0; }
void *dlsym(void *library, const char *name)
{
    void *(*real)(void *, const char *) = dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.2.5");
    return strcmp(name, "cuInit") ? real(library, name) : (void *)cuInit;
}
"""


def test_a_tool_that_answers_for_libcuda_finds_no_gpu(container: Container, tmp_path: Path) -> None:
    """As Nsight Compute does: it would call the driver and pass the limits by."""
    source, tool = tmp_path / "tool.c", tmp_path / "libtool.so"
    source.write_text(TOOL)
    compiler = shutil.which("cc") or "gcc"
    subprocess.run([compiler, "-w", "-shared", "-fPIC", "-o", str(tool), str(source), "-ldl"], check=True)
    with container.program({"LD_PRELOAD": str(tool)}) as program:
        assert program("visible") == ""
        program.kill()
        assert program.process.stderr
        assert "libtool.so: answers for libcuda.so.1" in program.process.stderr.read()


def test_a_dying_holder_counts_until_it_has_ended(container: Container) -> None:
    """The kernel unmaps memory, and drops the limiter's lock, before the driver has freed what a process held."""
    with container.program() as first, container.program() as second:
        first.ready(), second.ready()
        assert first("allocate", "plain", 300)[0] == 0
        assert first("drop_lock") == 0
        assert second("memory")[0] == LIMIT - 2 * CONTEXT - 300
        assert second("memory")[0] == LIMIT - 2 * CONTEXT - 300
        first.kill()
        assert second("allocate", "plain", 600)[0] == 0
    assert container.peak() <= LIMIT


def test_unknown_functions_are_the_drivers_and_known_ones_are_found_by_address(container: Container) -> None:
    with container.program() as program:
        program.ready()
        assert program("unknown") == 4242
        procedures = program("procedures")
        assert procedures == dict.fromkeys(procedures, True)


def test_processes_share_the_limit_and_a_killed_one_gives_its_part_back(container: Container) -> None:
    with container.program() as first, container.program() as second:
        first.ready(), second.ready()
        assert first("allocate", "plain", 300)[0] == 0
        assert second("allocate", "plain", 300)[0] == OUT_OF_MEMORY
        assert second("memory") == [LIMIT - 2 * CONTEXT - 300, LIMIT]
        first.kill()
        assert second("allocate", "plain", 600)[0] == 0
    assert container.peak() <= LIMIT


def test_gpus_are_counted_apart(container: Container) -> None:
    with container.program() as program:
        program.ready(0).ready(1)
        assert program("fill", 100) == (2 * LIMIT - CONTEXT) // 100
        program.ready(0)
        assert program("fill", 100) == (LIMIT - CONTEXT) // 100
    assert container.peak(0) <= LIMIT
    assert container.peak(1) <= 2 * LIMIT


def test_a_gpu_that_is_not_the_containers_has_no_memory(container: Container) -> None:
    container.set_limits(f"{UUIDS[0]} {LIMIT * 2**20}\n")
    with container.program() as program:
        assert program("init") == 0
        assert program("total", 1) == 0
        assert program("context", 1) == OUT_OF_MEMORY


def test_a_forked_child_has_its_own_count(container: Container) -> None:
    """Its parent's memory is still the parent's."""
    with container.program() as program:
        program("init")
        program("fork")  # before any context, as CUDA demands: the child goes on
        program.ready()
        assert program("allocate", "plain", 300)[0] == 0
        with container.program() as other:
            other.ready()
            assert other("memory") == [LIMIT - 2 * CONTEXT - 300, LIMIT]


def test_memory_counts_while_a_child_of_a_killed_program_keeps_it(container: Container) -> None:
    """The driver frees memory when its last descriptor is closed, and a forked child has them all."""
    with container.program() as first, container.program() as second:
        first.ready(), second.ready()
        assert first("allocate", "plain", 300)[0] == 0
        child = first("leave_child")
        first.kill()
        assert second("memory")[0] == LIMIT - 2 * CONTEXT - 300
        os.kill(child, signal.SIGKILL)
        while second("memory")[0] != LIMIT - CONTEXT:  # until the kernel has closed its files
            pass


def test_a_program_that_closes_all_descriptors_stays_counted(container: Container) -> None:
    with container.program() as first, container.program() as second:
        first.ready(), second.ready()
        assert first("allocate", "plain", 200)[0] == 0
        first("close_descriptors")
        assert second("memory")[0] == LIMIT - 2 * CONTEXT - 200
        assert first("allocate", "plain", 100)[0] == 0
        assert second("memory")[0] == LIMIT - 2 * CONTEXT - 300


def test_processes_in_other_pid_namespaces_are_alive(container: Container) -> None:
    unshare = ("unshare", "--pid", "--fork", "--kill-child")
    if subprocess.run([*unshare, "true"], capture_output=True, check=False).returncode:
        pytest.skip("PID namespaces cannot be made here")
    with container.program(None, *unshare) as first, container.program(None, *unshare) as second:
        first.ready(), second.ready()
        assert first("allocate", "plain", 300)[0] == 0
        assert second("allocate", "plain", 300)[0] == OUT_OF_MEMORY
        first.kill()
        while second("memory")[0] != LIMIT - CONTEXT:  # until the kernel has ended its child
            pass


@pytest.mark.parametrize(
    ("variables", "limits"),
    [
        ({"CUDA_DEVICE_MEMORY_LIMIT_0": "512m"}, (512, 2 * LIMIT)),
        ({"CUDA_DEVICE_MEMORY_LIMIT": "524288k"}, (512, 512)),
        ({"CUDA_DEVICE_MEMORY_LIMIT": "1g", "CUDA_DEVICE_MEMORY_LIMIT_0": "536870912"}, (512, 1024)),
        ({"CUDA_DEVICE_MEMORY_LIMIT_0": "64g"}, (LIMIT, 2 * LIMIT)),
        ({"CUDA_DEVICE_MEMORY_LIMIT_0": "0"}, (LIMIT, 2 * LIMIT)),
        ({"CUDA_DEVICE_MEMORY_LIMIT_0": "much"}, (LIMIT, 2 * LIMIT)),
        ({"CUDA_DEVICE_MEMORY_LIMIT_0": "99999999999999999999g"}, (LIMIT, 2 * LIMIT)),
        ({"CUDA_DEVICE_MEMORY_SHARED_CACHE": "/nonexistent/cache"}, (LIMIT, 2 * LIMIT)),
    ],
)
def test_the_tighter_of_file_and_variables_counts(
    container: Container, variables: dict[str, str], limits: tuple[int, int]
) -> None:
    with container.program(variables) as program:
        assert program("init") == 0
        assert (program("total", 0), program("total", 1)) == limits


def test_without_a_file_hamis_variables_alone_limit(container: Container, tmp_path: Path) -> None:
    container.set_limits(None)
    variables = {
        "CUDA_DEVICE_MEMORY_LIMIT_0": f"{LIMIT}m",
        "CUDA_DEVICE_MEMORY_SHARED_CACHE": str(tmp_path / "cache"),
    }
    with container.program(variables) as first, container.program(variables) as second:
        first.ready(), second.ready()
        assert first("memory") == [LIMIT - 2 * CONTEXT, LIMIT]
        assert first("total", 1) == 16 * 1024


@pytest.mark.parametrize(
    "text", [None, "", "GPU-1 1\n", f"{UUIDS[0]} 1", f"{UUIDS[0]}\n", f"{UUIDS[0]} -1\n", f"{UUIDS[0]} 1\n" * 17]
)
def test_limits_that_cannot_be_trusted_are_refused_loudly(container: Container, text: str | None) -> None:
    container.set_limits(text)
    with container.program() as program:
        assert program("init") == OPERATING_SYSTEM
        program.kill()
        assert program.process.stderr
        assert "no memory of a GPU can be used" in program.process.stderr.read()


def test_what_a_crash_of_the_machine_left_is_no_obstacle(container: Container) -> None:
    """The file as it was when the power went: slots taken, dead for long, or since a time that has not come again."""
    with container.program() as program:
        program.ready()
        program("allocate", "plain", 500)
        usage = container.root / "vgpu" / "usage"
        content = bytearray(usage.read_bytes())
    states, used = 8 + 16 * 8, 8 + 16 * 8 + 1024 * 8
    for slot in range(1024):
        struct.pack_into("<Q", content, states + 8 * slot, (1, 2, 2**60)[slot % 3])
        struct.pack_into("<Q", content, used + 8 * slot, 2**40)
    struct.pack_into("<I", content, 4, 1024)
    usage.write_bytes(content)
    with container.program() as program:
        program.ready()
        assert program("memory") == [LIMIT - CONTEXT, LIMIT]


def test_twenty_processes_killed_at_random_never_exceed_the_limit_nor_leak(container: Container) -> None:
    choice, limit = random.Random(7), 20 * CONTEXT + 2000
    container.set_limits(f"{UUIDS[0]} {limit * 2**20}\n")
    with ExitStack() as stack:
        programs = [stack.enter_context(container.program()) for _ in range(20)]
        for program in programs:
            program.ready()
        for _ in range(300):
            number = choice.randrange(20)
            if choice.random() < 0.1:
                programs[number].kill()
                programs[number] = stack.enter_context(container.program()).ready()
            else:
                kind = choice.choice(("plain", "asynchronous", "physical", "graph"))
                programs[number]("allocate", kind, choice.choice((30, 100, 400)))
        for program in programs[1:]:
            program.kill()
        programs[0].kill()
        last = stack.enter_context(container.program()).ready()
        assert last("memory") == [limit - CONTEXT, limit]
        assert last("fill", 100) == (limit - CONTEXT) // 100
    assert limit - 400 <= container.peak() <= limit


def test_the_control_without_the_limiter_gets_the_whole_gpu(container: Container) -> None:
    with container.program({"LD_LIBRARY_PATH": str(container.root / "vgpu/driver")}) as program:
        program.ready()
        assert program("memory")[1] == 16 * 1024
        assert program("allocate", "plain", 4 * LIMIT)[0] == 0


@pytest.mark.parametrize("soname", ["libcuda.so.1", "libnvidia-ml.so.1"])
def test_the_libraries_run_with_the_c_library_of_old_images(built: Path, soname: str) -> None:
    if not shutil.which("objdump"):
        pytest.skip("needs objdump")
    command = ["objdump", "-T", str(built / "lib" / soname)]
    symbols = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    versions = {
        tuple(map(int, word.strip("()").removeprefix("GLIBC_").split(".")))
        for word in symbols.split()
        if "GLIBC_" in word
    }
    assert max(versions) <= (2, 17)


def test_the_build_is_reproducible(built: Path, tmp_path: Path) -> None:
    copy = tmp_path / "elsewhere"
    shutil.copytree(SOURCE, copy)
    control = f"CONTROL={built / 'control'}"
    subprocess.run(["make", "-s", "-C", str(copy), f"OUT={tmp_path / 'lib'}", f"ROOT={built}", control], check=True)
    for soname in ("libcuda.so.1", "libnvidia-ml.so.1"):
        assert (tmp_path / "lib" / soname).read_bytes() == (built / "lib" / soname).read_bytes()
