"""`plugwright nvidia`: injected faults reach the kubelet, and an operator can clear them."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from msgspec.structs import replace
from tests.cli.processes import Ended, Node, ended, python
from tests.observed_kubelet import ObservedEndpoint, ObservedKubelet

from plugwright import Settings, serving
from plugwright.config import schema
from plugwright.plugins.nvidia import simulated_machines
from plugwright.sdk import cdi

T4 = [gpu.uuid for gpu in simulated_machines.load("t4").gpus]
FILE = """
resources:
  - name: nvidia.com/gpu
    nvidia: {simulate: t4, exclude: {index: 3}, rescan: 3600}
  - name: nvidia.com/gpu-shared
    nvidia: {simulate: t4, select: {index: 3}, share: {replicas: 2}, rescan: 3600}
"""


@pytest.fixture
def node(root: Path) -> Node:
    return Node(root)


@asynccontextmanager
async def machine(kubelet: ObservedKubelet, settings: Settings, node: Node) -> AsyncIterator[ObservedEndpoint]:
    path = node.root / "plugwright.yaml"
    path.write_text(FILE)
    plugins = schema.load(path).plugins()
    async with serving(*plugins, settings=replace(settings, control_socket=node.control)):
        await kubelet.endpoint("nvidia.com/gpu-shared", 2)
        yield await kubelet.endpoint("nvidia.com/gpu", 3)


async def test_a_lost_gpu_is_unhealthy_until_it_is_reset(
    kubelet: ObservedKubelet, settings: Settings, node: Node
) -> None:
    async with machine(kubelet, settings, node):
        assert await node.ask("nvidia", "simulate", "lose", "1") == Ended(0, f"{T4[1]} is lost\n", "")
        await kubelet.health("nvidia.com/gpu", T4[1], "Unhealthy")
        assert (await node.ask("nvidia", "simulate", "reset", T4[1])).code == 0
        await kubelet.health("nvidia.com/gpu", T4[1], "Healthy")


async def test_recover_clears_recorded_faults(kubelet: ObservedKubelet, settings: Settings, node: Node) -> None:
    async with machine(kubelet, settings, node):
        share = f"{T4[3]}::0"
        assert (await node.ask("nvidia", "simulate", "xid", share, "xid=79")).code == 0
        await kubelet.health("nvidia.com/gpu-shared", share, "Unhealthy")
        cleared = f"{T4[3]}: recorded Xids cleared; Healthy again unless the driver still reports a fault\n"
        assert await node.ask("nvidia", "recover", share) == Ended(0, cleared, "")
        await kubelet.health("nvidia.com/gpu-shared", share, "Healthy")
        short = T4[3].rpartition("-")[0]  # the ids of both shares start with it too
        assert await node.ask("nvidia", "recover", short) == Ended(
            0, f"{T4[3]}: no Xid is recorded; nothing to clear\n", ""
        )


async def test_an_unloaded_driver_affects_all_resources_of_the_machine(
    kubelet: ObservedKubelet, settings: Settings, node: Node
) -> None:
    async with machine(kubelet, settings, node):
        assert (await node.ask("nvidia", "simulate", "driver", "state=gone")).code == 0
        await kubelet.health("nvidia.com/gpu", T4[0], "Unhealthy")
        await kubelet.health("nvidia.com/gpu-shared", f"{T4[3]}::1", "Unhealthy")


MIG_DEVICES = """
resources:
  - {name: nvidia.com/one, nvidia: {simulate: dgx-a100-mig, mig: mixed, select: {index: "2:0", profile: "*"}}}
  - {name: nvidia.com/two, nvidia: {simulate: dgx-a100-mig, mig: mixed, select: {index: "2:1", profile: "*"}}}
"""


async def test_a_fault_affects_mig_devices_in_several_resources(
    kubelet: ObservedKubelet, settings: Settings, node: Node
) -> None:
    path = node.root / "plugwright.yaml"
    path.write_text(MIG_DEVICES)
    async with serving(*schema.load(path).plugins(), settings=replace(settings, control_socket=node.control)):
        names = ("nvidia.com/one", "nvidia.com/two")
        parts = {name: next(iter((await kubelet.endpoint(name, 1)).devices)) for name in names}
        for command, health in (("simulate xid 2 xid=79", "Unhealthy"), ("recover 2", "Healthy")):
            assert (await node.ask("nvidia", *command.split())).code == 0
            for name, part in parts.items():
                await kubelet.health(name, part, health)


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("recover", "9"), f"no resource has a GPU '9' (the GPUs of this node: {', '.join(sorted(T4))})"),
        (("recover", "GPU"), f"several devices begin with 'GPU': {', '.join(sorted(T4))}"),
        (("simulate", "dance", "1"), "a command of a simulated machine must be one of"),
        (("simulate", "xid", "1", "xid=many"), "xid must be a number, got 'many'"),
    ],
)
async def test_an_invalid_command_is_refused(
    kubelet: ObservedKubelet, settings: Settings, node: Node, words: tuple[str, ...], text: str
) -> None:
    async with machine(kubelet, settings, node):
        done = await node.ask("nvidia", *words)
    assert done.code == 1
    assert text in done.err


async def test_clean_removes_our_specs_and_no_others(tmp_path: Path) -> None:
    edits = cdi.ContainerEdits(env={"A": "b"})
    ours = cdi.SpecDirectory(tmp_path, "plugwright-nvidia").write(cdi.Spec("a.com/gpu", [cdi.Device("0", edits)]))
    other = cdi.SpecDirectory(tmp_path, "other").write(cdi.Spec("a.com/gpu", [cdi.Device("1", edits)]))
    program = tmp_path / "bin/plugwright-cdi-hook"
    program.parent.mkdir()
    program.touch()
    places = ("--cdi-dir", tmp_path, "--programs-dir", program.parent)
    done = await ended(python("-m", "plugwright", "nvidia", "clean", *places))
    assert done == Ended(0, f"removed {ours}\nremoved {program}\n", "")
    assert sorted(tmp_path.iterdir()) == sorted([other, program.parent])
