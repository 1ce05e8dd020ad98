"""The vGPU limiter compiled for another architecture, under qemu-user: `make test-arm64` sets PLUGWRIGHT_CROSS."""

import os
import subprocess
from pathlib import Path

import pytest
from tests.plugins.nvidia.test_hook_program import COMPILER, CROSS, EMULATOR
from tests.plugins.nvidia.test_vgpu_limiter import HERE, LIMIT, OUT_OF_MEMORY, SOURCE, UUIDS

pytestmark = pytest.mark.skipif(not CROSS, reason="`make test-arm64` runs it")

PROGRAM = """
#include <dlfcn.h>
#include <stdio.h>

int main(void)
{
    void *context, *cuda = dlopen("libcuda.so.1", RTLD_NOW);
    int (*cuInit)(unsigned) = dlsym(cuda, "cuInit");
    int (*cuDevicePrimaryCtxRetain)(void **, int) = dlsym(cuda, "cuDevicePrimaryCtxRetain");
    int (*cuCtxSetCurrent)(void *) = dlsym(cuda, "cuCtxSetCurrent");
    int (*cuMemAlloc_v2)(unsigned long long *, size_t) = dlsym(cuda, "cuMemAlloc_v2");
    int (*cuMemFree_v2)(unsigned long long) = dlsym(cuda, "cuMemFree_v2");
    unsigned long long pointer, first = 0;
    int begun = cuInit(0) || cuDevicePrimaryCtxRetain(&context, 0) || cuCtxSetCurrent(context);
    int code, count = 0;
    while (!begun && count < 1000 && !(code = cuMemAlloc_v2(&pointer, 64 << 20)))
        if (!count++)
            first = pointer;
    printf("%d %d %d", begun, count * 64, code);
    printf(" %d", cuMemFree_v2(first) || cuMemAlloc_v2(&pointer, 64 << 20));
    return 0;
}
"""


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("cross")
    make = ["make", "-s", "-C", str(SOURCE), f"CC={COMPILER}", f"OUT={root / 'lib'}", f"ROOT={root}"]
    subprocess.run([*make, f"CONTROL={root / 'control'}"], check=True)
    (root / "vgpu" / "driver").mkdir(parents=True)
    (root / "control").touch()
    for soname in ("libcuda.so.1", "libnvidia-ml.so.1"):
        flags = ["-shared", "-fPIC", "-w", "-Wl,-Bsymbolic", f"-Wl,-soname,{soname}"]
        driver = root / "vgpu" / "driver" / soname
        subprocess.run([COMPILER, *flags, "-o", str(driver), str(HERE / "fake_driver.c")], check=True)
    (root / "program.c").write_text(PROGRAM)
    subprocess.run([COMPILER, "-o", str(root / "program"), str(root / "program.c"), "-ldl"], check=True)
    return root / "program"


def test_a_program_gets_its_share_and_no_more(program: Path, tmp_path: Path) -> None:
    root = program.parent
    (root / "vgpu" / "usage").write_bytes(b"")
    (root / "vgpu" / "limits").write_text(f"{UUIDS[0]} {LIMIT * 2**20}\n")
    inside = {
        "LD_LIBRARY_PATH": str(root / "lib"),
        "FAKE_GPU": str(tmp_path / "gpu"),
        "FAKE_CONTROL": str(root / "control"),
    }
    settings = [part for name, value in inside.items() for part in ("-E", f"{name}={value}")]
    command = [*EMULATOR, "-L", f"/usr/{CROSS}", *settings, str(program)]
    done = subprocess.run(command, env=os.environ, capture_output=True, text=True, timeout=60, check=False)
    assert done.stderr == ""
    begun, allocated, code, again = map(int, done.stdout.split())
    assert (begun, code, again) == (0, OUT_OF_MEMORY, 0)
    assert LIMIT // 2 < allocated < LIMIT
