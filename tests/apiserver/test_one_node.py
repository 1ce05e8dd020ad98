"""The API server of one node, and the client of it in the same process."""

from contextlib import aclosing
from typing import Any

import pytest

from plugwright.apiserver.in_process_client import InProcessClient
from plugwright.apiserver.one_node import OneNode
from plugwright.errors import ConfigError, KubeletError, PeerRefused

SLICES = "/apis/resource.k8s.io/v1/resourceslices"
CLAIM = {
    "metadata": {"namespace": "lab", "name": "drive"},
    "spec": {"devices": {"requests": [{"name": "tape", "exactly": {"deviceClassName": "tape.example.com"}}]}},
    "status": {
        "allocation": {
            "devices": {
                "results": [{"request": "tape", "driver": "tape.example.com", "pool": "node", "device": "st0"}],
            }
        }
    },
}


def slice_of(driver: str, node: str = "node") -> dict[str, Any]:
    pool = {"name": node, "generation": 1, "resourceSliceCount": 1}
    spec = {"driver": driver, "nodeName": node, "pool": pool, "devices": [{"name": "st0"}]}
    return {"metadata": {"generateName": "slice-"}, "spec": spec}


@pytest.fixture
def node() -> OneNode:
    return OneNode("node")


@pytest.fixture
def client(node: OneNode) -> InProcessClient:
    return InProcessClient(node)


async def test_a_driver_finds_its_node_and_its_slices_alone(node: OneNode, client: InProcessClient) -> None:
    assert (await client.get("/api/v1/nodes/node"))["metadata"]["uid"] == node.node_uid
    for driver in ("tape.example.com", "disk.example.com"):
        await client.create(SLICES, slice_of(driver))
    found, version = await client.list(SLICES, fieldSelector="spec.driver=tape.example.com")
    assert [one["spec"]["driver"] for one in found] == ["tape.example.com"]
    assert version == str(node.store.revision)
    assert len(node.slices) == 2


async def test_a_watch_tells_of_changes_after_the_list(client: InProcessClient) -> None:
    _, version = await client.list(SLICES)
    made = await client.create(SLICES, slice_of("tape.example.com"))
    path = f"{SLICES}/{made['metadata']['name']}"
    async with aclosing(client.watch(SLICES, version, fieldSelector="spec.driver=tape.example.com")) as changes:
        assert (await anext(changes))[0] == "ADDED"
        changed = await client.patch(path, {"spec": {"devices": [{"name": "st1"}]}}, "merge-patch")
        assert await anext(changes) == ("MODIFIED", changed)
        await client.delete(path, uid=made["metadata"]["uid"])
        assert (await anext(changes))[0] == "DELETED"


async def test_refusals_carry_the_reason_of_the_server(client: InProcessClient) -> None:
    made = await client.create(SLICES, slice_of("tape.example.com"))
    path = f"{SLICES}/{made['metadata']['name']}"
    await client.update(path, {**made, "spec": {**made["spec"], "devices": []}})
    refused = [
        ("Conflict", client.update(path, made)),
        ("Conflict", client.delete(path, uid="other")),
        ("NotFound", client.get(f"{SLICES}/none")),
        ("Invalid", client.create(SLICES, slice_of("tape_"))),
    ]
    for reason, request in refused:
        with pytest.raises(PeerRefused) as raised:
            await request
        assert raised.value.code == reason


async def test_a_dry_run_stores_nothing(node: OneNode, client: InProcessClient) -> None:
    await client.create(SLICES, slice_of("tape.example.com"), dryRun="All")
    assert not node.slices


async def test_a_claim_is_put_reserved_and_released(node: OneNode) -> None:
    node.put(CLAIM)
    node.reserve("lab", "drive", ("a", "a-pod"))
    stored = await node.claim("lab", "drive")
    assert stored["status"]["reservedFor"] == [{"resource": "pods", "name": "a", "uid": "a-pod"}]
    node.put(CLAIM)  # the file was read again
    assert (await node.claim("lab", "drive"))["status"]["reservedFor"] == stored["status"]["reservedFor"]
    node.release("lab", "drive", "a-pod")
    kept = await node.claim("lab", "drive")
    assert "reservedFor" not in kept["status"]
    assert kept["status"]["allocation"]
    assert kept["metadata"]["uid"] == stored["metadata"]["uid"]


async def test_a_claim_with_another_spec_is_another_object(node: OneNode) -> None:
    node.put(CLAIM)
    before = await node.claim("lab", "drive")
    requests = [{"name": "tape", "exactly": {"deviceClassName": "other.example.com"}}]
    node.put({**CLAIM, "spec": {"devices": {"requests": requests}}})
    assert (await node.claim("lab", "drive"))["metadata"]["uid"] != before["metadata"]["uid"]


async def test_a_claim_that_a_server_refuses_is_a_configuration_error(node: OneNode) -> None:
    with pytest.raises(ConfigError, match=r'ResourceClaim lab/drive: .*unknown field "spec.device"'):
        node.put({**CLAIM, "spec": {"device": {}}})


async def test_a_claim_that_is_not_there_is_the_kubelets_error(node: OneNode) -> None:
    text = r'fetch ResourceClaim drive: resourceclaims.resource.k8s.io "drive" not found'
    with pytest.raises(KubeletError, match=text):
        await node.claim("lab", "drive")


async def test_a_kubelet_deletes_the_slices_of_its_node(node: OneNode, client: InProcessClient) -> None:
    for driver, of in (("tape.example.com", "node"), ("disk.example.com", "node"), ("tape.example.com", "other")):
        await client.create(SLICES, slice_of(driver, of))
    await node.delete_slices("tape.example.com")
    assert sorted((one["spec"]["driver"], one["spec"]["nodeName"]) for one in node.slices) == [
        ("disk.example.com", "node"),
        ("tape.example.com", "other"),
    ]
    await node.delete_slices()
    assert [one["spec"]["nodeName"] for one in node.slices] == ["other"]


async def test_waiting_for_a_change_ends_in_time(node: OneNode) -> None:
    assert await node.until(lambda: True, 0)
    assert not await node.until(lambda: False, 0.01)
