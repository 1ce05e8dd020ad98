"""A CUDA program runs with its allocation, and not without it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from tests.plugins.nvidia.harness import listing

from plugwright import Allocation
from plugwright.plugins.nvidia.config import DeviceListStrategy, NvidiaCdi, NvidiaConfig
from plugwright.plugins.nvidia.driver import GpuSnapshot
from plugwright.plugins.nvidia.monitor import GpuMonitor, PollIntervals
from plugwright.plugins.nvidia.nvml import Nvml
from plugwright.plugins.nvidia.plugin import Nvidia
from plugwright.sdk import cdi
from plugwright.sdk.cdi.resolution import resolve

HERE = Path(__file__).parent
NOTHING = Allocation()
UNSHARE = (["unshare", "--mount"], ["unshare", "--mount", "--user", "--map-root-user"])


@pytest.fixture(scope="session")
def apart() -> list[str]:
    """The command that starts a program with mounts of its own."""
    for command in UNSHARE:
        if (
            subprocess.run(
                [*command, "mount", "-t", "tmpfs", "none", "/mnt"], capture_output=True, check=False
            ).returncode
            == 0
        ):
            return command
    pytest.skip("mount namespaces cannot be made here: not even root may mount")


async def allocation(config: NvidiaConfig) -> Allocation:
    """Of a container with the first GPU."""
    plugin = Nvidia("nvidia.com/gpu", config, GpuMonitor(Nvml(), PollIntervals(event_wait=1)))
    async with listing(plugin) as lists:
        devices = await lists.first()
        first = min(devices.values(), key=lambda device: str(device.attributes["index"]))
        return await plugin.allocate([first])


def run(apart: list[str], allocated: Allocation, hide: list[str]) -> subprocess.CompletedProcess[str]:
    """The program in a namespace that has only the allocated files of the GPU."""
    files = {
        "hide": hide,
        "nodes": [[node.host_path, node.container_path] for node in allocated.nodes],
        "mounts": [[mount.host_path, mount.container_path] for mount in allocated.mounts],
    }
    command = [*apart, sys.executable, str(HERE / "enclosed.py"), json.dumps(files)]
    program = [sys.executable, str(HERE / "cuda_program.py")]
    return subprocess.run(
        [*command, *program],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        env={**os.environ, **allocated.env},
    )


async def test_a_program_runs_with_the_device_nodes_alone(apart: list[str], snapshot: GpuSnapshot) -> None:
    allocated = await allocation(NvidiaConfig())
    without = run(apart, NOTHING, [])
    assert (without.returncode, without.stdout) == (1, "")
    assert "cuInit failed" in without.stderr
    with_nodes = run(apart, Allocation(nodes=allocated.nodes), [])
    assert (with_nodes.stdout, with_nodes.stderr) == ("1\n", "")


async def test_a_gpu_without_its_own_node_cannot_be_used(apart: list[str], snapshot: GpuSnapshot) -> None:
    allocated = await allocation(NvidiaConfig())
    others = [node for node in allocated.nodes if node.container_path != f"/dev/nvidia{snapshot.gpus[0].minor}"]
    assert run(apart, Allocation(nodes=others), []).returncode == 1


async def test_the_allocation_has_the_drivers_libraries(apart: list[str], snapshot: GpuSnapshot) -> None:
    allocated = await allocation(NvidiaConfig())
    hidden = [mount.host_path for mount in allocated.mounts]
    without = run(apart, Allocation(nodes=allocated.nodes), hidden)
    assert without.returncode == 1
    whole = run(apart, allocated, hidden)
    assert (whole.stdout, whole.stderr) == ("1\n", "")


async def test_a_cdi_spec_has_the_same_nodes_and_mounts(
    apart: list[str], snapshot: GpuSnapshot, tmp_path: Path
) -> None:
    config = NvidiaConfig(strategy=DeviceListStrategy.CDI_CRI, cdi=NvidiaCdi(dir=str(tmp_path)))
    allocated = await allocation(config)
    [name] = allocated.cdi
    [path] = tmp_path.iterdir()
    spec = cdi.read(path)
    device = resolve([tmp_path])[name]
    direct = await allocation(msgspec.structs.replace(config, strategy=DeviceListStrategy.DEVICE_NODES))
    nodes = {node.path for edits in (spec.edits, device.edits) for node in edits.device_nodes}
    assert nodes == {node.container_path for node in direct.nodes}
    assert {mount.container_path for mount in spec.edits.mounts} == {mount.container_path for mount in direct.mounts}
