"""A plugin in Go, on the types that Kubernetes itself has, against the emulated kubelet."""

import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.requirements import go_program

from plugwright.kubelet import Kubelet, KubeletSettings
from plugwright.testing import PluginProcess, PodRefused, plugin_process, pod_requesting

SOURCE = Path(__file__).parent / "go_plugin"
RESOURCE = "example.com/go"
pytestmark = pytest.mark.timeout(600)  # the first test builds it


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return go_program(SOURCE, tmp_path_factory.mktemp("go"))


@pytest.fixture
def node_settings(request: pytest.FixtureRequest) -> KubeletSettings:
    return KubeletSettings(numa=2, timeout=60, **getattr(request, "param", {}))


@pytest.fixture
async def node(root: Path, node_settings: KubeletSettings) -> AsyncIterator[Kubelet]:
    async with Kubelet(root, node_settings) as kubelet:
        yield kubelet


@pytest.fixture
async def plugin(node: Kubelet, program: Path) -> AsyncIterator[PluginProcess]:
    async with plugin_process(node, [program, "-dir", "{dir}"], RESOURCE) as running:
        yield running


async def test_go_plugin_is_listed_and_called_as_by_a_kubelet(node: Kubelet, plugin: PluginProcess) -> None:
    assert await node.allocatable(RESOURCE) == 4
    await node.admit(pod_requesting({RESOURCE: 2}))
    assert [call.method for call in node.calls] == [
        "Register",
        "GetDevicePluginOptions",
        "ListAndWatch",
        "GetPreferredAllocation",
        "Allocate",
        "PreStartContainer",
    ]
    assert [call.outcome for call in node.calls if call.outcome not in ("OK", "open")] == []


async def test_go_plugins_preference_and_response_reach_the_container(node: Kubelet, plugin: PluginProcess) -> None:
    pod = await node.admit(pod_requesting({RESOURCE: 2}))
    granted = pod.container("main")
    assert granted.env == {"GO_DEVICES": "go-2,go-3"}  # its preference is the last ones
    assert [(node.host_path, node.permissions) for node in granted.nodes] == [("/dev/go-2", "rw"), ("/dev/go-3", "rw")]
    assert [(mount.container_path, mount.read_only) for mount in granted.mounts] == [("/go", True)]
    assert (granted.annotations, granted.cdi) == ({"example.com/go": "yes"}, ("example.com/go=go-2",))


async def test_go_plugin_registers_again_after_a_kubelet_restart(node: Kubelet, plugin: PluginProcess) -> None:
    pod = await node.admit(pod_requesting({RESOURCE: 3}))
    await node.restart()
    assert await node.allocatable(RESOURCE, 4) == 4
    assert pod.phase == "Running"
    with pytest.raises(PodRefused, match="Requested: 2, Available: 1"):
        await node.admit(pod_requesting({RESOURCE: 2}))


async def test_second_go_plugin_takes_over_from_a_killed_one(
    node: Kubelet, plugin: PluginProcess, program: Path
) -> None:
    held = await node.admit(pod_requesting({RESOURCE: 3}))
    await plugin.stop(signal.SIGKILL)
    await node.allocatable(RESOURCE, 0)
    assert await node.capacity(RESOURCE) == 4
    async with plugin_process(node, [program, "-dir", "{dir}"], RESOURCE):
        last = await node.admit(pod_requesting({RESOURCE: 1}))
        assert held.container("main").env["GO_DEVICES"] == "go-1,go-2,go-3"
        assert last.container("main").env["GO_DEVICES"] == "go-0"


async def test_device_that_fails_is_not_allocated(node: Kubelet, plugin: PluginProcess) -> None:
    os.kill(plugin.pid, signal.SIGUSR1)
    assert await node.allocatable(RESOURCE, 3) == 3
    assert await node.capacity(RESOURCE) == 4
    pod = await node.admit(pod_requesting({RESOURCE: 3}))
    assert pod.container("main").env["GO_DEVICES"] == "go-1,go-2,go-3"


@pytest.mark.parametrize("node_settings", [{"policy": "single-numa-node"}], indirect=True)
async def test_numa_nodes_of_a_go_plugin_decide(node: Kubelet, plugin: PluginProcess) -> None:
    pod = await node.admit(pod_requesting({RESOURCE: 2}))
    assert pod.container("main").env["GO_DEVICES"] == "go-0,go-2"
    with pytest.raises(PodRefused, match="Topology locality"):
        await node.admit(pod_requesting({RESOURCE: 3}))
