"""Whether the kubelet's Topology Manager would reject a container, from the node's NodeReport.

The kubelet admits a container under `restricted` if its devices fit on the smallest number of NUMA nodes that could
ever hold them, and under `single-numa-node` only if that number is one. Devices without NUMA nodes are not restricted.
"""

from collections import Counter
from collections.abc import Collection
from itertools import combinations

from plugwright.explain.node_reports import reported_devices
from plugwright.explain.world import ApiObject, ObjectId

__all__ = ["STRICT", "free_by_numa", "refusal", "report_policy"]

STRICT = ("restricted", "single-numa-node")


def report_policy(report: ApiObject | None) -> str:
    return str(((report or {}).get("kubelet") or {}).get("topologyManagerPolicy") or "")


def refusal(
    report: ApiObject | None, resource: str, wanted: int, ended: Collection[ObjectId] = (), policy: str | None = None
) -> str:
    """Why the kubelet would reject this many devices, empty if it would not or if that is unknown."""
    policy = report_policy(report) if policy is None else policy
    devices = reported_devices(report, resource)
    if policy not in STRICT or not devices or any(not device.get("numa") for device in devices):
        return ""
    free = free_by_numa(report, resource, ended)
    everything = Counter(device["numa"][0] for device in devices)
    width = next((size for size in range(1, len(everything) + 1) if _holds(everything, size, wanted)), 0)
    if policy == "single-numa-node" and width != 1:
        return f"more than any NUMA node has, under the policy {policy}"
    if width and _holds(free, width, wanted):
        return ""
    spread = " + ".join(str(free[node]) for node in sorted(everything))
    return f"{sum(free.values())} free, {spread}"


def free_by_numa(report: ApiObject | None, resource: str, ended: Collection[ObjectId] = ()) -> Counter[int]:
    """Devices that the kubelet could allocate to a container now."""
    free: Counter[int] = Counter()
    for device in reported_devices(report, resource):
        holders = [
            holder
            for holder in device.get("holders") or ()
            if (holder.get("namespace"), holder.get("pod")) not in ended
        ]
        blocked = device.get("closed") or device.get("cordoned") or device.get("health") != "Healthy"
        if not holders and not blocked and device.get("numa"):
            free[device["numa"][0]] += 1
    return free


def _holds(devices: Counter[int], size: int, wanted: int) -> bool:
    return any(sum(devices[node] for node in nodes) >= wanted for nodes in combinations(sorted(devices), size))
