"""Where a cluster of `plugwright up` lives: its directory, its kubeconfig, and what a killed one leaves there."""

import json
import signal
from pathlib import Path

import pytest
from lightkube.resources.core_v1 import Node, Pod
from tests.cli.up.clusters import Place, pod, ready, until_node

QUICK = ("--heartbeat", "0.2", "--silence", "1")


@pytest.fixture
def place(root: Path) -> Place:
    return Place(root)


async def test_the_token_is_in_the_kubeconfig_and_nowhere_else(place: Place, tmp_path: Path) -> None:
    state = tmp_path / "state"
    async with place.up("--state", state) as up:
        token = json.loads((state / "access.json").read_text())["token"]
        assert token in up.kubeconfig.read_text()
        assert token not in json.dumps(up.facts) + (state / "up.json").read_text()
        assert token.encode() not in Path(f"/proc/{up.process.pid}/cmdline").read_bytes()


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
        assert again.facts["resources"] == {"mock/gpu": 10}
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
    assert (await place.ask("down")).err == "plugwright: no cluster runs here: `plugwright up` starts one\n"
    async with place.up() as again:
        with again.client as api:
            assert len(list(api.list(Node))) == 1
        assert not directory.parent.exists()
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
