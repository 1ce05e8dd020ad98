"""Commands find their daemon: after `plugwright up` by themselves, of a cluster's node by exec."""

import asyncio
import json
import sys
from pathlib import Path

import pytest
from msgspec.structs import replace
from tests.cli.processes import Ended, Node, ended, python
from tests.cluster.up.clusters import RuntimeDirectory
from tests.kube.exec_server import daemon_pod, exec_server
from tests.observed_kubelet import ObservedKubelet

from plugwright import Settings, serving
from plugwright.fleet.daemons import CONTROL_SOCKET, DaemonChoice, find_daemon
from plugwright.plugins.mock import Mock, MockOptions
from plugwright.system import sockets

PROGRAM = [str(Path(sys.executable).with_name("plugwright"))]
pytestmark = pytest.mark.skipif(sockets.is_listening(CONTROL_SOCKET), reason="a daemon of this machine is found first")


@pytest.fixture
def runtime(tmp_path: Path) -> RuntimeDirectory:
    runtime = RuntimeDirectory(tmp_path)
    runtime.environment |= {"HOME": str(tmp_path), "KUBECONFIG": ""}
    return runtime


async def test_after_up_commands_find_the_only_node(runtime: RuntimeDirectory) -> None:
    async with runtime.up():
        shown = json.loads((await runtime.ask("status", "-o", "json")).out)
        ids = [device["id"] for device in shown["resources"][0]["devices"]]
        assert len(ids) == 10
        failed = await runtime.ask("mock", "fail", "3", "--reason", "fan stopped")
        assert failed == Ended(0, f"{ids[3]} of mock/gpu is now Unhealthy: fan stopped\n", "")
        assert (await runtime.ask("mock", "recover", "mock-3")).out == f"{ids[3]} of mock/gpu is now Healthy\n"
        cordoned = await runtime.ask("cordon", "mock/gpu", "mock-4", "--reason", "test")
        assert cordoned.out == f"{ids[4]} of mock/gpu is cordoned: test\n"
        assert (await runtime.ask("uncordon", "mock/gpu", "mock-4")).out.startswith(f"{ids[4]} of mock/gpu")
        assert (await runtime.ask("log-level")).code == 0
        wrong = await runtime.ask("mock", "fail", ids[5][:-1] + "?")
        assert (wrong.code, f"did you mean {ids[5]!r}?" in wrong.err) == (1, True)


async def test_the_socket_of_a_killed_daemon_hides_no_cluster(runtime: RuntimeDirectory, tmp_path: Path) -> None:
    left_behind = tmp_path / "control.sock"
    sockets.listen(left_behind).close()
    async with runtime.up():
        found = await asyncio.to_thread(find_daemon, DaemonChoice(here=left_behind), runtime.environment)
    assert found.node == "node-1"


async def test_the_shell_completes_devices_resources_and_nodes(runtime: RuntimeDirectory) -> None:
    async with runtime.up("--nodes", 2):

        async def completed(line: str) -> list[str]:
            words = {"_PLUGWRIGHT_COMPLETE": "bash_complete", "COMP_WORDS": line, "COMP_CWORD": str(line.count(" "))}
            done = await ended(PROGRAM, {**runtime.environment, **words})
            assert (done.code, done.err) == (0, "")
            return [word.removeprefix("plain,") for word in done.out.split()]

        shown = json.loads((await runtime.ask("status", "--node", "node-2", "-o", "json")).out)
        ids = [device["id"] for device in shown["resources"][0]["devices"]]
        assert await completed("plugwright mock fail --node node-2 mock-3") == [ids[3]]
        assert await completed("plugwright cordon --node node-2 ") == ["list", "mock/gpu"]
        assert await completed("plugwright uncordon --node node-1 ") == ["mock/gpu"]
        assert await completed("plugwright status --node ") == ["node-1", "node-2"]
        assert await completed("plugwright up stop-node ") == ["node-1", "node-2"]
        assert await completed("plugwright verify --explain ALO-0") == [f"ALO-0{number}" for number in range(1, 10)]
        socket = runtime.root / "plugwright-up/node-1.sock"
        assert len(await completed(f"plugwright cordon --control-socket {socket} mock/gpu ")) == 10


async def test_of_several_nodes_one_is_chosen(runtime: RuntimeDirectory) -> None:
    async with runtime.up("--nodes", 2):
        unclear = await runtime.ask("status")
        assert (unclear.code, unclear.out) == (1, "")
        assert "the running `plugwright up` has node-1, node-2: choose one with --node" in unclear.err
        assert (await runtime.ask("mock", "fail", "0", "--node", "node-2")).code == 0
        both = (await runtime.ask("status", "--all-nodes", "-o", "json")).out.splitlines()
        unhealthy = [
            sum(device["health"] == "Unhealthy" for device in json.loads(line)["resources"][0]["devices"])
            for line in both
        ]
        assert unhealthy == [0, 1]
        assert (await runtime.ask("cordon", "mock/gpu", "1", "--node", "node-2", "--reason", "r")).code == 0
        listed = (await runtime.ask("cordon", "--list", "--all-nodes")).out.splitlines()
        assert [line.split()[0] for line in listed] == ["NODE", "node-2"]
        changed = (await runtime.ask("log-level", "debug", "--for", "1h", "--all-nodes")).out.splitlines()
        assert changed == [f"{node}: debug, and warning again in 3600 s" for node in ("node-1", "node-2")]
        back = await runtime.ask("log-level", "warning", "--node", "node-2")  # the nodes have one process
        assert back.out == "warning\n"
        shown = (await runtime.ask("log-level", "--all-nodes")).out.splitlines()
        assert shown == ["node-1: warning", "node-2: warning"]
        other = await runtime.ask(
            "status", "--node", "node-3", "--kubeconfig", runtime.root / "plugwright-up/kubeconfig"
        )
        assert "has no node 'node-3' (it has: node-1, node-2)" in other.err


async def test_the_fault_of_a_gpu_is_cleared_on_its_node(runtime: RuntimeDirectory, tmp_path: Path) -> None:
    config = tmp_path / "gpus.yaml"
    config.write_text("resources: [{name: nvidia.com/gpu, nvidia: {simulate: t4}}]")

    async def unhealthy() -> list[int]:
        reports = (await runtime.ask("status", "--all-nodes", "-o", "json")).out.splitlines()
        devices = [json.loads(report)["resources"][0]["devices"] for report in reports]
        return [sum(device["health"] == "Unhealthy" for device in each) for each in devices]

    async with runtime.up("--nodes", 2, "-c", config):
        assert (await runtime.ask("nvidia", "simulate", "xid", "1", "xid=79", "--node", "node-2")).code == 0
        assert await unhealthy() == [0, 1]
        other = await runtime.ask("nvidia", "recover", "1", "--node", "node-1")
        assert (other.code, "no Xid is recorded" in other.out) == (0, True)
        assert await unhealthy() == [0, 1]
        cleared = await runtime.ask("nvidia", "recover", "1", "--node", "node-2")
        assert (cleared.code, "recorded Xids cleared" in cleared.out) == (0, True)
        assert await unhealthy() == [0, 0]


async def test_a_kept_cluster_is_found_by_its_kubeconfig(runtime: RuntimeDirectory, tmp_path: Path) -> None:
    async with runtime.up("--state", tmp_path / "lab") as up:
        assert "no daemon here" in (await runtime.ask("status")).err
        runtime.environment["KUBECONFIG"] = str(up.kubeconfig)
        assert (await runtime.ask("status")).out.startswith("mock/gpu  registered")


async def test_a_node_of_a_cluster_is_reached_by_exec(
    kubelet: ObservedKubelet, settings: Settings, root: Path, tmp_path: Path
) -> None:
    node = Node(root)
    async with serving(Mock("mock/gpu", MockOptions(count=2)), settings=replace(settings, control_socket=node.control)):
        endpoint = await kubelet.endpoint("mock/gpu", 2)
        first, _ = endpoint.devices
        pods = [daemon_pod("plugwright-x7"), daemon_pod("plugwright-y8", "worker-2")]
        with exec_server(pods, {"plugwright-x7": node.control}) as server:
            flags = ["--node", "worker-1", "--kubeconfig", server.kubeconfig(tmp_path / "config")]
            failed = await ended(python("-m", "plugwright", "mock", "fail", "0", *flags))
            assert failed == Ended(0, f"{first} of mock/gpu is now Unhealthy: made to fail\n", "")
            refused = await ended(python("-m", "plugwright", "cordon", "mock/nic", "x", "--reason", "r", *flags))
            assert refused == Ended(1, "", "plugwright: no resource 'mock/nic' is served here (served: mock/gpu)\n")
            every = await ended(python("-m", "plugwright", "status", "--all-nodes", *flags[2:]))
        assert every.out.splitlines()[0] == "worker-1"
        assert every.out.splitlines()[1].startswith("  mock/gpu  registered")
        assert (every.code, "no answer of some nodes: worker-2: plugwright: no daemon here" in every.err) == (1, True)
