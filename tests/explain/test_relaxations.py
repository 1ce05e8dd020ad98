"""Cures beyond the case files: taint rules, gates, classes, request policies, errors that stop a pod on all nodes."""

from typing import Any

import pytest
from msgspec.structs import replace
from tests.explain.worlds import CLASS, DRIVER, claim, device, node, pod, published, selected

from plugwright.allocator import largest_request
from plugwright.allocator.consumable_capacity import capacities
from plugwright.errors import PeerRefused
from plugwright.explain.explanation import Explanation, explain_pod, first_line
from plugwright.explain.fitting import fit_pod
from plugwright.explain.reading import read_world
from plugwright.explain.waiting import waiting_pods
from plugwright.explain.world import ApiObject, World
from plugwright.quantity import parse

A, B = device("a", numa=0), device("b", numa=1)
FAILING = selected(f'device.attributes["{DRIVER}"].numa == 0')
SPLIT = (published(device("a", numa=0), device("b", numa=0)), published(device("c"), on="n2"))


def explained(world: World) -> Explanation:
    """Of the last pod."""
    return explain_pod(world, world.pods[-1])


def rule(name: str, **selector: str) -> ApiObject:
    taint = {"key": "maintenance", "effect": "NoSchedule"}
    return {"metadata": {"name": name}, "spec": {"deviceSelector": {"driver": DRIVER, **selector}, "taint": taint}}


def tainting(*rules: ApiObject, devices: tuple[ApiObject, ...] = (A, B), count: int = 1) -> World:
    return World(
        (node("n1"),), (pod("w", claim="c"),), (published(*devices),), (CLASS,), (claim("c", count=count),),
        taint_rules=rules,
    )  # fmt: skip


def test_a_device_taint_rule_is_deleted_and_slices_stay_as_they_are() -> None:
    found = explained(tainting(rule("fan")))
    assert "2 tainted; taint maintenance:NoSchedule" in found.answer
    assert found.cures[0].text == "runs on n1 if the DeviceTaintRule fan is deleted"
    assert found.cures[0].commands == ("kubectl delete devicetaintrule fan",)
    assert [(step.verb, step.kind, step.name) for step in found.cures[0].changes] == [
        ("delete", "DeviceTaintRule", "fan")
    ]


def test_a_device_that_loses_its_own_taint_keeps_that_of_a_rule() -> None:
    world = tainting(rule("fan", device="a"), devices=(device("a", "xid"),))
    kinds = [cure.kinds for cure in explained(world).cures]
    assert kinds == [("taint-rule", "toleration"), ("taint-removed", "toleration"), ("toleration", "toleration")]


@pytest.mark.parametrize("served", ["v1", "v1beta2", "v1alpha3"])
def test_rules_are_read_from_each_version_of_the_api(served: str) -> None:
    class Client:
        def get(self, path: str) -> dict[str, object]:
            return {"gitVersion": "v1.37.0"}

        def list(self, path: str, **query: str) -> list[ApiObject]:
            if not path.endswith("/devicetaintrules"):
                return []
            if f"/{served}/" not in path:
                raise PeerRefused("NotFound", "the server could not find the requested resource")
            return [rule("fan")]

    assert read_world(Client(), "default").taint_rules == (rule("fan"),)


def test_a_rule_without_a_selector_taints_nothing() -> None:
    everything = {**rule("all"), "spec": {**rule("all")["spec"], "deviceSelector": {}}}
    nothing = {**rule("none"), "spec": {"taint": rule("none")["spec"]["taint"]}}
    assert explained(tainting(nothing)).state == "fits"
    assert explained(tainting(everything)).cures[0].kinds == ("taint-rule",)


def test_several_devices_lose_their_taints_together() -> None:
    world = tainting(devices=(device("a", "xid"), device("b", "xid"), device("c", "xid")), count=2)
    cure = next(cure for cure in explained(world).cures if cure.kinds == ("taint-removed",))
    assert cure.text.count("loses its taint xid:NoSchedule") == 2
    (step,) = cure.changes
    assert sum("taints" in entry and not entry["taints"] for entry in step.value["devices"]) == 2


def test_a_selector_that_fails_on_any_node_stops_the_pod_on_all() -> None:
    world = World((node("n1"), node("n2")), (pod("w", claim="c"),), SPLIT, (CLASS,), (claim("c", selectors=FAILING),))
    found = explained(world)
    assert found.answer.endswith("(device gpu.example.com/n2/c); this stops the pod on every node")
    assert [cure.kinds for cure in found.cures] == [("selector",)]
    assert waiting_pods(world).pods[0].answer == found.answer


def test_a_node_that_the_scheduler_does_not_ask_stops_no_pod() -> None:
    waiting = pod("w", claim="c", nodeSelector={"zone": "n1"})
    world = World((node("n1"), node("n2")), (waiting,), SPLIT, (CLASS,), (claim("c", selectors=FAILING),))
    assert explained(world).state == "fits"


def test_no_cure_leads_to_a_node_that_stops_the_pod() -> None:
    waiting = pod("w", claim="c", nodeSelector={"zone": "n1"})
    held = claim("h", "a", ("p",))
    world = World(
        (node("n1"), node("n2"), node("n3")), (pod("p", on="n1", claim="h"), waiting),
        (published(A), published(device("c"), on="n2"), published(A, on="n3")), (CLASS,),
        (held, claim("c", selectors=FAILING)),
    )  # fmt: skip
    assert [cure.kinds for cure in explained(world).cures] == [("holder-ends",)]


def test_fit_places_pods_until_a_selector_fails() -> None:
    world = World((node("n1"),), (), (published(A, device("b", numa=0), device("c")),), (CLASS,))
    template = {
        "metadata": {"namespace": "default", "name": "t"},
        "spec": {"spec": claim("c", selectors=FAILING)["spec"]},
    }
    waiting: dict[str, Any] = dict(pod("w"))
    waiting["spec"] = {**waiting["spec"], "resourceClaims": [{"name": "dev", "resourceClaimTemplateName": "t"}]}
    report = fit_pod(replace(world, templates=(template,)), waiting, 3)
    assert report.placed == 2
    assert report.explanation is not None
    assert "this stops the pod on every node" in report.explanation.answer


def test_a_claim_that_is_being_deleted_is_the_reason() -> None:
    ending = claim("c", "a", ("p",))
    ending["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    world = World(
        (node("n1"),), (pod("p", on="n1", claim="c"), pod("w", claim="c")), (published(A),), (CLASS,), (ending,)
    )
    assert explained(world).answer == "waits: ResourceClaim c is being deleted"


def test_a_generated_claim_of_another_pod_is_the_reason() -> None:
    other = claim("w-dev")
    other["metadata"]["ownerReferences"] = [{"kind": "Pod", "name": "w", "uid": "before"}]
    waiting: dict[str, Any] = dict(pod("w"))
    waiting["spec"] = {**waiting["spec"], "resourceClaims": [{"name": "dev", "resourceClaimTemplateName": "t"}]}
    waiting["status"] = {"resourceClaimStatuses": [{"name": "dev", "resourceClaimName": "w-dev"}]}
    world = World((node("n1"),), (waiting,), (published(A),), (CLASS,), (other,))
    assert "ResourceClaim w-dev of the pod's dev was not created for this pod" in explained(world).answer


def test_volumes_are_named_as_the_cause() -> None:
    waiting: dict[str, Any] = dict(
        pod("w", 1, volumes=[{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}])
    )
    message = '0/1 nodes are available: persistentvolumeclaim "data" not found.'
    waiting["status"] = {"conditions": [{"type": "PodScheduled", "status": "False", "message": message}]}
    found = explained(World((node("n1", 1),), (waiting,)))
    assert (found.state, found.reason) == ("waits", "volumes")
    assert found.answer == f"waits: n1 has the devices, but its volumes are not available: {message}"


def test_a_gated_pod_is_told_whether_it_would_run_without_its_gates() -> None:
    gated = pod("w", 1, schedulingGates=[{"name": "example.com/quota"}])
    found = explained(World((node("n1", 1),), (gated,)))
    assert found.answer == "waits: its scheduling gates are not removed: example.com/quota"
    assert found.cures[0].text == "runs if its scheduling gates are removed (on n1)"
    listed = waiting_pods(World((node("n1"),), (gated,))).pods[0]
    assert listed.reason == "scheduling-gates"
    assert listed.answer.endswith("without them no node offers example.com/gpu")


def test_a_class_whose_selector_fails_only_on_other_devices_is_not_changed() -> None:
    """The second selector fails on devices of another driver, which the first excludes."""
    selectors = [*selected(f'device.driver == "{DRIVER}"'), *FAILING]
    other = published(device("x"))
    other = {**other, "metadata": {"name": "other"}, "spec": {**other["spec"], "driver": "nic.example.com"}}
    device_class = {**CLASS, "spec": {"selectors": selectors}}
    world = World(
        (node("n1"),), (pod("w", claim="c"),), (published(A, B), other), (device_class,), (claim("c", count=2),)
    )
    assert [cure.kinds for cure in explained(world).cures] == [("count",)]


@pytest.mark.parametrize(
    ("policy", "used", "largest"),
    [
        (None, "30Gi", "10Gi"),
        ({"validRange": {"min": "10Gi", "step": "10Gi"}}, "25Gi", "10Gi"),
        ({"validRange": {"min": "10Gi", "max": "25Gi", "step": "10Gi"}}, "0", "20Gi"),
        ({"validRange": {"min": "10Gi"}}, "35Gi", "0"),
        ({"validRange": {"min": "10Gi"}}, "25Gi", "15Gi"),
        ({"validRange": {"min": "10Gi", "step": "10Gi"}}, "35Gi", "0"),
        ({"validValues": ["5Gi", "20Gi"]}, "25Gi", "5Gi"),
        ({"validValues": ["5Gi"]}, "40Gi", "0"),
    ],
)
def test_the_largest_request_is_what_is_left_by_the_policy(policy: Any, used: str, largest: str) -> None:
    entry = {"value": "40Gi"} | ({"requestPolicy": policy} if policy else {})
    assert largest_request(capacities({"memory": entry})["memory"], parse(used)) == parse(largest)


def test_a_holder_that_is_being_deleted_comes_first_and_is_not_deleted_again() -> None:
    leaving = pod("b", 1, "n1")
    leaving = {**leaving, "metadata": {**leaving["metadata"], "deletionTimestamp": "2026-11-19T20:00:00Z"}}
    found = explained(World((node("n1", 2),), (pod("a", 1, "n1"), leaving, pod("w", 1))))
    assert found.cures[0].text == "runs on n1 if b (default, being deleted) ends"
    assert found.cures[0].commands == ()


def test_the_reason_is_that_of_devices_which_the_request_selects() -> None:
    held = (claim("h1", "a", ("p1",)), claim("h2", "b", ("p2",)))
    tainted = device("c", "xid", numa=2)
    wanted = claim("c", selectors=selected(f'device.attributes["{DRIVER}"].numa == 2'))
    world = World((node("n1"),), (pod("w", claim="c"),), (published(A, B, tainted),), (CLASS,), (*held, wanted))
    assert explained(world).reason == "Tainted"
    assert "2 excluded by a selector, 1 tainted" in explained(world).answer


def test_a_device_of_the_pod_itself_is_not_the_main_reason() -> None:
    distinct = [{"distinctAttribute": f"{DRIVER}/numa"}]
    wanted = claim("c", constraints=distinct)
    requests = wanted["spec"]["devices"]["requests"]
    requests.append({**requests[0], "name": "other"})
    same = published(device("a", numa=0), device("b", numa=0))
    found = explained(World((node("n1"),), (pod("w", claim="c"),), (same,), (CLASS,), (wanted,)))
    assert found.reason == "ConstraintViolated"
    assert found.cures[0].kinds == ("constraint",)


def test_slices_of_other_nodes_are_named_if_a_node_has_no_devices() -> None:
    terms = [{"matchExpressions": [{"key": "zone", "operator": "In", "values": ["east"]}]}]
    elsewhere = published(A, on="net")
    spec = {name: value for name, value in elsewhere["spec"].items() if name != "nodeName"}
    elsewhere = {**elsewhere, "spec": {**spec, "nodeSelector": {"nodeSelectorTerms": terms}}}
    found = explained(World((node("n1"),), (pod("w", claim="c"),), (elsewhere,), (CLASS,), (claim("c"),)))
    assert "no suitable devices (its labels do not match the node selector of pool net)" in found.answer


def test_the_evidence_is_about_the_request_that_fails_not_about_alternatives_of_another() -> None:
    wanted = claim("c", constraints=[{"matchAttribute": f"{DRIVER}/numa"}])
    both = [{"name": name, "deviceClassName": DRIVER} for name in ("x", "y")]
    requests = wanted["spec"]["devices"]["requests"]
    requests[:] = [{"name": "first", "firstAvailable": both}, {**requests[0], "name": "second"}]
    found = explained(World((node("n1"),), (pod("w", claim="c"),), (published(A, B),), (CLASS,), (wanted,)))
    assert "for request second of claim c (n1: " in found.answer
    assert "first/x:" not in found.answer


def test_of_equally_large_classes_the_node_that_lacks_least_is_named_first() -> None:
    held = (claim("h1", "a", ("p1",)), claim("h2", "b", ("p2",)))
    slices = (published(A, B), published(A, B, on="n2"))
    wanted = claim("c", count=3, selectors=selected("device.driver != ''"))
    world = World((node("n1"), node("n2")), (pod("w", claim="c"),), slices, (CLASS,), (*held, wanted))
    assert "(n2: at most 2 of 3 devices together)" in first_line(world, world.pods[-1])


def test_held_devices_are_named_for_a_request_of_more_devices_than_there_are() -> None:
    held = (claim("h1", "a", ("p1",)), claim("h2", "b", ("p2",)))
    world = World((node("n1"),), (pod("w", claim="c"),), (published(A, B),), (CLASS,), (*held, claim("c", count=3)))
    found = explained(world)
    assert found.reason == "AlreadyAllocated"
    assert "(n1: 2 allocated to other claims)" in found.answer


def test_an_incomplete_pool_is_the_reason_beside_devices_that_are_not_selected() -> None:
    other = published(device("c"), count=2)
    other = {"metadata": {"name": "other"}, "spec": {**other["spec"], "driver": "nic.example.com"}}
    nic = {"metadata": {"name": "nic"}, "spec": {"selectors": selected("device.driver == 'nic.example.com'")}}
    wanted = claim("c", deviceClassName="nic")
    found = explained(World((node("n1"),), (pod("w", claim="c"),), (published(A, B), other), (CLASS, nic), (wanted,)))
    assert found.reason == "PoolIncomplete"
    assert found.cures[0].kinds == ("pool-complete",)
