"""How fast `why` answers in a large cluster: `python -m bench.why [NODES] [SIGNATURES]`.

Every node differs in one of SIGNATURES ways: how many of its eight GPUs are held and tainted. The pod's claim
asks for eight GPUs of one model on one NUMA node, which no node has.
"""

import resource
import sys
import time
from collections.abc import Iterator
from typing import Any

from plugwright.explain.counterfactual import Situation
from plugwright.explain.oracle import Oracle
from plugwright.explain.search import Search
from plugwright.explain.world import World, claim_entries

_DRIVER = "gpu.example.com"
_MODELS = ("a", "b", "c")
_Object = dict[str, Any]


def main() -> None:
    nodes, signatures = (int(text) for text in (*sys.argv[1:], *("1000", "128")[len(sys.argv) - 1 :]))
    world = _world(nodes, signatures)
    pod = world.pods[-1]
    before = _peak()
    began = time.monotonic()
    oracle = Oracle(world)
    search = Search(oracle, Situation(pod, tuple(claim_entries(world, pod))))
    first = time.monotonic() - began
    cures = search.singles()
    singles = time.monotonic() - began
    search.several_endings()
    endings = time.monotonic() - began
    print(f"{nodes:,} nodes in {len(search.classes)} classes; {oracle.asked:,} questions, {len(cures)} cures")
    print(f"first answer {first:.2f} s, all singles {singles:.2f} s, with several ends {endings:.2f} s")
    print(f"{_peak()} MiB at most, {before} MiB of it for the objects of the cluster")


def _peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024


def _world(nodes: int, signatures: int) -> World:
    waiting = _pod("waiting", claim="waiting")
    devices = {"requests": [_request(8)], "constraints": [{"requests": ["gpu"], "matchAttribute": f"{_DRIVER}/numa"}]}
    claims = [held for number in range(nodes) for held in _held(number, number % signatures)]
    users = [_pod(entry["metadata"]["name"], entry["metadata"]["name"], entry["node"]) for entry in claims]
    claims.append({"metadata": {"namespace": "default", "name": "waiting"}, "spec": {"devices": devices}})
    selector = {"cel": {"expression": f'device.driver == "{_DRIVER}"'}}
    return World(
        nodes=tuple(_node(f"node-{number}") for number in range(nodes)),
        pods=(*users, waiting),
        slices=tuple(_slice(number, number % signatures) for number in range(nodes)),
        classes=({"metadata": {"name": "gpu"}, "spec": {"selectors": [selector]}},),
        claims=tuple(claims),
    )


def _node(name: str) -> _Object:
    amounts = {"cpu": "64", "memory": "512Gi", "pods": "110"}
    ready = [{"type": "Ready", "status": "True"}]
    return {"metadata": {"name": name}, "status": {"allocatable": amounts, "capacity": amounts, "conditions": ready}}


def _pod(name: str, claim: str, node: str = "") -> _Object:
    spec: _Object = {"containers": [{"name": "main", "image": "bench", "resources": {"claims": [{"name": "dev"}]}}]}
    spec |= {"resourceClaims": [{"name": "dev", "resourceClaimName": claim}]} | ({"nodeName": node} if node else {})
    return {"metadata": {"namespace": "default", "name": name, "uid": name}, "spec": spec}


def _request(count: int) -> _Object:
    selected = [{"cel": {"expression": f'device.attributes["{_DRIVER}"].model == "b"'}}]
    return {"name": "gpu", "exactly": {"deviceClassName": "gpu", "count": count, "selectors": selected}}


def _slice(number: int, signature: int) -> _Object:
    devices = []
    for place in range(8):
        model = _MODELS[(signature // 8) % len(_MODELS)] if place < 2 else "b"
        attributes = {"model": {"string": model}, "numa": {"int": place // 4}}
        tainted = {"taints": [{"key": "xid", "effect": "NoSchedule"}]} if signature >> 4 & 1 << place % 3 else {}
        devices.append({"name": f"gpu-{place}", "attributes": attributes, **tainted})
    pool = {"name": f"node-{number}", "generation": 1, "resourceSliceCount": 1}
    spec = {"driver": _DRIVER, "nodeName": f"node-{number}", "pool": pool, "devices": devices}
    return {"metadata": {"name": f"node-{number}"}, "spec": spec}


def _held(number: int, signature: int) -> Iterator[_Object]:
    """The claims of the pods that hold a GPU each."""
    for place in range(signature % 8):
        name, node = f"held-{number}-{place}", f"node-{number}"
        result = {"request": "gpu", "driver": _DRIVER, "pool": node, "device": f"gpu-{place}"}
        status = {"allocation": {"devices": {"results": [result]}}, "reservedFor": [{"resource": "pods", "name": name}]}
        spec = {"devices": {"requests": [_request(1)]}}
        yield {"metadata": {"namespace": "default", "name": name}, "spec": spec, "status": status, "node": node}


if __name__ == "__main__":
    main()
