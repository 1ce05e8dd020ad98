"""Server-side apply by HTTP: who owns what, conflicts, and what is no longer applied.

`tests/kubernetes/test_server_side_apply.py` compares many more steps with a real API server.
"""

from typing import Any

import pytest
from tests.apiserver.serving import Answer, Api, Json, container

MAPS, PODS = "/api/v1/namespaces/default/configmaps", "/api/v1/namespaces/default/pods"
CLAIMS = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims"


async def apply(api: Api, path: str, query: str = "fieldManager=alice", **members: Any) -> Answer:
    body = {"metadata": {"name": path.removesuffix("/status").rpartition("/")[2]}, **members}
    return await api("PATCH", f"{path}?{query}", body, content_type="application/apply-patch+yaml")


def owned(answer: Answer) -> dict[str, Json]:
    return {entry["manager"]: entry["fieldsV1"] for entry in answer.body["metadata"]["managedFields"]}


async def test_an_object_is_created_and_belongs_to_its_manager(api: Api) -> None:
    created = await apply(api, f"{MAPS}/m", data={"a": "1"})
    assert (created.code, owned(created)) == (201, {"alice": {"f:data": {"f:a": {}}}})
    assert created.body["metadata"]["managedFields"][0]["operation"] == "Apply"


async def test_what_is_no_longer_applied_is_removed_unless_another_owns_it(api: Api) -> None:
    await apply(api, f"{MAPS}/m", data={"a": "1", "b": "2"})
    await apply(api, f"{MAPS}/m", "fieldManager=bob", data={"b": "2"})
    again = await apply(api, f"{MAPS}/m")
    assert (again.body["data"], owned(again)) == ({"b": "2"}, {"bob": {"f:data": {"f:b": {}}}})


async def test_a_value_of_another_manager_is_a_conflict_unless_forced(api: Api) -> None:
    await api("POST", f"{MAPS}?fieldManager=creator", {"metadata": {"name": "m"}, "data": {"a": "1", "b": "2"}})
    refused = await apply(api, f"{MAPS}/m", data={"a": "3"})
    assert (refused.code, refused.reason) == (409, "Conflict")
    assert refused.body["message"] == 'Apply failed with 1 conflict: conflict with "creator" using v1: .data.a'
    assert refused.body["details"]["causes"][0]["reason"] == "FieldManagerConflict"
    forced = await apply(api, f"{MAPS}/m", "fieldManager=alice&force=true", data={"a": "3"})
    assert forced.body["data"] == {"a": "3", "b": "2"}
    assert owned(forced) == {"alice": {"f:data": {"f:a": {}}}, "creator": {"f:data": {".": {}, "f:b": {}}}}


async def test_the_same_apply_changes_nothing(api: Api) -> None:
    first = await apply(api, f"{MAPS}/m", data={"a": "1"})
    assert (await apply(api, f"{MAPS}/m", data={"a": "1"})).body == first.body


async def test_items_of_lists_are_merged_by_their_keys(api: Api) -> None:
    ports = [{"containerPort": 80}, {"containerPort": 80, "protocol": "UDP"}]
    created = await apply(api, f"{PODS}/p", spec={"containers": [container("a", ports=ports)]})
    assert created.code == 201, created.body
    fields = owned(created)["alice"]["f:spec"]["f:containers"]['k:{"name":"a"}']["f:ports"]
    assert list(fields) == ['k:{"containerPort":80,"protocol":"TCP"}', 'k:{"containerPort":80,"protocol":"UDP"}']


async def test_a_drivers_devices_are_its_own_part_of_a_claims_status(api: Api) -> None:
    devices = {"requests": [{"name": "gpu", "exactly": {"deviceClassName": "gpus"}}]}
    await api("POST", CLAIMS, {"metadata": {"name": "c"}, "spec": {"devices": devices}})
    one, two = ({"driver": "d.example.com", "pool": "p", "device": name} for name in ("gpu-0", "gpu-1"))
    results = [{"request": "gpu", **device} for device in (one, two)]
    await api.patch(f"{CLAIMS}/c/status", {"status": {"allocation": {"devices": {"results": results}}}})
    await apply(api, f"{CLAIMS}/c/status", "fieldManager=one", status={"devices": [{**one, "data": {"a": 1}}]})
    both = await apply(api, f"{CLAIMS}/c/status", "fieldManager=two", status={"devices": [two]})
    assert both.body["status"]["devices"] == [{**one, "data": {"a": 1}}, two]
    assert both.body["status"]["allocation"]
    rest = await apply(api, f"{CLAIMS}/c/status", "fieldManager=one", status={})
    assert rest.body["status"]["devices"] == [two]


@pytest.mark.parametrize(
    ("query", "members", "code", "words"),
    [
        ("", {}, 422, "fieldManager: Required value: is required for apply patch"),
        ("fieldManager=a", {"metadata": {"name": "m", "managedFields": []}}, 400, "managedFields must be nil"),
        ("fieldManager=a", {"bogus": 1}, 500, ".bogus: field not declared in schema"),
        ("fieldManager=a", {"metadata": {"name": "n"}}, 400, "does not match the name on the URL"),
        ("fieldManager=a", {"metadata": 1}, 400, "metadata must be an object"),
        ("fieldManager=a", {"kind": "Pod"}, 400, "does not match the expected API version"),
    ],
)
async def test_what_cannot_be_applied_is_refused(api: Api, query: str, members: Json, code: int, words: str) -> None:
    await apply(api, f"{MAPS}/m", data={"a": "1"})
    refused = await apply(api, f"{MAPS}/m", query, **members)
    assert refused.code == code, refused.body
    assert words in refused.body["message"]


async def test_a_container_that_is_applied_twice_is_refused(api: Api) -> None:
    refused = await apply(api, f"{PODS}/p", spec={"containers": [container("a"), container("a")]})
    assert '.spec.containers: duplicate entries for key [name="a"]' in refused.body["message"]


@pytest.mark.parametrize("fields", [1, {"f:a": 1}, {"x": {}}, {"k:[": {}}, {"k:1": {}}])
async def test_managed_fields_that_are_none_are_not_taken_from_a_client(api: Api, fields: Any) -> None:
    await apply(api, f"{MAPS}/m", data={"a": "1"})
    entry = {"manager": "x", "operation": "Update", "fieldsType": "FieldsV1", "fieldsV1": fields}
    patched = await api.patch(f"{MAPS}/m", {"metadata": {"managedFields": [entry]}, "data": {"b": "2"}})
    assert patched.code in (200, 400, 422), patched.body
    assert (await apply(api, f"{MAPS}/m", data={"a": "2"})).code == 200


async def test_a_dry_run_stores_nothing(api: Api) -> None:
    assert (await apply(api, f"{MAPS}/m", "fieldManager=a&dryRun=All", data={"a": "1"})).code == 201
    assert (await api("GET", f"{MAPS}/m")).code == 404
