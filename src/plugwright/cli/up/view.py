"""How `plugwright up` speaks of its cluster: when it is ready, and how it stands."""

import json
import shlex
from collections.abc import Iterator, Mapping
from typing import Any

from plugwright.cli.up.directory import Facts, Place

__all__ = ["ready_lines", "status_lines"]


def ready_lines(facts: Facts, place: Place, took: float) -> Iterator[str]:
    number = len(facts.nodes)
    nodes = "1 node" if number == 1 else f"{number} nodes"
    offered = ", ".join(f"{name}: {count}" for name, count in facts.resources.items()) or "no devices yet"
    yield f"ready after {took:.1f} s: {nodes} with {offered}; {facts.server}"
    yield ""
    yield f"    export KUBECONFIG={shlex.quote(facts.kubeconfig)}"
    yield from (f"    {line}" for line in _worth_trying(facts))
    yield ""
    yield f"A node stops and comes back:  plugwright up stop-node node-1{place.flag}, start-node"
    if facts.log:
        yield f"To end it:  plugwright down{place.flag}    (process {facts.pid}, its log is {facts.log})"
    else:
        yield "Ctrl-C ends it."


def _worth_trying(facts: Facts) -> Iterator[str]:
    if not facts.resources:
        directory = facts.nodes["node-1"]["kubelet_dir"]
        yield f"plugwright run -c plugwright.yaml --kubelet-dir {shlex.quote(directory)}"
        yield "kubectl describe node node-1"
        yield "kubectl get events --watch"
        return
    resource = next(iter(facts.resources))
    wants = {"resources": {"limits": {resource: "2"}}}
    overrides = {"spec": {"containers": [{"name": "two", "image": "demo", **wants}]}}
    yield f"kubectl describe node node-1    # {resource} in Capacity and Allocatable"
    yield f"kubectl run two --image=demo --overrides={shlex.quote(json.dumps(overrides, separators=(',', ':')))}"
    yield "kubectl logs two                # what its devices gave to it"


def status_lines(status: Mapping[str, Any], facts: Mapping[str, Any]) -> Iterator[str]:
    yield f"{facts['server']}, process {facts['pid']}, kubeconfig {facts['kubeconfig']}"
    for node in status["nodes"]:
        ready = "Ready" if node["ready"] else "NotReady"
        stopped = "" if node["running"] else ", stopped"
        offered = ", ".join(f"{name}: {count}" for name, count in node["allocatable"].items())
        yield f"{node['name']}  {ready}{stopped}  {offered}".rstrip()
    yield "pods: " + (", ".join(f"{count} {phase}" for phase, count in status["pods"].items()) or "none")
