"""The scheduler's and the kubelet's fit rules: which node takes a pod, and the reasons where none does. Pure.

`PodRequest` is what a pod asks for and `NodeInfo` is a node with what its pods request; rules, their order and their
messages are the real scheduler's and kubelet's. `scheduler` keeps the `NodeInfo`s up to date; nothing is written here.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from plugwright import quantity
from plugwright.cluster import affinity
from plugwright.cluster.affinity import NodeAffinity
from plugwright.cluster.store import Object
from plugwright.model import natural_order

__all__ = [
    "NO_NODES",
    "FilterFailure",
    "NodeInfo",
    "PodRequest",
    "Rejection",
    "failed_scheduling_message",
    "filter_failure",
    "rejection",
    "select_node",
]

NO_NODES = "no nodes available to schedule pods"

_CPU, _MEMORY, _PODS = "cpu", "memory", "pods"
_DEFAULT_CPU, _DEFAULT_MEMORY = 100, 200 * 2**20  # a container without a request counts for these in scores
_UNSCHEDULABLE = {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}
_NOT_READY = {"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"}
_HARD_EFFECTS = ("NoSchedule", "NoExecute")
_TAINT_WEIGHT, _AFFINITY_WEIGHT = 3, 2
_CHECKED_FIRST = ("cpu", "memory", "ephemeral-storage")  # by the kubelet, before extended resources

Amounts = dict[str, int]
Rejection = tuple[str, str]  # reason and message, as in the pod's status


def _anywhere(_name: str, _labels: Mapping[str, str]) -> bool:
    return True


@dataclass(frozen=True, slots=True)
class PodRequest:
    """The requirements of a pod on its node. `requests` has CPU in thousandths and everything else in whole units."""

    requests: Mapping[str, int]
    scored: tuple[int, int]  # CPU and memory in a node's score: a container that requests none counts for a default
    affinity: NodeAffinity
    tolerations: tuple[Object, ...]
    has_claims: bool = False  # ResourceClaims, which say where it may run

    @classmethod
    def of(cls, pod: Object) -> "PodRequest":
        spec = pod["spec"]
        return cls(
            {resource: amount for resource, amount in _effective_requests(spec).items() if amount},
            _scored_requests(spec),
            NodeAffinity.of(spec),
            tuple(dict(toleration) for toleration in spec.get("tolerations") or ()),
            bool(spec.get("resourceClaims")),
        )


@dataclass(slots=True)
class NodeInfo:
    """One node: what it offers, and what its pods request."""

    name: str
    labels: Mapping[str, str]
    taints: tuple[Object, ...]
    allocatable: Mapping[str, int]
    requested: Amounts = field(default_factory=dict)
    pods: int = 0
    scored: tuple[int, int] = (0, 0)
    order: tuple[tuple[int, int, str], ...] = ()  # of names, where scores are equal

    @classmethod
    def of(cls, node: Object) -> "NodeInfo":
        spec, status = node.get("spec") or {}, node.get("status") or {}
        name, labels = node["metadata"]["name"], dict(node["metadata"].get("labels") or {})
        allocatable = _amounts(status.get("allocatable") or {})
        return cls(name, labels, _taints(spec, status), allocatable, order=natural_order(name))

    def add_pod(self, request: PodRequest) -> None:
        self._count(request, 1)

    def remove_pod(self, request: PodRequest) -> None:
        self._count(request, -1)

    def _count(self, request: PodRequest, sign: int) -> None:
        for resource, amount in request.requests.items():
            self.requested[resource] = self.requested.get(resource, 0) + sign * amount
        self.pods += sign
        self.scored = (self.scored[0] + sign * request.scored[0], self.scored[1] + sign * request.scored[1])


@dataclass(frozen=True, slots=True)
class FilterFailure:
    """Why a node does not take a pod; `unresolvable` if it would not even without its other pods."""

    reasons: tuple[str, ...]
    unresolvable: bool = True


def select_node(
    request: PodRequest, nodes: Iterable[NodeInfo], claims_allow: Callable[[str, Mapping[str, str]], bool] = _anywhere
) -> tuple[NodeInfo | None, list[FilterFailure]]:
    """The best node, or None and every node's failure; `claims_allow`: the pod may use its claims on that node."""
    failures, feasible = [], []
    for node in nodes:
        failure = filter_failure(request, node)
        if failure is None and not claims_allow(node.name, node.labels):
            failure = FilterFailure(("resourceclaim not available on the node",))
        if failure is None:
            feasible.append(node)
        else:
            failures.append(failure)
    if not feasible:
        return None, failures
    return _highest_score(request, feasible), []


def filter_failure(request: PodRequest, node: NodeInfo) -> FilterFailure | None:
    """The first rule that fails, in the real scheduler's order; None if the pod fits."""
    for taint in node.taints:
        if taint["effect"] in _HARD_EFFECTS and not affinity.tolerates(request.tolerations, taint):
            if taint["key"] == _UNSCHEDULABLE["key"]:
                return FilterFailure(("node(s) were unschedulable",))
            return FilterFailure(("node(s) had untolerated taint(s)",))
    if request.affinity.node_names is not None and node.name not in request.affinity.node_names:
        return FilterFailure(("node(s) didn't satisfy plugin(s) [NodeAffinity]",))
    if not request.affinity.matches(node.name, node.labels):
        return FilterFailure(("node(s) didn't match Pod's node affinity/selector",))
    return _insufficient(request, node)


def failed_scheduling_message(failures: Iterable[FilterFailure]) -> str:
    """The message of `FailedScheduling`, as the real scheduler composes it."""
    failures = list(failures)
    if not failures:
        return NO_NODES
    reasons = Counter(reason for failure in failures for reason in failure.reasons)
    unresolvable = sum(failure.unresolvable for failure in failures)
    preemption = Counter(
        {
            "Preemption is not helpful for scheduling": unresolvable,
            "No preemption victims found for incoming pod": len(failures) - unresolvable,
        }
    )
    available = f"0/{len(failures)} nodes are available:"
    return (
        f"{available} {_histogram(reasons)}. "
        f"no new claims to deallocate, preemption: {available} {_histogram(+preemption)}."
    )


def rejection(request: PodRequest, node: NodeInfo, plugin_resources: Collection[str]) -> Rejection | None:
    """The kubelet's own check of a pod that is bound to it, which a pod that names its node has not passed before.

    `plugin_resources` are counted by the kubelet's device manager instead. The kubelet ignores requests for resources
    that are not in the node's allocatable (3.63).
    """
    if node.pods + 1 > node.allocatable.get(_PODS, 0):
        return _out_of(_PODS, 1, node.pods, node.allocatable.get(_PODS, 0))
    for resource in sorted(request.requests, key=lambda name: (name not in _CHECKED_FIRST, name)):
        capacity = node.allocatable.get(resource)
        if capacity is None or resource in plugin_resources:
            continue
        requested, used = request.requests[resource], node.requested.get(resource, 0)
        if requested > capacity - used:
            return _out_of(resource, requested, used, capacity)
    if not request.affinity.matches(node.name, node.labels):
        text = "Predicate NodeAffinity failed: node(s) didn't match Pod's node affinity/selector"
        return "NodeAffinity", f"Pod was rejected: {text}"
    return None


def _out_of(resource: str, requested: int, used: int, capacity: int) -> Rejection:
    counts = f"requested: {requested}, used: {used}, capacity: {capacity}"
    return f"OutOf{resource}", f"Pod was rejected: Node didn't have enough resource: {resource}, {counts}"


def _insufficient(request: PodRequest, node: NodeInfo) -> FilterFailure | None:
    allocatable, requested = node.allocatable, node.requested
    missing = [
        name for name, amount in request.requests.items() if amount > allocatable.get(name, 0) - requested.get(name, 0)
    ]
    is_full = node.pods + 1 > allocatable.get(_PODS, 0)
    if not missing and not is_full:
        return None
    reasons = ["Too many pods"] if is_full else []
    unresolvable = any(request.requests[name] > allocatable.get(name, 0) for name in missing)
    return FilterFailure((*reasons, *(f"Insufficient {name}" for name in missing)), unresolvable)


def _highest_score(request: PodRequest, nodes: list[NodeInfo]) -> NodeInfo:
    """Scores PreferNoSchedule taints, preferred affinity and free CPU and memory; of equals the first by name."""
    taints = [sum(_is_avoided(request, taint) for taint in node.taints) for node in nodes]
    preferences = [request.affinity.score(node.name, node.labels) for node in nodes]
    most_taints, highest_preference = max(taints), max(preferences)
    highest = -1.0
    best: list[NodeInfo] = []
    for node, avoided, preference in zip(nodes, taints, preferences, strict=True):
        score = _free_share(request, node)
        score += _TAINT_WEIGHT * 100 * (1 - avoided / most_taints) if most_taints else 0
        score += _AFFINITY_WEIGHT * 100 * preference / highest_preference if highest_preference else 0
        if score > highest:
            highest, best = score, [node]
        elif score == highest:
            best.append(node)
    return min(best, key=lambda node: node.order)


def _is_avoided(request: PodRequest, taint: Object) -> bool:
    return taint["effect"] == "PreferNoSchedule" and not affinity.tolerates(request.tolerations, taint)


def _free_share(request: PodRequest, node: NodeInfo) -> float:
    """The percentage of CPU and memory that would be left."""
    share = 0.0
    for index, resource in enumerate((_CPU, _MEMORY)):
        offered = node.allocatable.get(resource, 0)
        if offered:
            share += max(0.0, (offered - node.scored[index] - request.scored[index]) * 50 / offered)
    return share


def _histogram(counts: Mapping[str, int]) -> str:
    return ", ".join(sorted(f"{count} {reason}" for reason, count in counts.items()))


def _taints(spec: Object, status: Object) -> tuple[Object, ...]:
    """The node's taints, and one for a node that is not ready: its own taint is set by a controller, a little later."""
    taints = [{**taint, "key": str(taint["key"]), "effect": taint["effect"]} for taint in spec.get("taints") or ()]
    keys = {taint["key"] for taint in taints}
    conditions = status.get("conditions") or ()
    ready = next((condition["status"] for condition in conditions if condition["type"] == "Ready"), "Unknown")
    if ready != "True" and not keys & {_NOT_READY["key"], "node.kubernetes.io/unreachable"}:
        taints.append(_NOT_READY)
    # The real scheduler checks `unschedulable` before every taint, with a message of its own.
    first = [_UNSCHEDULABLE] if spec.get("unschedulable") else []
    return (*first, *(taint for taint in taints if taint["key"] != _UNSCHEDULABLE["key"] or not first))


def _amounts(quantities: Mapping[str, object]) -> Amounts:
    return {resource: _amount(resource, str(text)) for resource, text in quantities.items()}


def _amount(resource: str, text: str) -> int:
    scale = 1000 if resource == _CPU else 1
    if text.isdecimal():
        return int(text) * scale
    return quantity.whole(quantity.zero_if_invalid(text) * scale)


def _effective_requests(spec: Object) -> Amounts:
    total = quantity.effective_requests(_container_requests(spec))
    for resource, amount in _amounts(spec.get("overhead") or {}).items():
        total[resource] = total.get(resource, 0) + amount
    return total


def _container_requests(spec: Object) -> Iterator[tuple[str, Amounts]]:
    for container in spec.get("initContainers") or ():
        yield "sidecar" if container.get("restartPolicy") == "Always" else "init", _requests(container)
    for container in spec.get("containers") or ():
        yield "main", _requests(container)


def _requests(container: Object) -> Amounts:
    return _amounts((container.get("resources") or {}).get("requests") or {})


def _scored_requests(spec: Object) -> tuple[int, int]:
    requests = [_requests(container) for container in spec.get("containers") or ()]
    return (
        sum(amounts.get(_CPU) or _DEFAULT_CPU for amounts in requests),
        sum(amounts.get(_MEMORY) or _DEFAULT_MEMORY for amounts in requests),
    )
