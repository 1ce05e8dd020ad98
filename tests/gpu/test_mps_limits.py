"""On a real GPU: what an MPS daemon allows is what a tenant gets, whatever it says in its environment.

The compute mode is never changed here. In Default mode a program that does not use the pipe has no limits; that is
tested too, since the resource says so.
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

import pytest
from tests.cli.processes import Running, ended, python, running

from plugwright.plugins.nvidia import sharing
from plugwright.plugins.nvidia.driver import Gpu, Reading
from plugwright.plugins.nvidia.mps import state
from plugwright.plugins.nvidia.mps.plan import MpsOptions, Place
from plugwright.plugins.nvidia.mps.sharing import Mps
from plugwright.plugins.nvidia.sharing import By, Share

RESOURCE = "nvidia.com/gpu-shared"
SHARE = Share(by=By.MPS, replicas=4, memory=4 * 2**30, percent=25, most=2)
TENANT = Path(__file__).with_name("tenant.py")
MUCH = 12 * 1024  # MiB: more than any share here
LOOSER = {"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=64G", "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "100"}
_START = 60.0  # seconds for a daemon on a machine whose driver must be loaded first


@pytest.fixture
def gpu(reading: Reading) -> Gpu:
    if not shutil.which("nvidia-cuda-mps-control"):
        pytest.skip("no nvidia-cuda-mps-control here")
    if os.geteuid() != 0:
        pytest.skip("MPS daemons for other users are root's to start")
    return reading.gpus[0]


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
    """The GPU as it is shared, and the process that looks after its daemons."""

    gpu: Gpu
    mps: Mps
    place: Place
    supervisor: Running

    def environment(self, count: int) -> dict[str, str]:
        """What a container with so many units of the GPU would have; its mounts are where they are on the host."""
        units = self.mps.units([sharing.whole(self.gpu)])[:count]
        extras = self.mps.extras(units)
        places = {mount.container_path: mount.host_path for mount in extras.mounts}
        return {name: places.get(text, text) for name, text in {**extras.env, **extras.limits}.items()}

    async def gets(self, count: int, changes: Mapping[str, str | None] | None = None) -> dict[str, Any]:
        """What a tenant gets that changes its environment; None takes a variable away."""
        changed = {**self.environment(count), **(changes or {})}
        return await tenant({name: text for name, text in changed.items() if text is not None})


async def tenant(environment: Mapping[str, str]) -> dict[str, Any]:
    said = await ended(python(TENANT, MUCH), environment)
    assert said.code == 0, said.err
    found: dict[str, Any] = json.loads(said.out)
    return found


@asynccontextmanager
async def looked_after(gpu: Gpu, root: Path) -> AsyncIterator[Shared]:
    share = {"by": "mps", "replicas": 4, "memory": "4Gi", "percent": 25, "most": 2, "mps": {"root": str(root / "mps")}}
    file = root / "plugwright.yaml"
    nvidia = {"select": {"uuid": gpu.uuid}, "share": share}
    file.write_text(json.dumps({"resources": [{"name": RESOURCE, "nvidia": nvidia}]}))
    options = MpsOptions(root=root / "mps", shm=None)
    async with running(python("-m", "plugwright", "mps", "run", "-c", file, "--interval", "1")) as supervisor:
        async with asyncio.timeout(_START):
            await supervisor.err.until("condition=ready", 2)
        yield Shared(gpu, Mps(RESOURCE, SHARE, options), Place(root / "mps", RESOURCE), supervisor)


@pytest.fixture
async def shared(gpu: Gpu, root: Path) -> AsyncIterator[Shared]:
    async with looked_after(gpu, root) as made:
        yield made


@pytest.fixture
async def processors(gpu: Gpu) -> int:
    """All of them, as a program without MPS sees them."""
    return int(
        (await tenant({"CUDA_MPS_PIPE_DIRECTORY": "/nonexistent", "CUDA_VISIBLE_DEVICES": gpu.uuid}))["processors"]
    )


def is_share(found: Mapping[str, Any], mebibytes: int, processors: float) -> None:
    """A context takes some of the memory, and processors are given in groups."""
    assert mebibytes - 1024 <= found["mebibytes"] <= mebibytes
    assert found["refused"] == "CUDA_ERROR_OUT_OF_MEMORY"
    assert found["processors"] <= processors + 2


async def test_a_tenant_gets_its_share_and_no_more(
    shared: Shared, processors: int, seen: Callable[[str], None]
) -> None:
    found = await shared.gets(1)
    seen(f"MPS, 4096 MiB and 25 % of {processors} processors set in the daemon: a tenant gets {found}")
    is_share(found, 4096, processors * 0.25)


@pytest.mark.parametrize(
    "attempt",
    [
        LOOSER,
        dict.fromkeys(LOOSER),
        {"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": None, "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "100"},
        {
            "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=64G",
            "CUDA_MPS_ENABLE_PER_CTX_DEVICE_MULTIPROCESSOR_PARTITIONING": "1",
        },
    ],
)
async def test_no_environment_loosens_it(
    shared: Shared, processors: int, attempt: dict[str, str | None], seen: Callable[[str], None]
) -> None:
    found = await shared.gets(1, attempt)
    seen(f"MPS, a tenant that says {attempt} gets {found}")
    is_share(found, 4096, processors * 0.25)


async def test_a_tenant_may_have_less(shared: Shared) -> None:
    found = await shared.gets(1, {"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=1G"})
    assert found["mebibytes"] <= 1024


async def test_two_units_are_twice_as_much_beside_a_tenant_with_one(shared: Shared, processors: int) -> None:
    """Two daemons, two servers, one GPU in Default mode."""
    async with running(python(TENANT, 1024, "hold"), shared.environment(1)) as first:
        await first.out.until("processors")
        is_share(await shared.gets(2, LOOSER), 8192, processors * 0.5)
        assert first.process.returncode is None


async def test_outside_the_pipe_there_are_no_limits_and_the_resource_says_so(shared: Shared) -> None:
    if compute_mode(shared.gpu) != "Default":
        pytest.skip("the GPU is not in Default mode")
    found = await shared.gets(1, {"CUDA_MPS_PIPE_DIRECTORY": "/nonexistent", **LOOSER})
    assert found["mebibytes"] == MUCH
    (unit, *_) = shared.mps.units([sharing.whole(shared.gpu)])
    assert str(shared.mps.attributes(unit)["sharing"]).startswith("mps, not confined: the compute mode is Default")


async def test_limits_hold_again_after_the_daemon_was_killed(shared: Shared, processors: int) -> None:
    os.kill(int((shared.place.pipe(1) / "nvidia-cuda-mps-control.pid").read_text()), signal.SIGKILL)
    await shared.supervisor.err.until("condition=down")
    await shared.supervisor.err.until("condition=ready", 3)
    is_share(await shared.gets(1, LOOSER), 4096, processors * 0.25)


async def test_limits_that_are_loosened_through_the_pipe_are_set_again(shared: Shared) -> None:
    """Which only root can do."""
    typed = "set_default_device_pinned_mem_limit 0 64G\nset_default_active_thread_percentage 100\n"
    environment = {**os.environ, "CUDA_MPS_PIPE_DIRECTORY": str(shared.place.pipe(1))}
    subprocess.run(["nvidia-cuda-mps-control"], input=typed, env=environment, text=True, timeout=30, check=True)
    await shared.supervisor.err.until("limits were changed from outside")
    assert (await shared.gets(1, LOOSER))["mebibytes"] <= 4096


async def test_how_it_is_stands_in_the_file(shared: Shared) -> None:
    await shared.gets(1)
    found = state.read(shared.place.state)
    assert found is not None
    assert [each.condition.value for each in found.daemons] == ["ready", "ready"]
    assert [each.corrections for each in found.daemons] == [0, 0]


TORCH = """
import torch
free, total = torch.cuda.mem_get_info()
try:
    torch.empty(6 * 2**30, dtype=torch.uint8, device="cuda")
except torch.cuda.OutOfMemoryError:
    print("refused")
"""


async def test_pytorch_is_held_too(shared: Shared) -> None:
    probe = subprocess.run([sys.executable, "-c", "import torch"], capture_output=True, check=False)
    if probe.returncode:
        pytest.skip("no PyTorch here")
    said = await ended(python("-c", TORCH), {**shared.environment(1), **LOOSER})
    assert said.out.strip() == "refused", said.err
