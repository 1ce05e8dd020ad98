"""Programs run with what Allocate gives a container of an ordinary image, and not without it."""

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from tests.plugins.nvidia.harness import listing
from tests.plugins.nvidia.test_vgpu_limiter import SOURCE

from plugwright.plugins.nvidia.config import (
    DeviceListStrategy,
    NvidiaCdi,
    NvidiaConfig,
    NvidiaShare,
    NvidiaVgpu,
    SharingStrategy,
)
from plugwright.plugins.nvidia.driver import GpuSnapshot
from plugwright.plugins.nvidia.monitor import GpuMonitor, PollIntervals
from plugwright.plugins.nvidia.nvml import Nvml
from plugwright.plugins.nvidia.plugin import Nvidia
from plugwright.plugins.nvidia.vgpu import VgpuSharing
from plugwright.sdk.cdi.resolution import edits_for

HERE = Path(__file__).parent
UNSHARE = (["unshare", "--mount"], ["unshare", "--mount", "--user", "--map-root-user"])
# An image's own variables must not help it to find the driver.
LOADER_VARIABLES = ("LD_LIBRARY_PATH", "LIBRARY_PATH", "LD_PRELOAD", "TRITON_LIBCUDA_PATH")
LIMIT = 4096  # MiB
Pairs = list[list[str]]


@dataclass(frozen=True)
class Container:
    """What a runtime makes of an answer, in the words of `enclosed.py`. `hide` is empty to use the machine's driver."""

    env: dict[str, str] = field(default_factory=dict)
    nodes: Pairs = field(default_factory=list)
    mounts: Pairs = field(default_factory=list)
    links: Pairs = field(default_factory=list)
    folders: list[str] = field(default_factory=list)
    hide: list[str] = field(default_factory=list)


@pytest.fixture(scope="session")
def apart() -> list[str]:
    """The command that starts a program with mounts of its own."""
    for command in UNSHARE:
        trial = subprocess.run([*command, "mount", "-t", "tmpfs", "no", "/mnt"], capture_output=True, check=False)
        if trial.returncode == 0:
            return command
    pytest.skip("mount namespaces cannot be made here: not even root may mount")


@pytest.fixture
def run(apart: list[str], tmp_path: Path) -> "Run":
    """A program of this directory in the container, with nothing compiled before."""

    def started(container: Container, program: str, *arguments: str) -> "subprocess.CompletedProcess[str]":
        files = {name: getattr(container, name) for name in ("hide", "nodes", "mounts", "links", "folders")}
        own = os.environ if not container.hide else {n: t for n, t in os.environ.items() if n not in LOADER_VARIABLES}
        caches = {name: str(tmp_path / name) for name in ("TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR")}
        enclosed = [*apart, sys.executable, str(HERE / "enclosed.py"), json.dumps(files)]
        return subprocess.run(
            [*enclosed, sys.executable, str(HERE / f"{program}.py"), *arguments],
            capture_output=True,
            text=True,
            check=False,
            timeout=240,
            env={**own, **caches, **container.env},
        )

    return started


Run = Callable[..., "subprocess.CompletedProcess[str]"]


async def allocated(
    strategy: DeviceListStrategy, tmp_path: Path, hooks: str = "none", share: NvidiaShare | None = None
) -> Container:
    """With the first GPU or a share of it, on a machine whose own driver is hidden from the container."""
    config = NvidiaConfig(strategy=strategy, cdi=NvidiaCdi(dir=str(tmp_path / "cdi"), hooks=hooks), share=share)
    sharing = [VgpuSharing("nvidia.com/gpu", share)] if share is not None else []
    plugin = Nvidia("nvidia.com/gpu", config, GpuMonitor(Nvml(), PollIntervals(event_wait=1)), *sharing)
    async with listing(plugin) as lists:
        devices = await lists.first()
        first = min(devices.values(), key=lambda device: (str(device.attributes["index"]), device.id))
        assert first.healthy, first.reason
        answer = await plugin.allocate([first])
    mounts = [[mount.host_path, mount.container_path] for mount in answer.mounts]
    nodes = [[node.host_path, node.container_path] for node in answer.nodes]
    by_cdi = _by_cdi(answer.cdi, tmp_path / "cdi")
    mounts += by_cdi.mounts
    assert len({inside for _, inside in mounts}) == len(mounts), "two mounts at one path"
    own = str(tmp_path)  # what is not the driver's
    return replace(
        by_cdi,
        env={**answer.env, **by_cdi.env},
        nodes=[*nodes, *by_cdi.nodes],
        mounts=mounts,
        hide=[source for source, _ in mounts if not source.startswith(own)],
    )


def _by_cdi(names: tuple[str, ...], directory: Path) -> Container:
    """As a runtime applies the specs; hooks by what they are asked to do."""
    edits = edits_for(names, [directory])
    # A runtime replaces a mount by a later one at the same path.
    mounts = {mount.container_path: mount.host_path for part in edits for mount in part.mounts}
    words = [list(hook.args) for part in edits for hook in part.hooks]
    options = [pair for line in words for pair in zip(line[2::2], line[3::2], strict=False)]
    return Container(
        env={name: text for part in edits for name, text in part.env.items()},
        nodes=[[node.host_path or node.path, node.path] for part in edits for node in part.device_nodes],
        mounts=[[source, inside] for inside, source in mounts.items()],
        links=[text.split("::") for option, text in options if option == "--link"],
        folders=[text for option, text in options if option == "--folder"],
    )


WAYS = [
    pytest.param(DeviceListStrategy.DEVICE_NODES, "none", id="device-nodes"),
    pytest.param(DeviceListStrategy.CDI_CRI, "none", id="cdi-without-hooks"),
    pytest.param(DeviceListStrategy.CDI_CRI, "/hook", id="cdi-with-hooks"),
]


TRITON = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="there is no PyTorch with Triton here")


async def test_a_program_runs_with_the_device_nodes_alone(run: Run, snapshot: GpuSnapshot, tmp_path: Path) -> None:
    container = await allocated(DeviceListStrategy.DEVICE_NODES, tmp_path)
    without = run(Container(), "cuda_program")
    assert (without.returncode, without.stdout) == (1, "")
    assert "cuInit failed" in without.stderr
    with_nodes = run(Container(nodes=container.nodes), "cuda_program")
    assert (with_nodes.stdout, with_nodes.stderr) == ("1\n", "")


async def test_a_gpu_without_its_own_node_cannot_be_used(run: Run, snapshot: GpuSnapshot, tmp_path: Path) -> None:
    container = await allocated(DeviceListStrategy.DEVICE_NODES, tmp_path)
    others = [pair for pair in container.nodes if pair[1] != f"/dev/nvidia{snapshot.gpus[0].minor}"]
    assert run(Container(nodes=others), "cuda_program").returncode == 1


@pytest.mark.parametrize(("strategy", "hooks"), WAYS)
async def test_the_drivers_libraries_are_found_without_a_variable(
    run: Run, snapshot: GpuSnapshot, tmp_path: Path, strategy: DeviceListStrategy, hooks: str
) -> None:
    container = await allocated(strategy, tmp_path, hooks)
    for program, printed in (("cuda_program", "1\n"), ("nvml_program", f"{snapshot.driver}\n")):
        without = run(replace(container, mounts=[], links=[], folders=[]), program)
        assert (without.returncode, without.stdout) == (1, ""), "the machine's own driver must be hidden"
        done = run(container, program)
        assert (done.stdout, done.stderr) == (printed, "")


@TRITON
@pytest.mark.timeout(600)
@pytest.mark.parametrize(("strategy", "hooks"), WAYS)
async def test_torch_compile_works(
    run: Run, snapshot: GpuSnapshot, tmp_path: Path, strategy: DeviceListStrategy, hooks: str
) -> None:
    container = await allocated(strategy, tmp_path, hooks)
    done = run(container, "compiled_program")
    assert (done.returncode, done.stdout) == (0, "0.0\n"), done.stderr


@TRITON
@pytest.mark.timeout(600)
async def test_torch_compile_does_not_work_with_the_mounts_alone(
    run: Run, snapshot: GpuSnapshot, tmp_path: Path
) -> None:
    """Triton asks the loader's cache, and that of an image does not know what is mounted later."""
    container = await allocated(DeviceListStrategy.DEVICE_NODES, tmp_path)
    assert "TRITON_LIBCUDA_PATH" in container.env
    alone = run(replace(container, env={}), "compiled_program")
    assert alone.returncode == 1
    assert "libcuda.so cannot found" in alone.stderr


@pytest.fixture(scope="session")
def limiter(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Our own limiter's libraries."""
    if prebuilt := os.environ.get("PLUGWRIGHT_VGPU"):
        return Path(prebuilt)
    if not shutil.which("cc") and not shutil.which("gcc"):
        pytest.skip("needs a C compiler, or PLUGWRIGHT_VGPU with the directory of `make vgpu`")
    directory = tmp_path_factory.mktemp("limiter")
    subprocess.run(["make", "-s", "-C", str(SOURCE), f"OUT={directory}"], check=True)
    return directory


@TRITON
@pytest.mark.timeout(600)
@pytest.mark.parametrize(("strategy", "hooks"), WAYS)
async def test_the_limiter_is_found_in_place_of_libcuda_without_a_variable(
    run: Run,
    snapshot: GpuSnapshot,
    limiter: Path,
    tmp_path: Path,
    seen: Callable[[str], None],
    strategy: DeviceListStrategy,
    hooks: str,
) -> None:
    vgpu = NvidiaVgpu(builtin=str(limiter), root=str(tmp_path / "vgpu"))
    share = NvidiaShare(by=SharingStrategy.VGPU, memory=LIMIT * 2**20, vgpu=vgpu)
    limited = run(await allocated(strategy, tmp_path, hooks, share), "shared_program", str(LIMIT * 2))
    assert limited.returncode == 0, limited.stderr
    whole = run(await allocated(strategy, tmp_path / "whole", hooks), "shared_program", str(LIMIT * 2))
    assert whole.returncode == 0, whole.stderr
    inside, control = json.loads(limited.stdout), json.loads(whole.stdout)
    seen(f"a foreign loader cache, {strategy.value}, hooks {hooks}: {inside}, without the limiter {control}")
    assert (inside["total"], inside["refused"], inside["compiled"]) == (LIMIT, True, 16.0)
    assert LIMIT - 1024 <= inside["got"] <= LIMIT
    assert (control["refused"], control["got"]) == (False, LIMIT * 2)
