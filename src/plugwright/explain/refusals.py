"""Pods that the kubelet rejected: the resource, the node, and the kubelet's counts."""

import re

from plugwright.explain.world import ApiObject
from plugwright.text import clean

__all__ = ["REFUSALS", "refused_text"]

REFUSALS = ("UnexpectedAdmissionError", "TopologyAffinityError")

# The device manager's count: healthy, unallocated devices of the resource when the pod arrived.
_UNAVAILABLE = re.compile(r"devices unavailable for (\S+)\. Requested: (\d+), Available: (\d+)")
_UNHEALTHY = re.compile(r"no healthy devices present; cannot allocate unhealthy devices (\S+)")
_CALL = re.compile(r"rpc error: code = (\w+) desc = (.*)")


def refused_text(pod: ApiObject) -> str:
    """The kubelet's reason in words, with its count."""
    status = pod.get("status") or {}
    reason, message = str(status.get("reason") or ""), clean(str(status.get("message") or ""), limit=500)
    node = (pod.get("spec") or {}).get("nodeName") or "its node"
    if reason == "TopologyAffinityError":
        why = "its devices and CPUs did not fit the NUMA nodes that the Topology Manager policy allows"
    elif found := _UNAVAILABLE.search(message):
        why = f"{found[3]} of {found[2]} {found[1]} were healthy and free, which the scheduler did not know"
    elif found := _UNHEALTHY.search(message):
        why = f"no {found[1]} was healthy"
    elif found := _CALL.search(message):
        why = f"the device plugin failed: {found[2]}"
    else:
        why = message or "no message"
    return f"{reason} of the kubelet on {node}: {why}"
