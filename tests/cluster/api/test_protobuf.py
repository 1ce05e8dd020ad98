"""The kinds of DRA as protobuf: bodies, answers and watches, where a client asks for it."""

import json

import pytest
from tests.cluster.api.serving import Api, Json
from tests.protocol.test_kubernetes_objects import SLICE

from plugwright.protocol import kubernetes_objects
from plugwright.protocol.apimachinery.v1 import apimachinery_pb2

SLICES = "/apis/resource.k8s.io/v1/resourceslices"
PROTOBUF, BOTH = kubernetes_objects.MEDIA_TYPE, f"{kubernetes_objects.MEDIA_TYPE},application/json"
KINDS = {"Node", "NodeList", "ResourceSlice", "ResourceSliceList"}


async def read(api: Api, path: str, accept: str) -> tuple[str, Json]:
    """The media type of the answer, and what is in it."""
    response = await api.client.request("GET", path, headers={"accept": accept})
    assert response.status_code == 200, response.text
    media = response.headers["content-type"]
    return media, json.loads(response.content) if "json" in media else kubernetes_objects.decode(
        response.content, KINDS
    )


async def create(api: Api) -> str:
    made = await api("POST", SLICES, SLICE, content_type=PROTOBUF)
    assert made.code == 201, made.body
    return str(made.body["metadata"]["name"])


async def test_a_slice_of_go_is_stored_as_if_it_were_json(api: Api) -> None:
    name = await create(api)
    stored = (await api("GET", f"{SLICES}/{name}")).body
    assert stored["spec"]["devices"][0]["attributes"]["sparse"] == {"bool": False}
    assert name.startswith("00000-go.example.com-node-1-")


@pytest.mark.parametrize("accept", [PROTOBUF, BOTH, f"{PROTOBUF}, */*"])
async def test_who_asks_for_protobuf_first_gets_it(api: Api, accept: str) -> None:
    name = await create(api)
    as_json = (await api("GET", f"{SLICES}/{name}")).body
    assert await read(api, f"{SLICES}/{name}", accept) == (PROTOBUF, as_json)
    media, listed = await read(api, SLICES, accept)
    assert (media, [item["metadata"]["name"] for item in listed["items"]]) == (PROTOBUF, [name])
    media, node = await read(api, "/api/v1/nodes/node", accept)
    assert (media, node["status"]["capacity"]["pods"]) == (PROTOBUF, "110")


async def test_who_asks_for_json_first_or_for_a_table_gets_json(api: Api) -> None:
    name = await create(api)
    table = f"{PROTOBUF};as=Table;v=v1;g=meta.k8s.io,application/json;as=Table;v=v1;g=meta.k8s.io,application/json"
    for accept in (f"application/json,{PROTOBUF}", "*/*", table):
        media, _ = await read(api, f"{SLICES}/{name}", accept)
        assert media == "application/json"


async def test_a_kind_without_messages_is_answered_as_json_or_not_at_all(api: Api) -> None:
    media, _ = await read(api, "/api/v1/pods", BOTH)
    assert media == "application/json"
    assert (await api("GET", "/api/v1/pods", accept=PROTOBUF)).code == 406


async def test_a_node_is_not_accepted_as_protobuf(api: Api) -> None:
    node = kubernetes_objects.encode({"kind": "Node", "apiVersion": "v1", "metadata": {"name": "other"}})
    refused = await api("POST", "/api/v1/nodes", node, content_type=PROTOBUF)
    assert refused.code == 415


async def test_a_watch_is_answered_in_frames(api: Api) -> None:
    name = await create(api)
    await api.patch(f"{SLICES}/{name}", {"metadata": {"labels": {"a": "b"}}})
    path = f"{SLICES}?watch=true&timeoutSeconds=1&allowWatchBookmarks=true&sendInitialEvents=true"
    response = await api.client.request("GET", path, headers={"accept": PROTOBUF})
    assert response.headers["content-type"] == "application/vnd.kubernetes.protobuf;stream=watch"
    events, content = [], response.content
    while content:
        length = int.from_bytes(content[:4], "big")
        event = apimachinery_pb2.WatchEvent.FromString(content[4 : 4 + length])
        events.append((event.type, kubernetes_objects.decode(event.object.raw, KINDS)["metadata"].get("labels")))
        content = content[4 + length :]
    assert events[:2] == [("ADDED", {"a": "b"}), ("BOOKMARK", None)]
