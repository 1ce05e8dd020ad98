"""`plugwright handover`: devices move from one API to the other while pods run, on this node or another."""

import json
import os
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import unquote_plus

import pytest
from tests.cli.processes import Ended, ended
from tests.kube.exec_server import daemon_pod, exec_server

from plugwright import Allocation, Device, Plugin, ServeSettings, Settings, Timeouts
from plugwright.sdk.serve_settings import ServeMode, Split
from plugwright.testing import claim_requesting, pod_requesting, running
from plugwright.testing.harness import PluginKubelet

TAPE = "example.com/tape"


class Tapes(Plugin):
    resource = TAPE

    async def discover(self) -> AsyncIterator[Sequence[Device]]:
        yield [Device("st0"), Device("st1")]

    async def allocate(self, devices: Sequence[Device]) -> Allocation:
        return Allocation(env={"TAPES": ",".join(device.id for device in devices)})


class Indexed(Tapes):
    """The order of the indexes is not that of the ids."""

    async def discover(self) -> AsyncIterator[Sequence[Device]]:
        yield [Device("st0", attributes={"index": 10}), Device("st1", attributes={"index": 9})]


@asynccontextmanager
async def two_tapes(
    tmp_path: Path, root: Path, api: ServeMode = ServeMode.BOTH, plugin: type[Tapes] = Tapes
) -> AsyncIterator[PluginKubelet]:
    """All on the plugin's side at first, where both serve; the control socket is `root/c`."""
    serve = ServeSettings(api=api, split=Split(dra=0))
    settings = Settings(
        control_socket=root / "c", state_dir=tmp_path / "state", timeouts=Timeouts(holders=0.2, in_flight=0.2)
    )
    async with running(plugin(), tmp_path, served=settings, serve=serve) as kubelet:
        yield kubelet


async def handover(root: Path, *arguments: str, environment: dict[str, str] | None = None) -> Ended:
    command = [sys.executable, "-m", "plugwright", "handover", *arguments, "--control-socket", str(root / "c")]
    return await ended(command, {**os.environ, **(environment or {})})


def devices(done: Ended) -> dict[str, dict[str, Any]]:
    assert (done.code, done.err) == (0, "")
    return {device["device"]: device for device in json.loads(done.out)["devices"]}


async def test_free_devices_move_at_once_and_held_ones_when_their_pod_ends(tmp_path: Path, root: Path) -> None:
    async with two_tapes(tmp_path, root) as kubelet:
        await kubelet.allocatable(TAPE, 2)
        pod = await kubelet.admit(pod_requesting({TAPE: 1}, name="reader"))
        asked = devices(await handover(root, "--to", "dra", "-o", "json"))
        assert {device["target"] for device in asked.values()} == {"dra"}
        assert await kubelet.allocatable(TAPE, 0) == 0  # from now on the name is served by the DeviceClass
        claim = await kubelet.admit(pod_requesting({}, claims=[claim_requesting({TAPE: 1})]))
        shown = devices(await handover(root, "--status", "-o", "json"))
        assert shown["st0"] | {"waits": "held by default/reader", "api": "", "pods": ["default/reader"]} == shown["st0"]
        assert (shown["st1"]["api"], len(shown["st1"]["claims"])) == ("dra", 1)
        still = await handover(root, "--status", "--wait", "--timeout", "1s")
        assert still == Ended(1, "", "plugwright: still moving after 1 s: st0: held by default/reader\n")
        await kubelet.remove(pod)
        moved = devices(await handover(root, "--status", "--wait", "-o", "json"))
        assert [device["api"] for device in moved.values()] == ["dra", "dra"]
        await kubelet.remove(claim)


async def test_a_node_is_handed_over_and_back_while_its_pods_run(tmp_path: Path, root: Path) -> None:
    async with two_tapes(tmp_path, root) as kubelet:
        await kubelet.allocatable(TAPE, 2)
        pods = [await kubelet.admit(pod_requesting({TAPE: 1})) for _ in range(2)]
        await handover(root, "--to", "dra")
        for pod in pods:
            await kubelet.remove(pod)
        await handover(root, "--status", "--wait")
        claims = [await kubelet.admit(pod_requesting({}, claims=[claim_requesting({TAPE: 1})])) for _ in range(2)]
        back = devices(await handover(root, "--to", "device-plugin", "-o", "json"))
        assert all(device["waits"].startswith("held by the claim ") for device in back.values())
        await kubelet.remove(claims[0])
        assert await kubelet.allocatable(TAPE, 1) == 1
        assert kubelet.container(claims[1]).env["TAPES"] == "st1"  # its pod runs on
        await kubelet.remove(claims[1])
        moved = devices(await handover(root, "--status", "--wait", "-o", "json"))
        assert [device["api"] for device in moved.values()] == ["device-plugin", "device-plugin"]
        assert await kubelet.allocatable(TAPE, 2) == 2


async def test_status_is_a_table_of_what_is_where_and_waits_for_whom(tmp_path: Path, root: Path) -> None:
    async with two_tapes(tmp_path, root) as kubelet:
        await kubelet.allocatable(TAPE, 2)
        pod = await kubelet.admit(pod_requesting({TAPE: 1}, name="reader"))
        await handover(root, "--to", "dra", "--resource", TAPE, "--device", "st0")
        done = await handover(root, "--status")
        head, first, second, _, counts = done.out.splitlines()
        assert head.split() == ["RESOURCE", "DEVICE", "API", "MOVES", "TO", "HELD", "BY", "WAITS", "FOR"]
        assert first.split()[:4] == [TAPE, "st0", "neither", "dra"]
        assert second.split() == [TAPE, "st1", "device-plugin", "-", "-", "-"]
        assert counts == "1 device-plugin, 0 dra, 1 moving"
        await handover(root, "--to", "both")
        assert await kubelet.allocatable(TAPE, 2) == 2
        await kubelet.remove(pod)


async def test_devices_with_an_index_are_shown_and_named_by_it(tmp_path: Path, root: Path) -> None:
    async with two_tapes(tmp_path, root, plugin=Indexed) as kubelet:
        await kubelet.allocatable(TAPE, 2)
        await handover(root, "--to", "dra", "--resource", TAPE, "--device", "9", "--wait")
        head, *rows = (await handover(root, "--status")).out.splitlines()
        assert head.split()[:4] == ["RESOURCE", "DEVICE", "INDEX", "API"]
        shown = [row.split()[1:4] for row in rows[:2]]
        assert shown == [["st1", "9", "dra"], ["st0", "10", "device-plugin"]]


async def test_another_node_is_reached_by_exec_in_the_daemons_pod(tmp_path: Path, root: Path) -> None:
    async with two_tapes(tmp_path, root) as kubelet:
        await kubelet.allocatable(TAPE, 2)
        with exec_server([daemon_pod("plugwright-x7")], {"plugwright-x7": root / "c"}) as server:
            cluster = ["--kubeconfig", str(server.kubeconfig(tmp_path / "config"))]
            moved = devices(await handover(root / "none", "worker-1", "--to", "dra", "-o", "json", *cluster))
            assert {device["target"] for device in moved.values()} == {"dra"}
            listed, *carried = map(unquote_plus, server.requests)
        assert listed.startswith("/api/v1/pods?labelSelector=app.kubernetes.io/name=plugwright")
        assert "fieldSelector=status.phase=Running,spec.nodeName=worker-1" in listed
        assert all(
            path.startswith("/api/v1/namespaces/devices/pods/plugwright-x7/exec?command=plugwright&command=request")
            for path in carried
        )
        assert all("&container=plugwright&" in path for path in carried)


@pytest.mark.parametrize(
    ("pods", "text"),
    [
        ([], "no daemon runs on worker-1: no running pod there has the labels app.kubernetes.io/name=plugwright"),
        (
            ["a", "b"],
            "several daemons run on worker-1: devices/a, devices/b; choose one with --selector or the namespace",
        ),
    ],
)
async def test_a_node_without_one_daemon_is_an_error(tmp_path: Path, root: Path, pods: list[str], text: str) -> None:
    with exec_server([daemon_pod(name) for name in pods]) as server:
        cluster = ["--kubeconfig", str(server.kubeconfig(tmp_path / "config"))]
        assert await handover(root, "worker-1", "--status", *cluster) == Ended(1, "", f"plugwright: {text}\n")


async def test_a_name_that_no_node_has_is_refused(root: Path) -> None:
    with exec_server([]) as server:
        cluster = ["--kubeconfig", str(server.kubeconfig(root / "config"))]
        done = await handover(root, "n1,spec.nodeName=n2", "--to", "dra", *cluster)
    assert done == Ended(1, "", "plugwright: NODE must be the name of a Node, got 'n1,spec.nodeName=n2'\n")


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ([], "give --to or --status"),
        (["--to", "dra", "--status"], "give --to or --status"),
        (["--to", "dra", "--device", "st0"], "--device needs one --resource"),
        (["--to", "sideways"], "'sideways' is not one of 'dra', 'device-plugin', 'both'"),
    ],
)
async def test_a_wrong_call_is_said(root: Path, arguments: list[str], text: str) -> None:
    done = await handover(root, *arguments)
    assert (done.code, text in done.err) == (2, True)


async def test_where_nothing_can_move_the_error_says_why(tmp_path: Path, root: Path) -> None:
    async with two_tapes(tmp_path, root, ServeMode.DEVICE_PLUGIN):
        done = await handover(root, "--to", "dra")
        assert (done.code, "no resource is served by both APIs here" in done.err) == (1, True)
        done = await handover(root, "--to", "dra", "--resource", "example.com/none")
        assert f"no resource 'example.com/none' is served here (served: {TAPE})" in done.err
        done = await handover(root, "--to", "dra", "--resource", TAPE)
        assert "is served by the device plugin API alone" in done.err
        assert (await handover(root, "--status")).out == "no resource is served by claims here\n"


async def test_status_shows_which_api_offers_a_device_and_who_holds_it(tmp_path: Path, root: Path) -> None:
    async with two_tapes(tmp_path, root) as kubelet:
        await kubelet.allocatable(TAPE, 2)
        pod = await kubelet.admit(pod_requesting({TAPE: 1}, name="reader"))
        await handover(root, "--to", "dra", "--resource", TAPE, "--device", "st1", "--wait")
        claimed = await kubelet.admit(pod_requesting({}, claims=[claim_requesting({TAPE: 1}, name="drive")]))
        command = [sys.executable, "-m", "plugwright", "status", "--control-socket", str(root / "c")]
        lines = (await ended(command, dict(os.environ))).out.splitlines()
        columns, first, second = (line.split() for line in lines[-3:])
        assert columns == ["ID", "HEALTH", "NUMA", "API", "POD", "CLAIM", "SINCE", "REASON"]
        assert first[:6] == ["st0", "Healthy", "-", "device-plugin", "default/reader", "-"]
        assert second[:6] == ["st1", "Healthy", "-", "dra", "-", "default/drive"]
        for each in (pod, claimed):
            await kubelet.remove(each)
