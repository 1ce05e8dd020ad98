"""Events of events.k8s.io: the events of the core group under other names, by stricter rules."""

import asyncio
import json
from typing import Any

import pytest
from tests.apiserver.serving import Api, Json

from plugwright.apiserver import kubernetes_objects

NEWER, CORE = "/apis/events.k8s.io/v1/namespaces/default/events", "/api/v1/namespaces/default/events"


def event(**members: Any) -> Json:
    return {
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": {"name": "e"},
        "eventTime": "2026-01-02T03:04:05.000006Z",
        "regarding": {"kind": "Pod", "name": "p", "namespace": "default"},
        "reason": "Tried",
        "action": "Trying",
        "note": "a note",
        "type": "Normal",
        "reportingController": "example.com/c",
        "reportingInstance": "c-1",
        **members,
    }


async def test_an_event_is_the_same_in_both_groups(api: Api) -> None:
    created = await api("POST", NEWER, event())
    assert created.code == 201, created.body
    assert (created.body["apiVersion"], created.body["note"]) == ("events.k8s.io/v1", "a note")
    older = (await api("GET", f"{CORE}/e")).body
    assert (older["apiVersion"], older["message"], older["involvedObject"]["name"]) == ("v1", "a note", "p")
    assert older["reportingComponent"] == "example.com/c"
    listed = (await api("GET", f"{NEWER}?fieldSelector=regarding.name=p,reportingController=example.com/c")).body
    assert [item["regarding"]["name"] for item in listed["items"]] == ["p"]
    assert (await api("GET", f"{NEWER}?fieldSelector=regarding.name=q")).names == []
    assert (await api("DELETE", f"{NEWER}/e")).code == 200
    assert (await api("GET", CORE)).names == []


async def test_an_event_of_the_core_group_is_shown_under_the_newer_names(api: Api) -> None:
    involved = {"kind": "Pod", "name": "p", "namespace": "default"}
    old = {
        "metadata": {"name": "o"},
        "involvedObject": involved,
        "message": "m",
        "count": 3,
        "source": {"component": "k"},
    }
    assert (await api("POST", CORE, old)).code == 201
    newer = (await api("GET", f"{NEWER}/o")).body
    assert (newer["note"], newer["deprecatedCount"], newer["deprecatedSource"]) == ("m", 3, {"component": "k"})
    assert not {"message", "involvedObject", "source", "reportingController"} & newer.keys()
    body = await api.client.get(f"{NEWER}/o", headers={"accept": kubernetes_objects.MEDIA_TYPE})
    assert kubernetes_objects.decode(body.content)["note"] == "m"


async def test_a_watch_has_the_newer_names(api: Api) -> None:
    await api("POST", NEWER, event())
    async with asyncio.timeout(30):
        response = await api.client.get(f"{NEWER}?watch=true&timeoutSeconds=1&resourceVersion=1")
    [line] = response.text.splitlines()
    assert json.loads(line)["object"]["regarding"]["name"] == "p"


async def test_a_series_is_patched_as_recorders_do(api: Api) -> None:
    await api("POST", NEWER, event())
    series = {"count": 2, "lastObservedTime": "2026-01-02T03:05:05.000006Z"}
    patched = await api.patch(f"{NEWER}/e", {"series": series}, "strategic-merge-patch")
    assert (patched.code, patched.body["series"]) == (200, series)
    assert (await api("GET", f"{CORE}/e")).body["series"] == series
    refused = await api.patch(f"{NEWER}/e", {"note": "other"})
    assert (refused.code, "message: Invalid value" in refused.body["message"]) == (422, True)
    replaced = await api("PUT", f"{NEWER}/e", event(series={**series, "count": 3}))
    assert (replaced.code, replaced.body["series"]["count"]) == (200, 3)


@pytest.mark.parametrize(
    ("members", "expected"),
    [
        ({"eventTime": None}, "eventTime: Required value"),
        ({"type": "Odd"}, 'type: Invalid value: "": has invalid value: Odd'),
        ({"deprecatedCount": 1}, 'count: Invalid value: "": needs to be unset'),
        ({"reportingController": ""}, "reportingController: Required value"),
        ({"series": {"count": 1}}, 'series.count: Invalid value: "": should be at least 2'),
    ],
)
async def test_an_event_that_a_newer_recorder_never_writes_is_invalid(api: Api, members: Json, expected: str) -> None:
    refused = await api("POST", NEWER, event(**members))
    assert refused.code == 422, refused.body
    assert expected in refused.body["message"]


async def test_an_event_of_another_group_is_refused(api: Api) -> None:
    refused = await api("POST", NEWER, event(apiVersion="v1"))
    assert refused.code == 400
    assert "does not match the expected API version (events.k8s.io/v1, Kind=Event)" in refused.body["message"]
