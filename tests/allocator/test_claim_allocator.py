"""Allocations by hand: reasons, invalid input, what is taken, and the offline command."""

import json
import subprocess
import sys
from typing import Any

import pytest

from plugwright.allocator import AllocatedState, ClaimAllocator, SliceIndex, features_of, summary
from plugwright.errors import AllocationAborted, ConfigError, FeatureUnsupported

DRIVER = "gpu.example.com"
NODE = {"metadata": {"name": "n1", "labels": {"zone": "a"}}}
GPU = {"metadata": {"name": "gpu"}, "spec": {"selectors": [{"cel": {"expression": f'device.driver == "{DRIVER}"'}}]}}
Object = dict[str, Any]


def slice_of(*devices: Object, name: str = "s1", **spec: Any) -> Object:
    pool = {"name": "n1", "generation": 1, "resourceSliceCount": 1}
    return {
        "metadata": {"name": name},
        "spec": {"driver": DRIVER, "nodeName": "n1", "pool": pool, "devices": [*devices], **spec},
    }


def claim(*requests: Object, name: str = "c", **devices: Any) -> Object:
    requests = requests or (request(),)
    spec = {"devices": {"requests": [*requests], **devices}}
    return {"metadata": {"name": name, "namespace": "default", "uid": f"uid-{name}"}, "spec": spec}


def request(name: str = "r", **exactly: Any) -> Object:
    return {"name": name, "exactly": {"deviceClassName": "gpu", **exactly}}


def selector(expression: str) -> Object:
    return {"cel": {"expression": expression}}


def allocator(*slices: Object, classes: tuple[Object, ...] = (GPU,), version: str = "1.37") -> ClaimAllocator:
    return ClaimAllocator(features_of(version), slices, classes)


def devices_of(results: list[Object]) -> list[str]:
    return [device["device"] for result in results for device in result["devices"]["results"]]


def test_the_first_free_devices_are_allocated_in_the_order_of_the_slice() -> None:
    outcome = allocator(slice_of({"name": "b"}, {"name": "a"}, {"name": "c"})).allocate(NODE, [claim(request(count=2))])
    assert devices_of(outcome.results) == ["b", "a"]
    assert outcome.reasons == ()
    [term] = outcome.results[0]["nodeSelector"]["nodeSelectorTerms"]
    assert term["matchFields"][0]["values"] == ["n1"]


def test_each_rejected_device_has_a_reason() -> None:
    cores = {"counterSet": "card", "counters": {"cores": {"value": "2"}}}
    published = slice_of(
        {"name": "held"},
        {"name": "other-model", "attributes": {"model": {"string": "B"}}},
        {"name": "tainted", "attributes": {"model": {"string": "A"}}, "taints": [{"key": "x", "effect": "NoSchedule"}]},
        {"name": "half", "attributes": {"model": {"string": "A"}}, "consumesCounters": [cores]},
        {"name": "small", "attributes": {"model": {"string": "A"}}, "capacity": {"memory": {"value": "1Gi"}}},
    )
    published["spec"]["pool"]["resourceSliceCount"] = 2
    counters = slice_of(name="s2", sharedCounters=[{"name": "card", "counters": {"cores": {"value": "1"}}}])
    counters["spec"]["pool"]["resourceSliceCount"] = 2
    wanted = request(
        capacity={"requests": {"memory": "2Gi"}},
        selectors=[selector(f'device.attributes["{DRIVER}"].?model.orValue("A") == "A"')],
    )
    asked = allocator(published, counters)
    asked.allocated.devices.add((DRIVER, "n1", "held"))
    reasons = asked.allocate(NODE, [claim(wanted)]).reasons
    kinds = {reason.device: reason.kind for reason in reasons if reason.device}
    assert kinds["held"] == "AlreadyAllocated"
    assert kinds["other-model"] == "SelectorFalse"
    assert kinds["small"] == "InsufficientCapacity"
    without = asked.allocate(NODE, [claim(request(selectors=[selector("device.driver.size() > 99")]))])
    assert {reason.kind for reason in without.reasons if reason.device} == {"SelectorFalse"}  # also of `held`
    free = asked.allocate(NODE, [claim(request(count=5))])
    kinds = {reason.device: reason.kind for reason in free.reasons if reason.device}
    assert kinds["tainted"] == "Tainted"
    assert kinds["half"] == "CounterExhausted"
    assert "1 AlreadyAllocated" in summary(free.reasons)


def test_a_constraint_and_the_missing_number_are_reasons() -> None:
    published = slice_of(
        {"name": "a", "attributes": {"numa": {"int": 0}}}, {"name": "b", "attributes": {"numa": {"int": 1}}}
    )
    asked = claim(request(count=2), constraints=[{"matchAttribute": f"{DRIVER}/numa"}])
    reasons = allocator(published).allocate(NODE, [asked]).reasons
    assert "ConstraintViolated" in {reason.kind for reason in reasons}
    [count] = [reason for reason in reasons if reason.kind == "TooFewDevices"]
    assert count.message == "2 devices requested, at most 1 found together"


def test_an_incomplete_pool_gives_no_devices() -> None:
    published = slice_of({"name": "a"})
    published["spec"]["pool"]["resourceSliceCount"] = 2
    [_, reason] = allocator(published).allocate(NODE, [claim()]).reasons
    assert (reason.kind, reason.pool) == ("PoolIncomplete", "n1")
    with pytest.raises(AllocationAborted, match=r"resource pool gpu\.example\.com/n1 is currently being updated"):
        allocator(published).allocate(NODE, [claim(request(allocationMode="All"))])


def test_a_counter_that_is_not_there_makes_the_pool_invalid_and_leaves_others() -> None:
    consumed = [{"counterSet": "nowhere", "counters": {"cores": {"value": "1"}}}]
    broken = slice_of({"name": "a", "consumesCounters": consumed})
    with pytest.raises(AllocationAborted, match="invalid resource pools were encountered") as caught:
        allocator(broken).allocate(NODE, [claim()])
    assert caught.value.on_node
    assert [r.message for r in caught.value.reasons if r.kind == "PoolInvalid"] == ["counter set nowhere not found"]
    fine = slice_of({"name": "b"}, name="s2")
    fine["spec"]["pool"]["name"] = "other"
    assert devices_of(allocator(broken, fine).allocate(NODE, [claim()]).results) == ["b"]


def test_slices_of_other_nodes_are_a_reason() -> None:
    published = slice_of({"name": "a"})
    del published["spec"]["nodeName"]
    term = {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["b"]}]}
    published["spec"]["nodeSelector"] = {"nodeSelectorTerms": [term]}
    reasons = allocator(published).allocate(NODE, [claim()]).reasons
    assert [reason.kind for reason in reasons] == ["TooFewDevices", "NodeMismatch"]


def test_an_invalid_selector_ends_the_allocation_with_its_place() -> None:
    invalid = {"metadata": {"name": "gpu"}, "spec": {"selectors": [selector("device.nope ==")]}}
    with pytest.raises(AllocationAborted, match="class gpu: selector #0: CEL compile error"):
        allocator(slice_of({"name": "a"}), classes=(invalid,)).allocate(NODE, [claim()])
    missing = request(selectors=[selector(f'device.attributes["{DRIVER}"].nope == 1')])
    with pytest.raises(AllocationAborted, match="CEL runtime error: no such key: nope") as caught:
        allocator(slice_of({"name": "a"})).allocate(NODE, [claim(missing)])
    assert caught.value.reasons[0].kind == "SelectorError"


@pytest.mark.parametrize(
    ("asked", "problem"),
    [
        (claim(*(request(f"r{n}") for n in range(33))), "33 requests exceed the limit of 32"),
        (claim(request(count=33)), "number of requested devices 33 exceeds the claim limit of 32"),
        (claim(request(deviceClassName="none")), 'deviceclass.resource.k8s.io "none" not found'),
        (claim(request(allocationMode="Most")), "unsupported count mode Most"),
        (claim(constraints=[{}]), "empty constraint"),
        (claim(request(capacity={"requests": {"memory": "lots"}})), "a quantity must look like"),
    ],
)
def test_an_invalid_claim_is_refused(asked: Object, problem: str) -> None:
    with pytest.raises(AllocationAborted, match=problem):
        allocator(slice_of({"name": "a"})).allocate(NODE, [asked])


@pytest.mark.parametrize(
    ("asked", "field"),
    [
        (claim(request(fastest=True)), r"spec.devices.requests\[0\].exactly.fastest"),
        (claim(together=True), "spec.devices.together"),
        (claim(request(derivedAttributes=[{"name": "x"}])), "derivedAttributes"),
    ],
)
def test_a_field_that_is_not_known_makes_the_claim_wait(asked: Object, field: str) -> None:
    with pytest.raises(FeatureUnsupported, match=field):
        allocator(slice_of({"name": "a"})).allocate(NODE, [asked])


@pytest.mark.parametrize("fields", [{"bindingConditions": ["ready"]}, {"coolness": 3}])
def test_a_device_with_an_unsupported_field_is_refused_when_it_would_be_chosen(fields: Object) -> None:
    special = {"name": "special", **fields}
    with pytest.raises(FeatureUnsupported, match=next(iter(fields))):
        allocator(slice_of(special, {"name": "plain"})).allocate(NODE, [claim()])
    assert devices_of(allocator(slice_of({"name": "plain"}, special)).allocate(NODE, [claim()]).results) == ["plain"]


def test_features_follow_the_version_and_alpha_features_are_refused_by_name() -> None:
    assert features_of("1.37.2").fractional_ranges
    assert not features_of("v1.36").fractional_ranges
    with pytest.raises(FeatureUnsupported, match="DRAListTypeAttributes"):
        features_of(names=["DRAListTypeAttributes"])
    with pytest.raises(ConfigError, match=r"got '1\.30'"):
        features_of("1.30")


def test_the_state_follows_allocations_and_their_end() -> None:
    shared = {"name": "a", "allowMultipleAllocations": True, "capacity": {"memory": {"value": "4Gi"}}}
    asked = allocator(slice_of(shared))
    want = request(capacity={"requests": {"memory": "3Gi"}})
    [first] = asked.allocate(NODE, [claim(want, name="one")]).results
    assert first["devices"]["results"][0]["consumedCapacity"] == {"memory": "3Gi"}
    asked.allocated.add(first)
    [_, reason] = asked.allocate(NODE, [claim(want, name="two")]).reasons
    assert reason.message == "3Gi of memory requested, 1Gi of 4Gi left"
    asked.allocated.remove(first)
    [second] = asked.allocate(NODE, [claim(want, name="two")]).results
    assert second["devices"]["results"][0]["shareID"] != first["devices"]["results"][0]["shareID"]
    assert AllocatedState.of_claims([{"status": {"allocation": first}}, {}]).holds((DRIVER, "n1", "a"))


def test_an_index_of_slices_takes_changes() -> None:
    index = SliceIndex([slice_of({"name": "a"})])
    asked = ClaimAllocator(features_of(), index, [GPU])
    index.put(slice_of({"name": "b"}))
    assert devices_of(asked.allocate(NODE, [claim()]).results) == ["b"]
    index.remove("s1")
    assert not asked.allocate(NODE, [claim()]).results


def test_a_pod_with_many_claims_does_not_exhaust_the_stack() -> None:
    published = slice_of(*({"name": f"d{number}"} for number in range(1200)))
    claims = [claim(*(request(f"r{n}") for n in range(30)), name=f"c{number}") for number in range(40)]
    assert len(devices_of(allocator(published).allocate(NODE, claims).results)) == 1200


def test_a_search_without_end_is_given_up() -> None:
    published = slice_of(*({"name": f"d{n}", "attributes": {"v": {"int": n % 3}}} for n in range(30)))
    asked = ClaimAllocator(features_of(), [published], [GPU], max_steps=1000)
    with pytest.raises(AllocationAborted, match="too many steps") as caught:
        asked.allocate(NODE, [claim(request(count=12), constraints=[{"matchAttribute": f"{DRIVER}/v"}])])
    assert caught.value.on_node


def test_the_offline_command_answers_line_by_line() -> None:
    question = {"node": NODE, "classes": [GPU], "slices": [slice_of({"name": "a"})], "claims": [claim()]}
    questions = [
        question,
        {**question, "allocated": [f"{DRIVER}/n1/a"]},
        {**question, "features": ["DRADerivedAttributes"]},
        {**question, "claims": [claim(request(deviceClassName="none"))]},
        {**question, "claims": [7]},
        {**question, "claims": 7},
        {**question, "mood": "good"},
    ]
    lines = [json.dumps(entry).encode() for entry in questions]
    lines += [b"{", b"[]", b"[" * 100_000, b'{"node": "\xff"}']
    command = [sys.executable, "-m", "plugwright.allocator"]
    done = subprocess.run(command, input=b"\n".join(lines), capture_output=True, check=True)
    fits, full, alpha, missing, malformed, mistyped, unknown, *broken = map(json.loads, done.stdout.splitlines())
    assert devices_of(fits["results"]) == ["a"]
    assert full["results"] == []
    assert [reason["kind"] for reason in full["reasons"]] == ["TooFewDevices", "AlreadyAllocated"]
    assert alpha["unsupported"] == "DRADerivedAttributes"
    assert "not found" in missing["error"]
    assert "malformed" in malformed["error"]
    assert mistyped["error"] == "claims must be a list of objects, got 7"
    assert unknown["unsupported"] == "mood"
    assert all("must be a JSON object" in answer["error"] for answer in broken)
    assert len(broken) == 4


def test_the_offline_command_has_help() -> None:
    command = [sys.executable, "-m", "plugwright.allocator", "--help"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "questions.jsonl" in done.stdout
