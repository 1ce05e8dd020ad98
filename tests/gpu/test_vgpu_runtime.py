"""On a real GPU: programs of the CUDA runtime in a vgpu share, and what the daemon sees of a share's programs."""

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.gpu.conftest import Row
from tests.gpu.test_vgpu_driver_count import Watch
from tests.gpu.test_vgpu_limits import LIBRARIES, LIMIT, TENANT, Make, artefact, baseline, driver_root, gpu, make, run
from tests.plugins.nvidia.test_vgpu_limiter import Program

from plugwright.plugins.nvidia.config import NvidiaVgpu
from plugwright.plugins.nvidia.driver import Gpu
from plugwright.plugins.nvidia.driver_libraries import ORIGINALS
from plugwright.plugins.nvidia.nvml import Nvml
from plugwright.plugins.nvidia.vgpu_builtin import BuiltinLibrary
from plugwright.plugins.nvidia.vgpu_watch import ShareWatch

__all__ = ["artefact", "baseline", "driver_root", "gpu", "make"]  # fixtures

RUNTIME = """
#include <cstdio>
#include <cstring>
#include <cuda_runtime.h>
#ifdef VARIABLES
__device__ char a[2048ull << 20], b[2048ull << 20], c[2048ull << 20];
__global__ void kernel(char *to) { if (to) *to = a[threadIdx.x] + b[threadIdx.x] + c[threadIdx.x]; }
#else
__global__ void kernel(char *to) { char *piece = (char *)malloc(1024); if (to) *to = piece[threadIdx.x]; free(piece); }
#endif
int main(int, char **words) {
    cudaError_t code = cudaSuccess;
    if (!strcmp(words[1], "heap")) code = cudaDeviceSetLimit(cudaLimitMallocHeapSize, 8ull << 30);
    if (!strcmp(words[1], "stack")) code = cudaDeviceSetLimit(cudaLimitStackSize, 65536);
    cudaError_t limit = code;
    cudaGetLastError();  // which forgets it
    kernel<<<1, 1>>>(nullptr);
    code = cudaGetLastError();
    if (!code) code = cudaDeviceSynchronize();
    printf("{\\"limit\\": \\"%s\\", \\"launch\\": \\"%s\\"}\\n", cudaGetErrorName(limit), cudaGetErrorName(code));
    return 0;
}
"""


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., str]:
    nvcc = shutil.which("nvcc") or "/usr/local/cuda/bin/nvcc"
    if not Path(nvcc).exists():
        pytest.skip("no nvcc here")

    def compile_with(*options: str) -> str:
        directory = tmp_path_factory.mktemp("runtime")
        (directory / "program.cu").write_text(RUNTIME)
        path = f"-Xlinker=-rpath,{Path(nvcc).resolve().parents[1] / 'lib64'}"
        command = [nvcc, "-arch=sm_90", path, *options, "-o", str(directory / "program"), str(directory / "program.cu")]
        subprocess.run(command, check=True, timeout=300)
        return str(directory / "program")

    return compile_with


@pytest.mark.parametrize("what", ["heap", "stack"])
def test_limits_that_the_cuda_runtime_sets_never_exceed_the_share(
    make: Make, gpu: Gpu, row: Row, compiled: Callable[..., str], what: str
) -> None:
    program, container = compiled(), make(LIMIT)
    with Watch(gpu).watching() as watch:
        answer = run(container.command(program, what), container.env())
    row(f"{what} limit by the CUDA runtime", watch.peak, f"{answer['limit']}; a launch then works: {answer['launch']}")
    assert watch.peak <= LIMIT
    assert answer == {"limit": "cudaErrorMemoryAllocation", "launch": "cudaSuccess"}


@pytest.mark.parametrize("how", ["--no-compress", "compressed"])
def test_variables_of_a_program_of_the_cuda_runtime(
    make: Make, gpu: Gpu, row: Row, compiled: Callable[..., str], how: str
) -> None:
    """A compressed program is refused after it was loaded: the row in which a share is exceeded for a moment."""
    # The host's half of the variables has their size: too large for the small code model of the static runtime.
    options = ["-DVARIABLES", "-cudart=shared", "-Xcompiler=-mcmodel=medium", *([] if how == "compressed" else [how])]
    program, container = compiled(*options), make(LIMIT)
    with Watch(gpu).watching() as watch:
        answer = run(container.command(program, "variables"), container.env())
    exceeds = "" if watch.peak <= LIMIT else "; **exceeds the share until it ends**"
    row(f"CUDA runtime, 6 GiB of variables, {how}", watch.peak, f"{answer['launch']}{exceeds}")
    assert answer["launch"] != "cudaSuccess"
    assert watch.peak <= LIMIT or how == "compressed"


USAGE = "/usr/local/plugwright/vgpu/usage"


def test_the_daemon_sees_what_a_container_uses_and_finds_a_program_that_evades_the_limiter(
    make: Make, gpu: Gpu, row: Row, artefact: Path
) -> None:
    container = make(LIMIT)
    usage = Path(next(mount.host_path for mount in container.allocation.mounts if mount.container_path == USAGE))
    library = BuiltinLibrary(NvidiaVgpu(builtin=str(artefact), root=str(usage.parents[1])))
    watch, driver, mebibyte = ShareWatch(USAGE), Nvml(), 2**20
    with container.program() as producer, container.program() as consumer:
        producer.ready()
        consumer.ready()
        code, handle = producer("ipc_export", 2048)
        assert code == consumer("ipc_open", handle) == 0
        watch.look(library.containers, driver, [gpu.uuid])
        [honest] = watch.usage(usage.name)
        assert honest.used is not None
        assert honest.driver is not None
        assert not honest.exceeded
    text = f"limiter {honest.used // mebibyte}, driver {honest.driver // mebibyte} MiB of {honest.limit // mebibyte}"
    environment = {**container.env(), "LD_LIBRARY_PATH": f"{ORIGINALS}:{LIBRARIES}"}
    command = container.command(sys.executable, str(TENANT))
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    ) as process:
        evading = Program(process).ready()
        assert evading("allocate", "plain", 6144)[0] == 0
        watch.look(library.containers, driver, [gpu.uuid])
        [found] = watch.usage(usage.name)
        process.kill()
    row("the daemon's look at two programs that share 2 GiB", honest.driver // mebibyte, text)
    row(
        "the daemon's look at a program that evades the limiter",
        (found.driver or 0) // mebibyte,
        found.incident.partition(" of GPU")[0],
    )
    assert (found.exceeded, found.incidents) == (True, 1)
