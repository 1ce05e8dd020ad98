"""`plugwright up` and `down` as real processes, with a real client over TLS."""

import asyncio
import json
import signal
import socket
import ssl
import stat
import sys
from contextlib import aclosing, suppress
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest
from lightkube.resources.core_v1 import Node, Pod
from tests.cli.processes import Node as Daemons
from tests.cli.processes import configuration, ended, python, running
from tests.cluster.up.clusters import RuntimeDirectory, allocatable, client, pod, ready, until_node

from plugwright.kube.api_client import ApiClient

SLICES = "/apis/resource.k8s.io/v1/resourceslices"
QUICK = ("--heartbeat", "0.2", "--silence", "1")
WITHOUT = (
    "import sys; sys.modules[{name!r}] = None; from plugwright.cli.main import main; sys.argv[1:] = ['up']; main()"
)


@pytest.fixture
def runtime(tmp_path: Path) -> RuntimeDirectory:
    return RuntimeDirectory(tmp_path)


async def test_a_ready_cluster_suggests_commands(runtime: RuntimeDirectory) -> None:
    async with running(python("-m", "plugwright", "up"), runtime.environment) as up:
        assert "1 node with mock/gpu: 10; https://127.0.0.1:" in await up.out.until("ready after")
        await up.out.until("Ctrl-C ends it")
        kubeconfig = runtime.root / "plugwright-up" / "kubeconfig"
        assert f"    export KUBECONFIG={kubeconfig}" in up.out.all
        commands = [line.split()[1] for line in up.out.all if line.startswith("    kubectl ")]
        assert commands == ["describe", "run", "wait", "logs"]
        assert stat.S_IMODE(kubeconfig.stat().st_mode) == 0o600


async def test_a_client_finds_ten_gpus_on_each_node_and_a_pod_gets_two(runtime: RuntimeDirectory) -> None:
    async with runtime.up("--nodes", 2) as up:
        with up.client as api:
            assert {node.metadata.name: allocatable(node) for node in api.list(Node) if node.metadata} == {
                "node-1": {"mock/gpu": "10"},
                "node-2": {"mock/gpu": "10"},
            }
            api.create(pod("two", gpu="2"))
            api.wait(Pod, "two", for_conditions=["Ready"], namespace="default")
        [shown] = up.devices("two")
        assert shown.count("mock-") == 2


async def test_a_thousand_devices_are_counted_though_the_api_writes_1k(
    runtime: RuntimeDirectory, tmp_path: Path
) -> None:
    config = tmp_path / "plugwright.yaml"
    config.write_text("resources: [{name: mock/gpu, mock: {count: 1000}}]")
    async with running(python("-m", "plugwright", "up", "-c", config), runtime.environment) as up:
        assert "1 node with mock/gpu: 1000; " in await up.out.until("ready after")


async def test_requests_without_the_token_are_refused_and_only_loopback_is_listened_on(
    runtime: RuntimeDirectory,
) -> None:
    async with runtime.up() as up:
        context = ssl._create_unverified_context()
        with pytest.raises(HTTPError) as refused:
            urlopen(f"{up.info['server']}/api/v1/nodes", context=context)
        with refused.value as answer:
            assert (answer.code, json.loads(answer.read())["reason"]) == (401, "Unauthorized")
        assert _listening(up.process.pid) == {"0100007F"}


def _listening(pid: int) -> set[str]:
    """The addresses that a process listens on, as the kernel writes them."""
    own = set()
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # a connection that has just ended
            own.add(str(descriptor.readlink()))
    tables = [Path(f"/proc/{pid}/net/{table}").read_text() for table in ("tcp", "tcp6")]
    rows = [line.split() for table in tables for line in table.splitlines()]
    return {row[1].partition(":")[0] for row in rows if row[3] == "0A" and f"socket:[{row[9]}]" in own}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
async def test_a_signal_ends_the_cluster_and_nothing_is_left(
    runtime: RuntimeDirectory, tmp_path: Path, number: signal.Signals
) -> None:
    kubeconfig = tmp_path / "mine"
    async with runtime.up("--kubeconfig", kubeconfig) as up:
        directory = Path(up.info["nodes"]["node-1"]["kubelet_dir"])
        assert directory.is_dir()
        with up.client as api:
            watch = api.watch(Node, server_timeout=30)
            next(iter(watch))  # an open watch must not delay the end
            up.process.signal(number)
            assert await up.process.ends() == 0
    assert list(runtime.root.iterdir()) == []
    assert not kubeconfig.exists()
    assert not directory.parent.exists()


async def test_a_detached_cluster_runs_until_down(runtime: RuntimeDirectory) -> None:
    started = await runtime.ask("up", "--detach")
    assert started.code == 0
    assert f"To end it:  {sys.executable} -m plugwright down" in started.out
    try:
        with client(runtime.root / "plugwright-up" / "kubeconfig") as api:
            assert len(list(api.list(Node))) == 1
    finally:
        done = await runtime.ask("down")
    assert (done.code, done.err) == (0, "")
    assert "has ended" in done.out
    assert list(runtime.root.iterdir()) == []
    assert (await runtime.ask("down")).code == 1


async def test_a_detached_cluster_reports_errors_of_its_start(runtime: RuntimeDirectory, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = await runtime.ask("up", "--detach", "--port", port, "--state", tmp_path / "state")
    assert (done.code, done.out) == (1, "")
    assert done.err.startswith(f"plugwright: cannot listen on 127.0.0.1:{port}: ")


async def test_a_cluster_ends_after_its_timeout(runtime: RuntimeDirectory) -> None:
    done = await runtime.ask("up", "--timeout", "0.1s", "-o", "json")
    assert done.code == 0, done.err
    assert [line for line in done.err.splitlines() if "no inotify" not in line] == []
    assert json.loads(done.out)["resources"] == {"mock/gpu": 10}
    assert list(runtime.root.iterdir()) == []


async def test_a_stopped_node_becomes_not_ready_and_comes_back(runtime: RuntimeDirectory) -> None:
    async with runtime.up("--nodes", 2, *QUICK) as up:
        with up.client as api:
            assert (await runtime.ask("up", "stop-node", "node-2")).out == "node-2 is stopped\n"
            until_node(api, "node-2", lambda node: ready(node) == "Unknown")
            status = json.loads((await runtime.ask("up", "status", "-o", "json")).out)
            assert [(entry["name"], entry["ready"], entry["running"]) for entry in status["nodes"].values()] == [
                ("node-1", True, True),
                ("node-2", False, False),
            ]
            assert "node-2  NotReady, stopped" in (await runtime.ask("up", "status")).out
            assert (await runtime.ask("up", "start-node", "node-2")).code == 0
            until_node(api, "node-2", lambda node: ready(node) == "True" and allocatable(node) == {"mock/gpu": "10"})


async def test_stop_node_of_an_unknown_node_is_refused(runtime: RuntimeDirectory) -> None:
    async with runtime.up():
        done = await runtime.ask("up", "stop-node", "node-7")
    assert (done.code, done.err) == (1, "plugwright: there is no node 'node-7', only node-1\n")


async def test_commands_of_the_daemon_work_on_every_node(runtime: RuntimeDirectory) -> None:
    async with runtime.up() as up:
        with up.client as api:
            status = json.loads((await runtime.ask("status", "-o", "json", "--control-socket", up.socket())).out)
            gpu = status["resources"][0]["devices"][0]["id"]
            assert (await runtime.ask("mock", "fail", gpu, "--control-socket", up.socket())).code == 0
            until_node(api, "node-1", lambda node: allocatable(node) == {"mock/gpu": "9"})


async def test_the_resources_of_a_file_are_on_every_node(runtime: RuntimeDirectory, tmp_path: Path) -> None:
    file = tmp_path / "plugwright.yaml"
    file.write_text(configuration(tape={"count": 3}, disk={"count": 1}))
    async with runtime.up("-c", file, "--nodes", 2) as up:
        with up.client as api:
            assert [allocatable(node) for node in api.list(Node)] == [{"mock/disk": "1", "mock/tape": "3"}] * 2


async def test_a_changed_file_is_applied_to_every_node(runtime: RuntimeDirectory, tmp_path: Path) -> None:
    node = Daemons(tmp_path)
    node.configure(tape={"count": 3})
    async with runtime.up("-c", node.config, "--nodes", 2) as up:
        with up.client as api:
            node.config.write_text("resources: [")
            await up.process.err.until("new configuration rejected")
            node.configure(tape={"count": 3}, disk={"count": 1})
            for name in ("node-1", "node-2"):
                until_node(api, name, lambda changed: allocatable(changed) == {"mock/disk": "1", "mock/tape": "3"})


async def test_a_bad_file_is_refused_with_its_line(runtime: RuntimeDirectory, tmp_path: Path) -> None:
    file = tmp_path / "plugwright.yaml"
    file.write_text("resources:\n  - name: mock/gpu\n    mok: {}\n")
    done = await runtime.ask("up", "-c", file)
    assert (done.code, done.out) == (1, "")
    assert "plugwright.yaml:" in done.err
    assert list(runtime.root.iterdir()) == []


async def test_a_plugin_of_another_process_registers_at_a_bare_node(runtime: RuntimeDirectory, tmp_path: Path) -> None:
    file = tmp_path / "plugwright.yaml"
    file.write_text(configuration(tape={"count": 3}))
    async with runtime.up("--bare") as up:
        directory = up.info["nodes"]["node-1"]["kubelet_dir"]
        flags = ("--kubelet-dir", directory, "--control-socket", tmp_path / "c.sock", "--state-dir", tmp_path)
        with up.client as api:
            assert [allocatable(node) for node in api.list(Node)] == [{}]
            async with running(python("-m", "plugwright", "run", "-c", file, *flags), runtime.environment):
                until_node(api, "node-1", lambda node: allocatable(node) == {"mock/tape": "3"})


async def test_commands_of_containers_run_with_the_flag_run(runtime: RuntimeDirectory) -> None:
    async with runtime.up("--run") as up:
        with up.client as api:
            shown = pod("shown", gpu="2")
            assert shown.spec is not None
            shown.spec.restartPolicy = "Never"
            shown.spec.containers[0].command = ["sh", "-c", "echo I see $MOCK_VISIBLE_DEVICES"]
            api.create(shown)
            changes = api.watch(Pod, namespace="default", server_timeout=30)
            next(
                pod_object
                for _, pod_object in changes
                if pod_object.status is not None and pod_object.status.phase == "Succeeded"
            )
            [line] = api.log("shown", namespace="default")
    assert line.startswith("I see mock-0-")


@pytest.mark.parametrize("name", ["uvicorn", "starlette", "cryptography", "trustme"])
async def test_a_missing_extra_is_reported_in_one_line(runtime: RuntimeDirectory, name: str) -> None:
    done = await ended([sys.executable, "-c", WITHOUT.format(name=name)], runtime.environment)
    assert (done.code, done.out) == (1, "")
    assert done.err == f"plugwright: plugwright up needs {name}: pip install 'plugwright[cluster]'\n"
    assert list(runtime.root.iterdir()) == []


async def test_bare_and_a_file_exclude_each_other(runtime: RuntimeDirectory) -> None:
    assert (await runtime.ask("up", "--bare", "-c", "plugwright.yaml")).code == 2


async def test_a_resource_of_the_file_is_served_by_claims(runtime: RuntimeDirectory, tmp_path: Path) -> None:
    config = tmp_path / "plugwright.yaml"
    config.write_text("resources: [{name: mock/gpu, mock: {count: 3}, serve: dra}]")
    async with runtime.up("-c", config) as up:
        api = ApiClient.of_kubeconfig(up.kubeconfig)
        try:
            slices, version = await api.list(SLICES)
            if not slices:
                async with asyncio.timeout(30), aclosing(api.watch(SLICES, version)) as changes:
                    slices = [(await anext(changes))[1]]
        finally:
            api.close()
        assert slices[0]["spec"]["nodeName"] == "node-1"
        assert slices[0]["spec"]["driver"] == "gpu.mock"


async def test_the_banner_names_a_program_that_the_shell_finds(runtime: RuntimeDirectory) -> None:
    program = Path(sys.executable).with_name("plugwright")
    environment = {**runtime.environment, "PATH": "/usr/bin:/bin"}
    async with running([str(program), "up", "--run"], environment) as up:
        await up.out.until("Ctrl-C ends it")
        shown = program.relative_to(Path.cwd()) if program.is_relative_to(Path.cwd()) else program
        assert f"    {shown} status" in up.out.all
        assert '"command":["sh","-c","env; exec sleep 3600"]' in await up.out.until("kubectl run two")
    environment["PATH"] = f"{program.parent}:/usr/bin:/bin"
    async with running([str(program), "up"], environment) as up:
        await up.out.until("Ctrl-C ends it")
        assert "    plugwright status" in up.out.all
