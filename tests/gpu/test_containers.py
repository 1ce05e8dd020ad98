"""A CUDA program runs with what Allocate gives it, and not without."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from tests.plugins.nvidia.looking import listing
from tests.sdk.cdi.resolution import resolve

from plugwright import Allocation
from plugwright.plugins.nvidia.config import Options, Places, Strategy
from plugwright.plugins.nvidia.driver import Reading
from plugwright.plugins.nvidia.monitor import GpuMonitor, PollIntervals
from plugwright.plugins.nvidia.nvml import Nvml
from plugwright.plugins.nvidia.plugin import Nvidia
from plugwright.sdk import cdi

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


async def allocation(options: Options) -> Allocation:
    """What a container gets that asks for the first GPU."""
    plugin = Nvidia("nvidia.com/gpu", options, GpuMonitor(Nvml(), PollIntervals(ear=1)))
    async with listing(plugin) as lists:
        devices = await lists.first()
        first = min(devices.values(), key=lambda device: str(device.attributes["index"]))
        return await plugin.allocate([first])


def run(apart: list[str], given: Allocation, hide: list[str]) -> subprocess.CompletedProcess[str]:
    """The program, in a namespace that has of the GPU only what was given."""
    things = {
        "hide": hide,
        "nodes": [[node.host_path, node.container_path] for node in given.nodes],
        "mounts": [[mount.host_path, mount.container_path] for mount in given.mounts],
    }
    command = [*apart, sys.executable, str(HERE / "enclosed.py"), json.dumps(things)]
    program = [sys.executable, str(HERE / "cuda_program.py")]
    return subprocess.run(
        [*command, *program], capture_output=True, text=True, check=False, timeout=120, env={**os.environ, **given.env}
    )


async def test_device_nodes_are_what_it_takes(apart: list[str], reading: Reading) -> None:
    given = await allocation(Options())
    without = run(apart, NOTHING, [])
    assert (without.returncode, without.stdout) == (1, "")
    assert "cuInit failed" in without.stderr
    given_nodes = run(apart, Allocation(nodes=given.nodes), [])
    assert (given_nodes.stdout, given_nodes.stderr) == ("1\n", "")


async def test_a_gpu_without_its_own_node_is_no_gpu(apart: list[str], reading: Reading) -> None:
    given = await allocation(Options())
    others = [node for node in given.nodes if node.container_path != f"/dev/nvidia{reading.gpus[0].minor}"]
    assert run(apart, Allocation(nodes=others), []).returncode == 1


async def test_the_drivers_libraries_come_along(apart: list[str], reading: Reading) -> None:
    given = await allocation(Options())
    hidden = [mount.host_path for mount in given.mounts]
    without = run(apart, Allocation(nodes=given.nodes), hidden)
    assert without.returncode == 1
    whole = run(apart, given, hidden)
    assert (whole.stdout, whole.stderr) == ("1\n", "")


async def test_a_cdi_spec_says_the_same(apart: list[str], reading: Reading, tmp_path: Path) -> None:
    options = Options(strategies=(Strategy.CDI_CRI,), places=Places(cdi=tmp_path))
    given = await allocation(options)
    [name] = given.cdi
    [path] = tmp_path.iterdir()
    spec = cdi.read(path)
    device = resolve([tmp_path])[name]
    direct = await allocation(replace(options, strategies=(Strategy.DEVICE_NODES,)))
    nodes = {node.path for edits in (spec.edits, device.edits) for node in edits.device_nodes}
    assert nodes == {node.container_path for node in direct.nodes}
    assert {mount.container_path for mount in spec.edits.mounts} == {mount.container_path for mount in direct.mounts}
