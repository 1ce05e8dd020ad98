"""Objects as protobuf: bodies, answers and watches, where a client asks for it."""

import json

import pytest
from tests.apiserver.serving import Api, Json, container, pod
from tests.apiserver.test_kubernetes_objects import SLICE

from plugwright.apiserver import kubernetes_objects
from plugwright.protocol import wire_format

PODS = "/api/v1/namespaces/default/pods"
SLICES = "/apis/resource.k8s.io/v1/resourceslices"
PROTOBUF, BOTH = kubernetes_objects.MEDIA_TYPE, f"{kubernetes_objects.MEDIA_TYPE},application/json"
METADATA = "as=PartialObjectMetadata;v=v1;g=meta.k8s.io"


async def read(api: Api, path: str, accept: str) -> tuple[str, Json]:
    """The media type of the answer, and what is in it."""
    response = await api.client.request("GET", path, headers={"accept": accept})
    assert response.status_code == 200, response.text
    media = response.headers["content-type"]
    return media, json.loads(response.content) if "json" in media else kubernetes_objects.decode(response.content)


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


async def test_the_metadata_of_an_object_is_written_as_protobuf_too(api: Api) -> None:
    media, partial = await read(api, "/api/v1/nodes/node", f"{PROTOBUF};{METADATA},application/json;{METADATA}")
    assert (media, partial["kind"], partial["metadata"]["name"]) == (PROTOBUF, "PartialObjectMetadata", "node")


async def test_a_pod_sent_as_protobuf_is_stored_as_if_it_were_json(api: Api) -> None:
    document = pod("p", container(ports=[{"containerPort": 80}]), nodeSelector={"a": "b"})
    by_json = await api("POST", PODS, document)
    body = kubernetes_objects.encode({**document, "metadata": {"name": "q"}})
    by_protobuf = await api("POST", PODS, body, content_type=PROTOBUF)
    assert (by_json.code, by_protobuf.code) == (201, 201), by_protobuf.body
    assert by_protobuf.body["spec"] == by_json.body["spec"]
    assert by_protobuf.body["status"] == by_json.body["status"]


async def test_a_field_that_would_be_lost_is_refused(api: Api) -> None:
    unknown = b"\xf8\x3f\x07"  # number 1023
    known = kubernetes_objects.encode(pod("p"))
    raw = wire_format.read(known[4:])[2][0]
    assert isinstance(raw, bytes)
    body = known.replace(wire_format.write(2, raw), wire_format.write(2, raw + unknown))
    refused = await api("POST", PODS, body, content_type=PROTOBUF)
    assert (refused.code, refused.reason) == (400, "BadRequest")
    assert "field 1023 of core.Pod is not known here, and would be lost" in refused.body["message"]


async def test_an_error_is_a_status_in_the_clients_media_type(api: Api) -> None:
    response = await api.client.request("GET", f"{PODS}/none", headers={"accept": PROTOBUF})
    status = kubernetes_objects.decode(response.content)
    assert (response.status_code, status["kind"], status["reason"]) == (404, "Status", "NotFound")


async def test_a_deletion_and_a_binding_are_read_from_protobuf(api: Api) -> None:
    await api("POST", PODS, pod("p"))
    target = {"kind": "Node", "name": "node"}
    binding = {"kind": "Binding", "apiVersion": "v1", "metadata": {"name": "p"}, "target": target}
    bound = await api("POST", f"{PODS}/p/binding", kubernetes_objects.encode(binding), content_type=PROTOBUF)
    assert bound.code == 201, bound.body
    options = {"kind": "DeleteOptions", "apiVersion": "v1", "gracePeriodSeconds": 0}
    deleted = await api("DELETE", f"{PODS}/p", kubernetes_objects.encode(options), content_type=PROTOBUF)
    assert (deleted.code, (await api("GET", f"{PODS}/p")).code) == (200, 404)


async def test_a_watch_is_answered_in_frames(api: Api) -> None:
    name = await create(api)
    await api.patch(f"{SLICES}/{name}", {"metadata": {"labels": {"a": "b"}}})
    initial = "sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true"
    path = f"{SLICES}?watch=true&timeoutSeconds=1&{initial}"
    response = await api.client.request("GET", path, headers={"accept": PROTOBUF})
    assert response.headers["content-type"] == "application/vnd.kubernetes.protobuf;stream=watch"
    events, content = [], response.content
    while content:
        length = int.from_bytes(content[:4], "big")
        event = wire_format.read(content[4 : 4 + length])
        (document,) = (wire_format.message(event, 2) or {})[1]
        assert isinstance(document, bytes)
        labels = kubernetes_objects.decode(document)["metadata"].get("labels")
        events.append((wire_format.text(event, 1), labels))
        content = content[4 + length :]
    assert events[:2] == [("ADDED", {"a": "b"}), ("BOOKMARK", None)]
