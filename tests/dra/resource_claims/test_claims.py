"""What the driver reads out of a ResourceClaim."""

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.dra.resource_claims.claim_node import DRIVER, config, document, result

from plugwright.dra.resource_claims.claims import AllocatedClaim, Toleration, read_claim
from plugwright.errors import ClaimRefused


def read(*results: dict[str, object], **more: Any) -> AllocatedClaim:
    return read_claim(document("one", *results, **more), DRIVER)


def test_only_this_drivers_results_are_read() -> None:
    claim = read(result("st1"), {**result("gpu-0"), "driver": "gpu.example.com"})
    assert [device.device for device in claim.results] == ["st1"]
    assert (claim.namespace, claim.name, claim.uid, str(claim)) == ("default", "one", "one-0000-0000", "default/one")


def test_a_subrequest_is_told_apart_from_its_request() -> None:
    (device,) = read(result(request="tape/big")).results
    assert (device.request, device.reference) == ("tape", "tape/big")


def test_a_claim_without_allocation_is_refused() -> None:
    with pytest.raises(ClaimRefused, match="ResourceClaim default/one is not allocated"):
        read_claim({**document(), "status": {}}, DRIVER)


@pytest.mark.parametrize(
    ("requests", "concerns"), [((), True), (("tape",), True), (("tape/big",), True), (("tape/small",), False)]
)
def test_configuration_concerns_a_request_and_its_subrequests(requests: tuple[str, ...], concerns: bool) -> None:
    (device,) = read(result(request="tape/big"), configs=[config({"speed": 9}, *requests)]).results
    assert device.parameters == ({"speed": 9} if concerns else {})


def test_configuration_of_the_claim_beats_that_of_the_class_and_later_beats_earlier() -> None:
    configs = [
        config({"speed": 3}),
        config({"speed": 1}, source="FromClass"),
        config({"speed": 4}, "other"),
        config({"speed": 2}, source="FromClass"),
        config({"speed": 5}, driver="gpu.example.com"),
    ]
    tape, other, third = read(
        result("st0"), result("st1", "other"), result("st2", "third"), configs=[*configs, config({"x": 1}, "third")]
    ).results
    assert (tape.parameters, other.parameters, third.parameters) == ({"speed": 3}, {"speed": 4}, {"x": 1})
    (device,) = read(configs=configs[3:4] + configs[1:2]).results
    assert device.parameters == {"speed": 1}


@pytest.mark.parametrize("parameters", [None, [], "text", 7])
def test_parameters_that_are_no_object_are_refused(parameters: object) -> None:
    with pytest.raises(ClaimRefused, match=f"parameters for {DRIVER} must be an object"):
        read(configs=[config(parameters)])


def test_parameters_nested_too_deep_are_refused() -> None:
    parameters: dict[str, object] = {"a": [{"b": 1}, 2]}
    assert read(configs=[config(parameters)]).results[0].parameters == parameters
    for _ in range(100):
        parameters = {"a": parameters}
    with pytest.raises(ClaimRefused, match=f"parameters for {DRIVER} must not be nested deeper than 100"):
        read(configs=[config(parameters)])


def test_admin_access_and_shares_are_those_of_one_result() -> None:
    monitor, tape, share = read(
        result("st0", "monitor", adminAccess=True), result("st0"), result("st1", "part", shareID="s-1")
    ).results
    assert (monitor.admin_access, tape.admin_access, share.share_id) == (True, False, "s-1")
    assert [device.exclusive for device in (monitor, tape, share)] == [False, True, False]


@pytest.mark.parametrize("name", ["memory", f"{DRIVER}/memory"])
def test_consumed_capacity_is_read_with_and_without_the_drivers_domain(name: str) -> None:
    (device,) = read(result(consumedCapacity={name: "20Gi", "example.com/slots": "1500m"})).results
    assert device.consumed == {"memory": 20 * 2**30, "example.com/slots": 2}


def test_consumed_capacity_that_is_no_quantity_is_refused() -> None:
    with pytest.raises(ClaimRefused, match="consumedCapacity memory"):
        read(result(consumedCapacity={"memory": "many"}))


TAINT = {"key": "plugwright.dev/unhealthy", "value": "lost", "effect": "NoSchedule"}


@pytest.mark.parametrize(
    ("toleration", "tolerates"),
    [
        (Toleration("plugwright.dev/unhealthy", "Exists"), True),
        (Toleration(operator="Exists"), True),
        (Toleration("plugwright.dev/unhealthy", value="lost"), True),
        (Toleration("plugwright.dev/unhealthy", value="xid-79"), False),
        (Toleration("plugwright.dev/unhealthy", "Exists", effect="NoExecute"), False),
        (Toleration("other", "Exists"), False),
    ],
)
def test_a_result_tolerates_taints_as_the_scheduler_reads_them(toleration: Toleration, tolerates: bool) -> None:
    entry = {
        "key": toleration.key,
        "operator": toleration.operator,
        "value": toleration.value,
        "effect": toleration.effect,
    }
    (device,) = read(result(tolerations=[entry])).results
    assert device.tolerations == (toleration,)
    assert device.tolerates(TAINT) is tolerates


@pytest.mark.parametrize(
    ("effect", "tolerated", "tolerates"),
    [
        ("NoExecute", "NoExecute", True),
        ("NoExecute", "", True),
        ("NoExecute", "NoSchedule", False),
        ("NoSchedule", "NoExecute", False),
        ("None", "NoExecute", True),
    ],
)
def test_the_effect_of_the_taint_decides(effect: str, tolerated: str, tolerates: bool) -> None:
    entry = {"key": "plugwright.dev/unhealthy", "operator": "Exists", "effect": tolerated}
    (device,) = read(result(tolerations=[entry])).results
    assert device.tolerates({**TAINT, "effect": effect}) is tolerates


def test_a_taint_without_effect_on_claims_needs_no_toleration() -> None:
    (device,) = read(result()).results
    assert device.tolerates({**TAINT, "effect": "None"})
    assert not device.tolerates(TAINT)


def test_the_name_in_the_pod_is_that_of_the_annotation() -> None:
    key = "resource.kubernetes.io/pod-claim-name"
    assert read(annotations={key: "drive"}).pod_claim_name == "drive"
    assert read(annotations={key: "../../etc"}).pod_claim_name == ""


@pytest.mark.parametrize(
    "changes",
    [
        {"metadata.uid": "../../etc/passwd"},
        {"metadata.uid": ""},
        {"metadata.name": "a/../../b"},
        {"metadata.namespace": ".."},
        {"metadata.namespace": "a_b"},
        {"result.request": ".."},
        {"result.request": "../tape"},
        {"result.device": "../st0"},
        {"result.device": ""},
        {"result.pool": "../node"},
        {"result.shareID": "a/b"},
        {"result.device": 7},
    ],
    ids=str,
)
def test_names_that_could_leave_a_directory_are_refused(changes: dict[str, object]) -> None:
    hostile = document("one", result())
    for path, value in changes.items():
        part, key = path.split(".")
        parts = {"metadata": hostile["metadata"], "result": hostile["status"]["allocation"]["devices"]["results"][0]}
        parts[part][key] = value
    with pytest.raises(ClaimRefused, match="must be one that Kubernetes allows"):
        read_claim(hostile, DRIVER)


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


@given(st.data())
def test_whatever_stands_in_a_claim_it_is_read_or_refused(data: st.DataObject) -> None:
    made = copy.deepcopy(
        document(
            "one",
            result(consumedCapacity={"a": "1"}, tolerations=[{"key": "k"}], shareID="s"),
            configs=[config({"a": 1}, "tape")],
            annotations={"a": "b"},
        )
    )
    parents: list[tuple[Any, Any]] = []

    def collect(value: Any) -> None:
        keys = list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
        for key in keys:
            parents.append((value, key))
            collect(value[key])

    collect(made)
    parent, key = data.draw(st.sampled_from(parents))
    parent[key] = data.draw(anything)
    try:
        read = read_claim(made, DRIVER)
    except ClaimRefused:
        return
    assert all("/" not in device.device and "/" not in device.request for device in read.results)
