"""`plugwright node` on the embedded cluster: the same commands and results as on a real one."""

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.cli.processes import Ended, ended, python
from tests.cluster.embedding import Lab, embedded, served

from plugwright.apiserver.store import Object
from plugwright.kubelet import KubeletSettings, Timing

BRIEF = KubeletSettings(numa=2, timing=Timing(grace=1.0, node_status=0.05))
QUICK = ("--wait", "--round", "0.2s")


class Commands:
    def __init__(self, lab: Lab, kubeconfig: Path) -> None:
        self.lab, self._kubeconfig = lab, kubeconfig

    async def run(self, *arguments: object) -> Ended:
        return await ended(python("-m", "plugwright", "node", *arguments), {"KUBECONFIG": str(self._kubeconfig)})

    async def rows(self, *arguments: object) -> dict[str, Object]:
        done = await self.run("resources", *arguments, "-o", "json")
        assert (done.code, done.err) == (0, "")
        (node,) = json.loads(done.out)["nodes"]
        return {row["name"]: row for row in node["resources"]}


@pytest.fixture
async def commands(tmp_path: Path) -> AsyncIterator[Commands]:
    async with embedded(kubelet=BRIEF) as lab, served(lab, tmp_path) as kubeconfig:
        await lab.offered()
        yield Commands(lab, kubeconfig)


async def test_resources_shows_a_plugin_s_resource_and_the_pods_that_hold_it(commands: Commands) -> None:
    commands.lab.create("p", {"mock/gpu": "2"})
    await commands.lab.phase("p")
    row = (await commands.rows("node-1"))["mock/gpu"]
    assert (row["capacity"], row["allocatable"], row["backing"]) == (10, 10, "plugin")
    assert [(pod["name"], pod["count"]) for pod in row["pods"]] == [("p", 2)]
    assert row["evidence"] == "the kubelet counts 10 of 10 devices healthy"


async def test_added_capacity_is_shown_as_manual_and_can_be_removed(commands: Commands) -> None:
    done = await commands.run("add", "node-1", "example.com/dongle=4", *QUICK)
    assert done.code == 0, done.err
    assert commands.lab.counts("example.com/dongle") == ("4", "4")
    row = (await commands.rows())["example.com/dongle"]
    assert row["backing"] == "manual"
    done = await commands.run("remove", "node-1", "example.com/dongle", *QUICK)
    assert done.code == 0, done.err
    assert commands.lab.counts("example.com/dongle") == (None, None)


async def test_remove_of_a_resource_with_a_live_plugin_is_refused(commands: Commands) -> None:
    done = await commands.run("remove", "node-1", "mock/gpu")
    assert done.code == 1
    assert commands.lab.counts("mock/gpu") == ("10", "10")


async def test_a_resource_without_its_plugin_can_be_removed(commands: Commands) -> None:
    await commands.lab.cluster.serve("node-1", [])
    await commands.lab.cluster.until(lambda: commands.lab.counts("mock/gpu")[0] == "0")
    assert (await commands.rows())["mock/gpu"]["backing"] == "unknown"  # the plugin may have no device
    done = await commands.run("remove", "--stale", "--all-nodes", *QUICK)
    assert done.code == 0, done.err
    assert commands.lab.counts("mock/gpu") == (None, None)
    assert "mock/gpu" not in await commands.rows()


async def test_resources_reads_the_node_s_own_directory(commands: Commands) -> None:
    directory = commands.lab.cluster.directory("node-1")
    row = (await commands.rows("node-1", "--kubelet-dir", directory))["mock/gpu"]
    assert row["backing"] == "plugin"
