"""The server that nodes join: its version, and what is left in it at the end."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send
from tests.cluster.embedding import Lab, embedded, served
from tests.cluster.joined.test_joined_nodes import QUICK

from plugwright.apiserver.kinds import NODES
from plugwright.cluster.joined.joined_nodes import JoinedNodes, NodePlan
from plugwright.cluster.joined.node_registration import NodeRegistration
from plugwright.errors import ClusterError
from plugwright.kube.api_client import ApiClient


def saying(version: str, application: ASGIApp) -> ASGIApp:
    async def call(scope: Scope, receive: Receive, send: Send) -> None:
        is_version = scope["type"] == "http" and scope["path"] == "/version"
        await (JSONResponse({"gitVersion": version}) if is_version else application)(scope, receive, send)

    return call


@asynccontextmanager
async def client(lab: Lab, tmp_path: Path, application: ASGIApp) -> AsyncIterator[ApiClient]:
    async with served(lab, tmp_path, application) as kubeconfig:
        api = ApiClient.of_kubeconfig(kubeconfig, "here")
        try:
            yield api
        finally:
            api.close()


@pytest.mark.parametrize(("server", "kubelet"), [("v1.99.3-gke.7", "v1.37.0"), ("v1.19.0+k3s1", "v1.26.0")])
async def test_nodes_of_a_server_of_an_unknown_version_have_the_nearest_and_one_line_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, server: str, kubelet: str
) -> None:
    async with embedded(silence=5.0) as lab, client(lab, tmp_path, saying(server, lab.cluster.application)) as api:
        with caplog.at_level(logging.WARNING):
            async with JoinedNodes(api, QUICK, [NodePlan(name="gpu-1")]):
                assert lab.node("gpu-1")["status"]["nodeInfo"]["kubeletVersion"] == kubelet
        [record] = [record for record in caplog.records if "version" in record.message]
        assert record.message == "API server has a version that plugwright does not know, its nodes have the nearest"


async def test_a_server_that_does_not_say_its_version_is_refused_and_nothing_is_left(tmp_path: Path) -> None:
    async with embedded(silence=5.0) as lab, client(lab, tmp_path, saying("newest", lab.cluster.application)) as api:
        with pytest.raises(ClusterError, match="must say which Kubernetes it is, got 'newest'"):
            async with JoinedNodes(api, QUICK, [NodePlan(name="gpu-1")]):
                pass
        assert [node["metadata"]["name"] for node in lab.store.objects(NODES.qualified)] == ["node-1"]


async def test_nodes_that_are_gone_do_not_count_as_left_though_their_pods_take_too_long(tmp_path: Path) -> None:
    async with embedded(silence=5.0) as lab:
        patience = asyncio.Event()

        async def slow_with_pods(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["method"] == "DELETE" and "/pods/" in scope["path"]:
                await patience.wait()
            await lab.cluster.application(scope, receive, send)

        async with client(lab, tmp_path, slow_with_pods) as api:
            pod = lab.create("slow")
            registration = NodeRegistration(api, "test", leave_limit=1.0)
            assert await registration.leave([lab.node("node-1")], [pod]) == []
            assert not lab.store.objects(NODES.qualified)
            patience.set()
