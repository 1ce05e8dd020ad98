"""On a real GPU: a tenant gets what the MPS daemon allows, whatever its environment says.

The compute mode is never changed. In Default mode a program that does not use the pipe has no limits, which is tested
too, since the resource says so.
"""

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.cli.processes import Running, ended, python, running

from plugwright.plugins.nvidia import sharing
from plugwright.plugins.nvidia.config import NvidiaMps, NvidiaShare, SharingStrategy
from plugwright.plugins.nvidia.driver import Gpu, GpuSnapshot
from plugwright.plugins.nvidia.mps import state
from plugwright.plugins.nvidia.mps.plan import MpsPaths
from plugwright.plugins.nvidia.mps.sharing import MpsSharing

RESOURCE = "nvidia.com/gpu-shared"
SHARE = NvidiaShare(by=SharingStrategy.MPS, replicas=4, memory=4 * 2**30, percent=25, most=2)
TENANT = Path(__file__).with_name("tenant.py")
MUCH = 12 * 1024  # MiB: more than any share here
HIGHER = {"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=64G", "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "100"}
_START = 60.0  # seconds for a daemon on a machine whose driver must be loaded first


@pytest.fixture
def gpu(snapshot: GpuSnapshot) -> Gpu:
    if not shutil.which("nvidia-cuda-mps-control"):
        pytest.skip("no nvidia-cuda-mps-control here")
    if os.geteuid() != 0:
        pytest.skip("MPS daemons for other users are root's to start")
    return snapshot.gpus[0]


@pytest.fixture(autouse=True)
def the_compute_mode_is_left_alone(gpu: Gpu) -> Iterator[None]:
    before = compute_mode(gpu)
    yield
    assert compute_mode(gpu) == before


def compute_mode(gpu: Gpu) -> str:
    command = ["nvidia-smi", "-i", gpu.uuid, "--query-gpu=compute_mode", "--format=csv,noheader"]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout.strip()


@dataclass(frozen=True, slots=True)
class Shared:
    """The shared GPU, and the process that supervises its daemons."""

    gpu: Gpu
    mps: MpsSharing
    paths: MpsPaths
    supervisor: Running

    def environment(self, count: int) -> dict[str, str]:
        """Of a container with so many units of the GPU; paths in the container are replaced by those on the host."""
        units = self.mps.units([sharing.whole_device(self.gpu)])[:count]
        extras = self.mps.extras(units)
        host_paths = {mount.container_path: mount.host_path for mount in extras.mounts}
        return {name: host_paths.get(text, text) for name, text in {**extras.env, **extras.limits}.items()}

    async def gets(self, count: int, changes: Mapping[str, str | None] | None = None) -> dict[str, Any]:
        """What a tenant with a changed environment gets; None removes a variable."""
        changed = {**self.environment(count), **(changes or {})}
        return await tenant({name: text for name, text in changed.items() if text is not None})


async def tenant(environment: Mapping[str, str]) -> dict[str, Any]:
    done = await ended(python(TENANT, MUCH), environment)
    assert done.code == 0, done.err
    result: dict[str, Any] = json.loads(done.out)
    return result


@asynccontextmanager
async def supervised(gpu: Gpu, root: Path) -> AsyncIterator[Shared]:
    share = {"by": "mps", "replicas": 4, "memory": "4Gi", "percent": 25, "most": 2, "mps": {"root": str(root / "mps")}}
    file = root / "plugwright.yaml"
    nvidia = {"select": {"uuid": gpu.uuid}, "share": share}
    file.write_text(json.dumps({"resources": [{"name": RESOURCE, "nvidia": nvidia}]}))
    own = msgspec.structs.replace(SHARE, mps=NvidiaMps(root=str(root / "mps"), shm=""))
    async with running(python("-m", "plugwright", "mps", "run", "-c", file, "--interval", "1")) as supervisor:
        async with asyncio.timeout(_START):
            await supervisor.err.until("condition=ready", 2)
        yield Shared(gpu, MpsSharing(RESOURCE, own), MpsPaths(root / "mps", RESOURCE), supervisor)


@pytest.fixture
async def shared(gpu: Gpu, root: Path) -> AsyncIterator[Shared]:
    async with supervised(gpu, root) as gpu_shared:
        yield gpu_shared


@pytest.fixture
async def processors(gpu: Gpu) -> int:
    """The number that a program without MPS sees."""
    return int(
        (await tenant({"CUDA_MPS_PIPE_DIRECTORY": "/nonexistent", "CUDA_VISIBLE_DEVICES": gpu.uuid}))["processors"]
    )


def check_share(result: Mapping[str, Any], mebibytes: int, processors: float) -> None:
    """A context uses some of the memory, and processors are assigned in groups."""
    assert mebibytes - 1024 <= result["mebibytes"] <= mebibytes
    assert result["refused"] == "CUDA_ERROR_OUT_OF_MEMORY"
    assert result["processors"] <= processors + 2


async def test_a_tenant_gets_its_share_and_no_more(
    shared: Shared, processors: int, seen: Callable[[str], None]
) -> None:
    result = await shared.gets(1)
    seen(f"MPS, 4096 MiB and 25 % of {processors} processors set in the daemon: a tenant gets {result}")
    check_share(result, 4096, processors * 0.25)


@pytest.mark.parametrize(
    "attempt",
    [
        HIGHER,
        dict.fromkeys(HIGHER),
        {"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": None, "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "100"},
        {
            "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=64G",
            "CUDA_MPS_ENABLE_PER_CTX_DEVICE_MULTIPROCESSOR_PARTITIONING": "1",
        },
    ],
)
async def test_no_environment_raises_the_limits(
    shared: Shared, processors: int, attempt: dict[str, str | None], seen: Callable[[str], None]
) -> None:
    result = await shared.gets(1, attempt)
    seen(f"MPS, a tenant that says {attempt} gets {result}")
    check_share(result, 4096, processors * 0.25)


async def test_a_tenant_can_lower_its_limit(shared: Shared) -> None:
    result = await shared.gets(1, {"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=1G"})
    assert result["mebibytes"] <= 1024


async def test_two_units_are_twice_as_much_beside_a_tenant_with_one(shared: Shared, processors: int) -> None:
    """Two daemons, two servers, one GPU in Default mode."""
    async with running(python(TENANT, 1024, "hold"), shared.environment(1)) as first:
        await first.out.until("processors")
        check_share(await shared.gets(2, HIGHER), 8192, processors * 0.5)
        assert first.process.returncode is None


async def test_a_program_outside_the_pipe_has_no_limits_and_the_resource_says_so(shared: Shared) -> None:
    if compute_mode(shared.gpu) != "Default":
        pytest.skip("the GPU is not in Default mode")
    result = await shared.gets(1, {"CUDA_MPS_PIPE_DIRECTORY": "/nonexistent", **HIGHER})
    assert result["mebibytes"] == MUCH
    (unit, *_) = shared.mps.units([sharing.whole_device(shared.gpu)])
    assert shared.mps.note(unit).startswith("mps, not confined: the compute mode is Default")


async def test_limits_hold_again_after_the_daemon_was_killed(shared: Shared, processors: int) -> None:
    pipe = shared.paths.pipe(shared.gpu.uuid, 1)
    os.kill(int((pipe / "nvidia-cuda-mps-control.pid").read_text()), signal.SIGKILL)
    await shared.supervisor.err.until("condition=down")
    await shared.supervisor.err.until("condition=ready", 3)
    check_share(await shared.gets(1, HIGHER), 4096, processors * 0.25)


def control(shared: Shared, *commands: str) -> str:
    """Sends commands to the daemon of containers with one unit, as only root can."""
    environment = {**os.environ, "CUDA_MPS_PIPE_DIRECTORY": str(shared.paths.pipe(shared.gpu.uuid, 1))}
    text = "".join(f"{command}\n" for command in commands)
    program = ["nvidia-cuda-mps-control"]
    done = subprocess.run(program, input=text, env=environment, capture_output=True, text=True, timeout=30, check=True)
    return done.stdout.strip()


async def test_limits_changed_through_the_pipe_are_set_again(shared: Shared) -> None:
    control(shared, "set_default_device_pinned_mem_limit 0 64G", "set_default_active_thread_percentage 100")
    await shared.supervisor.err.until("MPS limits changed by another program")
    assert (await shared.gets(1, HIGHER))["mebibytes"] <= 4096


async def test_limits_of_a_running_server_that_were_changed_are_set_again(
    shared: Shared, processors: int, seen: Callable[[str], None]
) -> None:
    async with running(python(TENANT, 1024, "hold"), shared.environment(1)) as first:
        await first.out.until("processors")
        server = control(shared, "get_server_list").split()[-1]
        commands = [f"get_active_thread_percentage {server}", f"get_device_pinned_mem_limit {server} 0"]
        seen(f"MPS, limits of a server as the driver answers: {[control(shared, command) for command in commands]}")
        control(shared, f"set_active_thread_percentage {server} 100", f"set_device_pinned_mem_limit {server} 0 64G")
        await shared.supervisor.err.until("MPS limits changed by another program")
        check_share(await shared.gets(1, HIGHER), 4096, processors * 0.25)
        assert first.process.returncode is None


async def test_a_tenant_needs_no_cuda_visible_devices(shared: Shared) -> None:
    """A UUID in it ends programs that expect numbers, as vLLM does."""
    assert "CUDA_VISIBLE_DEVICES" not in shared.environment(1)


async def test_the_state_file_has_ready_daemons(shared: Shared) -> None:
    await shared.gets(1)
    current = state.read(shared.paths.state)
    assert current is not None
    assert [daemon.condition.value for daemon in current.daemons] == ["ready", "ready"]
    assert [daemon.corrections for daemon in current.daemons] == [0, 0]


TORCH = """
import torch
free, total = torch.cuda.mem_get_info()
try:
    torch.empty(6 * 2**30, dtype=torch.uint8, device="cuda")
except torch.cuda.OutOfMemoryError:
    print("refused")
"""


async def test_pytorch_is_limited_too(shared: Shared) -> None:
    probe = subprocess.run([sys.executable, "-c", "import torch"], capture_output=True, check=False)
    if probe.returncode:
        pytest.skip("no PyTorch here")
    done = await ended(python("-c", TORCH), {**shared.environment(1), **HIGHER})
    assert done.out.strip() == "refused", done.err
