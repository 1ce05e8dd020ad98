"""Requests for what is particular to a kind: changes of pods, nodes, leases, events, and paths that lead nowhere."""

from collections.abc import Iterator
from typing import Any

from tests.kubernetes.differences.every_kind import NAMESPACE
from tests.kubernetes.differences.playing import Json, Played

__all__ = ["particular"]

_CORE = f"/api/v1/namespaces/{NAMESPACE}"
_POD, _GATED, _DEADLINE = (f"{_CORE}/pods/{name}" for name in ("plain", "gated", "deadline"))
_MERGE, _STRATEGIC, _JSON = (
    f"application/{kind}+json" for kind in ("merge-patch", "strategic-merge-patch", "json-patch")
)
_GATE = "example.com/gate"
_TERMS = [{"matchExpressions": [{"key": "a", "operator": "In", "values": ["b"]}]}]
_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


def particular() -> Iterator[Played]:
    yield from _pods()
    yield from _changed_pods()
    yield from _gated_pods()
    yield from _statuses()
    yield from _nodes()
    yield from _leases()
    yield from _events()
    yield from _namespaces()
    yield from _elsewhere()


def _pod(name: str, **spec: Any) -> Json:
    containers = [{"name": "main", "image": "busybox"}]
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": {"containers": containers, **spec}}


def _pods() -> Iterator[Played]:
    for name, pod in {
        "plain": _pod("plain", tolerations=[{"key": "a", "operator": "Exists"}]),
        "gated": _pod("gated", schedulingGates=[{"name": _GATE}, {"name": "other"}], nodeSelector={"a": "b"}),
        "deadline": _pod("deadline", activeDeadlineSeconds=10),
        "bound": _pod("bound"),
    }.items():
        yield Played(f"pod: create {name}", "POST", f"{_CORE}/pods", pod)


def _changed_pods() -> Iterator[Played]:
    changes: dict[str, Json] = {
        "image": {"containers": [{"name": "main", "image": "busybox:2"}]},
        "image to nothing": {"containers": [{"name": "main", "image": ""}]},
        "image with a space": {"containers": [{"name": "main", "image": "a "}]},
        "command": {"containers": [{"name": "main", "command": ["x"]}]},
        "env": {"containers": [{"name": "main", "env": [{"name": "A", "value": "b"}]}]},
        "resources": {"containers": [{"name": "main", "resources": {"limits": {"cpu": "1"}}}]},
        "another container": {"containers": [{"name": "more", "image": "a"}]},
        "an init container": {"initContainers": [{"name": "more", "image": "a"}]},
        "an ephemeral container": {"ephemeralContainers": [{"name": "more", "image": "a"}]},
        "node name": {"nodeName": "elsewhere"},
        "node selector": {"nodeSelector": {"a": "b"}},
        "priority": {"priority": 7},
        "restart policy": {"restartPolicy": "Never"},
        "restart policy to something unknown": {"restartPolicy": "Sometimes"},
        "service account": {"serviceAccountName": "other"},
        "host network": {"hostNetwork": True},
        "grace period": {"terminationGracePeriodSeconds": 1},
        "scheduler": {"schedulerName": "mine"},
        "a scheduling gate": {"schedulingGates": [{"name": _GATE}]},
        "a volume": {"volumes": [{"name": "a", "emptyDir": {}}]},
        "a bad toleration": {"tolerations": [{"key": "a", "operator": "Is"}]},
        "no tolerations": {"tolerations": None},
        "more tolerations": {
            "tolerations": [
                {"key": "a", "operator": "Exists"},
                {"key": "b", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 9},
                *(
                    {
                        "key": f"node.kubernetes.io/{key}",
                        "operator": "Exists",
                        "effect": "NoExecute",
                        "tolerationSeconds": 3,
                    }
                    for key in ("not-ready", "unreachable")
                ),
            ]
        },
        "deadline": {"activeDeadlineSeconds": 100},
        "deadline to less": {"activeDeadlineSeconds": 50},
        "deadline to more": {"activeDeadlineSeconds": 70},
        "deadline below zero": {"activeDeadlineSeconds": -5},
        "no deadline": {"activeDeadlineSeconds": None},
    }
    for name, spec in changes.items():
        yield Played(f"pod: change {name}", "PATCH", _POD, {"spec": spec}, _STRATEGIC)
    yield Played(
        "pod: change a resource claim",
        "PATCH",
        _POD,
        {"spec": {"resourceClaims": [{"name": "a", "resourceClaimName": "b"}]}},
        _STRATEGIC,
    )
    yield Played("pod: remove all containers", "PATCH", _POD, {"spec": {"containers": []}}, _MERGE)
    yield Played("pod: remove the spec", "PATCH", _POD, {"spec": None}, _MERGE)
    yield Played(
        "pod: move a container",
        "PATCH",
        _POD,
        [{"op": "replace", "path": "/spec/containers/0/name", "value": "b"}],
        _JSON,
    )
    yield Played("pod: replace with its own spec", "PUT", _DEADLINE, _pod("deadline", activeDeadlineSeconds=10))
    yield Played("pod: replace with less", "PUT", _DEADLINE, _pod("deadline"))


def _gated_pods() -> Iterator[Played]:
    def change(name: str, spec: Json, media: str = _MERGE) -> Played:
        return Played(f"pod: {name}", "PATCH", _GATED, {"spec": spec}, media)

    yield change("gate added", {"schedulingGates": [{"name": _GATE}, {"name": "other"}, {"name": "third"}]})
    yield change("gated, node selector extended", {"nodeSelector": {"c": "d"}})
    yield change("gated, node selector changed", {"nodeSelector": {"a": "x"}})
    yield change("gated, node selector reduced", {"nodeSelector": {"a": None}})
    yield change("gated, affinity set", {"affinity": {"nodeAffinity": {_REQUIRED: {"nodeSelectorTerms": _TERMS}}}})
    yield change(
        "gated, affinity term added", {"affinity": {"nodeAffinity": {_REQUIRED: {"nodeSelectorTerms": _TERMS * 2}}}}
    )
    yield change("gated, affinity removed", {"affinity": None})
    yield change("gated, host network", {"hostNetwork": True})
    yield Played("pod: bind a gated one", "POST", f"{_GATED}/binding", _binding("gated", "n"))
    yield change("gate removed", {"schedulingGates": [{"name": "other"}]})
    yield change("last gate removed", {"schedulingGates": []})
    yield change("not gated any more, node selector", {"nodeSelector": {"e": "f"}})
    yield Played(
        "pod: gate removed by its name",
        "PATCH",
        _GATED,
        {"spec": {"schedulingGates": [{"$patch": "delete", "name": "x"}]}},
        _STRATEGIC,
    )


def _binding(pod: str, node: str, **target: str) -> Json:
    target = {"kind": "Node", "name": node, **target}
    return {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": pod}, "target": target}


def _statuses() -> Iterator[Played]:
    bound = f"{_CORE}/pods/bound"
    yield Played("pod: bind to nothing", "POST", f"{bound}/binding", _binding("bound", ""))
    yield Played("pod: bind to another kind", "POST", f"{bound}/binding", _binding("bound", "n", kind="Pod"))
    yield Played("pod: bind", "POST", f"{bound}/binding", _binding("bound", "n"))
    yield Played("pod: bind again", "POST", f"{bound}/binding", _binding("bound", "m"))
    yield Played("pod: bind of nothing", "POST", f"{_CORE}/pods/nothing/binding", _binding("nothing", "n"))
    yield Played(
        "pod: status phase", "PATCH", f"{bound}/status", {"status": {"phase": "Running", "podIP": "10.0.0.1"}}, _MERGE
    )
    yield Played(
        "pod: status with a bad address",
        "PATCH",
        f"{bound}/status",
        {"status": {"podIP": None, "podIPs": [{"ip": "x"}]}},
        _MERGE,
    )
    yield Played(
        "pod: status does not change the spec", "PATCH", f"{bound}/status", {"spec": {"nodeName": "z"}}, _MERGE
    )
    yield Played("pod: spec does not change the status", "PATCH", bound, {"status": {"phase": "Failed"}}, _MERGE)
    yield Played("pod: delete with a grace period", "DELETE", bound, {"gracePeriodSeconds": 5})
    yield Played("pod: delete with a longer grace period", "DELETE", bound, {"gracePeriodSeconds": 50})
    yield Played("pod: delete at once", "DELETE", bound, {"gracePeriodSeconds": 0})
    yield Played(
        "pod: evict",
        "POST",
        f"{_POD}/eviction",
        {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "plain"}},
    )
    yield Played(
        "pod: evict nothing",
        "POST",
        f"{_CORE}/pods/nothing/eviction",
        {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "nothing"}},
    )


def _nodes() -> Iterator[Played]:
    def node(name: str, **parts: Any) -> Json:
        return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}, **parts}

    def taints(*taints: Json) -> Json:
        return {"spec": {"taints": list(taints)}}

    created: dict[str, Json] = {
        "capacity": {"status": {"capacity": {"cpu": "4000m", "memory": "8192Mi", "example.com/gpu": 8}}},
        "negative capacity": {"status": {"capacity": {"cpu": "-1"}}},
        "part of a device": {"status": {"capacity": {"example.com/gpu": "1.5"}}},
        "no quantity": {"status": {"capacity": {"cpu": "x"}}},
        "taint with an unknown effect": taints({"key": "a", "effect": "X"}),
        "taint without an effect": taints({"key": "a"}),
        "taint with a bad key": taints({"key": "a b", "effect": "NoSchedule"}),
        "taint with a bad value": taints({"key": "a", "value": "b c", "effect": "NoSchedule"}),
        "taint twice": taints(*[{"key": "a", "value": str(n), "effect": "NoSchedule"} for n in range(2)]),
        "taint with two effects": taints(*[{"key": "a", "effect": effect} for effect in ("NoSchedule", "NoExecute")]),
        "taint without a key": taints({"key": "", "effect": "NoSchedule"}),
        "addresses of pods that are none": {"spec": {"podCIDRs": ["x"]}},
        "two ranges of one family": {"spec": {"podCIDR": "10.0.0.0/24", "podCIDRs": ["10.0.0.0/24", "10.0.1.0/24"]}},
        "unschedulable": {"spec": {"unschedulable": True}},
    }
    for number, (name, parts) in enumerate(created.items()):
        yield Played(f"node: {name}", "POST", "/api/v1/nodes", node(f"node-{number}", **parts))
    yield Played(
        "node: create changed",
        "POST",
        "/api/v1/nodes",
        node("n", spec={"providerID": "a", "podCIDR": "10.0.0.0/24", "podCIDRs": ["10.0.0.0/24"]}),
    )
    for name, change in {
        "provider id": {"spec": {"providerID": "b"}},
        "addresses of pods": {"spec": {"podCIDR": "10.0.1.0/24", "podCIDRs": ["10.0.1.0/24"]}},
        "taint": taints({"key": "a", "effect": "NoSchedule"}),
        "taint to another effect": taints({"key": "a", "effect": "NoExecute"}),
        "taint to an unknown effect": taints({"key": "a", "effect": "X"}),
        "cordon": {"spec": {"unschedulable": True}},
        "uncordon": {"spec": {"unschedulable": None}},
        "status by the spec": {"status": {"capacity": {"cpu": "7"}}},
    }.items():
        yield Played(f"node: change {name}", "PATCH", "/api/v1/nodes/n", change, _STRATEGIC)
    for name, status in {
        "capacity": {"capacity": {"example.com/gpu": "2000m"}},
        "part of a device": {"capacity": {"example.com/gpu": "500m"}},
        "negative allocatable": {"allocatable": {"example.com/gpu": "-2"}},
        "address twice": {"addresses": [{"type": "InternalIP", "address": "10.0.0.1"}] * 2},
        "condition": {"conditions": [{"type": "Ready", "status": "True"}]},
    }.items():
        yield Played(f"node: status {name}", "PATCH", "/api/v1/nodes/n/status", {"status": status}, _MERGE)
    yield Played("node: status labels", "PATCH", "/api/v1/nodes/n/status", {"metadata": {"labels": {"s": "t"}}}, _MERGE)


def _leases() -> Iterator[Played]:
    collection = f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases"
    for number, (name, spec) in enumerate(
        {
            "no spec": {},
            "duration of zero": {"leaseDurationSeconds": 0},
            "negative duration": {"leaseDurationSeconds": -1},
            "negative transitions": {"leaseTransitions": -1},
            "bad time": {"renewTime": "now"},
            "time": {"renewTime": "2026-01-01T00:00:00.123456Z"},
            "strategy": {"strategy": "OldestEmulationVersion", "preferredHolder": "a"},
            "unknown strategy": {"strategy": "Newest"},
            "preferred holder without a strategy": {"preferredHolder": "a"},
        }.items()
    ):
        lease = {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {"name": f"lease-{number}"},
            "spec": spec,
        }
        yield Played(f"lease: {name}", "POST", collection, lease)
    yield Played(
        "lease: update of an absent one", "PUT", f"{collection}/late", {"metadata": {"name": "late"}, "spec": {}}
    )


def _events() -> Iterator[Played]:
    involved: Json = {"kind": "Pod", "namespace": NAMESPACE, "name": "plain"}
    new: Json = {
        "eventTime": "2026-01-01T00:00:00.000000Z",
        "reportingComponent": "example.com/a",
        "reportingInstance": "b",
        "action": "c",
        "reason": "d",
    }
    events: dict[str, Json] = {
        "plain": {"involvedObject": involved, "reason": "a", "message": "b", "type": "Normal"},
        "of another namespace": {"involvedObject": {**involved, "namespace": "elsewhere"}},
        "of no namespace": {"involvedObject": {"kind": "Node", "name": "n"}},
        "of nothing": {},
        "of a new kind": {"involvedObject": involved, **new, "type": "Normal"},
        "of a new kind without an action": {"involvedObject": involved, **new, "action": ""},
        "of a new kind without a reason": {"involvedObject": involved, **new, "reason": ""},
        "of a new kind without a reporter": {"involvedObject": involved, **new, "reportingComponent": ""},
        "of an unknown type": {"involvedObject": involved, "type": "Odd"},
    }
    for number, (name, parts) in enumerate(events.items()):
        event = {"apiVersion": "v1", "kind": "Event", "metadata": {"name": f"event-{number}"}, **parts}
        yield Played(f"event: {name}", "POST", f"{_CORE}/events", event)
    yield Played("event: change its count", "PATCH", f"{_CORE}/events/event-0", {"count": 2}, _MERGE)
    yield Played(
        "event: update of an absent one",
        "PUT",
        f"{_CORE}/events/late",
        {"metadata": {"name": "late"}, "involvedObject": involved},
    )


def _namespaces() -> Iterator[Played]:
    for name, metadata in {
        "create": {"name": "team"},
        "create again": {"name": "team"},
        "create with a dot": {"name": "a.b"},
        "create with labels": {"name": "labelled", "labels": {"kubernetes.io/metadata.name": "other"}},
    }.items():
        yield Played(f"namespace: {name}", "POST", "/api/v1/namespaces", {"metadata": metadata})
    yield Played("namespace: label", "PATCH", "/api/v1/namespaces/team", {"metadata": {"labels": {"a": "b"}}}, _MERGE)
    yield Played("namespace: delete default", "DELETE", "/api/v1/namespaces/default")
    yield Played(
        "namespace: object in an absent one",
        "POST",
        "/api/v1/namespaces/absent/configmaps",
        {"metadata": {"name": "a"}},
    )
    yield Played("namespace: list of an absent one", "GET", "/api/v1/namespaces/absent/pods")


def _elsewhere() -> Iterator[Played]:
    for path in (
        "/", "/nothing", "/api", "/api/v2/pods", "/api/v1/gadgets", "/api/v1/namespaces/default/gadgets",
        "/apis/example.com/v1/gadgets", "/apis/apps/v9/deployments", "/api/v1/namespaces/default/nodes",
        f"{_CORE}/pods/plain/gadgets", "/api/v1/nodes/n/gadgets", f"{_CORE}/configmaps/a/status", "/version/x",
        f"{_CORE}/pods/gated/ephemeralcontainers", f"{_CORE}/pods/gated/resize", "/healthz", "/livez", "/readyz",
    ):  # fmt: skip
        yield Played(f"path: GET {path}", "GET", path)
    for method in ("POST", "PUT", "DELETE", "PATCH", "OPTIONS"):
        yield Played(f"path: {method} /api/v1", method, "/api/v1")
        yield Played(f"path: {method} of an unknown kind", method, "/api/v1/gadgets", {})
    table = "application/json;as=Table;v=v1;g=meta.k8s.io"
    for plural in ("pods", "nodes", "events", "configmaps", "leases", "namespaces", "serviceaccounts"):
        root = {"nodes": "/api/v1", "namespaces": "/api/v1", "leases": "/apis/coordination.k8s.io/v1"}.get(
            plural, _CORE
        )
        yield Played(f"header: {plural} as a table", "GET", f"{root}/{plural}?limit=1", headers={"accept": table})
    for name, accept in {
        "metadata": "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io",
        "list of metadata": "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io",
        "text": "text/plain",
        "anything": "*/*",
        "image, else JSON": "image/png, application/json",
        "table of an unknown version": "application/json;as=Table;v=v9;g=meta.k8s.io",
    }.items():
        yield Played(f"header: accept {name}", "GET", f"{_CORE}/pods/gated", headers={"accept": accept})
