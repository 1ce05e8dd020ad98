"""Writes by HTTP: create, update, patch, bind, and dry runs of them."""

import asyncio
import logging

import pytest
from tests.apiserver.serving import Api, Json, pod

from plugwright.apiserver.store import ObjectKey, Store

PODS = "/api/v1/namespaces/default/pods"
MAPS = "/api/v1/namespaces/default/configmaps"
NODE = "/api/v1/nodes/node"
GPU = "/status/capacity/mock~1gpu"


async def create_pod(api: Api, name: str = "p", grace: int = 30) -> None:
    assert (await api("POST", PODS, pod(name, terminationGracePeriodSeconds=grace))).code == 201


async def bind(api: Api, name: str = "p") -> None:
    answer = await api("POST", f"{PODS}/{name}/binding", {"target": {"kind": "Node", "name": "node"}})
    assert answer.code == 201, answer.body


async def test_a_created_pod_gets_its_defaults(api: Api) -> None:
    answer = await api("POST", PODS, pod("p"))
    metadata, spec = answer.body["metadata"], answer.body["spec"]
    assert answer.code == 201
    assert (metadata["namespace"], metadata["creationTimestamp"]) == ("default", "2026-11-15T12:00:00Z")
    assert (spec["restartPolicy"], spec["containers"][0]["imagePullPolicy"]) == ("Always", "Always")
    assert answer.body["status"] == {"phase": "Pending", "qosClass": "BestEffort"}


async def test_a_second_pod_of_the_same_name_is_refused(api: Api) -> None:
    await create_pod(api)
    answer = await api("POST", PODS, pod("p"))
    assert (answer.code, answer.reason) == (409, "AlreadyExists")


async def test_a_generated_name_begins_with_its_prefix(api: Api) -> None:
    unnamed = {**pod("x"), "metadata": {"generateName": "job-"}}
    names = {(await api("POST", PODS, unnamed)).body["metadata"]["name"] for _ in range(3)}
    assert len(names) == 3
    assert all(name.startswith("job-") and len(name) == 9 for name in names)


async def test_a_pod_in_a_missing_namespace_is_refused(api: Api) -> None:
    answer = await api("POST", "/api/v1/namespaces/nope/pods", pod("p"))
    assert (answer.code, answer.body["message"]) == (404, 'namespaces "nope" not found')


async def test_of_writers_with_the_same_resource_version_one_succeeds(api: Api) -> None:
    seen = (await api("POST", MAPS, {"metadata": {"name": "m"}, "data": {"a": "0"}})).body
    answers = await asyncio.gather(*(api("PUT", f"{MAPS}/m", {**seen, "data": {"a": str(n)}}) for n in range(1, 9)))
    codes = sorted(answer.code for answer in answers)
    assert codes == [200] + [409] * 7
    won = next(answer for answer in answers if answer.code == 200)
    assert (await api("GET", f"{MAPS}/m")).body["data"] == won.body["data"]


async def test_writers_that_retry_after_a_conflict_lose_nothing(api: Api) -> None:
    await api("POST", MAPS, {"metadata": {"name": "m"}, "data": {}})

    async def add(number: int) -> None:
        code = 409
        while code == 409:
            seen = (await api("GET", f"{MAPS}/m")).body
            seen["data"] = {**seen.get("data", {}), f"key-{number}": "x"}
            code = (await api("PUT", f"{MAPS}/m", seen)).code
        assert code == 200

    await asyncio.gather(*(add(number) for number in range(20)))
    assert len((await api("GET", f"{MAPS}/m")).body["data"]) == 20


async def test_a_patch_that_changes_nothing_makes_no_revision(api: Api, store: Store) -> None:
    await create_pod(api)
    before = store.revision
    answer = await api.patch(f"{PODS}/p", {"metadata": {"labels": {"a": None}}})
    assert (answer.code, store.revision) == (200, before)


class TestExtendedResources:
    async def test_a_patch_of_the_status_adds_and_removes(self, api: Api) -> None:
        added = await api.patch(f"{NODE}/status", [{"op": "add", "path": GPU, "value": "10"}], "json-patch")
        assert added.body["status"]["capacity"]["mock/gpu"] == "10"
        removed = await api.patch(f"{NODE}/status", [{"op": "remove", "path": GPU}], "json-patch")
        assert "mock/gpu" not in removed.body["status"]["capacity"]

    async def test_a_patch_of_the_node_itself_changes_no_status(self, api: Api, store: Store) -> None:
        before = store.revision
        answer = await api.patch(NODE, [{"op": "add", "path": GPU, "value": "10"}], "json-patch")
        assert (answer.code, store.revision) == (200, before)
        assert "mock/gpu" not in answer.body["status"]["capacity"]

    async def test_a_patch_of_the_status_changes_nothing_else(self, api: Api) -> None:
        answer = await api.patch(
            f"{NODE}/status", {"spec": {"unschedulable": True}, "metadata": {"labels": {"a": "b"}}}
        )
        assert answer.code == 200
        assert not answer.body["spec"].get("unschedulable")
        assert "labels" not in answer.body["metadata"]

    @pytest.mark.parametrize(
        ("value", "code", "words"),
        [
            (
                "1.5",
                422,
                'Node "node" is invalid: status.capacity.mock/gpu: Invalid value: "1500m": must be an integer',
            ),
            ("-1", 422, 'status.capacity.mock/gpu: Invalid value: "-1": must be greater than or equal to 0'),
            ("many", 422, "quantities must match the regular expression"),
            ([1], 422, "quantities must match the regular expression"),
        ],
    )
    async def test_an_invalid_quantity_is_refused(self, api: Api, value: object, code: int, words: str) -> None:
        answer = await api.patch(f"{NODE}/status", [{"op": "add", "path": GPU, "value": value}], "json-patch")
        assert (answer.code, answer.reason) == (code, "Invalid")
        assert words in answer.body["message"]

    async def test_removal_of_a_missing_path_is_refused_and_logged(
        self, api: Api, caplog: pytest.LogCaptureFixture
    ) -> None:
        caplog.set_level(logging.INFO)
        answer = await api.patch(f"{NODE}/status", [{"op": "remove", "path": GPU}], "json-patch")
        assert (answer.code, answer.reason) == (422, "Invalid")
        assert "patch refused" in caplog.messages

    async def test_allocatable_defaults_to_the_capacity(self, api: Api) -> None:
        status = {"capacity": {"mock/gpu": 1000}}
        answer = await api("POST", "/api/v1/nodes", {"metadata": {"name": "n"}, "status": status})
        assert answer.body["status"]["allocatable"] == {"mock/gpu": "1k"}


class TestDryRun:
    async def test_nothing_is_stored(self, api: Api, store: Store) -> None:
        await create_pod(api)
        before = store.revision
        for method, path, body in (
            ("POST", PODS, pod("q")),
            ("PUT", f"{PODS}/p", pod("p", labels={"a": "b"}, serviceAccountName="default")),
            ("DELETE", f"{PODS}/p", None),
            ("DELETE", PODS, None),
            ("POST", f"{PODS}/p/binding", {"target": {"name": "node"}}),
        ):
            assert (await api(method, f"{path}?dryRun=All", body)).code in (200, 201)
        assert (await api("DELETE", f"{PODS}/p", {"dryRun": ["All"]})).code == 200
        assert store.revision == before

    async def test_the_answer_is_that_of_a_real_write(self, api: Api) -> None:
        await create_pod(api)
        created = await api("POST", f"{PODS}?dryRun=All", pod("q"))
        patched = await api("PATCH", f"{PODS}/p?dryRun=All", {"metadata": {"labels": {"a": "b"}}},
                            content_type="application/merge-patch+json")  # fmt: skip
        assert "resourceVersion" not in created.body["metadata"]
        assert patched.body["metadata"]["labels"] == {"a": "b"}

    async def test_an_invalid_write_is_refused(self, api: Api) -> None:
        await create_pod(api)
        assert (await api("POST", f"{PODS}?dryRun=All", pod("p"))).code == 409
        assert (await api("PUT", f"{PODS}/p?dryRun=All", {**pod("p"), "metadata": {"name": "p", "resourceVersion": "1"}})).code == 409  # fmt: skip  # noqa: E501
        assert (await api("POST", f"{PODS}?dryRun=Some", pod("q"))).code == 422


async def test_a_pod_is_bound_once(api: Api, store: Store) -> None:
    await create_pod(api)
    await bind(api)
    stored = store.require(ObjectKey("pods", "default", "p"))
    assert stored["spec"]["nodeName"] == "node"
    assert [(condition["type"], condition["status"]) for condition in stored["status"]["conditions"]] == [
        ("PodScheduled", "True")
    ]
    again = await api("POST", f"{PODS}/p/binding", {"target": {"name": "other"}})
    assert (again.code, again.reason) == (409, "Conflict")


async def test_an_update_of_a_pod_may_change_its_images_alone(api: Api) -> None:
    await create_pod(api)
    image = await api.patch(
        f"{PODS}/p", {"spec": {"containers": [{"name": "main", "image": "b:2"}]}}, "strategic-merge-patch"
    )
    assert (image.code, image.body["metadata"]["generation"]) == (200, 2)
    answer = await api.patch(f"{PODS}/p", {"spec": {"nodeName": "elsewhere"}})
    assert answer.code == 422
    assert answer.body["message"].startswith('Pod "p" is invalid: spec: Forbidden: pod updates may not change fields')


@pytest.mark.parametrize(
    ("validation", "code"), [("Strict", 400), ("Warn", 201), ("Ignore", 201), ("", 201), ("Loose", 422)]
)
async def test_unknown_fields_are_refused_warned_of_or_ignored(api: Api, validation: str, code: int) -> None:
    answer = await api("POST", f"{PODS}?fieldValidation={validation}", {**pod("p"), "nosuch": 1})
    assert answer.code == code
    assert "nosuch" not in (answer.body if code == 201 else {})
    assert ("warning" in answer.headers) == (validation in ("Warn", ""))


async def test_managed_fields_name_the_manager_of_a_field(api: Api) -> None:
    await create_pod(api)
    await api("PATCH", f"{PODS}/p?fieldManager=labeller", {"metadata": {"labels": {"a": "b"}}},
              content_type="application/merge-patch+json")  # fmt: skip
    entries = (await api("GET", f"{PODS}/p")).body["metadata"]["managedFields"]
    own = next(entry for entry in entries if entry["manager"] == "labeller")
    assert own["fieldsV1"] == {"f:metadata": {"f:labels": {".": {}, "f:a": {}}}}


LEASES = "/apis/coordination.k8s.io/v1/namespaces/default/leases"


async def test_an_update_creates_a_lease_and_no_config_map(api: Api) -> None:
    lease = {"metadata": {"name": "l"}, "spec": {"holderIdentity": "a"}}
    assert (await api("PUT", f"{LEASES}/l", lease)).code == 201
    assert (await api("PUT", f"{LEASES}/l", {**lease, "spec": {"holderIdentity": "b"}})).code == 422  # at no version
    missing = await api("PUT", "/api/v1/namespaces/default/configmaps/m", {"metadata": {"name": "m"}})
    assert (missing.code, missing.reason) == (404, "NotFound")


@pytest.mark.parametrize("spec", [{"leaseDurationSeconds": 0}, {"leaseTransitions": -1}])
async def test_an_invalid_lease_is_refused(api: Api, spec: Json) -> None:
    assert (await api("POST", LEASES, {"metadata": {"name": "l"}, "spec": spec})).code == 422


@pytest.mark.parametrize("involved", [{}, {"namespace": "kube-system"}])
async def test_an_event_of_another_namespace_is_refused(api: Api, involved: Json) -> None:
    event = {"metadata": {"name": "e"}, "involvedObject": {"kind": "Pod", "name": "p", **involved}}
    namespace = "default" if involved else "kube-system"
    refused = await api("POST", f"/api/v1/namespaces/{namespace}/events", event)
    assert "does not match event.namespace" in refused.body["message"]
