"""The scheduler's and the kubelet's fit rules: which nodes can run a pod, and why others cannot. Pure.

`NodeInfo` is a node with the requests of its pods; rules, their order and their messages are those of the real
scheduler and kubelet. `scheduler` updates the `NodeInfo`s; this module writes nothing.
"""

from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

from plugwright.apiserver.store import Object
from plugwright.cluster.scheduling import affinity
from plugwright.cluster.scheduling.pod_request import CPU, MEMORY, Amounts, HostPort, PodRequest, amounts
from plugwright.model import natural_order

__all__ = [
    "ALL_ASKED",
    "NO_NODES",
    "FilterFailure",
    "NodeInfo",
    "PodRequest",
    "Rejection",
    "failed_scheduling_message",
    "filter_failure",
    "free_share",
    "has_preferences",
    "missing_volume_claim_message",
    "rejected_message",
    "rejection",
    "select_node",
]

NO_NODES = "no nodes available to schedule pods"
_NO_CLAIMS = "no new claims to deallocate"

_PODS = "pods"
_SYSTEM = "linux"  # of every emulated node
_REJECTED = "Pod was rejected: "
_NO_FREE_PORTS = "node(s) didn't have free ports for the requested pod ports"
_UNSCHEDULABLE = {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}
_NOT_READY = {"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"}
_HARD_EFFECTS = ("NoSchedule", "NoExecute")
_TAINT_WEIGHT, _AFFINITY_WEIGHT, _CLAIM_WEIGHT = 3, 2, 2
ALL_ASKED = 100  # nodes
_CHECKED_FIRST = ("cpu", "memory", "ephemeral-storage")  # checked by the kubelet before extended resources

Rejection = tuple[str, str]  # reason and message, as in the pod's status


@dataclass(slots=True)
class NodeInfo:
    """One node: its resources, and the requests of its pods."""

    name: str
    labels: Mapping[str, str]
    taints: tuple[Object, ...]
    allocatable: Mapping[str, int]
    requested: Amounts = field(default_factory=dict)
    pods: int = 0
    scored: tuple[int, int] = (0, 0)
    ports: Counter[HostPort] = field(default_factory=Counter)  # ports in use
    order: tuple[tuple[int, int, str], ...] = ()  # by name, for equal scores

    @classmethod
    def of(cls, node: Object) -> "NodeInfo":
        spec, status = node.get("spec") or {}, node.get("status") or {}
        name, labels = node["metadata"]["name"], dict(node["metadata"].get("labels") or {})
        allocatable = amounts(status.get("allocatable") or {})
        return cls(name, labels, _taints(spec, status), allocatable, order=natural_order(name))

    def add_pod(self, request: PodRequest) -> None:
        self._count(request, 1)

    def remove_pod(self, request: PodRequest) -> None:
        self._count(request, -1)

    def take_pods_of(self, other: "NodeInfo") -> None:
        """Takes over the pods of the same node before its change."""
        self.requested, self.pods, self.scored, self.ports = other.requested, other.pods, other.scored, other.ports

    def _count(self, request: PodRequest, sign: int) -> None:
        for resource, amount in request.requests.items():
            self.requested[resource] = self.requested.get(resource, 0) + sign * amount
        self.pods += sign
        for port in request.ports:
            self.ports[port] += sign
        self.scored = (self.scored[0] + sign * request.scored[0], self.scored[1] + sign * request.scored[1])


@dataclass(frozen=True, slots=True)
class FilterFailure:
    """Why a node cannot run a pod; `unresolvable` if it could not even without its other pods."""

    reasons: tuple[str, ...]
    unresolvable: bool = True


def _no_failure(_node: NodeInfo) -> FilterFailure | None:
    return None


def _no_score(_node: NodeInfo) -> int:
    return 0


def select_node(
    request: PodRequest,
    nodes: Collection[NodeInfo],
    further: Callable[[NodeInfo], FilterFailure | None] = _no_failure,
    claim_score: Callable[[NodeInfo], int] | None = None,
) -> tuple[NodeInfo | None, dict[str, FilterFailure]]:
    """The best node, or None and every node's failure, by its name; `further` rules are applied last.

    Up to a hundred nodes are all tested, as in the real scheduler. In larger clusters the best passing node is used
    without testing those ranked lower, unless scores depend on each other.
    """
    failures: dict[str, FilterFailure] = {}
    feasible = []
    for node in nodes:
        if failure := filter_failure(request, node):
            failures[node.name] = failure
        else:
            feasible.append(node)
    asks_all = len(nodes) <= ALL_ASKED or claim_score or any(has_preferences(request, node) for node in feasible)
    if not asks_all:
        feasible.sort(key=lambda node: (-free_share(request, node), node.order))
    passed = []
    for node in feasible:
        if failure := further(node):
            failures[node.name] = failure
            continue
        if not asks_all:
            return node, {}
        passed.append(node)
    if not passed:
        return None, failures
    return _highest_score(request, passed, claim_score or _no_score), {}


def filter_failure(request: PodRequest, node: NodeInfo) -> FilterFailure | None:
    """The first failing rule, in the real scheduler's order; None if the pod fits."""
    for taint in node.taints:
        if taint["effect"] in _HARD_EFFECTS and not affinity.tolerates(request.tolerations, taint):
            if taint["key"] == _UNSCHEDULABLE["key"]:
                return FilterFailure(("node(s) were unschedulable",))
            return FilterFailure(("node(s) had untolerated taint(s)",))
    if request.affinity.node_names is not None and node.name not in request.affinity.node_names:
        return FilterFailure(("node(s) didn't satisfy plugin(s) [NodeAffinity]",))
    if not request.affinity.matches(node.name, node.labels):
        return FilterFailure(("node(s) didn't match Pod's node affinity/selector",))
    if request.ports and _has_port_conflict(request, node):
        return FilterFailure((_NO_FREE_PORTS,), unresolvable=False)
    return _insufficient(request, node)


def missing_volume_claim_message(name: str, nodes: int) -> str:
    """The real scheduler's message, which also tries preemption and finds no claim there either."""
    text = f'persistentvolumeclaim "{name}" not found'
    return f"0/{nodes} nodes are available: {text}. not found" if nodes else NO_NODES


def rejected_message(reason: str, nodes: int) -> str:
    """The message of `FailedScheduling` for a pod rejected before any node is tested."""
    available = f"0/{nodes} nodes are available:"
    preemption = f"{available} {nodes} Preemption is not helpful for scheduling."
    return f"{available} {reason}. {_NO_CLAIMS}, preemption: {preemption}" if nodes else NO_NODES


def failed_scheduling_message(failures: Collection[FilterFailure], claims: str = "") -> str:
    """The real scheduler's message of `FailedScheduling`; `claims` is the result for the claims."""
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
        f"{available} {_histogram(reasons)}. {claims or _NO_CLAIMS}, preemption: {available} {_histogram(+preemption)}."
    )


def rejection(request: PodRequest, node: NodeInfo, plugin_resources: Collection[str]) -> Rejection | None:
    """The kubelet's own check of a bound pod, the first check for a pod with its own nodeName.

    The kubelet's device manager counts `plugin_resources` instead. The kubelet ignores requests for resources missing
    in the node's allocatable (3.63), and for those served by a claim of the pod.
    """
    if request.system not in ("", _SYSTEM):
        return "PodOSNotSupported", f"{_REJECTED}Failed to admit pod as the OS field doesn't match node OS"
    if node.pods + 1 > node.allocatable.get(_PODS, 0):
        return _out_of(_PODS, 1, node.pods, node.allocatable.get(_PODS, 0))
    for resource in sorted(request.requests, key=lambda name: (name not in _CHECKED_FIRST, name)):
        capacity = node.allocatable.get(resource)
        if capacity is None or resource in plugin_resources or resource in request.by_claims:
            continue
        requested, used = request.requests[resource], node.requested.get(resource, 0)
        if requested > capacity - used:
            return _out_of(resource, requested, used, capacity)
    return _failed_predicate(request, node)


def _failed_predicate(request: PodRequest, node: NodeInfo) -> Rejection | None:
    if not request.affinity.matches(node.name, node.labels):
        return _predicate("NodeAffinity", "node(s) didn't match Pod's node affinity/selector")
    if _has_port_conflict(request, node):
        return _predicate("NodePorts", _NO_FREE_PORTS)
    if any(
        taint["effect"] == "NoExecute" and not affinity.tolerates(request.tolerations, taint) for taint in node.taints
    ):
        return _predicate("TaintToleration", "node(s) had taints that the pod didn't tolerate")
    return None


def _predicate(name: str, reason: str) -> Rejection:
    return name, f"{_REJECTED}Predicate {name} failed: {reason}"


def _out_of(resource: str, requested: int, used: int, capacity: int) -> Rejection:
    counts = f"requested: {requested}, used: {used}, capacity: {capacity}"
    return f"OutOf{resource}", f"{_REJECTED}Node didn't have enough resource: {resource}, {counts}"


def _has_port_conflict(request: PodRequest, node: NodeInfo) -> bool:
    taken = [port for port, count in node.ports.items() if count > 0]
    return any(wanted.conflicts(port) for wanted in request.ports for port in taken)


def _insufficient(request: PodRequest, node: NodeInfo) -> FilterFailure | None:
    allocatable, requested = node.allocatable, node.requested
    missing = [
        name
        for name, amount in request.requests.items()
        if amount > allocatable.get(name, 0) - requested.get(name, 0)
        and (allocatable.get(name) or name not in request.by_claims)
    ]
    is_full = node.pods + 1 > allocatable.get(_PODS, 0)
    if not missing and not is_full:
        return None
    reasons = ["Too many pods"] if is_full else []
    unresolvable = any(request.requests[name] > allocatable.get(name, 0) for name in missing)
    return FilterFailure((*reasons, *(f"Insufficient {name}" for name in missing)), unresolvable)


def _highest_score(request: PodRequest, nodes: list[NodeInfo], claim_score: Callable[[NodeInfo], int]) -> NodeInfo:
    """Scores taints, preferred affinity, alternatives of claims, free CPU and memory; ties are broken by name."""
    taints = [sum(_is_avoided(request, taint) for taint in node.taints) for node in nodes]
    preferences = [request.affinity.score(node.name, node.labels) for node in nodes]
    alternatives = [claim_score(node) for node in nodes]
    most_taints, highest_preference, best_alternative = max(taints), max(preferences), max(alternatives)
    highest = -1.0
    best: list[NodeInfo] = []
    for node, avoided, preference, alternative in zip(nodes, taints, preferences, alternatives, strict=True):
        score = free_share(request, node)
        score += _TAINT_WEIGHT * 100 * (1 - avoided / most_taints) if most_taints else 0
        score += _AFFINITY_WEIGHT * 100 * preference / highest_preference if highest_preference else 0
        score += _CLAIM_WEIGHT * 100 * alternative / best_alternative if best_alternative else 0
        if score > highest:
            highest, best = score, [node]
        elif score == highest:
            best.append(node)
    return min(best, key=lambda node: node.order)


def _is_avoided(request: PodRequest, taint: Object) -> bool:
    return taint["effect"] == "PreferNoSchedule" and not affinity.tolerates(request.tolerations, taint)


def has_preferences(request: PodRequest, node: NodeInfo) -> bool:
    """Whether more than the remaining CPU and memory determines the node's score."""
    return bool(request.affinity.preferred) or any(_is_avoided(request, taint) for taint in node.taints)


def free_share(request: PodRequest, node: NodeInfo) -> float:
    """The remaining percentage of CPU and memory."""
    share = 0.0
    for index, resource in enumerate((CPU, MEMORY)):
        offered = node.allocatable.get(resource, 0)
        if offered:
            share += max(0.0, (offered - node.scored[index] - request.scored[index]) * 50 / offered)
    return share


def _histogram(counts: Mapping[str, int]) -> str:
    return ", ".join(sorted(f"{count} {reason}" for reason, count in counts.items()))


def _taints(spec: Object, status: Object) -> tuple[Object, ...]:
    """The node's taints, and a taint for an unready node, whose own taint a controller sets a little later."""
    taints = [{**taint, "key": str(taint["key"]), "effect": taint["effect"]} for taint in spec.get("taints") or ()]
    keys = {taint["key"] for taint in taints}
    conditions = status.get("conditions") or ()
    ready = next((condition["status"] for condition in conditions if condition["type"] == "Ready"), "Unknown")
    if ready != "True" and not keys & {_NOT_READY["key"], "node.kubernetes.io/unreachable"}:
        taints.append(_NOT_READY)
    # The real scheduler checks `unschedulable` before every taint, with a separate message.
    first = [_UNSCHEDULABLE] if spec.get("unschedulable") else []
    return (*first, *(taint for taint in taints if taint["key"] != _UNSCHEDULABLE["key"] or not first))
