"""The effect that defects of a driver's ResourceSlices have on a real API server and scheduler."""

import json
import re

import pytest
from tests.kubernetes.cluster import Cluster
from tests.kubernetes.components import NODE
from tests.kubernetes.kubectl import KubectlFailed, Object
from tests.kubernetes.rule_drivers import PART, RuleDrivers
from tests.kubernetes.waiting import until

_ELSEWHERE = "elsewhere"
# One pool that is invalid has every claim that waits say so, whatever it waits for.
_WAITS = "0/1 nodes are available"


@pytest.mark.essential
@pytest.mark.plays("SLC-01", "SLC-02", "SLC-03", "SLC-04")
def test_a_slice_that_is_not_valid_is_refused_whole(drivers: RuleDrivers) -> None:
    refused = {
        "devices-and-counters": "sharedCounters",
        "name-with-underscore": "RFC 1123",
        "version-with-letter": "semver",
        "too-many-devices": "Too many",
    }
    drivers.start(*refused)
    for mutant, words in refused.items():
        process = drivers.processes[mutant]
        until(f"{mutant} is refused", lambda: process.lines(words), last=process.lines)  # noqa: B023
        assert not [found for found in drivers.slices(mutant) if found["spec"].get("devices")]


@pytest.mark.essential
@pytest.mark.plays("SLC-05", "SLC-07", "SLC-08")
def test_a_pool_that_is_not_right_is_not_used(drivers: RuleDrivers) -> None:
    drivers.serve("counts-wrong")
    drivers.create(*drivers.claimed("rule-counts-wrong", "counts-wrong"))
    drivers.not_scheduled({"rule-counts-wrong": "cannot allocate all claims"})
    invalid = ("device-twice", "no-such-counter")
    drivers.serve(*invalid)
    drivers.create(*(made for mutant in invalid for made in drivers.claimed(f"rule-{mutant}", mutant)))
    drivers.not_scheduled({f"rule-{mutant}": "invalid resource pools were encountered" for mutant in invalid})


@pytest.mark.plays("SLC-06", "SLC-09", "SLC-13", "SLC-14", "SLC-15", "SLC-16")
def test_devices_of_a_pool_that_is_not_kept_are_not_allocated_or_wrong(drivers: RuleDrivers) -> None:
    kept = ("publishes-with-registration", "ignores-edits", "deletes-slices-at-end", "publishes-anew")
    drivers.serve(*kept, "leaves-old-generation", "small-counter")
    [*_, counters] = drivers.slices("publishes-with-registration")
    [devices, *_] = drivers.slices("ignores-edits")
    drivers.kubectl("delete", "resourceslice", counters["metadata"]["name"])
    edit = json.dumps([{"op": "replace", "path": "/spec/devices", "value": [{"name": "other"}]}])
    drivers.kubectl("patch", "resourceslice", devices["metadata"]["name"], "--type=json", f"--patch={edit}")
    for mutant in ("deletes-slices-at-end", "publishes-anew"):
        drivers.processes[mutant].stop()
    drivers.start("publishes-anew")
    until("it has published anew", lambda: len(drivers.slices("publishes-anew")) == 4)
    assert not drivers.slices("deletes-slices-at-end")
    assert len(drivers.slices("leaves-old-generation")) == 3
    old = 'device.attributes["leaves-old-generation.test"].model == "old"'
    guarded = f'"model" in device.attributes["leaves-old-generation.test"] && {old}'
    drivers.create(
        *(made for mutant in kept for made in drivers.claimed(f"rule-{mutant}", mutant)),
        *drivers.claimed("rule-newest-generation", "leaves-old-generation"),
        *drivers.claimed("rule-old-generation", "leaves-old-generation", guarded),
        *drivers.claimed("rule-small-counter", "small-counter", PART, count=5),
    )
    drivers.not_scheduled(
        {
            "rule-publishes-with-registration": _WAITS,
            "rule-deletes-slices-at-end": _WAITS,
            "rule-publishes-anew": _WAITS,
            "rule-old-generation": _WAITS,
            "rule-small-counter": _WAITS,
        }
    )
    drivers.not_prepared({"rule-ignores-edits": "there is no device other"})
    drivers.run(["rule-newest-generation"])


@pytest.mark.plays("SLC-10", "SLC-11")
def test_slices_that_are_not_tied_to_their_node(drivers: RuleDrivers) -> None:
    drivers.create(_node())
    drivers.start("without-owner", node=_ELSEWHERE)
    drivers.start_correct("with-owner", node=_ELSEWHERE)
    drivers.serve("on-all-nodes")
    drivers.published("without-owner", "with-owner")
    claim, pod = drivers.claimed("rule-elsewhere", "on-all-nodes")
    pod["spec"] |= {"nodeSelector": {"where": _ELSEWHERE}, "tolerations": [{"operator": "Exists"}]}
    drivers.create(claim, pod)
    until("it is bound", lambda: drivers.read("rule-elsewhere").read()["spec"].get("nodeName") == _ELSEWHERE)
    assert drivers.slices("on-all-nodes")[0]["spec"]["pool"]["name"] == NODE, "a device of this node"
    for driver in ("without-owner", "with-owner"):
        drivers.processes[driver].stop()
    drivers.kubectl("delete", "node", _ELSEWHERE)
    until("those with an owner are gone", lambda: not drivers.slices("with-owner"))
    assert len(drivers.slices("without-owner")) == 2
    for found in drivers.slices("without-owner"):
        drivers.kubectl("delete", "resourceslice", found["metadata"]["name"])


@pytest.mark.plays("SLC-17")
def test_slices_that_are_written_all_the_time_reach_every_watcher(drivers: RuleDrivers) -> None:
    drivers.start("writes-all-the-time")
    before = _watched(drivers)
    until("fifty events are sent", lambda: _watched(drivers) > before + 50)


@pytest.mark.plays("DRG-02")
def test_an_api_server_warns_of_capitals_and_refuses_long_names(drivers: RuleDrivers, cluster: Cluster) -> None:
    drivers.plugins.driver("Name-In-Capitals.example.com", "name-in-capitals")
    until("it has slices", lambda: drivers.slices_of("Name-In-Capitals.example.com"))
    [first, *_] = drivers.slices_of("Name-In-Capitals.example.com")
    command = (drivers.kubectl.program, "annotate", "resourceslice", first["metadata"]["name"], "looked-at=1")
    assert "driver names should be lowercase" in cluster.run(*command).stderr
    long = {**first, "metadata": {"name": "long"}, "spec": {**first["spec"], "driver": f"{'d' * 52}.example.com"}}
    with pytest.raises(KubectlFailed, match="Too long"):
        drivers.create(long)


def _watched(drivers: RuleDrivers) -> float:
    """How many events of slices the API server has sent to those who watch."""
    metrics = drivers.kubectl("get", "--raw=/metrics")
    found = re.findall(r'^apiserver_watch_events_total\{.*resource="resourceslices".*\} (\S+)$', metrics, re.MULTILINE)
    return sum(map(float, found))


def _node() -> Object:
    room = {"cpu": "1", "memory": "1Gi", "pods": "10"}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": _ELSEWHERE, "labels": {"where": _ELSEWHERE}},
        "status": {"capacity": room, "allocatable": room},
    }
