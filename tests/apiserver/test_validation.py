"""Pods that are refused, with the texts of kube-apiserver 1.36."""

import pytest
from tests.apiserver.serving import Api, container, pod

PODS = "/api/v1/namespaces/default/pods"
AT = "spec.containers[0].resources"


async def refusal(api: Api, content: object) -> str:
    answer = await api("POST", PODS, content)
    assert (answer.code, answer.reason) == (422, "Invalid"), answer.body
    return str(answer.body["message"])


@pytest.mark.parametrize(
    ("resources", "words"),
    [
        ({"limits": {"mock/gpu": "1.5"}}, f'{AT}.limits[mock/gpu]: Invalid value: "1500m": must be an integer'),
        (
            {"limits": {"mock/gpu": -1}},
            f'{AT}.limits[mock/gpu]: Invalid value: "-1": must be greater than or equal',
        ),
        (
            {"requests": {"mock/gpu": 1}},
            f"{AT}.limits: Required value: Limit must be set for non overcommitable",
        ),
        (
            {"limits": {"mock/gpu": 2}, "requests": {"mock/gpu": 1}},
            f'{AT}.requests: Invalid value: "1": must be equal to mock/gpu limit of 2',
        ),
        (
            {"limits": {"cpu": "1"}, "requests": {"cpu": "2"}},
            f'{AT}.requests: Invalid value: "2": must be less than or equal to cpu limit of 1',
        ),
        ({"limits": {"gpu": 1}}, '"gpu": must be a standard resource type or fully qualified'),
        ({"limits": {"pods": 1}}, '"pods": must be a standard resource for containers'),
        ({"limits": {"requests.mock/gpu": 1}}, "doesn't follow extended resource name standard"),
        ({"limits": {"a/b/c": 1}}, "a valid label key must consist of"),
        ({"limits": {"/gpu": 1}}, '"/gpu": prefix part must be non-empty'),
        ({"limits": {"mock/": 1}}, '"mock/": name part must be non-empty'),
        ({"limits": {"-x/gpu": 1}}, "prefix part a lowercase RFC 1123 subdomain"),
    ],
)
async def test_invalid_resources_are_refused(api: Api, resources: object, words: str) -> None:
    assert words in await refusal(api, pod("p", container(resources=resources)))


@pytest.mark.parametrize(
    ("limits", "stored"),
    [
        ({"mock/gpu": 2}, {"mock/gpu": "2"}),
        ({"mock/gpu": "2000m"}, {"mock/gpu": "2"}),
        ({"mock/gpu": "1e3"}, {"mock/gpu": "1e3"}),
        ({"cpu": "1000m", "memory": "1024Mi"}, {"cpu": "1", "memory": "1Gi"}),
        ({"a.kubernetes.io/x": "1500m"}, {"a.kubernetes.io/x": "1500m"}),
    ],
)
async def test_quantities_are_stored_in_canonical_form(api: Api, limits: object, stored: object) -> None:
    answer = await api("POST", PODS, pod("p", container(resources={"limits": limits})))
    resources = answer.body["spec"]["containers"][0]["resources"]
    assert (resources["limits"], resources["requests"]) == (stored, stored)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (pod("p", container("M")), 'spec.containers[0].name: Invalid value: "M": a lowercase RFC 1123 label'),
        (pod("p", container("a"), container("a")), 'spec.containers[1].name: Duplicate value: "a"'),
        (pod("p", {"name": "a"}), "spec.containers[0].image: Required value"),
        (pod("p", {"image": "a"}), "spec.containers[0].name: Required value"),
        ({"metadata": {"name": "p"}}, "spec.containers: Required value"),
        (
            pod("p", restartPolicy="Sometimes"),
            'Unsupported value: "Sometimes": supported values: "Always"',
        ),
        (pod("A_b"), 'metadata.name: Invalid value: "A_b": a lowercase RFC 1123 subdomain'),
        (pod("a" * 254), "must be no more than 253 characters"),
        (pod(""), 'Pod "" is invalid: metadata.name: Required value: name or generateName is required'),
        (pod("p", labels={"a b": "c"}), 'metadata.labels: Invalid value: "a b": name part must consist of'),
        (pod("p", labels={"a": "c d"}), 'metadata.labels: Invalid value: "c d": a valid label must be an empty string'),
        (pod("p", labels={"a": "b" * 64}), "must be no more than 63 bytes"),
        (pod("p", labels={"a" * 64: "b"}), "name part must be no more than 63 bytes"),
    ],
)
async def test_an_invalid_pod_is_refused(api: Api, content: object, words: str) -> None:
    assert words in await refusal(api, content)


async def test_every_invalid_field_is_a_cause(api: Api) -> None:
    answer = await api("POST", PODS, pod("p", container("A"), {"name": "b"}))
    fields = [cause["field"] for cause in answer.body["details"]["causes"]]
    assert fields == ["spec.containers[0].name", "spec.containers[1].image"]
    assert answer.body["message"].startswith('Pod "p" is invalid: [')


@pytest.mark.parametrize(
    ("resources", "qos_class"),
    [
        ({}, "BestEffort"),
        ({"limits": {"mock/gpu": 1}}, "BestEffort"),
        ({"requests": {"cpu": "1"}}, "Burstable"),
        ({"limits": {"cpu": "1"}}, "Burstable"),
        ({"limits": {"cpu": "1", "memory": "1Gi"}}, "Guaranteed"),
        ({"limits": {"cpu": "1", "memory": "1Gi"}, "requests": {"cpu": "500m"}}, "Burstable"),
    ],
)
async def test_the_qos_class_follows_from_the_resources(api: Api, resources: object, qos_class: str) -> None:
    answer = await api("POST", PODS, pod("p", container(resources=resources)))
    assert answer.body["status"]["qosClass"] == qos_class
