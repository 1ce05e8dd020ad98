"""Whether, how often and where a pod would run: places a file's pods one after another on the state of a cluster.

Nodes are filled in the order of their names. A scheduler spreads pods, so it can choose other nodes.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from copy import deepcopy
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from plugwright.apiserver.kinds import claim_validation, pod_defaults
from plugwright.apiserver.kinds.pod_validation.requirements import requirement_errors
from plugwright.apiserver.validation import FieldError
from plugwright.cluster.events import MALFORMED
from plugwright.cluster.scheduling.pod_request import PodRequest
from plugwright.errors import ConfigError
from plugwright.explain.counterfactual import Situation
from plugwright.explain.explanation import API_VERSION, Explanation, explain_situation, needs_claims, with_counted
from plugwright.explain.node_classes import selector_expressions
from plugwright.explain.oracle import NodeVerdict, Oracle
from plugwright.explain.pool_counts import counted_texts
from plugwright.explain.request_relaxations import subrequests
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
    counted: tuple[str, ...] = ()  # as in an Explanation
    unseen: tuple[str, ...] = ()


def with_objects(world: World, objects: Iterable[ApiObject], namespace: str) -> World:
    """The world with the claims, templates and classes of a file, which replace those with the same names."""
    for entry in objects:
        kind = str(entry.get("kind"))
        field = _KINDS.get(kind)
        if field is None:
            continue
        scoped = in_namespace(entry, namespace)
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
        name = identity(entry)[1] or str(entry["metadata"].get("generateName") or "")
        metadata = {**(template.get("metadata") or {}), "name": name}
        metadata["namespace"] = identity(entry)[0] or namespace
        count = spec.get(_REPLICAS.get(kind, ""), 1)
        yield {"metadata": metadata, "spec": template.get("spec") or {}}, int(1 if count is None else count)


def in_namespace(entry: ApiObject, namespace: str) -> ApiObject:
    """The object with its namespace, which is `namespace` by default; cluster-scoped objects have none."""
    if entry.get("kind") in _CLUSTER_SCOPED:
        return entry
    metadata: dict[str, Any] = {**(entry.get("metadata") or {})}
    metadata["namespace"] = metadata.get("namespace") or namespace
    metadata["name"] = metadata.get("name") or metadata.get("generateName")
    return {**entry, "metadata": metadata}


def _errors(pod: ApiObject, situation: Situation) -> Iterator[FieldError]:
    """Fields about devices for which an API server would reject the pod or its claims."""
    spec = pod.get("spec") or {}
    names = {str(entry.get("name")) for entry in spec.get("resourceClaims") or ()}
    for part in ("initContainers", "containers"):
        for number, container in enumerate(spec.get(part) or ()):
            field = f"spec.{part}[{number}].resources"
            yield from requirement_errors(field, container.get("resources") or {}, names)
    for source in situation.sources:
        for error in claim_validation.validate(dict(source.claim or {})):
            if error.reason == "FieldValueDuplicate":
                yield FieldError(f"{source.kind} {source.name}: {error.field}", error.message)


def _may_stop(oracle: Oracle, situation: Situation) -> bool:
    """Whether a node may have an error that stops the pod on all: a selector that fails, or a pool to take all of."""
    requests = PodRequest.of(dict(situation.pod)).requests
    expressions = set(selector_expressions(oracle, situation, [*requests]))
    devices = [device for pool in oracle.allocator.slices.by_pool.values() for one in pool for device in one.devices]
    if any(device.matched(expression) is None for expression in expressions for device in devices):
        return True
    specs = ((claim.get("spec") or {}).get("devices") or {} for claim in situation.claims)
    return any(request.get("allocationMode") == "All" for spec in specs for _, _, request in subrequests(spec))


def _place(verdicts: Iterable[NodeVerdict], may_stop: bool) -> str | None:
    """The first node that takes the pod, unless an error of any node stops it."""
    found = None
    for verdict in verdicts:
        if verdict.stops:
            return None
        if verdict.fits:
            found = found or verdict.node
            if not may_stop:
                break
    return found


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
        errors = list(_errors(fresh, situation))
    except MALFORMED as error:
        raise ConfigError(f"pod {name} must be one that an API server accepts, got {error!r}") from error
    if errors:
        raise ConfigError(f"pod {name} must be one that an API server accepts: {errors[0].field}: {errors[0].message}")
    nodes: Counter[str] = Counter()
    candidates = sorted(oracle.nodes, key=natural_order)
    may_stop = _may_stop(oracle, situation)
    while sum(nodes.values()) < replicas:
        place = _place(oracle.verdicts(situation, candidates), may_stop)
        if place is None:
            break
        situation = oracle.place(situation, place, sum(nodes.values()))
        nodes[place] += 1
    placed = sum(nodes.values())
    explanation = explain_situation(oracle, situation) if placed < replicas else None
    needs = needs_claims(oracle, situation)
    return FitReport(
        namespace=namespace, pod=name, wanted=replicas, placed=placed, nodes=dict(nodes), explanation=explanation,
        counted=counted_texts(oracle.counted, is_free_first=True) if needs else (),
        unseen=explanation.unseen if explanation else with_counted(oracle, world.unseen) if needs else world.unseen,
    )  # fmt: skip
