"""The effect that defects of a driver have on the pods whose claims it prepares, by a real kubelet and runtime."""

import json
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from tests.kubernetes.pods import event_texts
from tests.kubernetes.rule_drivers import SHARED, RuleDrivers, container
from tests.kubernetes.waiting import until

_ADMIN = "resource.kubernetes.io/admin-access"


@pytest.mark.essential
@pytest.mark.plays("PRP-01", "PRP-02", "PRP-03", "PRP-05")
def test_an_answer_with_an_error_too_few_or_too_many_entries_or_other_names(drivers: RuleDrivers) -> None:
    drivers.serve("refuses-all", "answers-first-claim", "answers-all-claims", "names-subrequest")
    small = {"name": "small", **drivers.request("names-subrequest")["exactly"]}
    named = [container("c0", name="unnamed"), container("c0", "parts", name="named")]
    drivers.create(
        *drivers.claimed("rule-refuses-all", "refuses-all"),
        *(drivers.claim(name, drivers.request("answers-first-claim")) for name in ("one", "other")),
        drivers.pod("rule-skipped", "one", "other"),
        *drivers.claimed("rule-first-answer", "answers-all-claims"),
        drivers.claim("any", {"name": "parts", "firstAvailable": [small]}),
        drivers.pod("rule-subrequest", "any", containers=named),
    )
    drivers.run(["rule-first-answer", "rule-subrequest"])
    drivers.create(*drivers.claimed("rule-second-answer", "answers-all-claims"))
    drivers.not_prepared(
        {
            "rule-refuses-all": "this driver is not ready to prepare anything",
            "rule-skipped": "skipped 1 ResourceClaims",
            "rule-second-answer": "unknown claim UID",
        }
    )
    assert {name: drivers.seen("rule-subrequest", name) for name in ("unnamed", "named")} == {
        "unnamed": ["part-0"],
        "named": [],
    }


@pytest.mark.plays("PRP-08", "PRP-14", "PRP-15", "PRP-16", "PRP-17", "PRP-20", "PRP-22")
def test_a_claim_is_refused_and_its_pod_waits(drivers: RuleDrivers) -> None:
    others = ("takes-others-results", "fails-whole-call", "says-nothing", "refuses-shares", "one-pod-alone")
    drivers.serve(*others, "never-frees", "refuses-admin")
    drivers.kubectl("label", "namespace", "default", f"{_ADMIN}=true", "--overwrite")
    request = drivers.request
    drivers.create(
        drivers.claim("others", request(others[0]), config=[drivers.parameters("another")]),
        drivers.pod("rule-others", "others"),
        drivers.claim("good", request(others[1])),
        drivers.claim("bad", request(others[1]), config=[drivers.parameters(others[1])]),
        drivers.pod("rule-whole-call", "good", "bad"),
        drivers.claim("nothing", request(others[2]), config=[drivers.parameters(others[2])]),
        drivers.pod("rule-nothing", "nothing"),
        *drivers.claimed("rule-share", others[3], SHARED),
        *drivers.claimed("rule-freed", "never-frees"),
        *drivers.claimed("rule-holder", "refuses-admin"),
    )
    with frozen(drivers, "one-pod-alone"):
        drivers.create(
            drivers.claim("common", request("one-pod-alone")),
            *(drivers.pod(f"rule-common-{number}", "common") for number in range(2)),
        )
        until("both are to use it", lambda: len(_status(drivers, "common").get("reservedFor", [])) == 2)
    drivers.run(["rule-share", "rule-freed", "rule-holder"])
    drivers.read("rule-freed").delete()
    drivers.kubectl("delete", "resourceclaim", "rule-freed", "--wait", "--timeout=60s")
    drivers.create(
        *drivers.claimed("rule-next-share", others[3], SHARED),
        *drivers.claimed("rule-next", "never-frees"),
        *drivers.claimed("rule-admin", "refuses-admin", adminAccess=True),
    )
    drivers.not_prepared(
        {
            "rule-others": "this driver takes no parameters",
            "rule-whole-call": "NodePrepareResources: rpc error: code = Internal desc = this driver",
            "rule-nothing": "failed for ResourceClaim nothing: error",
            "rule-next-share": "device shared is in use by another claim",
            "rule-common-0": "it must be reserved for one pod",
            "rule-common-1": "it must be reserved for one pod",
            "rule-next": "is in use by another claim",
            "rule-admin": "is in use by another claim",
        }
    )
    texts = event_texts(drivers.kubectl, "FailedPrepareDynamicResources")
    assert "bad" not in texts["rule-whole-call"], "nobody is told which claim it is"
    drivers.kubectl("label", "namespace", "default", f"{_ADMIN}-")


@pytest.mark.plays("PRP-04", "PRP-06", "PRP-12", "PRP-13", "PRP-19", "PRP-21", "DRG-04", "DST-01")
def test_a_container_has_no_device_another_one_or_one_in_use(drivers: RuleDrivers) -> None:
    mutants = ("own-request-name", "chooses-device", "prepares-any-device", "gives-twice", "loses-updates")
    drivers.serve(*mutants, "drops-share-id", "old-version-first", "forgets-claims")
    drivers.start_correct("names-share")
    drivers.published("names-share")
    drivers.create(_unplugged(drivers))
    named = [container("c0", name="unnamed"), container("c0", "device", name="named")]
    gone = 'device.attributes["prepares-any-device.test"].model == "gone"'
    guarded = f'"model" in device.attributes["prepares-any-device.test"] && {gone}'
    drivers.create(
        drivers.claim("named", drivers.request("own-request-name")),
        drivers.pod("rule-named", "named", containers=named),
        *drivers.claimed("rule-chosen", "chooses-device", SHARED),
        *drivers.claimed("rule-unplugged", "prepares-any-device", guarded),
        *drivers.claimed("rule-first", "gives-twice"),
        *(made for number in range(3) for made in drivers.claimed(f"rule-lost-{number}", "loses-updates")),
        *(made for name in _SHARES for made in drivers.claimed(f"rule-{name}", name, SHARED)),
        *drivers.claimed("rule-known", "forgets-claims"),
    )
    holders = ["rule-first", "rule-lost-0", "rule-lost-1", "rule-lost-2", "rule-known"]
    drivers.run(["rule-named", "rule-chosen", "rule-unplugged", *(f"rule-{name}" for name in _SHARES), *holders])
    assert drivers.seen("rule-named", "unnamed") == ["part-0"]
    assert drivers.seen("rule-named", "named") == []
    assert (drivers.results("rule-chosen"), drivers.seen("rule-chosen")) == (["shared"], ["part-0"])
    assert drivers.seen("rule-unplugged") == ["gone-0"]
    assert {name: _has_share(drivers, f"rule-{name}") for name in _SHARES} == _SHARES
    drivers.kill("forgets-claims")
    drivers.start("forgets-claims")
    until("it is registered again", lambda: drivers.processes["forgets-claims"].lines("registered"))
    lost = _lost_claim(drivers, "loses-updates", holders[1:4])
    seconds = {"gives-twice": "rule-first", "loses-updates": lost, "forgets-claims": "rule-known"}
    for mutant, first in seconds.items():
        drivers.create(drivers.claim(f"second-{mutant}", drivers.request(mutant)))
        drivers.allocate_as(f"second-{mutant}", first)
        drivers.create(drivers.pod(f"rule-second-{mutant}", f"second-{mutant}"))
    drivers.run([f"rule-second-{mutant}" for mutant in seconds])
    for mutant, first in seconds.items():
        assert drivers.seen(f"rule-second-{mutant}") == drivers.seen(first), "both have it"


@pytest.mark.plays("CDI-01", "CDI-02", "CDI-03", "CDI-04", "CDI-06", "DST-02")
def test_a_container_is_not_created(drivers: RuleDrivers) -> None:
    mutants = ("bare-cdi-name", "writes-no-spec", "empty-edits", "missing-node")
    drivers.serve(*mutants, "same-cdi-name", "cleans-specs")
    drivers.create(
        *drivers.claimed("rule-one-name", "same-cdi-name", SHARED),
        *drivers.claimed("rule-specs", "cleans-specs"),
        *(made for mutant in mutants for made in drivers.claimed(f"rule-{mutant}", mutant)),
    )
    drivers.run(["rule-one-name", "rule-specs"])
    drivers.kill("cleans-specs")
    drivers.start("cleans-specs")
    until("it is registered again", lambda: drivers.processes["cleans-specs"].lines("registered"))
    drivers.create(*drivers.claimed("rule-same-name", "same-cdi-name", SHARED))
    drivers.kubectl.works("exec", "rule-specs", "--", "sh", "-c", "kill 1")  # which ends with it
    drivers.not_created(["rule-same-name", "rule-specs", *(f"rule-{mutant}" for mutant in mutants)])


@pytest.mark.plays("PRP-09", "PRP-10", "PRP-11")
def test_a_claim_that_changes_while_it_is_prepared(drivers: RuleDrivers) -> None:
    """The driver is frozen when the kubelet, which has read the claims, calls it."""
    mutants = ("prepares-missing-claim", "ignores-uid", "prepares-unallocated")
    drivers.serve(*mutants)
    with frozen(drivers, *mutants):
        drivers.create(*(made for mutant in mutants for made in drivers.claimed(f"rule-{mutant}", mutant)))
        until("they are called", lambda: all(f"rule-{mutant}" in _record(drivers) for mutant in mutants))
        drivers.lose("rule-prepares-missing-claim")
        drivers.lose("rule-ignores-uid")
        claim, pod = drivers.claimed("rule-ignores-uid", "ignores-uid", SHARED)
        drivers.create(claim, {**pod, "metadata": {"name": "rule-owner"}})
        until("the new one is allocated", lambda: drivers.results("rule-ignores-uid") == ["shared"])
        found = drivers.kubectl.get("resourceclaim", "rule-prepares-unallocated")
        assert found is not None
        drivers.replace_status({**found, "status": {}})
    drivers.run(f"rule-{mutant}" for mutant in mutants)
    seen = {mutant: drivers.seen(f"rule-{mutant}") for mutant in mutants}
    assert seen == {"prepares-missing-claim": [], "ignores-uid": ["shared"], "prepares-unallocated": []}


_SHARES = {"names-share": True, "drops-share-id": False, "old-version-first": False}


@contextmanager
def frozen(drivers: RuleDrivers, *mutants: str) -> Iterator[None]:
    for mutant in mutants:
        drivers.processes[mutant].freeze()
    try:
        yield
    finally:
        for mutant in mutants:
            drivers.processes[mutant].thaw()


def _status(drivers: RuleDrivers, claim: str) -> dict[str, list[object]]:
    return (drivers.kubectl.get("resourceclaim", claim) or {}).get("status") or {}


def _record(drivers: RuleDrivers) -> str:
    """What the kubelet has written of claims: a claim is there before its driver is called (11.13)."""
    path = drivers.cluster.kubelet_dir / "dra_manager_state"
    return path.read_text() if path.exists() else ""


def _has_share(drivers: RuleDrivers, claim: str) -> bool:
    """Whether the kubelet knows which share of its device a claim has."""
    entries = json.loads(json.loads(_record(drivers))["Data"])["ClaimInfoStateList"]
    [entry] = [entry for entry in entries if entry["ClaimName"] == claim]
    return "ShareID" in json.dumps(entry) and '"ShareID": null' not in json.dumps(entry)


def _unplugged(drivers: RuleDrivers) -> dict[str, object]:
    """A slice with a device that the driver does not have any more."""
    [spec, *_] = [found["spec"] for found in drivers.slices("prepares-any-device")]
    devices = [{"name": "gone-0", "attributes": {"model": {"string": "gone"}}}]
    pool = {"name": "unplugged", "generation": 1, "resourceSliceCount": 1}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": "unplugged"},
        "spec": {**spec, "devices": devices, "pool": pool},
    }


def _lost_claim(drivers: RuleDrivers, mutant: str, claims: list[str]) -> str:
    """One of these that runs, and that the driver's checkpoint does not have."""
    kept = drivers.checkpoint(mutant).read_text()
    uids = {claim: str((drivers.kubectl.get("resourceclaim", claim) or {})["metadata"]["uid"]) for claim in claims}
    [lost, *_] = [claim for claim, uid in uids.items() if uid not in kept]
    return lost
