"""`plugwright up` and `down` as people and scripts meet them: real processes, and a real client over TLS."""

import json
import signal
import socket
import ssl
import stat
import sys
from contextlib import suppress
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest
from lightkube.resources.core_v1 import Node, Pod
from tests.cli.processes import Node as Daemons
from tests.cli.processes import configuration, ended, python, running
from tests.cli.up.clusters import Place, allocatable, client, pod, ready, until_node

QUICK = ("--heartbeat", "0.2", "--silence", "1")
WITHOUT = (
    "import sys; sys.modules[{name!r}] = None; from plugwright.cli.main import main; sys.argv[1:] = ['up']; main()"
)


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


async def test_it_says_what_to_try_when_it_is_ready(place: Place) -> None:
    async with running(python("-m", "plugwright", "up"), place.environment) as up:
        assert "1 node with mock/gpu: 10; https://127.0.0.1:" in await up.out.until("ready after")
        await up.out.until("Ctrl-C ends it")
        kubeconfig = place.root / "plugwright-up" / "kubeconfig"
        assert f"    export KUBECONFIG={kubeconfig}" in up.out.all
        assert len([line for line in up.out.all if line.startswith("    kubectl ")]) == 3
        assert stat.S_IMODE(kubeconfig.stat().st_mode) == 0o600


async def test_a_client_finds_ten_gpus_on_each_node_and_a_pod_gets_two(place: Place) -> None:
    async with place.up("--nodes", 2) as up:
        with up.client as api:
            assert {node.metadata.name: allocatable(node) for node in api.list(Node) if node.metadata} == {
                "node-1": {"mock/gpu": "10"},
                "node-2": {"mock/gpu": "10"},
            }
            api.create(pod("two", gpu="2"))
            api.wait(Pod, "two", for_conditions=["Ready"], namespace="default")
        [shown] = up.devices("two")
        assert shown.count("mock-") == 2


async def test_nobody_is_served_without_the_token_and_nothing_listens_elsewhere(place: Place) -> None:
    async with place.up() as up:
        trusting = ssl._create_unverified_context()
        with pytest.raises(HTTPError) as refused:
            urlopen(f"{up.facts['server']}/api/v1/nodes", context=trusting)
        with refused.value as answer:
            assert (answer.code, json.loads(answer.read())["reason"]) == (401, "Unauthorized")
        assert _listening(up.process.pid) == {"0100007F"}


def _listening(pid: int) -> set[str]:
    """The addresses that a process listens on, as the kernel writes them."""
    own = set()
    for each in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # a connection that has just ended
            own.add(str(each.readlink()))
    tables = [Path(f"/proc/{pid}/net/{table}").read_text() for table in ("tcp", "tcp6")]
    rows = [line.split() for table in tables for line in table.splitlines()]
    return {row[1].partition(":")[0] for row in rows if row[3] == "0A" and f"socket:[{row[9]}]" in own}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
async def test_a_signal_ends_it_and_nothing_is_left(place: Place, tmp_path: Path, number: signal.Signals) -> None:
    kubeconfig = tmp_path / "mine"
    async with place.up("--kubeconfig", kubeconfig) as up:
        directory = Path(up.facts["nodes"]["node-1"]["kubelet_dir"])
        assert directory.is_dir()
        with up.client as api:
            watch = api.watch(Node, server_timeout=30)
            next(iter(watch))  # somebody who watches keeps it from ending no longer than anybody else
            up.process.signal(number)
            assert await up.process.ends() == 0
    assert list(place.root.iterdir()) == []
    assert not kubeconfig.exists()
    assert not directory.parent.exists()


async def test_detached_it_goes_on_until_down(place: Place) -> None:
    started = await place.ask("up", "--detach")
    assert started.code == 0
    assert "To end it:  plugwright down" in started.out
    try:
        with client(place.root / "plugwright-up" / "kubeconfig") as api:
            assert len(list(api.list(Node))) == 1
    finally:
        done = await place.ask("down")
    assert (done.code, done.err) == (0, "")
    assert "has ended" in done.out
    assert list(place.root.iterdir()) == []
    assert (await place.ask("down")).code == 1


async def test_detached_it_says_what_goes_wrong_at_the_start(place: Place, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = await place.ask("up", "--detach", "--port", port, "--state", tmp_path / "state")
    assert (done.code, done.out) == (1, "")
    assert done.err.startswith(f"plugwright: cannot listen on 127.0.0.1:{port}: ")


async def test_its_time_is_over_when_it_was_told(place: Place) -> None:
    done = await place.ask("up", "--timeout", "0.1s", "-o", "json")
    assert (done.code, done.err) == (0, "")
    assert json.loads(done.out)["resources"] == {"mock/gpu": 10}
    assert list(place.root.iterdir()) == []


async def test_a_node_that_is_stopped_becomes_not_ready_and_comes_back(place: Place) -> None:
    async with place.up("--nodes", 2, *QUICK) as up:
        with up.client as api:
            assert (await place.ask("up", "stop-node", "node-2")).out == "node-2 is stopped\n"
            until_node(api, "node-2", lambda node: ready(node) == "Unknown")
            status = json.loads((await place.ask("up", "status", "-o", "json")).out)
            assert [(each["name"], each["ready"], each["running"]) for each in status["nodes"]] == [
                ("node-1", True, True),
                ("node-2", False, False),
            ]
            assert "node-2  NotReady, stopped" in (await place.ask("up", "status")).out
            assert (await place.ask("up", "start-node", "node-2")).code == 0
            until_node(api, "node-2", lambda node: ready(node) == "True" and allocatable(node) == {"mock/gpu": "10"})


async def test_a_node_that_is_not_there_cannot_be_stopped(place: Place) -> None:
    async with place.up():
        done = await place.ask("up", "stop-node", "node-7")
    assert (done.code, done.err) == (1, "plugwright: there is no node 'node-7', only node-1\n")


async def test_the_commands_of_the_daemon_work_on_each_node(place: Place) -> None:
    async with place.up() as up:
        with up.client as api:
            status = json.loads((await place.ask("status", "-o", "json", "--control-socket", up.socket())).out)
            gpu = status["resources"][0]["devices"][0]["id"]
            assert (await place.ask("mock", "fail", gpu, "--control-socket", up.socket())).code == 0
            until_node(api, "node-1", lambda node: allocatable(node) == {"mock/gpu": "9"})


async def test_the_resources_of_a_file_are_on_every_node(place: Place, tmp_path: Path) -> None:
    file = tmp_path / "plugwright.yaml"
    file.write_text(configuration(tape={"count": 3}, disk={"count": 1}))
    async with place.up("-c", file, "--nodes", 2) as up:
        with up.client as api:
            assert [allocatable(node) for node in api.list(Node)] == [{"mock/disk": "1", "mock/tape": "3"}] * 2


async def test_a_file_that_changes_is_taken_over_by_every_node(place: Place, tmp_path: Path) -> None:
    node = Daemons(tmp_path)
    node.configure(tape={"count": 3})
    async with place.up("-c", node.config, "--nodes", 2) as up:
        with up.client as api:
            node.config.write_text("resources: [")
            await up.process.err.until("new configuration refused")
            node.configure(tape={"count": 3}, disk={"count": 1})
            for name in ("node-1", "node-2"):
                until_node(api, name, lambda each: allocatable(each) == {"mock/disk": "1", "mock/tape": "3"})


async def test_a_bad_file_is_told_by_its_line(place: Place, tmp_path: Path) -> None:
    file = tmp_path / "plugwright.yaml"
    file.write_text("resources:\n  - name: mock/gpu\n    mok: {}\n")
    done = await place.ask("up", "-c", file)
    assert (done.code, done.out) == (1, "")
    assert "plugwright.yaml:" in done.err
    assert list(place.root.iterdir()) == []


async def test_a_plugin_of_another_process_registers_at_a_bare_node(place: Place, tmp_path: Path) -> None:
    file = tmp_path / "plugwright.yaml"
    file.write_text(configuration(tape={"count": 3}))
    async with place.up("--bare") as up:
        directory = up.facts["nodes"]["node-1"]["kubelet_dir"]
        flags = ("--kubelet-dir", directory, "--control-socket", tmp_path / "c.sock", "--state-dir", tmp_path)
        with up.client as api:
            assert [allocatable(node) for node in api.list(Node)] == [{}]
            async with running(python("-m", "plugwright", "run", "-c", file, *flags), place.environment):
                until_node(api, "node-1", lambda node: allocatable(node) == {"mock/tape": "3"})


async def test_commands_of_containers_run_where_it_was_asked_for(place: Place) -> None:
    async with place.up("--run") as up:
        with up.client as api:
            shown = pod("shown", gpu="2")
            assert shown.spec is not None
            shown.spec.restartPolicy = "Never"
            shown.spec.containers[0].command = ["sh", "-c", "echo I see $MOCK_VISIBLE_DEVICES"]
            api.create(shown)
            found = api.watch(Pod, namespace="default", server_timeout=30)
            next(each for _, each in found if each.status is not None and each.status.phase == "Succeeded")
            [line] = api.log("shown", namespace="default")
    assert line.startswith("I see mock-0-")


@pytest.mark.parametrize("name", ["uvicorn", "starlette", "cryptography"])
async def test_a_missing_extra_is_said_in_one_line(place: Place, name: str) -> None:
    done = await ended([sys.executable, "-c", WITHOUT.format(name=name)], place.environment)
    assert (done.code, done.out) == (1, "")
    assert done.err == f"plugwright: plugwright up needs {name}: pip install 'plugwright[cluster]'\n"
    assert list(place.root.iterdir()) == []


async def test_bare_and_a_file_exclude_each_other(place: Place) -> None:
    assert (await place.ask("up", "--bare", "-c", "plugwright.yaml")).code == 2
