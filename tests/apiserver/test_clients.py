"""Clients of the Kubernetes API: lightkube, and the official one where it is installed."""

import asyncio
from collections.abc import AsyncIterator

import lightkube
import pytest
from lightkube.core.exceptions import ApiError
from lightkube.models.core_v1 import Container, PodSpec, ResourceRequirements
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.core_v1 import ConfigMap, Node, NodeStatus, Pod
from lightkube.types import PatchType
from tests.apiserver.serving import TOKEN, served

from plugwright.apiserver.store import Store


@pytest.fixture
async def address(store: Store) -> AsyncIterator[str]:
    async with served(store) as address:
        yield address


@pytest.fixture
async def client(address: str) -> AsyncIterator[lightkube.AsyncClient]:
    config = {
        "current-context": "here",
        "contexts": [{"name": "here", "context": {"cluster": "one", "user": "me"}}],
        "clusters": [{"name": "one", "cluster": {"server": address}}],
        "users": [{"name": "me", "user": {"token": TOKEN}}],
    }
    client = lightkube.AsyncClient(config=lightkube.KubeConfig.from_dict(config), namespace="default")
    yield client
    await client.close()


def gpu_pod(name: str, gpus: str) -> Pod:
    container = Container(name="main", image="busybox", resources=ResourceRequirements(limits={"mock/gpu": gpus}))
    return Pod(metadata=ObjectMeta(name=name, labels={"app": "x"}), spec=PodSpec(containers=[container]))


class TestLightkube:
    async def test_creates_reads_patches_and_deletes(self, client: lightkube.AsyncClient) -> None:
        created = await client.create(gpu_pod("p", "2"))
        assert created.metadata is not None
        assert created.metadata.uid
        patched = await client.patch(Pod, "p", {"metadata": {"labels": {"b": "c"}}})
        assert patched.metadata is not None
        assert patched.metadata.labels == {"app": "x", "b": "c"}
        listed = [pod.metadata.name async for pod in client.list(Pod, labels={"app": "x"}) if pod.metadata]
        assert listed == ["p"]
        await client.delete(Pod, "p")
        with pytest.raises(ApiError) as missing:
            await client.get(Pod, "p")
        assert missing.value.status.code == 404

    async def test_adds_an_extended_resource(self, client: lightkube.AsyncClient) -> None:
        patch = [{"op": "add", "path": "/status/capacity/mock~1gpu", "value": "10"}]
        await client.patch(NodeStatus, "node", patch, patch_type=PatchType.JSON)
        node = await client.get(Node, "node")
        assert node.status is not None
        assert node.status.capacity is not None
        assert node.status.capacity["mock/gpu"] == "10"

    async def test_raises_an_invalid_status(self, client: lightkube.AsyncClient) -> None:
        with pytest.raises(ApiError, match="must be an integer") as refused:
            await client.create(gpu_pod("p", "1500m"))
        assert (refused.value.status.code, refused.value.status.reason) == (422, "Invalid")

    async def test_lists_in_chunks(self, client: lightkube.AsyncClient) -> None:
        for number in range(5):
            await client.create(ConfigMap(metadata=ObjectMeta(name=f"m-{number}")))
        names = [item.metadata.name async for item in client.list(ConfigMap, chunk_size=2) if item.metadata]
        assert names == [f"m-{number}" for number in range(5)]

    async def test_watches(self, client: lightkube.AsyncClient) -> None:
        async def watched() -> list[tuple[str, str | None]]:
            events = []
            async for event, config_map in client.watch(ConfigMap):
                events.append((event, config_map.metadata.name if config_map.metadata else None))
                if event == "DELETED":
                    break
            return events

        async with asyncio.timeout(60), asyncio.TaskGroup() as group:
            watching = group.create_task(watched())
            await client.create(ConfigMap(metadata=ObjectMeta(name="m")))
            await client.delete(ConfigMap, "m")
        assert watching.result()[-1] == ("DELETED", "m")


async def test_the_official_client_creates_patches_and_lists(address: str) -> None:
    kubernetes = pytest.importorskip("kubernetes.client", reason="the official client is not installed")
    configuration = kubernetes.Configuration(host=address, api_key={"authorization": f"Bearer {TOKEN}"})

    def session() -> list[str]:
        with kubernetes.ApiClient(configuration) as api_client:
            api = kubernetes.CoreV1Api(api_client)
            api.create_namespaced_config_map("default", {"metadata": {"name": "m"}, "data": {"a": "b"}})
            api.patch_node_status("node", [{"op": "add", "path": "/status/capacity/mock~1gpu", "value": "3"}])
            node = api.read_node("node")
            maps = api.list_namespaced_config_map("default")
            return [node.status.capacity["mock/gpu"], *(config_map.metadata.name for config_map in maps.items)]

    assert await asyncio.to_thread(session) == ["3", "m"]
