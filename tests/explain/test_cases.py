"""Pods that wait on the embedded cluster: `why` names the cause, its first cure lets the pod run, and less does not."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest
from tests.cluster.embedding import Lab, embedded, served
from tests.explain.playing import CASES, Case, Object, Player, named_case
from tests.kubelet.dra.driver import ScriptedDriver, registered

from plugwright.cluster.embedded import mock_gpus
from plugwright.kubelet import KubeletSettings
from plugwright.kubelet.topology_manager import TopologyPolicy
from plugwright.sdk.control import serve_control_socket
from plugwright.system import json_lines


def is_running(pod: Object) -> bool:
    return bool((pod.get("status") or {}).get("phase") == "Running")


@asynccontextmanager
async def played(case: Case, directory: Path) -> AsyncIterator[tuple[Player, Lab]]:
    nodes = int(case.fact("nodes"))
    async with AsyncExitStack() as stack:
        kubelet = KubeletSettings(numa=2, policy=TopologyPolicy(case.fact("policy", "none")))
        lab = await stack.enter_async_context(embedded(nodes=nodes, plugins=mock_gpus, kubelet=kubelet))
        for node in lab.cluster.nodes.values():
            await lab.offered(node=node.identity.name)
            for driver in ("gpu.example.com", "nic.example.com"):
                await stack.enter_async_context(registered(ScriptedDriver(answer=(), name=driver), node.kubelet))
        kubeconfig = await stack.enter_async_context(served(lab, directory))
        for setup in case.all("setup"):
            await prepare(lab, *setup.split())
        player = Player(case, kubeconfig, is_running)
        if case.fact("policy"):
            player.reports = lambda: node_reports(lab, directory)
        stack.callback(player.close)
        await player.apply()
        yield player, lab


async def node_reports(lab: Lab, directory: Path) -> dict[str, Object]:
    """Asked of the daemons by their control sockets, as `why` does."""
    reports = {}
    for node in lab.cluster.nodes:
        path = directory / f"{node}.sock"
        async with serve_control_socket(lab.cluster.daemon(node), path, answers_blocked=False):
            reports[node] = await asyncio.to_thread(json_lines.ask, path, {"do": "report"})
    return reports


async def prepare(lab: Lab, verb: str, node: str, count: str, *_: str) -> None:
    if verb == "allocate":
        return
    runtime = lab.cluster.daemon(node).resources["mock/gpu"]
    assert runtime.inventory.latest.value is not None
    devices = list(runtime.inventory.latest.value.devices)[: int(count)]
    if verb == "cordon":
        runtime.inventory.cordon(dict.fromkeys(devices, "maintenance"))
    for device in devices if verb == "fail" else ():
        await runtime.command("fail", {"id": device})
    await lab.cluster.until(lambda: lab.counts("mock/gpu", node) == ("10", str(10 - int(count))))


async def recover(case: Case, lab: Lab) -> None:
    for setup in case.all("setup"):
        verb, node, *_ = setup.split()
        runtime = lab.cluster.daemon(node).resources["mock/gpu"] if verb != "allocate" else None
        if runtime is None:
            continue
        if verb == "cordon":
            runtime.inventory.cordon({})
        assert runtime.inventory.latest.value is not None
        for device in runtime.inventory.latest.value.devices if verb == "fail" else ():
            await runtime.command("recover", {"id": device})


# Whose rejected change cannot be taken back; it is made on a cluster of its own.
REJECTING = [name for name in CASES if named_case(name).fact("rejected") in ("holder-ends", "recovery")]


@pytest.mark.parametrize("name", CASES)
async def test_the_first_cure_of_a_waiting_pod_lets_it_run(name: str, tmp_path: Path) -> None:
    case = named_case(name)
    async with played(case, tmp_path) as (player, lab):
        explanation = await player.explain()
        assert explanation.state == case.fact("state", "waits"), explanation
        assert case.fact("answer") in explanation.answer, explanation
        cures, rejected = explanation.cures, explanation.rejected[:1]
        assert tuple(entry.kinds for entry in rejected) == tuple((kind,) for kind in case.all("rejected")), explanation
        if rejected and name not in REJECTING:
            await player.make(rejected[0])
            assert await player.waits()
            await player.restore(rejected[0])
        assert (cures[0].kinds if cures else ()) == case.kinds, explanation
        if not cures:
            return
        await player.make(cures[0])
        if any(step.verb == "recover" for step in cures[0].changes):
            await recover(case, lab)
        await player.runs()


@pytest.mark.parametrize("name", REJECTING)
async def test_the_best_rejected_change_leaves_the_pod_waiting(name: str, tmp_path: Path) -> None:
    case = named_case(name)
    async with played(case, tmp_path) as (player, lab):
        rejected = (await player.explain()).rejected
        assert rejected[0].kinds == (case.fact("rejected"),)
        await player.make(rejected[0])
        if any(step.verb == "recover" for step in rejected[0].changes):
            await recover(case, lab)
        assert await player.waits()
