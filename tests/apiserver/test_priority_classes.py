"""PriorityClasses: what a class gives to the pods that name it, and what a class must be."""

import pytest
from tests.apiserver.serving import Api, Json, pod

CLASSES, PODS = "/apis/scheduling.k8s.io/v1/priorityclasses", "/api/v1/namespaces/default/pods"


def priority_class(name: str = "high", **members: object) -> Json:
    return {"metadata": {"name": name}, "value": 1000, **members}


def pod_of(name: str, **spec: object) -> Json:
    content = pod(name)
    return {**content, "spec": {**content["spec"], **spec}}


async def test_a_pod_gets_the_priority_of_its_class(api: Api) -> None:
    assert (await api("POST", CLASSES, priority_class(preemptionPolicy="Never"))).code == 201
    created = (await api("POST", PODS, pod_of("a", priorityClassName="high"))).body
    assert (created["spec"]["priority"], created["spec"]["preemptionPolicy"]) == (1000, "Never")
    system = (await api("POST", PODS, pod_of("b", priorityClassName="system-node-critical"))).body
    assert system["spec"]["priority"] == 2_000_001_000
    plain = (await api("POST", PODS, pod_of("c"))).body
    assert (plain["spec"]["priority"], "priorityClassName" in plain["spec"]) == (0, False)


async def test_a_pod_without_a_class_gets_the_default_one(api: Api) -> None:
    await api("POST", CLASSES, priority_class("usual", value=7, globalDefault=True))
    created = (await api("POST", PODS, pod_of("a"))).body
    assert (created["spec"]["priority"], created["spec"]["priorityClassName"]) == (7, "usual")
    owners = [entry["fieldsV1"].get("f:spec", {}) for entry in created["metadata"]["managedFields"]]
    assert all("f:priorityClassName" not in fields for fields in owners)
    second = await api("POST", CLASSES, priority_class("other", globalDefault=True))
    assert second.code == 403
    assert "PriorityClass usual is already marked as default. Only one default can exist" in second.body["message"]


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ({"priorityClassName": "nope"}, "no PriorityClass with name nope was found"),
        ({"priorityClassName": "high", "priority": 3}, "the integer value of priority (3) must not be provided"),
        ({"priority": 3}, "priority admission controller computed 0 from the given PriorityClass name"),
        ({"preemptionPolicy": "Never"}, "the string value of PreemptionPolicy (Never) must not be provided"),
    ],
)
async def test_a_pod_with_another_priority_than_that_of_its_class_is_forbidden(
    api: Api, spec: Json, expected: str
) -> None:
    await api("POST", CLASSES, priority_class())
    refused = await api("POST", PODS, pod_of("a", **spec))
    assert refused.code == 403
    assert expected in refused.body["message"]


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (priority_class(value=1_000_000_001), "value: Forbidden: maximum allowed value of a user defined priority is"),
        (priority_class("system-mine"), "system-mine is not a known system priority class"),
        (
            priority_class(preemptionPolicy="Maybe"),
            'Unsupported value: "Maybe": supported values: "PreemptLowerPriority", "Never"',
        ),
    ],
)
async def test_a_class_that_no_cluster_takes_is_invalid(api: Api, content: Json, expected: str) -> None:
    refused = await api("POST", CLASSES, content)
    assert refused.code == 422
    assert expected in refused.body["message"]


async def test_the_value_of_a_class_stays(api: Api) -> None:
    await api("POST", CLASSES, priority_class())
    changed = await api.patch(f"{CLASSES}/high", {"value": 5})
    assert (changed.code, "value: Forbidden: may not be changed in an update." in changed.body["message"]) == (
        422,
        True,
    )
    assert (await api.patch(f"{CLASSES}/high", {"description": "d"})).body["description"] == "d"


async def test_the_classes_of_the_system_stay(api: Api) -> None:
    refused = await api("DELETE", f"{CLASSES}/system-node-critical")
    assert refused.code == 403
    assert "this is a system priority class and cannot be deleted" in refused.body["message"]
