"""Joined nodes and the API server of an embedded cluster: the same requests as any other server gets."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from ipaddress import IPv4Network
from pathlib import Path

import pytest
from tests.cluster.embedding import Lab, embedded, served

from plugwright.apiserver.kinds import LEASES, NODES
from plugwright.apiserver.store import ObjectKey
from plugwright.cluster.embedded import mock_gpus
from plugwright.cluster.joined.joined_nodes import JoinedNodes, JoinOptions, NodePlan
from plugwright.cluster.joined.node_registration import OWNER_LABEL, TAINT
from plugwright.cluster.nodes.node_status import NodeShape
from plugwright.errors import PlugwrightError
from plugwright.kube.api_client import ApiClient

GPUS = NodePlan(name="gpu-1", shape=NodeShape(labels={"pool": "gpu"}), plugins=mock_gpus)
QUICK = JoinOptions(owner="test", heartbeat=0.05, retry=0.05)


@asynccontextmanager
async def joined(
    lab: Lab, tmp_path: Path, *plans: NodePlan, options: JoinOptions = QUICK
) -> AsyncIterator[JoinedNodes]:
    async with served(lab, tmp_path) as kubeconfig:
        api = ApiClient.of_kubeconfig(kubeconfig, "here")
        try:
            async with JoinedNodes(api, options, plans) as nodes:
                yield nodes
        finally:
            api.close()


async def refusal(lab: Lab, tmp_path: Path, options: JoinOptions, *plans: NodePlan) -> PlugwrightError:
    async with served(lab, tmp_path) as kubeconfig:
        api = ApiClient.of_kubeconfig(kubeconfig, "here")
        with pytest.raises(PlugwrightError) as raised:
            async with JoinedNodes(api, options, plans):
                pass
        api.close()
    return raised.value


async def test_a_joined_node_has_its_devices_and_runs_a_pod(tmp_path: Path) -> None:
    async with embedded(silence=5.0) as lab:
        async with joined(lab, tmp_path, GPUS) as nodes:
            await lab.offered(node="gpu-1")
            lab.create("one", {"mock/gpu": "2"}, nodeSelector={"pool": "gpu"})
            status = await lab.phase("one")
            assert status["hostIP"] == "127.0.0.1"
            assert status["podIP"] == "198.18.0.2"
            assert lab.store.require(ObjectKey(LEASES.qualified, "kube-node-lease", "gpu-1"))
            lab.delete("one")
            await lab.gone("one")
            await nodes.outbox.until_sent()
        assert lab.store.get(ObjectKey(NODES.qualified, "", "gpu-1")) is None
        assert lab.store.get(ObjectKey(LEASES.qualified, "kube-node-lease", "gpu-1")) is None


async def test_a_node_of_another_owner_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    async with embedded(silence=5.0) as lab:
        theirs = NodePlan(name="node-1")
        error = await refusal(lab, tmp_path, QUICK, NodePlan(name="new-1"), theirs)
        assert str(error).startswith("node node-1 already exists and is not a node of plugwright")
        assert lab.node()["metadata"]["labels"].get(OWNER_LABEL) is None
        assert lab.store.get(ObjectKey(NODES.qualified, "", "new-1")) is None


async def test_a_node_has_its_taint_from_the_beginning(tmp_path: Path) -> None:
    async with embedded(silence=5.0) as lab:
        plan = NodePlan(name="gpu-1", shape=NodeShape(taints=(TAINT,)))
        async with joined(lab, tmp_path, plan):
            assert lab.node("gpu-1")["spec"]["taints"] == [TAINT]
            assert lab.node("gpu-1")["metadata"]["labels"][OWNER_LABEL] == "test"


async def test_nodes_with_a_state_are_found_again_with_their_pods(tmp_path: Path) -> None:
    options = replace(QUICK, state=tmp_path / "state")
    async with embedded(silence=5.0) as lab:
        async with joined(lab, tmp_path, GPUS, options=options):
            await lab.offered(node="gpu-1")
            lab.create("kept", {"mock/gpu": "2"}, nodeSelector={"pool": "gpu"})
            await lab.phase("kept")
        uid = lab.node("gpu-1")["metadata"]["uid"]
        async with joined(lab, tmp_path, GPUS, options=options) as again:
            assert lab.node("gpu-1")["metadata"]["uid"] == uid
            [pod] = again.nodes["gpu-1"].kubelet.pods
            assert pod.name == "kept"


async def test_a_device_that_fails_shows_in_the_status_of_its_pod(tmp_path: Path) -> None:
    async with embedded(silence=5.0) as lab, joined(lab, tmp_path, GPUS) as nodes:
        await lab.offered(node="gpu-1")
        lab.create("one", {"mock/gpu": "10"}, nodeSelector={"pool": "gpu"})
        status = await lab.phase("one")
        [health] = status["containerStatuses"][0]["allocatedResourcesStatus"]
        device = health["resources"][0]["resourceID"]
        await nodes.daemons["gpu-1"].resources["mock/gpu"].command("fail", {"id": device})

        def is_unhealthy() -> bool:
            [entry] = lab.status("one")["containerStatuses"][0]["allocatedResourcesStatus"]
            return {"resourceID": device, "health": "Unhealthy"} in entry["resources"]

        await lab.cluster.until(is_unhealthy)


async def test_a_stopped_node_is_not_ready_and_comes_back_with_its_pod(tmp_path: Path) -> None:
    async with embedded(silence=1.2) as lab, joined(lab, tmp_path, GPUS) as nodes:
        await lab.offered(node="gpu-1")
        lab.create("one", {"mock/gpu": "1"}, nodeSelector={"pool": "gpu"})
        await lab.phase("one")
        await nodes.stop_node("gpu-1")
        await lab.is_ready("Unknown", "gpu-1")
        await nodes.start_node("gpu-1")
        await lab.is_ready("True", "gpu-1")
        assert [pod.name for pod in nodes.nodes["gpu-1"].kubelet.pods] == ["one"]


async def test_more_nodes_than_addresses_are_refused(tmp_path: Path) -> None:
    options = replace(QUICK, pod_network=IPv4Network("198.18.0.0/24"))
    async with embedded(silence=5.0) as lab:
        error = await refusal(lab, tmp_path, options, *(NodePlan(name=f"n-{number}") for number in range(3)))
        assert str(error) == "198.18.0.0/24 has addresses for 2 nodes, got 3"
