"""ResourceSlices and ResourceClaims at the limits of the API: the embedded server refuses what the real one refuses."""

import json
from typing import Any

import pytest
from tests.apiserver.serving import EPOCH, populated
from tests.kubernetes.cluster import Cluster
from tests.kubernetes.kubectl import KubectlFailed, Object

from plugwright.apiserver import KUBERNETES_VERSION, schema
from plugwright.apiserver.kinds import RESOURCE_CLAIMS, RESOURCE_SLICES
from plugwright.apiserver.registry import ResourcePath, Writer
from plugwright.apiserver.store import DryRun, Store
from plugwright.errors import StatusError

TAINT = {"key": "example.com/x", "effect": "NoSchedule"}
POLICY = {"default": "1Gi", "validRange": {"min": "1Gi", "max": "8Gi", "step": "1Gi"}}
USES = {"counterSet": "card", "counters": {"mem": {"value": "1Gi"}}}


def resource_slice(**spec: Any) -> Object:
    base = {"driver": "d.example.com", "nodeName": "node", "pool": pool(), "devices": [device()]}
    content = {key: value for key, value in {**base, **spec}.items() if value is not None}
    return {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": {"name": "s"}, "spec": content}


def pool(**changes: Any) -> Object:
    return {"name": "p", "generation": 1, "resourceSliceCount": 1, **changes}


def device(name: str = "a", **more: Any) -> Object:
    return {"name": name, **more}


def devices(count: int, **more: Any) -> list[Object]:
    return [device(f"d{number}", **more) for number in range(count)]


def one(**more: Any) -> Object:
    return resource_slice(devices=[device(**more)])


def attributes(count: int, name: str = "a{}") -> Object:
    return {name.format(number): {"int": number} for number in range(count)}


def claim(*requests: Object, **more: Any) -> Object:
    spec = {"devices": {"requests": list(requests), **more}}
    return {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"name": "c"}, "spec": spec}


def request(name: str = "r", **exactly: Any) -> Object:
    return {"name": name, "exactly": {"deviceClassName": "c.example.com", **exactly}}


def config(**opaque: Any) -> Object:
    return {"config": [{"opaque": {"driver": "d.example.com", "parameters": {"a": 1}, **opaque}}]}


def cel(expression: str = "true") -> Object:
    return {"cel": {"expression": expression}}


PROBES: dict[str, Object] = {
    "plain": one(attributes=attributes(2), capacity={"memory": {"value": "1Gi"}}, taints=[TAINT]),
    "128 devices": resource_slice(devices=devices(128)),
    "129 devices": resource_slice(devices=devices(129)),
    "65 with taints": resource_slice(devices=devices(65, taints=[TAINT])),
    "65 with counters": resource_slice(devices=devices(65, consumesCounters=[USES])),
    "33 attributes": one(attributes=attributes(33)),
    "32 and 1": one(attributes=attributes(32), capacity={"memory": {"value": "1"}}),
    "name of 33": one(attributes={"a" * 33: {"int": 1}}),
    "name with a dash": one(attributes={"a-b": {"int": 1}}),
    "name with a domain": one(attributes={"example.com/a": {"int": 1}}),
    "bad domain": one(attributes={"Exa_mple/a": {"int": 1}}),
    "capacity with a dash": one(capacity={"a-b": {"value": "1"}}),
    "text of 65": one(attributes={"a": {"string": "x" * 65}}),
    "version v1.2.3": one(attributes={"a": {"version": "v1.2.3"}}),
    "version 1.2": one(attributes={"a": {"version": "1.2"}}),
    "no value": one(attributes={"a": {}}),
    "two values": one(attributes={"a": {"int": 1, "bool": True}}),
    "device of 64": one(name="x" * 64),
    "device with a dot": one(name="a.b"),
    "device without a name": one(name=""),
    "a device twice": resource_slice(devices=[device(), device()]),
    "pool in capitals": resource_slice(pool=pool(name="P")),
    "pool with a slash": resource_slice(pool=pool(name="a/b")),
    "pool of 254": resource_slice(pool=pool(name="x" * 254)),
    "no pool": resource_slice(pool={"name": "", "generation": 1, "resourceSliceCount": 1}),
    "generation -1": resource_slice(pool=pool(generation=-1)),
    "no slices": resource_slice(pool=pool(resourceSliceCount=0)),
    "no driver": resource_slice(driver=""),
    "driver of 64": resource_slice(driver="x" * 64),
    "driver in capitals": resource_slice(driver="D.example.com"),
    "driver with an underscore": resource_slice(driver="d_e"),
    "nowhere": resource_slice(nodeName=None),
    "two places": resource_slice(allNodes=True),
    "all nodes false": resource_slice(nodeName=None, allNodes=False),
    "node per device": resource_slice(nodeName=None, perDeviceNodeSelection=True, devices=[device(allNodes=True)]),
    "node per device missing": resource_slice(nodeName=None, perDeviceNodeSelection=True),
    "node of a device": one(nodeName="node"),
    "17 taints": one(taints=[{**TAINT, "key": f"example.com/x{number}"} for number in range(17)]),
    "taint without effect": one(taints=[{"key": "example.com/x"}]),
    "taint of another effect": one(taints=[{**TAINT, "effect": "PreferNoSchedule"}]),
    "taint without key": one(taints=[{"effect": "NoSchedule"}]),
    "taint with a bad value": one(taints=[{**TAINT, "value": "a b"}]),
    "counters and devices": resource_slice(sharedCounters=[{"name": "card", "counters": {"mem": {"value": "1"}}}]),
    "counters": resource_slice(devices=None, sharedCounters=[{"name": "card", "counters": {"mem": {"value": "1"}}}]),
    "no counters": resource_slice(devices=None, sharedCounters=[{"name": "card", "counters": {}}]),
    "9 counter sets": resource_slice(
        devices=None, sharedCounters=[{"name": f"c{n}", "counters": {"m": {"value": "1"}}} for n in range(9)]
    ),
    "33 counters": resource_slice(
        devices=None, sharedCounters=[{"name": "c", "counters": {f"m{n}": {"value": "1"} for n in range(33)}}]
    ),
    "counter in capitals": resource_slice(
        devices=None, sharedCounters=[{"name": "c", "counters": {"M": {"value": "1"}}}]
    ),
    "3 sets consumed": one(consumesCounters=[{**USES, "counterSet": f"c{number}"} for number in range(3)]),
    "a set consumed twice": one(consumesCounters=[USES, USES]),
    "a set without counters": one(consumesCounters=[{"counterSet": "c", "counters": {}}]),
    "policy": one(allowMultipleAllocations=True, capacity={"memory": {"value": "8Gi", "requestPolicy": POLICY}}),
    "policy of one": one(capacity={"memory": {"value": "8Gi", "requestPolicy": POLICY}}),
    "policy without default": one(
        allowMultipleAllocations=True,
        capacity={"memory": {"value": "8Gi", "requestPolicy": {"validRange": POLICY["validRange"]}}},
    ),
    "condition without failure": one(bindingConditions=["a"]),
    "5 conditions": one(bindingConditions=list("abcde"), bindingFailureConditions=["x"]),
    "a claim": claim(request()),
    "33 requests": claim(*(request(f"r{number}") for number in range(33))),
    "no requests": claim(),
    "request in capitals": claim(request("R")),
    "a request twice": claim(request(), request()),
    "no class": claim(request(deviceClassName="")),
    "neither": claim({"name": "r"}),
    "both": claim({**request(), "firstAvailable": [{"name": "s", "deviceClassName": "c"}]}),
    "mode": claim(request(allocationMode="Some")),
    "all with a count": claim(request(allocationMode="All", count=2)),
    "count -1": claim(request(count=-1)),
    "9 subrequests": claim(
        {"name": "r", "firstAvailable": [{"name": f"s{n}", "deviceClassName": "c"} for n in range(9)]}
    ),
    "subrequest twice": claim({"name": "r", "firstAvailable": [{"name": "s", "deviceClassName": "c"}] * 2}),
    "33 selectors": claim(request(selectors=[cel()] * 33)),
    "17 tolerations": claim(request(tolerations=[{"key": f"k{n}", "operator": "Exists"} for n in range(17)])),
    "toleration": claim(request(tolerations=[{"key": "k", "operator": "Some"}])),
    "33 constraints": claim(request(), constraints=[{"matchAttribute": "a.example.com/b"}] * 33),
    "constraint without domain": claim(request(), constraints=[{"matchAttribute": "b"}]),
    "empty constraint": claim(request(), constraints=[{"requests": ["r"]}]),
    "constraint of another": claim(request(), constraints=[{"requests": ["x"], "matchAttribute": "a.example.com/b"}]),
    "config": claim(request(), **config()),
    "config without driver": claim(request(), **config(driver="")),
    "config without parameters": claim(request(), **config(parameters=None)),
    "config of 11 KiB": claim(request(), **config(parameters={"a": "x" * 11000})),
    "config of another": claim(request(), config=[{"requests": ["x"], **config()["config"][0]}]),
}


def real_answer(cluster: Cluster, probe: Object) -> set[str]:
    """What kubectl prints of each field."""
    try:
        cluster.kubectl("create", "--dry-run=server", "--filename=-", given=json.dumps(probe))
    except KubectlFailed as error:
        return set(str(error).partition(" is invalid: ")[2].removeprefix("\n* ").split("\n* "))
    return set()


def embedded_answer(probe: Object) -> set[str]:
    kind = RESOURCE_SLICES if probe["kind"] == "ResourceSlice" else RESOURCE_CLAIMS
    namespace = "" if kind is RESOURCE_SLICES else "default"
    writer = Writer(DryRun(populated(Store())), lambda: EPOCH)
    try:
        checked, _ = schema.checked_object(kind, probe, "Strict")
        writer.create(ResourcePath(kind, namespace, probe["metadata"]["name"]), checked, "test")
    except StatusError as error:
        causes = (error.details or {}).get("causes") or [{"field": "body", "message": error.message}]
        return {f"{cause['field']}: {cause['message']}" for cause in causes}
    return set()


@pytest.mark.essential
def test_the_embedded_server_refuses_what_the_real_one_refuses(cluster: Cluster) -> None:
    """In the words of its own version; of others the fields are compared."""
    is_same = cluster.version == KUBERNETES_VERSION

    def compared(answer: set[str]) -> set[str]:
        return answer if is_same else {text.partition(": ")[0] for text in answer}

    answers = {name: (real_answer(cluster, probe), embedded_answer(probe)) for name, probe in PROBES.items()}
    differing = {name: answer for name, answer in answers.items() if compared(answer[0]) != compared(answer[1])}
    assert differing == {}
