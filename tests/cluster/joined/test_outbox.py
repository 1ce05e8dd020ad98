"""Writes on their way to an API server: in order, coalesced, and kept while it is away."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tests.kube.serving import ServedApi, served_api

from plugwright.apiserver.kinds import EVENTS, LEASES, NODES, PODS
from plugwright.apiserver.registry import DeleteOptions, ResourcePath
from plugwright.apiserver.store import Object, ObjectKey
from plugwright.cluster.joined.mirror import Mirror
from plugwright.cluster.joined.outbox import Outbox, url_of

LEASE = ResourcePath(LEASES, "default", "node")
NODE = ObjectKey(NODES.qualified, "", "node")


@asynccontextmanager
async def sending(api: ServedApi, mirror: Mirror | None = None) -> AsyncIterator[Outbox]:
    client, mirror = api.client(), mirror or Mirror()
    mirror.received(NODE, await client.get("/api/v1/nodes/node"))
    outbox = Outbox(client, mirror, at_once=2)
    running = asyncio.create_task(outbox.run())
    try:
        async with asyncio.timeout(60):
            yield outbox
    finally:
        running.cancel()
        await asyncio.wait([running])
        client.close()


def lease(moment: str) -> Object:
    return {"metadata": {"name": "node"}, "spec": {"holderIdentity": "node", "renewTime": moment}}


def renewed(moment: str) -> Object:
    return {"holderIdentity": "node", "renewTime": moment}


def with_capacity(outbox: Outbox, count: str) -> None:
    path = ResourcePath(NODES, "", "node", "status")

    def changed(node: Object) -> Object:
        status = node.get("status") or {}
        return {**node, "status": {**status, "capacity": {**(status.get("capacity") or {}), "example.com/a": count}}}

    outbox.change(path, changed, "kubelet")


async def test_a_created_object_arrives_with_the_changes_that_came_before_it_was_sent(tmp_path: Path) -> None:
    async with served_api(tmp_path) as api, sending(api) as outbox:
        outbox.create(LEASE, lease("2026-01-01T00:00:00.000000Z"), "kubelet")
        outbox.change(LEASE, lambda old: {**old, "spec": renewed("2026-01-01T00:00:10.000000Z")}, "kubelet")
        await outbox.until_sent()
        assert api.store.require(LEASE.key)["spec"]["renewTime"] == "2026-01-01T00:00:10.000000Z"
        assert api.written() == [f"POST {url_of(ResourcePath(LEASES, 'default'))}"]


async def test_of_many_changes_only_the_newest_is_sent(tmp_path: Path) -> None:
    async with served_api(tmp_path) as api, sending(api) as outbox:
        for count in range(100):
            with_capacity(outbox, str(count))
        await outbox.until_sent()
        assert api.store.require(NODE)["status"]["capacity"]["example.com/a"] == "99"
        assert len(api.written()) == 1
        with_capacity(outbox, "99")
        await outbox.until_sent()
        assert len(api.written()) == 1


async def test_an_object_that_is_there_already_is_changed_instead(tmp_path: Path) -> None:
    async with served_api(tmp_path) as api:
        async with sending(api) as first:
            first.create(LEASE, lease("2026-01-01T00:00:00.000000Z"), "kubelet")
            await first.until_sent()
        async with sending(api) as again:
            again.create(LEASE, lease("2026-01-02T00:00:00.000000Z"), "kubelet")
            await again.until_sent()
        assert api.store.require(LEASE.key)["spec"]["renewTime"] == "2026-01-02T00:00:00.000000Z"


async def test_writes_wait_while_the_server_is_away_and_two_lines_say_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with served_api(tmp_path) as api, sending(api) as outbox:
        await api.stop()
        with caplog.at_level(logging.WARNING):
            for count in range(20):
                with_capacity(outbox, str(count))
                outbox.create(ResourcePath(EVENTS, "default", f"event-{count}"), {"metadata": {}}, "kubelet")
            outbox.create(LEASE, lease("2026-01-01T00:00:00.000000Z"), "kubelet")
            while not caplog.records:
                await asyncio.sleep(0)
            await api.start()
            await outbox.until_sent()
        assert api.store.require(NODE)["status"]["capacity"]["example.com/a"] == "19"
        assert api.store.get(LEASE.key) is not None
        assert [record.message for record in caplog.records] == [
            "API server is unavailable, writes wait",
            "API server is back",
        ]


async def test_another_pod_of_the_same_name_is_neither_changed_nor_deleted(tmp_path: Path) -> None:
    mirror = Mirror()
    async with served_api(tmp_path) as api, sending(api, mirror) as outbox:
        path, client = ResourcePath(PODS, "default", "one"), api.client()
        pod = {"metadata": {"name": "one"}, "spec": {"nodeName": "node", "containers": [{"name": "a", "image": "b"}]}}
        body = {"apiVersion": "v1", "kind": "Pod", **pod}
        first = await client.create("/api/v1/namespaces/default/pods", body)
        await client.delete(url_of(path), grace=0)
        second = await client.create("/api/v1/namespaces/default/pods", body)
        client.close()
        mirror.received(path.key, first)
        status = ResourcePath(PODS, "default", "one", "status")
        outbox.change(status, lambda stored: {**stored, "status": {"phase": "Failed"}}, "kubelet")
        outbox.delete(path, DeleteOptions(grace=0, uid=first["metadata"]["uid"]))
        await outbox.until_sent()
        stored = api.store.require(path.key)
        assert stored["metadata"]["uid"] == second["metadata"]["uid"]
        assert stored["status"]["phase"] == "Pending"
