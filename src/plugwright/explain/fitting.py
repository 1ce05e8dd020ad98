"""Whether, how often and where a pod would run: places a file's pods one after another on the state of a cluster.

Nodes are filled in the order of their names. A scheduler spreads pods, so it can choose other nodes.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from copy import deepcopy
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from plugwright.apiserver.kinds import pod_defaults
from plugwright.cluster.events import MALFORMED
from plugwright.errors import ConfigError
from plugwright.explain.counterfactual import Situation
from plugwright.explain.explanation import API_VERSION, Explanation, explain_situation
from plugwright.explain.oracle import Oracle
from plugwright.explain.world import ApiObject, World, claim_entries, identity
from plugwright.model import natural_order

__all__ = ["FitReport", "fit_pod", "in_namespace", "with_objects", "workloads"]

_KINDS = {
    "DeviceClass": "classes", "ResourceClaim": "claims", "ResourceClaimTemplate": "templates",
    "ResourceSlice": "slices", "Node": "nodes",
}  # fmt: skip
_CLUSTER_SCOPED = ("DeviceClass", "ResourceSlice", "Node")
_REPLICAS = {"Deployment": "replicas", "ReplicaSet": "replicas", "StatefulSet": "replicas", "Job": "parallelism"}


class FitReport(Struct, frozen=True, rename="camel", kw_only=True):
    """`explanation` is why the next pod does not run; it is absent if all of them would run."""

    api_version: str = API_VERSION
    kind: str = "FitReport"
    namespace: str
    pod: str
    wanted: int
    placed: int
    nodes: Mapping[str, int]
    explanation: Explanation | None = None
    unseen: tuple[str, ...] = ()


def with_objects(world: World, objects: Iterable[ApiObject], namespace: str) -> World:
    """The world with the claims, templates and classes of a file, which replace those with the same names."""
    for entry in objects:
        kind = str(entry.get("kind"))
        field = _KINDS.get(kind)
        if field is None:
            continue
        scoped = entry if kind in _CLUSTER_SCOPED else in_namespace(entry, namespace)
        others = tuple(known for known in getattr(world, field) if identity(known) != identity(scoped))
        world = replace(world, **{field: (*others, scoped)})
    return world


def workloads(objects: Iterable[ApiObject], namespace: str) -> Iterator[tuple[ApiObject, int]]:
    """The pods of a file, each with its number of replicas."""
    for entry in objects:
        kind, spec = str(entry.get("kind")), entry.get("spec") or {}
        if kind == "Pod":
            yield in_namespace(entry, namespace), 1
            continue
        if kind == "CronJob":
            kind, spec = "Job", (spec.get("jobTemplate") or {}).get("spec") or {}
        if kind != "DaemonSet" and kind not in _REPLICAS:
            continue
        template = spec.get("template") or {}
        name = identity(entry)[1]
        metadata = {**(template.get("metadata") or {}), "name": name}
        metadata["namespace"] = identity(entry)[0] or namespace
        count = spec.get(_REPLICAS.get(kind, ""), 1)
        yield {"metadata": metadata, "spec": template.get("spec") or {}}, int(1 if count is None else count)


def in_namespace(entry: ApiObject, namespace: str) -> ApiObject:
    metadata: dict[str, Any] = {**(entry.get("metadata") or {})}
    metadata["namespace"] = metadata.get("namespace") or namespace
    return {**entry, "metadata": metadata}


def fit_pod(world: World, pod: ApiObject, replicas: int) -> FitReport:
    """Places the replicas, and explains the first that does not fit."""
    namespace, name = identity(pod)
    if not (pod.get("spec") or {}).get("containers"):
        raise ConfigError(f"pod {name} must have containers")
    oracle = Oracle(world)
    try:
        fresh = pod_defaults.prepare_for_create(deepcopy({**pod, "status": {}}))
        situation = Situation(fresh, tuple(claim_entries(world, fresh)))
        oracle.quota_shortages(situation)
    except MALFORMED as error:
        raise ConfigError(f"pod {name} must be one that an API server accepts, got {error!r}") from error
    nodes: Counter[str] = Counter()
    candidates = sorted(oracle.nodes, key=natural_order)
    while sum(nodes.values()) < replicas:
        place = next((verdict.node for verdict in oracle.verdicts(situation, candidates) if verdict.fits), None)
        if place is None:
            break
        situation = oracle.place(situation, place, sum(nodes.values()))
        nodes[place] += 1
    placed = sum(nodes.values())
    explanation = explain_situation(oracle, situation) if placed < replicas else None
    return FitReport(
        namespace=namespace, pod=name, wanted=replicas, placed=placed, nodes=dict(nodes), explanation=explanation,
        unseen=explanation.unseen if explanation else world.unseen,
    )  # fmt: skip
