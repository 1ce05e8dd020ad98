"""A pod that waits for a joined node gets the caller's words as an event; the cluster's other pods get none."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from tests.cluster.embedding import Lab, embedded, served
from tests.cluster.joined.test_joined_nodes import QUICK

from plugwright.cli.join import explained
from plugwright.cluster.embedded import mock_gpus
from plugwright.cluster.joined.join_state import JoinFlags
from plugwright.cluster.joined.joined_nodes import JoinedNodes, NodePlan
from plugwright.cluster.joined.node_registration import TAINT
from plugwright.cluster.joined.pods_for_nodes import RemoteWaitingPods
from plugwright.cluster.nodes.node_status import NodeShape
from plugwright.errors import PeerRefused
from plugwright.kube.api_client import ApiClient

PLAN = NodePlan(name="gpu-1", shape=NodeShape(taints=(TAINT,)), plugins=mock_gpus)
TOLERATION = {"key": TAINT["key"], "operator": "Exists"}


def said(lab: Lab, name: str) -> list[str]:
    return [text for reason, text in lab.events(name) if reason == "WaitsForDevices"]


@asynccontextmanager
async def explaining(lab: Lab, tmp_path: Path, explain: Any = None) -> AsyncIterator[JoinedNodes]:
    """A joined node, and the events of pods that wait for it."""
    async with served(lab, tmp_path) as kubeconfig:
        api = ApiClient.of_kubeconfig(kubeconfig, "here")
        flags = JoinFlags(kubeconfig=kubeconfig, context="here")
        try:
            async with JoinedNodes(api, QUICK, [PLAN]) as joined:
                waiting = RemoteWaitingPods(
                    api, joined.client, [PLAN.shape.taints], explain or (lambda pods: explained(flags, pods)), pause=0.1
                )
                task = asyncio.create_task(waiting.run())
                try:
                    yield joined
                finally:
                    task.cancel()
                    await asyncio.gather(task, return_exceptions=True)
        finally:
            api.close()


async def test_the_first_line_of_why_is_an_event_of_a_pod_that_waits_for_a_joined_node(tmp_path: Path) -> None:
    async with embedded(silence=5.0) as lab, explaining(lab, tmp_path):
        await lab.offered(node="gpu-1")
        lab.create("theirs", {"mock/gpu": "12"})
        lab.create("ours", {"mock/gpu": "11"}, tolerations=[TOLERATION])
        await lab.cluster.until(lambda: bool(said(lab, "ours")))
        [text] = said(lab, "ours")
        assert text.startswith("waits: no node has 11 free mock/gpu")
        assert said(lab, "theirs") == []


async def test_a_server_that_refuses_the_reads_costs_no_event_and_the_next_look_goes_on(tmp_path: Path) -> None:
    calls = 0

    def explain(pods: Sequence[Mapping[str, Any]]) -> Mapping[str, str]:
        nonlocal calls
        calls += 1
        if calls == 1:
            raise PeerRefused("Forbidden", "nodes")
        return {str(pod["metadata"]["uid"]): "waits for a test" for pod in pods}

    async with embedded(silence=5.0) as lab, explaining(lab, tmp_path, explain):
        lab.create("ours", {"mock/gpu": "11"}, tolerations=[TOLERATION])
        await lab.cluster.until(lambda: said(lab, "ours") == ["waits for a test"])
    assert calls == 2
