"""Reads by HTTP: objects, lists in chunks, selectors, tables, metadata and logs."""

import httpx2
import pytest
import yaml
from tests.apiserver.serving import TOKEN, Api, container, pod, populated, served, server

from plugwright.apiserver import requests
from plugwright.apiserver.app import application
from plugwright.apiserver.kinds import PODS
from plugwright.apiserver.registry import ResourcePath, Writer
from plugwright.apiserver.store import Store

PODS_PATH, MAPS_PATH = "/api/v1/namespaces/default/pods", "/api/v1/namespaces/default/configmaps"
TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json"


async def create_pods(api: Api, *names: str) -> None:
    for name in names:
        assert (await api("POST", PODS_PATH, pod(name, labels={"is": name}))).code == 201


async def test_a_list_is_sorted_and_has_the_revision(api: Api, store: Store) -> None:
    await create_pods(api, "b", "a", "c")
    listed = await api("GET", "/api/v1/pods")
    assert (listed.body["kind"], listed.names) == ("PodList", ["a", "b", "c"])
    assert listed.body["metadata"] == {"resourceVersion": str(store.revision)}


async def test_a_list_of_a_megabyte_is_read_whole_over_a_socket(store: Store) -> None:
    texts = {name: name * 2**18 for name in "abcd"}
    headers = {"Authorization": f"Bearer {TOKEN}"}
    async with served(store) as url, httpx2.AsyncClient(base_url=url, headers=headers, timeout=60) as client:
        api = Api(client)
        for name, text in texts.items():
            created = await api("POST", MAPS_PATH, {"metadata": {"name": name}, "data": {"text": text}})
            assert created.code == 201
        listed = await api("GET", MAPS_PATH)
    assert {item["metadata"]["name"]: item["data"]["text"] for item in listed.body["items"]} == texts


async def test_a_missing_object_is_not_found(api: Api) -> None:
    answer = await api("GET", f"{PODS_PATH}/nope")
    assert (answer.code, answer.reason) == (404, "NotFound")
    assert answer.body["message"] == 'pods "nope" not found'
    assert answer.body["details"] == {"name": "nope", "kind": "pods"}


@pytest.mark.parametrize(
    ("query", "names"),
    [
        ("labelSelector=is=a", ["a"]),
        ("labelSelector=is!=a", ["b", "c"]),
        ("labelSelector=is in (a,b),is notin (b)", ["a"]),
        ("labelSelector=!is", []),
        ("labelSelector=is", ["a", "b", "c"]),
        ("fieldSelector=metadata.name=b", ["b"]),
        ("fieldSelector=metadata.name!=b,status.phase=Pending", ["a", "c"]),
        ("fieldSelector=spec.nodeName=node", []),
    ],
)
async def test_a_list_has_the_objects_that_match_its_selectors(api: Api, query: str, names: list[str]) -> None:
    await create_pods(api, "a", "b", "c")
    assert (await api("GET", f"{PODS_PATH}?{query}")).names == names


@pytest.mark.parametrize(
    "query", ["labelSelector=a b", "labelSelector==", "fieldSelector=spec.color=red", "fieldSelector=x", "limit=many"]
)
async def test_an_invalid_selector_or_number_is_a_bad_request(api: Api, query: str) -> None:
    answer = await api("GET", f"{PODS_PATH}?{query}")
    assert (answer.code, answer.reason) == (400, "BadRequest")


async def test_chunks_of_a_list_show_one_revision(api: Api) -> None:
    await create_pods(api, "a", "b", "c", "d")
    first = await api("GET", f"{PODS_PATH}?limit=2")
    assert (first.names, first.body["metadata"]["remainingItemCount"]) == (["a", "b"], 2)
    await api("DELETE", f"{PODS_PATH}/c")
    await api.patch(f"{PODS_PATH}/d", {"metadata": {"labels": {"is": "changed"}}})
    await create_pods(api, "e")
    second = await api("GET", f"{PODS_PATH}?limit=9&continue={first.body['metadata']['continue']}")
    assert second.names == ["c", "d"]
    assert second.body["items"][1]["metadata"]["labels"] == {"is": "d"}
    assert second.body["metadata"] == {"resourceVersion": first.body["metadata"]["resourceVersion"]}


async def test_an_unknown_continue_token_is_refused(api: Api) -> None:
    for token in ("x", "AAAA", "bnVsbA", "%00"):
        assert (await api("GET", f"{PODS_PATH}?continue={token}")).code == 400


async def test_a_list_of_an_exact_revision_ignores_later_changes(api: Api, store: Store) -> None:
    await create_pods(api, "a")
    revision = store.revision
    await create_pods(api, "b")
    exact = await api("GET", f"{PODS_PATH}?resourceVersion={revision}&resourceVersionMatch=Exact")
    newer = await api("GET", f"{PODS_PATH}?resourceVersion={revision}&resourceVersionMatch=NotOlderThan")
    assert (exact.names, newer.names) == (["a"], ["a", "b"])
    gone = await api("GET", f"{PODS_PATH}?resourceVersion=1&resourceVersionMatch=Exact")
    assert gone.names == []


async def test_a_list_of_a_revision_before_the_history_is_expired() -> None:
    store = populated(Store(history=2))
    transport = httpx2.ASGITransport(application(server(store)))
    headers = {"authorization": f"Bearer {TOKEN}"}
    async with httpx2.AsyncClient(transport=transport, base_url="http://test", headers=headers) as client:
        answer = await Api(client)("GET", f"{PODS_PATH}?resourceVersion=1&resourceVersionMatch=Exact")
    assert (answer.code, answer.reason) == (410, "Expired")


async def test_a_resource_version_from_the_future_is_too_large(api: Api) -> None:
    answer = await api("GET", f"{PODS_PATH}?resourceVersion=999999")
    assert (answer.code, answer.reason) == (504, "Timeout")
    assert answer.body["details"]["causes"][0]["reason"] == "ResourceVersionTooLarge"


async def test_a_table_has_the_columns_of_kubectl(api: Api) -> None:
    await create_pods(api, "a")
    table = (await api("GET", PODS_PATH, accept=TABLE)).body
    wide = {column["name"]: column["priority"] for column in table["columnDefinitions"]}
    assert [name for name, priority in wide.items() if not priority] == ["Name", "Ready", "Status", "Restarts", "Age"]
    assert table["rows"][0]["cells"][:5] == ["a", "0/1", "Pending", "0", "0s"]
    assert table["rows"][0]["object"]["kind"] == "PartialObjectMetadata"


async def test_partial_object_metadata_has_metadata_alone(api: Api) -> None:
    await create_pods(api, "a")
    one = await api("GET", f"{PODS_PATH}/a", accept="application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1")
    every = await api("GET", PODS_PATH, accept="application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1")
    assert (one.body["kind"], set(one.body)) == ("PartialObjectMetadata", {"kind", "apiVersion", "metadata"})
    assert every.body["kind"] == "PartialObjectMetadataList"
    assert every.body["items"] == [one.body]


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("watch=1&sendInitialEvents=true", "sendInitialEvents requires setting resourceVersionMatch to NotOlderThan"),
        ("watch=1&resourceVersionMatch=NotOlderThan", "is forbidden for watch unless sendInitialEvents is provided"),
        ("sendInitialEvents=true", "sendInitialEvents is forbidden for list"),
        ("resourceVersionMatch=Exact", "resourceVersionMatch is forbidden unless resourceVersion is provided"),
        ("resourceVersion=1&resourceVersionMatch=Nearly", 'Unsupported value: "Nearly": supported values: "Exact"'),
    ],
)
async def test_options_that_contradict_each_other_are_invalid(api: Api, query: str, words: str) -> None:
    answer = await api("GET", f"{PODS_PATH}?{query}")
    assert (answer.code, answer.reason) == (422, "Invalid")
    assert words in answer.body["message"]


@pytest.mark.parametrize(
    ("text", "expected"), [("True", True), ("1", True), ("", True), ("yes", True), ("False", False), ("0", False)]
)
def test_every_value_of_a_boolean_but_false_and_0_is_true(text: str, expected: bool) -> None:
    assert requests.is_true({"watch": text}, "watch") == expected
    assert not requests.is_true({}, "watch")


@pytest.mark.parametrize("text", ["watch=False", "watch=0", "watch=false"])
async def test_a_watch_of_false_is_a_list(api: Api, text: str) -> None:
    assert (await api("GET", f"{PODS_PATH}?{text}")).body["kind"] == "PodList"


async def test_a_node_that_is_not_cordoned_is_selected_as_schedulable(api: Api) -> None:
    assert (await api("GET", "/api/v1/nodes?fieldSelector=spec.unschedulable=false")).names == ["node"]
    assert (await api("GET", "/api/v1/nodes?fieldSelector=spec.unschedulable=true")).names == []


async def test_numbers_of_labels_are_compared(api: Api) -> None:
    for name, size in (("small", "3"), ("large", "30"), ("odd", "many")):
        await api("POST", PODS_PATH, pod(name, labels={"size": size}))
    assert (await api("GET", f"{PODS_PATH}?labelSelector=size>5")).names == ["large"]
    assert (await api("GET", f"{PODS_PATH}?labelSelector=size<5")).names == ["small"]


async def test_yaml_is_answered_where_it_is_asked_for(api: Api) -> None:
    response = await api.client.request("GET", "/api/v1/nodes/node", headers={"accept": "application/yaml"})
    assert response.headers["content-type"] == "application/yaml"
    assert yaml.safe_load(response.text) == (await api("GET", "/api/v1/nodes/node")).body
    assert (await api("GET", "/api/v1/nodes?watch=1", accept="application/yaml")).code == 406


async def test_an_accept_header_without_json_is_not_acceptable(api: Api) -> None:
    assert (await api("GET", PODS_PATH, accept="application/xml")).code == 406
    assert (await api("GET", PODS_PATH, accept="application/vnd.kubernetes.protobuf,application/json")).code == 200


class TestLogs:
    @pytest.fixture(autouse=True)
    async def running(self, api: Api, store: Store) -> None:
        await api("POST", PODS_PATH, pod("one"))
        await api("POST", PODS_PATH, pod("two", container("a"), container("b")))
        for name in ("one", "two"):
            Writer(store).bind(ResourcePath(PODS, "default", name), "node")

    async def test_of_the_only_container(self, api: Api) -> None:
        answer = await api("GET", f"{PODS_PATH}/one/log")
        assert answer.body.splitlines()[-1] == "default/one/main 2"

    async def test_are_limited_by_lines_and_bytes(self, api: Api) -> None:
        assert (await api("GET", f"{PODS_PATH}/one/log?tailLines=1")).body == "default/one/main 2\n"
        assert (await api("GET", f"{PODS_PATH}/one/log?tailLines=0")).body == ""
        assert (await api("GET", f"{PODS_PATH}/one/log?limitBytes=7")).body == "default"

    async def test_have_times_and_begin_where_the_client_says(self, api: Api) -> None:
        answer = await api("GET", f"{PODS_PATH}/one/log?timestamps=true&tailLines=1")
        assert answer.body == "2026-11-15T12:00:00.000000Z default/one/main 2\n"
        assert (await api("GET", f"{PODS_PATH}/one/log?sinceTime=2026-11-15T12:00:01Z")).body == ""
        assert (await api("GET", f"{PODS_PATH}/one/log?sinceSeconds=60")).body.count("\n") == 3

    async def test_with_wrong_options_are_refused(self, api: Api) -> None:
        answer = await api("GET", f"{PODS_PATH}/one/log?tailLines=-1")
        assert answer.code == 422
        text = 'PodLogOptions "" is invalid: tailLines: Invalid value: -1: must be greater than or equal to 0'
        assert answer.body["message"] == text

    async def test_of_several_containers_need_a_container_name(self, api: Api) -> None:
        answer = await api("GET", f"{PODS_PATH}/two/log")
        assert answer.code == 400
        assert answer.body["message"] == "a container name must be specified for pod two, choose one of: [a b]"
        assert (await api("GET", f"{PODS_PATH}/two/log?container=b")).code == 200
        assert (await api("GET", f"{PODS_PATH}/two/log?container=c")).code == 400

    async def test_of_a_pod_on_no_node_are_empty(self, api: Api) -> None:
        await api("POST", PODS_PATH, pod("waiting"))
        answer = await api("GET", f"{PODS_PATH}/waiting/log")
        assert (answer.code, answer.body) == (200, "")
