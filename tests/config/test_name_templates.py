"""Name templates: `plugwright run` serves a resource for each model or MIG profile of the machine."""

import asyncio
import json
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
        served = json.loads((await node.ask("status", "-o", "json")).out)["resources"]
        assert "nvidia.com/mig-3g.20gb" in [resource["name"] for resource in served]


async def test_a_template_without_devices_is_idle_until_there_is_one(kubelet: ObservedKubelet, node: Node) -> None:
    node.config.write_text(
        """resources: [{name: "nvidia.com/mig-{profile}", nvidia: {simulate: hgx-h100, mig: mixed, select: {index: 0}}},
        {name: nvidia.com/gpu, nvidia: {simulate: hgx-h100, exclude: {index: 0}}}]"""
    )
    async with node.daemon("--listen", "127.0.0.1:0") as daemon:
        await kubelet.endpoint("nvidia.com/gpu", 7)
        assert (
            "  nvidia.com/mig-{profile} idle: no device to make a name of"
            in (await node.ask("status")).out.splitlines()
        )
        address = (await daemon.err.until("answering probes")).rpartition("address=")[2]
        assert "nvidia.com/mig-{profile}: idle: no device to make a name of" in await ready(address)
        done = await node.ask("nvidia", "simulate", "mig", "0", "profiles=1g.10gb", "--resource", "nvidia.com/gpu")
        assert done.code == 0, done.err
        await kubelet.endpoint("nvidia.com/mig-1g.10gb", 1)
        assert "idle" not in await ready(address)


async def ready(address: str) -> str:
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(b"GET /readyz HTTP/1.0\r\n\r\n")
    text = (await reader.read()).decode()
    writer.close()
    return text


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


TAKEN = "made of nvidia.com/{model}: another resource of the file has this name"


async def test_a_name_that_another_resource_has_is_left_out_and_shown(kubelet: ObservedKubelet, node: Node) -> None:
    literal = "{name: nvidia.com/tesla-t4, nvidia: {simulate: t4, select: {index: 0}}}"
    template = '{name: "nvidia.com/{model}", nvidia: {simulate: t4, exclude: {index: 0}}}'
    node.config.write_text(f"resources: [{literal}, {template}, {{name: mock/gpu, mock: {{}}}}]")
    async with node.daemon() as daemon:
        await kubelet.endpoint("nvidia.com/tesla-t4", 1)
        await kubelet.endpoint("mock/gpu")
        await daemon.err.until("resource not served: its name is refused")
        async with node.watch("--output", "json") as watch:
            report = json.loads(await watch.out.until(TAKEN))
    assert report["daemon"]["config"]["refusedResources"] == {"nvidia.com/tesla-t4": TAKEN}
    assert [resource["name"] for resource in report["resources"]] == ["mock/gpu", "nvidia.com/tesla-t4"]


async def test_a_name_that_is_too_long_is_left_out_and_shown(kubelet: ObservedKubelet, node: Node) -> None:
    long = f"{{model}}-{'x' * 55}"
    template = f'{{name: "nvidia.com/{long}", nvidia: {{simulate: t4}}}}'
    node.config.write_text(f"resources: [{template}, {{name: mock/gpu, mock: {{}}}}]")
    async with node.daemon() as daemon:
        gpu = await kubelet.endpoint("mock/gpu")
        await daemon.err.until("resource not served: its name is refused")
        async with node.watch() as watch:
            await watch.out.until("is not a resource name: it")
        # It is left out of a reload too, and the file in force is otherwise followed.
        node.config.write_text(
            f"resources: [{template}, {{name: mock/gpu, mock: {{}}}}, {{name: mock/nic, mock: {{}}}}]"
        )
        await kubelet.endpoint("mock/nic")
        assert kubelet.endpoints["mock/gpu"] is gpu
        assert len([line for line in daemon.err.all if "its name is refused" in line]) == 1


async def test_a_new_name_is_served_while_a_new_file_is_refused(kubelet: ObservedKubelet, node: Node) -> None:
    node.config.write_text(FILE)
    async with node.daemon() as daemon:
        await kubelet.endpoint("nvidia.com/mig-3g.20gb", 2)
        node.config.write_text("resources: 7")
        await daemon.err.until("new configuration rejected")
        ask = ("nvidia", "simulate", "mig", MIG[2].mig[0].uuid, "profiles=4g.20gb,1g.5gb+me")
        assert (await node.ask(*ask)).code == 0
        await kubelet.endpoint("nvidia.com/mig-4g.20gb", 1)
