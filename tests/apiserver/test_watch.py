"""Watches over HTTP: events, bookmarks, watchers that lag behind, and restarts of the server."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
from tests.apiserver.serving import TOKEN, Api, pod, populated, served

from plugwright.apiserver.database import Database
from plugwright.apiserver.kinds import CONFIG_MAPS, PODS
from plugwright.apiserver.registry import ResourcePath, Writer
from plugwright.apiserver.store import ObjectKey, Store
from plugwright.apiserver.watch import Watch, WatchOptions, watch_events

MAPS = "/api/v1/namespaces/default/configmaps"
HEADERS = {"authorization": f"Bearer {TOKEN}"}
Event = tuple[str, str]  # type, name


@pytest.fixture
async def over_http(store: Store) -> AsyncIterator[Api]:
    async with served(store) as address, httpx2.AsyncClient(base_url=address, headers=HEADERS) as client:
        yield Api(client)


def config_map(name: str, **labels: str) -> dict[str, Any]:
    return {"metadata": {"name": name, **({"labels": labels} if labels else {})}}


@asynccontextmanager
async def follow(api: Api, query: str = "", **headers: str) -> AsyncIterator[AsyncIterator[dict[str, Any]]]:
    """The events of a watch whose response has begun."""
    async with asyncio.timeout(60), api.client.stream("GET", f"{MAPS}?watch=1&{query}", headers=headers) as response:
        lines = response.aiter_lines()
        yield (json.loads(line) async for line in lines)
        await lines.aclose()  # type: ignore[attr-defined]


async def take(events: AsyncIterator[dict[str, Any]], count: int) -> list[Event]:
    return [_event(await anext(events)) for _ in range(count)]


def _event(event: dict[str, Any]) -> Event:
    return event["type"], event["object"]["metadata"].get("name", "")


async def test_a_watch_without_a_resource_version_begins_with_existing_objects(over_http: Api) -> None:
    await over_http("POST", MAPS, config_map("old"))
    async with follow(over_http) as events:
        assert await take(events, 1) == [("ADDED", "old")]
        await over_http("POST", MAPS, config_map("new"))
        await over_http("DELETE", f"{MAPS}/old")
        assert await take(events, 2) == [("ADDED", "new"), ("DELETED", "old")]


async def test_a_watch_from_a_resource_version_misses_nothing(over_http: Api) -> None:
    listed = await over_http("GET", MAPS)
    await over_http("POST", MAPS, config_map("a"))
    await over_http.patch(f"{MAPS}/a", {"data": {"x": "y"}})
    version = listed.body["metadata"]["resourceVersion"]
    async with follow(over_http, f"resourceVersion={version}") as events:
        assert await take(events, 2) == [("ADDED", "a"), ("MODIFIED", "a")]


async def test_an_object_that_begins_or_ceases_to_match_is_added_or_deleted(over_http: Api, store: Store) -> None:
    async with follow(over_http, f"resourceVersion={store.revision}&labelSelector=on=yes") as events:
        await over_http("POST", MAPS, config_map("a"))
        await over_http.patch(f"{MAPS}/a", {"metadata": {"labels": {"on": "yes"}}})
        await over_http.patch(f"{MAPS}/a", {"data": {"x": "y"}})
        await over_http.patch(f"{MAPS}/a", {"metadata": {"labels": {"on": "no"}}})
        await over_http("DELETE", f"{MAPS}/a")
        await over_http("POST", MAPS, config_map("end", on="yes"))
        seen = await take(events, 4)
    assert seen == [("ADDED", "a"), ("MODIFIED", "a"), ("DELETED", "a"), ("ADDED", "end")]


async def test_an_object_that_ceases_to_match_is_shown_as_it_was(over_http: Api) -> None:
    await over_http("POST", MAPS, config_map("m", on="a"))
    async with follow(over_http, "labelSelector=on=a") as events:
        await anext(events)
        changed = await over_http.patch(f"{MAPS}/m", {"metadata": {"labels": {"on": "b"}}})
        deleted = (await anext(events))["object"]["metadata"]
    assert deleted["labels"] == {"on": "a"}
    assert deleted["resourceVersion"] == changed.body["metadata"]["resourceVersion"]


async def test_changes_of_other_kinds_and_namespaces_are_left_out(over_http: Api, store: Store) -> None:
    async with follow(over_http, f"resourceVersion={store.revision}&fieldSelector=metadata.name=b") as events:
        await over_http("POST", "/api/v1/namespaces/kube-system/configmaps", config_map("b"))
        await over_http("POST", "/api/v1/namespaces/default/pods", pod("b"))
        await over_http("POST", MAPS, config_map("a"))
        await over_http("POST", MAPS, config_map("b"))
        event = await anext(events)
    assert (_event(event), event["object"]["metadata"]["namespace"]) == (("ADDED", "b"), "default")


async def test_a_watch_ends_at_its_timeout_with_a_bookmark(over_http: Api, store: Store) -> None:
    query = f"resourceVersion={store.revision}&timeoutSeconds=1&allowWatchBookmarks=true"
    async with follow(over_http, query) as events:
        received = [event async for event in events]
    assert [event["type"] for event in received] == ["BOOKMARK"]
    assert received[0]["object"]["metadata"]["resourceVersion"] == str(store.revision)
    assert received[0]["object"]["kind"] == "ConfigMap"


async def test_bookmarks_are_sent_while_only_other_kinds_change(store: Store) -> None:
    options = WatchOptions(bookmarks=True, bookmark_interval=0.05)
    watch = Watch(CONFIG_MAPS, "", lambda _: True, lambda content: content, options)
    lines = watch_events(store, watch, store.revision)
    writer = Writer(store)

    async def create_pods() -> None:
        for number in range(10_000):
            writer.create(ResourcePath(PODS, "default", ""), pod(f"p-{number}"), "test")
            await asyncio.sleep(0.005)

    noise = asyncio.create_task(create_pods())
    try:
        async with asyncio.timeout(60):
            bookmarks = [json.loads(await anext(lines)) for _ in range(2)]
    finally:
        noise.cancel()
        await asyncio.gather(noise, return_exceptions=True)
    await lines.aclose()  # type: ignore[attr-defined]
    versions = [int(event["object"]["metadata"]["resourceVersion"]) for event in bookmarks]
    assert [event["type"] for event in bookmarks] == ["BOOKMARK", "BOOKMARK"]
    assert versions[0] < versions[1]


async def test_initial_events_end_with_a_bookmark(over_http: Api) -> None:
    await over_http("POST", MAPS, config_map("a"))
    query = "sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true"
    async with follow(over_http, query) as events:
        assert await take(events, 1) == [("ADDED", "a")]
        mark = await anext(events)
    assert mark["object"]["metadata"]["annotations"] == {"k8s.io/initial-events-end": "true"}


async def test_a_watch_as_table_sends_rows(over_http: Api) -> None:
    await over_http("POST", MAPS, config_map("a"))
    async with follow(over_http, accept="application/json;as=Table;v=v1;g=meta.k8s.io") as events:
        event = await anext(events)
    assert (event["object"]["kind"], event["object"]["rows"][0]["cells"]) == ("Table", ["a", 0, "0s"])


async def test_a_resource_version_from_before_a_restart_is_expired(over_http: Api) -> None:
    async with follow(over_http, "resourceVersion=999999") as events:
        event = await anext(events)
    assert (event["type"], event["object"]["code"], event["object"]["reason"]) == ("ERROR", 410, "Expired")


async def test_a_watcher_behind_the_history_gets_expired() -> None:
    store = populated(Store(history=50))
    writer, start = Writer(store), store.revision
    watch = Watch(CONFIG_MAPS, "", lambda _: True, lambda content: content)
    slow = watch_events(store, watch, start)
    writer.create(ResourcePath(CONFIG_MAPS, "default", ""), config_map("first"), "test")
    assert json.loads(await anext(slow))["object"]["metadata"]["name"] == "first"
    for number in range(500):
        writer.create(ResourcePath(CONFIG_MAPS, "default", ""), config_map(f"m-{number}"), "test")
    rest = [json.loads(line) async for line in slow]
    assert [event["type"] for event in rest] == ["ERROR"]
    assert (rest[0]["object"]["code"], rest[0]["object"]["reason"]) == (410, "Expired")
    assert len(await store.changes(store.revision - 50)) == 50


async def test_a_client_that_stops_reading_holds_no_more_than_the_history(over_http: Api, store: Store) -> None:
    """The server sends no further: later events are read from the history when the client reads again."""
    large = {"x": "y" * 200_000}
    async with follow(over_http, f"resourceVersion={store.revision}") as events:
        for number in range(100):
            assert (await over_http("POST", MAPS, {**config_map(f"m-{number}"), "data": large})).code == 201
        seen = await take(events, 100)
    assert seen == [("ADDED", f"m-{number}") for number in range(100)]


async def test_a_client_that_disconnects_leaves_no_watcher(over_http: Api, store: Store) -> None:
    before = len(asyncio.all_tasks())
    for _ in range(5):
        async with follow(over_http, f"resourceVersion={store.revision}"):
            assert len(asyncio.all_tasks()) > before
    async with asyncio.timeout(60):
        while len(asyncio.all_tasks()) > before:
            await asyncio.sleep(0.01)


async def test_a_watch_continues_after_a_restart(tmp_path: Path) -> None:
    database = Database(tmp_path / "state.db")
    store = populated(Store(database))
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
