"""Random requests: every answer below 400 or a Status with its code, and never an internal error."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import quote

import httpx2
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.apiserver.serving import TOKEN, Answer, Api, pod, populated, server

from plugwright.apiserver.app import application
from plugwright.apiserver.store import Store

IN_DEFAULT = "/api/v1/namespaces/default"
PODS = f"{IN_DEFAULT}/pods"
PATHS = [
    *(PODS, f"{PODS}/p", f"{PODS}/p/status", f"{PODS}/p/binding", f"{PODS}/p/eviction", f"{IN_DEFAULT}/events"),
    *("/api/v1/nodes", "/api/v1/nodes/node", "/api/v1/nodes/node/status", "/api/v1/namespaces", IN_DEFAULT),
    "/apis/coordination.k8s.io/v1/namespaces/default/leases",
    "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews",
]
MEDIA = [
    *(f"application/{patch}+json" for patch in ("json-patch", "merge-patch", "strategic-merge-patch")),
    *(
        "application/json",
        "application/yaml",
        "application/vnd.kubernetes.protobuf",
        "application/apply-patch+yaml",
        "x",
    ),
]
WORDS = [
    *("metadata", "name", "labels", "annotations", "spec", "status", "containers", "initContainers", "image", "env"),
    *("resources", "limits", "requests", "mock/gpu", "cpu", "conditions", "type", "capacity", "allocatable", "taints"),
    *("apiVersion", "kind", "target", "finalizers", "$patch", "$setElementOrder/containers", "$retainKeys", "key"),
    *("op", "path", "value", "from", "preconditions", "gracePeriodSeconds", "deletionTimestamp", "lastTimestamp"),
    *("managedFields", "fieldsV1", "manager", "resourceVersion", "uid", "tolerations", "nodeName", "addresses"),
    *("deleteOptions", "dryRun", "generateName", "nodeInfo", "containerStatuses", "state", "restartCount"),
]
VALUES = [
    "p",
    "node",
    "default",
    "Pod",
    "v1",
    "replace",
    "delete",
    "add",
    "remove",
    "move",
    "/spec",
    "/status/x/-",
    "1Gi",
]
QUERIES = ["", "?fieldValidation=Strict", "?dryRun=All", "?fieldManager=x", "?gracePeriodSeconds=9999999999999"]
TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io"
NO_CONFIGURATION = "failed to create typed patch object"  # kube-apiserver answers 500 here too


def objects(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.dictionaries(st.sampled_from(WORDS) | st.text(max_size=4), inner, max_size=4)


texts = st.sampled_from(WORDS + VALUES) | st.text(max_size=5)
leaves = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | texts
values = st.recursive(leaves, lambda inner: st.lists(inner, max_size=3) | objects(inner), max_leaves=12)
envelopes = st.binary(max_size=30).map(lambda end: b"k8s\x00\x0a\x0f\x0a\x02v1\x12\x09ConfigMap\x12" + end)


def broken_pods() -> st.SearchStrategy[Any]:
    """A pod with one part replaced by random fields."""
    parts = st.sampled_from(["metadata", "spec", "status"])
    return st.builds(lambda part, value: {**pod("p"), part: value}, parts, objects(values))


def answers_to(*calls: Callable[[Api], Awaitable[Answer]]) -> list[Answer]:
    """The answers of a new server to the calls, one after the other."""

    async def ask() -> list[Answer]:
        transport = httpx2.ASGITransport(application(server(populated(Store()))), raise_app_exceptions=False)
        headers = {"authorization": f"Bearer {TOKEN}"}
        async with httpx2.AsyncClient(transport=transport, base_url="http://test", headers=headers) as client:
            api = Api(client)
            await api("POST", PODS, pod("p"))
            return [await call(api) for call in calls]

    return asyncio.run(ask())


def check(answers: list[Answer]) -> None:
    for answer in answers:
        assert answer.code < 500 or answer.body["message"].startswith(NO_CONFIGURATION), answer.body
        if answer.code >= 400:
            assert (answer.body["kind"], answer.body["code"]) == ("Status", answer.code)


Call = tuple[str, str, str, str]
methods = st.sampled_from(["POST", "PUT", "PATCH", "DELETE"])
calls = st.tuples(methods, st.sampled_from(PATHS), st.sampled_from(MEDIA), st.sampled_from(QUERIES))


@settings(max_examples=300, suppress_health_check=[HealthCheck.too_slow])
@given(calls, values | broken_pods() | st.lists(objects(values), max_size=3))
def test_any_json_is_answered(call: Call, body: object) -> None:
    method, path, media, query = call

    def table(kind: str) -> Callable[[Api], Awaitable[Answer]]:
        return lambda api: api("GET", f"/api/v1/{kind}", accept=TABLE)

    answers = answers_to(
        lambda api: api(method, path + query, body, content_type=media), *map(table, ("pods", "nodes", "events"))
    )
    check(answers)


@settings(max_examples=150)
@given(calls, st.binary(max_size=40) | envelopes)
def test_any_bytes_are_answered(call: Call, body: bytes) -> None:
    method, path, media, query = call
    check(answers_to(lambda api: api(method, path + query, body, content_type=media)))


@settings(max_examples=150)
@given(st.sampled_from(["labelSelector", "fieldSelector", "limit", "continue"]), st.text(max_size=12))
def test_any_query_is_answered(name: str, value: str) -> None:
    escaped = quote(value.encode("utf-8", "replace"))
    check(answers_to(lambda api: api("GET", f"/api/v1/pods?{name}={escaped}")))


@settings(max_examples=100)
@given(st.text(max_size=30))
def test_any_path_is_answered(path: str) -> None:
    escaped = quote(path.encode("utf-8", "replace"), safe="/")
    check(answers_to(lambda api: api("GET", f"/api/v1/{escaped}")))
