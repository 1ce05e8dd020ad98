"""The state directory of `plugwright up`: its lock, its kubeconfig, and what a killed cluster leaves there."""

import json
import signal
from pathlib import Path

import pytest
from lightkube.resources.core_v1 import Node, Pod
from tests.cluster.up.clusters import RuntimeDirectory, pod, ready, until_node

QUICK = ("--heartbeat", "0.2", "--silence", "1")


@pytest.fixture
def runtime(root: Path) -> RuntimeDirectory:
    return RuntimeDirectory(root)


async def test_the_token_is_in_the_kubeconfig_and_nowhere_else(runtime: RuntimeDirectory, tmp_path: Path) -> None:
    state = tmp_path / "state"
    async with runtime.up("--state", state) as up:
        token = json.loads((state / "access.json").read_text())["token"]
        assert token in up.kubeconfig.read_text()
        assert token not in json.dumps(up.info) + (state / "up.json").read_text()
        assert token.encode() not in Path(f"/proc/{up.process.pid}/cmdline").read_bytes()


async def test_objects_devices_and_kubeconfig_survive_a_kill(runtime: RuntimeDirectory, tmp_path: Path) -> None:
    state = tmp_path / "state"
    async with runtime.up("--state", state) as up:
        with up.client as api:
            api.create(pod("two", gpu="2"))
            api.wait(Pod, "two", for_conditions=["Ready"], namespace="default")
            before = api.get(Pod, "two", namespace="default")
        devices = up.devices("two")
        kubeconfig = up.kubeconfig.read_bytes()
        up.process.signal(signal.SIGKILL)
        await up.process.ends()
    async with runtime.up("--state", state) as again:
        assert again.kubeconfig.read_bytes() == kubeconfig
        assert again.info["resources"] == {"mock/gpu": 10}
        with again.client as api:
            after = api.get(Pod, "two", namespace="default")
        assert before.metadata is not None
        assert after.metadata is not None
        assert after.metadata.uid == before.metadata.uid
        assert again.devices("two") == devices


async def test_a_killed_cluster_does_not_hinder_the_next(runtime: RuntimeDirectory) -> None:
    async with runtime.up() as up:
        directory = Path(up.info["nodes"]["node-1"]["kubelet_dir"])
        up.process.signal(signal.SIGKILL)
        await up.process.ends()
    assert (await runtime.ask("down")).err == "plugwright: no cluster runs here: `plugwright up` starts one\n"
    async with runtime.up() as again:
        with again.client as api:
            assert len(list(api.list(Node))) == 1
        assert not directory.parent.exists()
    assert list(runtime.root.iterdir()) == []


async def test_a_second_cluster_in_the_same_directory_is_refused(runtime: RuntimeDirectory, tmp_path: Path) -> None:
    state = tmp_path / "state"
    async with runtime.up("--state", state) as up:
        for flags in ((), ("--detach",)):
            second = await runtime.ask("up", "--state", state, *flags)
            assert (second.code, second.out) == (1, "")
            assert f"a cluster runs in {state} already (process {up.process.pid}, {up.info['server']})" in second.err
        async with runtime.up() as elsewhere:
            assert elsewhere.info["server"] != up.info["server"]
        with up.client as api:
            assert len(list(api.list(Node))) == 1


async def test_a_foreign_kubeconfig_is_left_alone_unless_forced(runtime: RuntimeDirectory, tmp_path: Path) -> None:
    theirs = tmp_path / "config"
    theirs.write_text("clusters: [{name: production}]\n")
    done = await runtime.ask("up", "--kubeconfig", theirs, "--timeout", "0.1s")
    assert done.code == 1
    assert "--force" in done.err
    assert theirs.read_text() == "clusters: [{name: production}]\n"
    async with runtime.up("--kubeconfig", theirs, "--force") as up:
        with up.client as api:
            assert len(list(api.list(Node))) == 1


async def test_the_kubeconfig_of_a_killed_cluster_is_replaced(runtime: RuntimeDirectory, tmp_path: Path) -> None:
    kubeconfig = tmp_path / "config"
    async with runtime.up("--kubeconfig", kubeconfig) as up:
        up.process.signal(signal.SIGKILL)
        await up.process.ends()
    before = kubeconfig.read_text()
    async with runtime.up("--kubeconfig", kubeconfig):
        assert kubeconfig.read_text() != before
    assert not kubeconfig.exists()


async def test_a_kubeconfig_that_was_replaced_is_not_removed(runtime: RuntimeDirectory, tmp_path: Path) -> None:
    kubeconfig = tmp_path / "config"
    async with runtime.up("--kubeconfig", kubeconfig):
        kubeconfig.write_text("another cluster's")
    assert kubeconfig.read_text() == "another cluster's"


async def test_a_state_directory_with_other_files_is_refused(runtime: RuntimeDirectory, tmp_path: Path) -> None:
    (tmp_path / "letter").write_text("dear")
    done = await runtime.ask("up", "--state", tmp_path, "--timeout", "0.1s")
    assert done.code == 1
    assert "must be empty or a cluster's state directory" in done.err
    assert (tmp_path / "letter").read_text() == "dear"


async def test_a_default_directory_that_others_may_open_is_refused(runtime: RuntimeDirectory) -> None:
    (runtime.root / "plugwright-up").mkdir(mode=0o755)
    done = await runtime.ask("up", "--timeout", "0.1s")
    assert done.code == 1
    assert "must be a directory that only you can open" in done.err


async def test_a_state_directory_may_be_deep(runtime: RuntimeDirectory, tmp_path: Path) -> None:
    state = tmp_path / ("deep" * 20) / "state"
    async with runtime.up("--state", state, *QUICK) as up:
        with up.client as api:
            assert (await runtime.ask("up", "stop-node", "node-1", "--state", state)).code == 0
            until_node(api, "node-1", lambda node: ready(node) == "Unknown")
    assert list(runtime.root.iterdir()) == []
