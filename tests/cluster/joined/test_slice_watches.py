"""The slices of many nodes' drivers, by one watch."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.kube.serving import ServedApi, served_api
from tests.kube.test_answers import body, serving

from plugwright.cluster.joined.slice_watches import DriverClient, SliceWatches
from plugwright.errors import MalformedMessage, PeerGone

SLICES = "/apis/resource.k8s.io/v1/resourceslices"


def slice_of(node: str, name: str, devices: int = 1) -> dict[str, Any]:
    spec = {
        "driver": "gpu.example.com",
        "nodeName": node,
        "pool": {"name": node, "generation": 1, "resourceSliceCount": 1},
        "devices": [{"name": f"gpu-{number}"} for number in range(devices)],
    }
    return {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": {"name": name}, "spec": spec}


@asynccontextmanager
async def watching(tmp_path: Path, *nodes: str) -> AsyncIterator[tuple[ServedApi, list[DriverClient]]]:
    async with served_api(tmp_path) as api, asyncio.timeout(60):
        client = api.client()
        async with SliceWatches(client) as watches:
            yield api, [DriverClient(client, watches, node) for node in nodes]
        client.close()


async def listed(driver: DriverClient, node: str) -> tuple[str, dict[str, str]]:
    query = {"fieldSelector": f"spec.driver=gpu.example.com,spec.nodeName={node}"}
    _, version = await driver.list(SLICES, **query)
    return version, query


async def test_each_driver_sees_the_slices_of_its_node_and_there_is_one_watch(tmp_path: Path) -> None:
    async with watching(tmp_path, "a", "b") as (api, (first, second)):
        (version, of_first), (later, of_second) = await listed(first, "a"), await listed(second, "b")
        async with (
            aclosing(first.watch(SLICES, version, **of_first)) as ours,
            aclosing(second.watch(SLICES, later, **of_second)) as theirs,
        ):
            one, two = asyncio.create_task(anext(ours)), asyncio.create_task(anext(theirs))
            await first.create(SLICES, slice_of("a", "a-1"))
            await second.create(SLICES, slice_of("b", "b-1"))
            assert [(await one)[1]["metadata"]["name"], (await two)[1]["metadata"]["name"]] == ["a-1", "b-1"]
            await first.delete(f"{SLICES}/a-1")
            kind, gone = await anext(ours)
            assert (kind, gone["metadata"]["name"]) == ("DELETED", "a-1")
        assert len([request for request in api.requests if request == f"GET {SLICES}"]) == 3


async def test_a_driver_that_comes_later_misses_nothing_and_sees_nothing_twice(tmp_path: Path) -> None:
    async with watching(tmp_path, "a", "b") as (_, (first, second)):
        version, of_first = await listed(first, "a")
        async with aclosing(first.watch(SLICES, version, **of_first)) as ours:
            task = asyncio.create_task(anext(ours))
            await second.create(SLICES, slice_of("b", "b-1"))
            later, of_second = await listed(second, "b")  # has b-1
            await second.create(SLICES, slice_of("b", "b-2"))
            await first.create(SLICES, slice_of("a", "a-1"))
            await task  # so the watch has b-2 already
            async with aclosing(second.watch(SLICES, later, **of_second)) as theirs:
                assert (await anext(theirs))[1]["metadata"]["name"] == "b-2"
            with pytest.raises(PeerGone, match="began later"):
                await anext(second.watch(SLICES, str(int(version) - 1), **of_second))


async def test_every_driver_learns_that_the_watch_has_ended_and_a_new_one_begins(tmp_path: Path) -> None:
    async with watching(tmp_path, "a", "b") as (api, (first, second)):
        (version, of_first), (later, of_second) = await listed(first, "a"), await listed(second, "b")
        watches = [first.watch(SLICES, version, **of_first), second.watch(SLICES, later, **of_second)]
        tasks = [asyncio.create_task(anext(watch)) for watch in watches]
        await asyncio.sleep(0)
        await api.stop()
        for task in tasks:
            with pytest.raises(PeerGone):
                await task
        await api.start()
        version, of_first = await listed(first, "a")
        async with aclosing(first.watch(SLICES, version, **of_first)) as ours:
            again = asyncio.create_task(anext(ours))
            await first.create(SLICES, slice_of("a", "a-1"))
            assert (await again)[1]["metadata"]["name"] == "a-1"


async def test_a_slice_without_a_version_ends_the_watch_and_nothing_else() -> None:
    change = {"type": "ADDED", "object": {"metadata": {"name": "a-1"}, "spec": "none"}}
    async with serving(body(json.dumps(change) + "\n")) as (client, _), SliceWatches(client) as watches:
        driver = DriverClient(client, watches, "a")
        query = {"fieldSelector": "spec.driver=gpu.example.com,spec.nodeName=a"}
        with pytest.raises(PeerGone, match="a resource version must be a number, got None"):
            await anext(driver.watch(SLICES, "1", **query))
        with pytest.raises(MalformedMessage, match="a resource version must be a number, got ''"):
            await anext(driver.watch(SLICES, "", **query))
