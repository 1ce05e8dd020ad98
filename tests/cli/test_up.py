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
from tests.cli.clusters import Place, allocatable, client, pod, ready, until_node
from tests.cli.processes import configuration, ended, python, running

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


async def test_the_token_is_in_the_kubeconfig_and_nowhere_else(place: Place, tmp_path: Path) -> None:
    state = tmp_path / "state"
    async with place.up("--state", state) as up:
        token = json.loads((state / "access.json").read_text())["token"]
        assert token in up.kubeconfig.read_text()
        assert token not in json.dumps(up.facts) + (state / "up.json").read_text()
        assert token.encode() not in Path(f"/proc/{up.process.pid}/cmdline").read_bytes()


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


async def test_what_was_answered_is_there_after_a_kill(place: Place, tmp_path: Path) -> None:
    state = tmp_path / "state"
    async with place.up("--state", state) as up:
        with up.client as api:
            api.create(pod("two", gpu="2"))
            api.wait(Pod, "two", for_conditions=["Ready"], namespace="default")
            before = api.get(Pod, "two", namespace="default")
        devices = up.devices("two")
        kubeconfig = up.kubeconfig.read_bytes()
        up.process.signal(signal.SIGKILL)
        await up.process.ends()
    async with place.up("--state", state) as again:
        assert again.kubeconfig.read_bytes() == kubeconfig
        with again.client as api:
            after = api.get(Pod, "two", namespace="default")
        assert before.metadata is not None
        assert after.metadata is not None
        assert after.metadata.uid == before.metadata.uid
        assert again.devices("two") == devices


async def test_a_cluster_that_was_killed_does_not_hinder_the_next(place: Place) -> None:
    async with place.up() as up:
        directory = Path(up.facts["nodes"]["node-1"]["kubelet_dir"])
        up.process.signal(signal.SIGKILL)
        await up.process.ends()
    assert directory.is_dir()
    assert (await place.ask("down")).err == "plugwright: no cluster runs here: `plugwright up` starts one\n"
    async with place.up() as again:
        with again.client as api:
            assert len(list(api.list(Node))) == 1
        assert not directory.parent.exists()
    assert list(place.root.iterdir()) == []


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


async def test_a_second_one_in_the_same_place_is_told_of_the_first(place: Place, tmp_path: Path) -> None:
    state = tmp_path / "state"
    async with place.up("--state", state) as up:
        for flags in ((), ("--detach",)):
            second = await place.ask("up", "--state", state, *flags)
            assert (second.code, second.out) == (1, "")
            assert f"a cluster runs in {state} already (process {up.process.pid}, {up.facts['server']})" in second.err
        async with place.up() as elsewhere:
            assert elsewhere.facts["server"] != up.facts["server"]
        with up.client as api:
            assert len(list(api.list(Node))) == 1


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


async def test_somebody_elses_kubeconfig_is_left_alone_unless_forced(place: Place, tmp_path: Path) -> None:
    theirs = tmp_path / "config"
    theirs.write_text("clusters: [{name: production}]\n")
    done = await place.ask("up", "--kubeconfig", theirs, "--timeout", "0.1s")
    assert done.code == 1
    assert "--force" in done.err
    assert theirs.read_text() == "clusters: [{name: production}]\n"
    async with place.up("--kubeconfig", theirs, "--force") as up:
        with up.client as api:
            assert len(list(api.list(Node))) == 1


async def test_a_kubeconfig_that_a_killed_one_left_is_replaced(place: Place, tmp_path: Path) -> None:
    kubeconfig = tmp_path / "config"
    async with place.up("--kubeconfig", kubeconfig) as up:
        up.process.signal(signal.SIGKILL)
        await up.process.ends()
    before = kubeconfig.read_text()
    async with place.up("--kubeconfig", kubeconfig):
        assert kubeconfig.read_text() != before
    assert not kubeconfig.exists()


async def test_a_kubeconfig_that_another_has_replaced_stays(place: Place, tmp_path: Path) -> None:
    kubeconfig = tmp_path / "config"
    async with place.up("--kubeconfig", kubeconfig):
        kubeconfig.write_text("another's")
    assert kubeconfig.read_text() == "another's"


async def test_a_directory_with_other_things_is_no_state(place: Place, tmp_path: Path) -> None:
    (tmp_path / "letter").write_text("dear")
    done = await place.ask("up", "--state", tmp_path, "--timeout", "0.1s")
    assert done.code == 1
    assert "has other things in it" in done.err
    assert (tmp_path / "letter").read_text() == "dear"


async def test_a_default_place_that_others_may_open_is_refused(place: Place) -> None:
    (place.root / "plugwright-up").mkdir(mode=0o755)
    done = await place.ask("up", "--timeout", "0.1s")
    assert done.code == 1
    assert "not a directory of yours alone" in done.err


async def test_a_state_directory_may_be_deep(place: Place, tmp_path: Path) -> None:
    state = tmp_path / ("deep" * 20) / "state"
    async with place.up("--state", state, *QUICK) as up:
        with up.client as api:
            assert (await place.ask("up", "stop-node", "node-1", "--state", state)).code == 0
            until_node(api, "node-1", lambda node: ready(node) == "Unknown")
    assert list(place.root.iterdir()) == []


@pytest.mark.parametrize("name", ["uvicorn", "starlette", "cryptography"])
async def test_a_missing_extra_is_said_in_one_line(place: Place, name: str) -> None:
    done = await ended([sys.executable, "-c", WITHOUT.format(name=name)], place.environment)
    assert (done.code, done.out) == (1, "")
    assert done.err == f"plugwright: plugwright up needs {name}: pip install 'plugwright[cluster]'\n"
    assert list(place.root.iterdir()) == []


async def test_bare_and_a_file_exclude_each_other(place: Place) -> None:
    assert (await place.ask("up", "--bare", "-c", "plugwright.yaml")).code == 2
