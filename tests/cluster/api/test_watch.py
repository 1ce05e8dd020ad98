"""Watches over real HTTP: what comes, what goes, who falls behind, and a server that is started anew."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
from tests.cluster.api.serving import TOKEN, Api, furnished, pod, served

from plugwright.cluster.api.kinds import CONFIG_MAPS, PODS
from plugwright.cluster.api.registry import ResourcePath, Writer
from plugwright.cluster.api.watch import Watch, WatchOptions, watch_lines
from plugwright.cluster.database import Database
from plugwright.cluster.store import ObjectKey, Store

MAPS = "/api/v1/namespaces/default/configmaps"
HEADERS = {"authorization": f"Bearer {TOKEN}"}
Told = tuple[str, str]


@pytest.fixture
async def over_http(store: Store) -> AsyncIterator[Api]:
    async with served(store) as address, httpx2.AsyncClient(base_url=address, headers=HEADERS) as client:
        yield Api(client)


def config_map(name: str, **labels: str) -> dict[str, Any]:
    return {"metadata": {"name": name, **({"labels": labels} if labels else {})}}


@asynccontextmanager
async def follow(api: Api, query: str = "", **headers: str) -> AsyncIterator[AsyncIterator[dict[str, Any]]]:
    """Events as they come; entered when the server has begun to answer."""
    async with asyncio.timeout(20), api.client.stream("GET", f"{MAPS}?watch=1&{query}", headers=headers) as response:
        lines = response.aiter_lines()
        yield (json.loads(line) async for line in lines)
        await lines.aclose()  # type: ignore[attr-defined]


async def take(events: AsyncIterator[dict[str, Any]], count: int) -> list[Told]:
    return [_told(await anext(events)) for _ in range(count)]


def _told(event: dict[str, Any]) -> Told:
    return event["type"], event["object"]["metadata"].get("name", "")


async def test_without_a_version_it_begins_with_what_is_there(over_http: Api) -> None:
    await over_http("POST", MAPS, config_map("old"))
    async with follow(over_http) as events:
        assert await take(events, 1) == [("ADDED", "old")]
        await over_http("POST", MAPS, config_map("new"))
        await over_http("DELETE", f"{MAPS}/old")
        assert await take(events, 2) == [("ADDED", "new"), ("DELETED", "old")]


async def test_from_a_version_on_nothing_is_missed(over_http: Api) -> None:
    listed = await over_http("GET", MAPS)
    await over_http("POST", MAPS, config_map("a"))
    await over_http.patch(f"{MAPS}/a", {"data": {"x": "y"}})
    version = listed.body["metadata"]["resourceVersion"]
    async with follow(over_http, f"resourceVersion={version}") as events:
        assert await take(events, 2) == [("ADDED", "a"), ("MODIFIED", "a")]


async def test_what_comes_to_match_is_added_and_what_ceases_to_is_deleted(over_http: Api, store: Store) -> None:
    async with follow(over_http, f"resourceVersion={store.revision}&labelSelector=on=yes") as events:
        await over_http("POST", MAPS, config_map("a"))
        await over_http.patch(f"{MAPS}/a", {"metadata": {"labels": {"on": "yes"}}})
        await over_http.patch(f"{MAPS}/a", {"data": {"x": "y"}})
        await over_http.patch(f"{MAPS}/a", {"metadata": {"labels": {"on": "no"}}})
        await over_http("DELETE", f"{MAPS}/a")
        await over_http("POST", MAPS, config_map("end", on="yes"))
        told = await take(events, 4)
    assert told == [("ADDED", "a"), ("MODIFIED", "a"), ("DELETED", "a"), ("ADDED", "end")]


async def test_what_is_elsewhere_is_not_told(over_http: Api, store: Store) -> None:
    async with follow(over_http, f"resourceVersion={store.revision}&fieldSelector=metadata.name=b") as events:
        await over_http("POST", "/api/v1/namespaces/kube-system/configmaps", config_map("b"))
        await over_http("POST", "/api/v1/namespaces/default/pods", pod("b"))
        await over_http("POST", MAPS, config_map("a"))
        await over_http("POST", MAPS, config_map("b"))
        event = await anext(events)
    assert (_told(event), event["object"]["metadata"]["namespace"]) == (("ADDED", "b"), "default")


async def test_it_ends_when_its_time_is_over_and_says_how_far_it_is(over_http: Api, store: Store) -> None:
    query = f"resourceVersion={store.revision}&timeoutSeconds=1&allowWatchBookmarks=true"
    async with follow(over_http, query) as events:
        told = [event async for event in events]
    assert [event["type"] for event in told] == ["BOOKMARK"]
    assert told[0]["object"]["metadata"]["resourceVersion"] == str(store.revision)
    assert told[0]["object"]["kind"] == "ConfigMap"


async def test_bookmarks_come_though_only_others_change(store: Store) -> None:
    options = WatchOptions(bookmarks=True, bookmark_interval=0.05)
    watch = Watch(CONFIG_MAPS, "", lambda _: True, lambda content: content, options)
    lines = watch_lines(store, watch, store.revision)
    writer = Writer(store)

    async def others() -> None:
        for number in range(10_000):
            writer.create(ResourcePath(PODS, "default", ""), pod(f"p-{number}"), "test")
            await asyncio.sleep(0.005)

    noise = asyncio.create_task(others())
    try:
        async with asyncio.timeout(20):
            told = [json.loads(await anext(lines)) for _ in range(2)]
    finally:
        noise.cancel()
        await asyncio.gather(noise, return_exceptions=True)
    await lines.aclose()  # type: ignore[attr-defined]
    versions = [int(each["object"]["metadata"]["resourceVersion"]) for each in told]
    assert [each["type"] for each in told] == ["BOOKMARK", "BOOKMARK"]
    assert versions[0] < versions[1]


async def test_all_that_is_there_and_then_the_mark_that_it_was_all(over_http: Api) -> None:
    await over_http("POST", MAPS, config_map("a"))
    query = "sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true"
    async with follow(over_http, query) as events:
        assert await take(events, 1) == [("ADDED", "a")]
        mark = await anext(events)
    assert mark["object"]["metadata"]["annotations"] == {"k8s.io/initial-events-end": "true"}


async def test_rows_of_a_table(over_http: Api) -> None:
    await over_http("POST", MAPS, config_map("a"))
    async with follow(over_http, accept="application/json;as=Table;v=v1;g=meta.k8s.io") as events:
        event = await anext(events)
    assert (event["object"]["kind"], event["object"]["rows"][0]["cells"]) == ("Table", ["a", 0, "0s"])


async def test_a_version_of_another_life_has_to_be_listed_anew(over_http: Api) -> None:
    async with follow(over_http, "resourceVersion=999999") as events:
        event = await anext(events)
    assert (event["type"], event["object"]["code"], event["object"]["reason"]) == ("ERROR", 410, "Expired")


async def test_who_falls_behind_is_told_so_and_costs_nothing_meanwhile() -> None:
    store = furnished(Store(history=50))
    writer, start = Writer(store), store.revision
    watch = Watch(CONFIG_MAPS, "", lambda _: True, lambda content: content)
    slow = watch_lines(store, watch, start)
    writer.create(ResourcePath(CONFIG_MAPS, "default", ""), config_map("first"), "test")
    assert json.loads(await anext(slow))["object"]["metadata"]["name"] == "first"
    for number in range(500):
        writer.create(ResourcePath(CONFIG_MAPS, "default", ""), config_map(f"m-{number}"), "test")
    rest = [json.loads(line) async for line in slow]
    assert [each["type"] for each in rest] == ["ERROR"]
    assert (rest[0]["object"]["code"], rest[0]["object"]["reason"]) == (410, "Expired")
    assert len(await store.changes(store.revision - 50)) == 50


async def test_a_client_that_stops_reading_holds_no_more_than_the_history(over_http: Api, store: Store) -> None:
    """The server does not write on for it: what is told later is what is there later."""
    large = {"x": "y" * 200_000}
    async with follow(over_http, f"resourceVersion={store.revision}") as events:
        for number in range(100):
            assert (await over_http("POST", MAPS, {**config_map(f"m-{number}"), "data": large})).code == 201
        told = await take(events, 100)
    assert told == [("ADDED", f"m-{number}") for number in range(100)]


async def test_a_client_that_goes_away_leaves_no_watcher_behind(over_http: Api, store: Store) -> None:
    before = len(asyncio.all_tasks())
    for _ in range(5):
        async with follow(over_http, f"resourceVersion={store.revision}"):
            assert len(asyncio.all_tasks()) > before
    async with asyncio.timeout(20):
        while len(asyncio.all_tasks()) > before:
            await asyncio.sleep(0.01)


async def test_a_server_started_anew_goes_on_where_the_watch_was(tmp_path: Path) -> None:
    database = Database(tmp_path / "state.db")
    store = furnished(Store(database))
    async with served(store) as address, httpx2.AsyncClient(base_url=address, headers=HEADERS) as client:
        api = Api(client)
        async with follow(api, f"resourceVersion={store.revision}") as events:
            await api("POST", MAPS, config_map("before"))
            seen = (await anext(events))["object"]["metadata"]["resourceVersion"]
    database.close()
    database = Database(tmp_path / "state.db")
    again = Store(database)
    async with served(again) as address, httpx2.AsyncClient(base_url=address, headers=HEADERS) as client:
        api = Api(client)
        async with follow(api, f"resourceVersion={seen}") as events:
            await api("POST", MAPS, config_map("after"))
            assert await take(events, 1) == [("ADDED", "after")]
    database.close()
    assert again.get(ObjectKey("configmaps", "default", "before")) is not None
