"""The same claims for the real scheduler and for ours: which devices they get, which pods wait, and what is said.

The scenarios are those of a rig of real components: choices by attribute, topology, alternatives, parts, shares,
taints, invalid pools and selectors, and extended resources that a class serves.
"""

import asyncio
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.kubernetes.cluster import Cluster
from tests.kubernetes.kubectl import Object
from tests.kubernetes.schedulers import Ours, Real, Seen, condition, in_words_of, is_settled, node, nodes, ours, pod

from plugwright.apiserver import RELEASES

EAST, WEST = {"sched/zone": "east"}, {"sched/zone": "west"}
GPU, PART, SHARE, MANY, WORN, HALF, LOST = (
    f"{name}.sched.example.com" for name in ("gpu", "part", "share", "many", "worn", "half", "lost")
)
RESOURCE = "sched.example.com/gpu"
NODES = [node("claims-1", "east"), node("claims-2", "west")]
NODES[1]["status"]["capacity"] = NODES[1]["status"]["allocatable"] = {
    **NODES[1]["status"]["allocatable"],
    "sched.example.com/plugin": "1",
}
_LIMIT = 8.0  # seconds, until the real scheduler has seen what ours has


def made(kind: str, name: str, spec: Object) -> Object:
    namespace = {"namespace": "default"} if kind.startswith("ResourceClaim") else {}
    return {"apiVersion": "resource.k8s.io/v1", "kind": kind, "metadata": {"name": name, **namespace}, "spec": spec}


def device_class(driver: str, resource: str = "") -> Object:
    extended = {"extendedResourceName": resource} if resource else {}
    return made("DeviceClass", driver, {"selectors": selecting(f'device.driver == "{driver}"'), **extended})


def published(driver: str, devices: list[Object], where: str = "claims-1", **more: Any) -> Object:
    pool = {"name": f"{where}-pool", "generation": 1, "resourceSliceCount": 1, **more.pop("pool", {})}
    parts = {"devices": devices} if devices else {}
    name = f"{where}-{more.pop('name', driver)}"
    return made("ResourceSlice", name, {"driver": driver, "nodeName": where, "pool": pool, **parts, **more})


def selecting(*expressions: str) -> list[Object]:
    return [{"cel": {"expression": expression}} for expression in expressions]


def gpu(number: int, model: str, memory: str) -> Object:
    attributes = {"model": {"string": model}, "numa": {"int": number // 2}, "driverVersion": {"version": "570.86.15"}}
    return {"name": f"gpu-{number}", "attributes": attributes, "capacity": {"memory": {"value": memory}}}


def part(name: str, slots: int) -> Object:
    return {
        "name": name,
        "consumesCounters": [{"counterSet": "card", "counters": {"slots": {"value": str(slots)}}}],
    }


def memory(amount: str) -> Object:
    policy = {"default": "10Gi", "validRange": {"min": "10Gi", "step": "10Gi"}}
    capacity = {"memory": {"value": amount, "requestPolicy": policy}}
    return {"name": "card", "allowMultipleAllocations": True, "capacity": capacity}


TAINT = {"key": "sched.example.com/broken", "effect": "NoSchedule"}
OBJECTS = [
    *(device_class(driver) for driver in (GPU, PART, SHARE, WORN, HALF, LOST)),
    device_class(MANY, RESOURCE),
    made("DeviceClass", "plugin.sched.example.com", {"extendedResourceName": "sched.example.com/plugin"}),
    made("DeviceClass", "wrong.sched.example.com", {"selectors": selecting(f'device.attributes["{GPU}"].none == 1')}),
    published(GPU, [gpu(0, "a", "80Gi"), gpu(1, "b", "80Gi"), gpu(2, "b", "40Gi"), gpu(3, "b", "80Gi")]),
    published(PART, [part("whole", 4), part("half-0", 2), part("half-1", 2)], pool={"resourceSliceCount": 2}),
    published(
        PART,
        [],
        name="counters",
        pool={"resourceSliceCount": 2},
        sharedCounters=[{"name": "card", "counters": {"slots": {"value": "4"}}}],
    ),
    published(SHARE, [memory("40Gi")]),
    published(MANY, [{"name": f"d{number}"} for number in range(40)]),
    published(WORN, [{"name": "w0", "taints": [TAINT]}]),
    published(HALF, [{"name": "h0"}], "claims-2", pool={"resourceSliceCount": 2}),
    published(LOST, [part("l0", 1)], "claims-2"),
]
MODEL_B = f'device.attributes["{GPU}"].model == "b"'
LARGE = f'device.capacity["{GPU}"].memory.compareTo(quantity("64Gi")) >= 0'


def asking(name: str, requests: list[Object], constraints: list[Object] | None = None) -> Object:
    limits = {"constraints": constraints} if constraints else {}
    return made("ResourceClaim", f"sched-{name}", {"devices": {"requests": requests, **limits}})


def exactly(driver: str, name: str = "dev", **more: Any) -> Object:
    return {"name": name, "exactly": {"deviceClassName": driver, **more}}


NUMA = [{"matchAttribute": f"{GPU}/numa"}]
CLAIMS = {
    "wrong-selector": asking(
        "wrong-selector", [exactly(GPU, selectors=selecting(f'device.attributes["{GPU}"].x == 1'))]
    ),
    "wrong-class": asking("wrong-class", [exactly("wrong.sched.example.com")]),
    "two-on-one-node": asking(
        "two-on-one-node", [exactly(GPU, count=2, selectors=selecting(MODEL_B))], NUMA
    ),
    "too-many": asking("too-many", [exactly(GPU, count=2, selectors=selecting(MODEL_B, LARGE))], NUMA),
    "large": asking("large", [exactly(GPU, selectors=selecting(LARGE))]),
    "alternative": asking(
        "alternative",
        [
            {
                "name": "dev",
                "firstAvailable": [
                    {"name": "none", "deviceClassName": GPU, "selectors": selecting(f"!({MODEL_B}) && !({LARGE})")},
                    {"name": "any", "deviceClassName": GPU},
                ],
            }
        ],
    ),
    "exhausted": asking("exhausted", [exactly(GPU)]),
    "half": asking("half", [exactly(PART, selectors=selecting('device.driver.startsWith("part")'), count=1)]),
    "other-half": asking("other-half", [exactly(PART)]),
    "share": asking("share", [exactly(SHARE, capacity={"requests": {"memory": "25Gi"}})]),
    "share-again": asking("share-again", [exactly(SHARE, capacity={"requests": {"memory": "5Gi"}})]),
    "share-too-much": asking("share-too-much", [exactly(SHARE, capacity={"requests": {"memory": "5Gi"}})]),
    "all": asking("all", [exactly(MANY, allocationMode="All")]),
    "many": asking("many", [exactly(MANY, count=32)]),
    "worn": asking("worn", [exactly(WORN)]),
    "tolerating": asking("tolerating", [exactly(WORN, tolerations=[{"key": TAINT["key"], "operator": "Exists"}])]),
    "no-class": asking("no-class", [exactly("none.sched.example.com")]),
    "no-class-choice": asking(
        "no-class-choice",
        [{"name": "dev", "firstAvailable": [{"name": "one", "deviceClassName": "none.sched.example.com"}]}],
    ),
}  # fmt: skip
INVALID = {
    "incomplete": asking("incomplete", [exactly(HALF)]),
    "incomplete-all": asking("incomplete-all", [exactly(HALF, allocationMode="All")]),
    "dangling": asking("dangling", [exactly(LOST)]),
}
USES = {"claims": [{"name": "dev"}]}


def using(name: str, where: Object = EAST) -> Object:
    return pod(name, where, resources=USES, resourceClaims=[{"name": "dev", "resourceClaimName": f"sched-{name}"}])


def counting(name: str, resource: str, count: int, where: Object = EAST) -> Object:
    return pod(name, where, resources={"limits": {resource: str(count)}, "requests": {resource: str(count)}})


PODS = [
    *(using(name) for name in CLAIMS),
    *(using(name, WEST) for name in INVALID),
    # A pod without its claim is left out: the real scheduler says nothing, ours what is missing.
    counting("by-count", RESOURCE, 1),
    counting("by-count-33", RESOURCE, 33),
    counting("by-class", f"deviceclass.resource.kubernetes.io/{MANY}", 2),
    counting("by-worn-class", f"deviceclass.resource.kubernetes.io/{WORN}", 1),
    counting("by-plugin", "sched.example.com/plugin", 1, WEST),
    counting("by-plugin-again", "sched.example.com/plugin", 1, WEST),
    counting("by-none", "sched.example.com/none", 1),
]


async def play(lab: Ours | Real, expected: dict[str, Seen] | None = None) -> dict[str, Seen]:
    """With what `expected` says, waits until it is so: a scheduler may see a claim after its pod."""
    for entry in (*OBJECTS, *CLAIMS.values(), *INVALID.values()):
        assert lab.create(entry) == "", entry
    result: dict[str, Seen] = {}
    for entry in PODS:
        assert lab.create(entry) == ""
        name = entry["metadata"]["name"]
        await lab.until(f"{name} is settled", lambda: is_settled(lab.get("Pod", name) or {}))  # noqa: B023  called at once
        limit = time.monotonic() + _LIMIT
        result[name] = shown(lab, name)
        while expected and result[name] != expected[name] and time.monotonic() < limit:
            await asyncio.sleep(0.2)
            result[name] = shown(lab, name)
    return result


def shown(lab: Ours | Real, name: str) -> Seen:
    found = lab.get("Pod", name) or {}
    status = found["status"]
    extended = status.get("extendedResourceClaimStatus") or {}
    claim = lab.get("ResourceClaim", extended.get("resourceClaimName") or name) or {"metadata": {}}
    allocation = (claim.get("status") or {}).get("allocation") or {}
    results = (allocation.get("devices") or {}).get("results") or ()
    kept = ("request", "driver", "pool", "device", "consumedCapacity", "tolerations", "adminAccess")
    return {
        "node": found["spec"].get("nodeName", ""),
        "conditions": [list(condition(one)) for one in status.get("conditions") or () if one["type"] == "PodScheduled"],
        "mappings": extended.get("requestMappings"),
        "claim": re.sub(r"[a-z0-9]{5}$", "", extended.get("resourceClaimName") or ""),
        "annotations": claim["metadata"].get("annotations"),
        "owners": [{**owner, "uid": ""} for owner in claim["metadata"].get("ownerReferences") or ()],
        "finalizers": claim["metadata"].get("finalizers"),
        "spec": claim.get("spec") if extended else None,
        "devices": [{key: one[key] for key in kept if key in one} for one in results],
        "nodeSelector": allocation.get("nodeSelector"),
    }


@contextmanager
def cleaned(cluster: Cluster) -> Iterator[None]:
    try:
        yield
    finally:
        names = [entry["metadata"]["name"] for entry in (*CLAIMS.values(), *INVALID.values())]
        cluster.kubectl("delete", "resourceclaims", "--wait=false", "--ignore-not-found", *names)
        for kind in ("ResourceSlice", "DeviceClass"):
            of_kind = [entry["metadata"]["name"] for entry in OBJECTS if entry["kind"] == kind]
            cluster.kubectl("delete", kind, "--ignore-not-found", *of_kind)


async def play_to_ours(version: str) -> dict[str, Seen]:
    release = RELEASES[".".join(version.split(".")[:2])]
    async with ours(*NODES, release=release) as lab:
        return await play(lab)


def test_claims_get_the_devices_and_pods_the_words_of_the_real_scheduler(cluster: Cluster) -> None:
    expected = in_words_of(cluster.version, asyncio.run(play_to_ours(cluster.version)))
    with cleaned(cluster), nodes(cluster, *NODES):
        real = asyncio.run(play(Real(cluster, *NODES), expected))
    assert {name: (expected[name], real[name]) for name in real if expected[name] != real[name]} == {}
