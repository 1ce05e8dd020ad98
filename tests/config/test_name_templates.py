"""Name templates: `plugwright run` serves a resource for each model or MIG profile of the machine."""

from pathlib import Path

import pytest
from tests.cli.processes import Node
from tests.observed_kubelet import ObservedKubelet

from plugwright.plugins.nvidia import simulated_machines

MIG = simulated_machines.load("dgx-a100-mig").gpus
FILE = """
resources:
  - name: nvidia.com/gpu
    nvidia: {simulate: dgx-a100-mig, mig: mixed}
  - name: "nvidia.com/mig-{profile}"
    nvidia: {simulate: dgx-a100-mig, mig: mixed}
"""


@pytest.fixture
def node(root: Path) -> Node:
    node = Node(root)
    node.config.parent.mkdir()
    return node


async def test_a_template_serves_each_profile_as_a_resource(kubelet: ObservedKubelet, node: Node) -> None:
    node.config.write_text(FILE)
    async with node.daemon():
        await kubelet.endpoint("nvidia.com/gpu", 3)
        await kubelet.endpoint("nvidia.com/mig-1g.5gb", 14)
        await kubelet.endpoint("nvidia.com/mig-2g.10gb", 3)
        await kubelet.endpoint("nvidia.com/mig-3g.20gb", 2)


async def test_a_new_profile_adds_a_resource_and_the_old_one_stays(kubelet: ObservedKubelet, node: Node) -> None:
    node.config.write_text(FILE)
    async with node.daemon():
        gone = await kubelet.endpoint("nvidia.com/mig-3g.20gb", 2)
        ask = ("nvidia", "simulate", "mig", MIG[2].mig[0].uuid, "profiles=4g.20gb,1g.5gb+me")
        assert (await node.ask(*ask)).code == 0
        await kubelet.endpoint("nvidia.com/mig-4g.20gb", 1)
        await kubelet.endpoint("nvidia.com/mig-1g.5gb.me", 1)
        for device in gone.devices:
            await kubelet.health("nvidia.com/mig-3g.20gb", device, "Unhealthy")


async def test_a_template_serves_each_model_as_a_resource(kubelet: ObservedKubelet, node: Node) -> None:
    node.config.write_text('resources: [{name: "nvidia.com/{model}", nvidia: {simulate: t4}}]')
    async with node.daemon():
        await kubelet.endpoint("nvidia.com/tesla-t4", 4)


async def test_a_template_can_be_added_to_a_served_file(kubelet: ObservedKubelet, node: Node) -> None:
    node.config.write_text("resources: [{name: nvidia.com/gpu, nvidia: {simulate: t4, select: {index: 0}}}]")
    async with node.daemon():
        await kubelet.endpoint("nvidia.com/gpu", 1)
        others = '{name: "nvidia.com/{model}", nvidia: {simulate: t4, exclude: {index: 0}}}'
        first = "{name: nvidia.com/gpu, nvidia: {simulate: t4, select: {index: 0}}}"
        node.config.write_text(f"resources: [{first}, {others}]")
        await kubelet.endpoint("nvidia.com/tesla-t4", 3)
