"""The scheduler's filters involving the pods of all nodes: topology spread, then affinity between pods. Pure.

As in the real scheduler, the pods are counted once for each pod to schedule, and every node is compared with the
counts. Reasons are the real scheduler's; a node without the topology's label, or without a pod to be near to, is
unresolvable.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass

from plugwright.cluster.scheduling import affinity
from plugwright.cluster.scheduling.fit import FilterFailure, NodeInfo, PodRequest
from plugwright.cluster.scheduling.pod_affinity import NamespaceLabels, PodAffinity, PodAffinityTerm, SpreadConstraint

__all__ = ["NodeFilter", "PlacedPod", "pod_filter"]

NodeFilter = Callable[[NodeInfo], FilterFailure | None]

_SPREAD = "node(s) didn't match pod topology spread constraints"
_NO_AFFINITY = FilterFailure(("node(s) didn't match pod affinity rules",))
_ANTI_AFFINITY = FilterFailure(("node(s) didn't match pod anti-affinity rules",), unresolvable=False)
_EXISTING = FilterFailure(("node(s) didn't satisfy existing pods anti-affinity rules",), unresolvable=False)
_TOO_SKEWED = FilterFailure((_SPREAD,), unresolvable=False)
_NO_TOPOLOGY = FilterFailure((f"{_SPREAD} (missing required label)",))
_HARD_EFFECTS = ("NoSchedule", "NoExecute")


@dataclass(frozen=True, slots=True)
class PlacedPod:
    """A pod on a node."""

    node: str
    request: PodRequest


def pod_filter(
    request: PodRequest,
    nodes: Mapping[str, NodeInfo],
    placed: Collection[PlacedPod],
    namespace_labels: NamespaceLabels,
) -> NodeFilter:
    """`placed` can omit pods without anti-affinity if the pod itself has no rules about others."""
    spread = [_Spread(constraint, request, nodes, placed) for constraint in request.pods.spread]
    between = _PodAffinityCounts(request.pods, nodes, placed, namespace_labels)

    def failure(node: NodeInfo) -> FilterFailure | None:
        for constraint in spread:
            if found := constraint.failure(node):
                return found
        return between.failure(node)

    return failure


class _Spread:
    """The number of pods matching a constraint in each domain of its topology."""

    def __init__(
        self,
        constraint: SpreadConstraint,
        request: PodRequest,
        nodes: Mapping[str, NodeInfo],
        placed: Iterable[PlacedPod],
    ) -> None:
        self._constraint = constraint
        self._own = int(constraint.selector.matches(request.pods.labels))
        keys = {other.topology_key for other in request.pods.spread}
        eligible = {name for name, node in nodes.items() if keys <= node.labels.keys() and self._counts(request, node)}
        self._matching = {nodes[name].labels[constraint.topology_key]: 0 for name in eligible}
        for other in placed:
            if other.node in eligible and self._is_counted(request.pods, other.request.pods):
                self._matching[nodes[other.node].labels[constraint.topology_key]] += 1
        # With fewer domains than `minDomains`, a further, empty domain is assumed.
        self._least = min(self._matching.values(), default=0) if len(self._matching) >= constraint.min_domains else 0

    def failure(self, node: NodeInfo) -> FilterFailure | None:
        domain = node.labels.get(self._constraint.topology_key)
        if domain is None:
            return _NO_TOPOLOGY
        is_skewed = self._matching.get(domain, 0) + self._own - self._least > self._constraint.max_skew
        return _TOO_SKEWED if is_skewed else None

    def _counts(self, request: PodRequest, node: NodeInfo) -> bool:
        if self._constraint.honors_affinity and not request.affinity.matches(node.name, node.labels):
            return False
        hard = (taint for taint in node.taints if taint["effect"] in _HARD_EFFECTS)
        return not self._constraint.honors_taints or all(
            affinity.tolerates(request.tolerations, taint) for taint in hard
        )

    def _is_counted(self, pod: PodAffinity, other: PodAffinity) -> bool:
        # The real scheduler counts no pods for an empty selector, although it matches the pod itself.
        selector = self._constraint.selector
        is_candidate = other.namespace == pod.namespace and not other.is_terminating and not selector.is_empty
        return is_candidate and selector.matches(other.labels)


class _PodAffinityCounts:
    """The (label, value) pairs of topologies with a pod to be near to, and with a pod to be apart from."""

    def __init__(
        self,
        pod: PodAffinity,
        nodes: Mapping[str, NodeInfo],
        placed: Iterable[PlacedPod],
        namespace_labels: NamespaceLabels,
    ) -> None:
        self._pod = pod
        self._near: set[tuple[str, str]] = set()
        self._apart: set[tuple[str, str]] = set()
        self._existing: set[tuple[str, str]] = set()
        for other in placed:
            if other.node not in nodes:
                continue
            labels, others = nodes[other.node].labels, other.request.pods
            if pod.required and all(term.matches(others, namespace_labels) for term in pod.required):
                self._near |= _topologies(pod.required, labels)
            self._apart |= _topologies([term for term in pod.anti if term.matches(others, namespace_labels)], labels)
            hostile = [term for term in others.anti if term.matches(pod, namespace_labels)]
            self._existing |= _topologies(hostile, labels)
        # The first pod of a group with mutual affinity can run anywhere within the topology.
        self._is_first = not self._near and all(term.matches(pod, namespace_labels) for term in pod.required)

    def failure(self, node: NodeInfo) -> FilterFailure | None:
        pod = self._pod
        near = _topologies(pod.required, node.labels)
        if len(near) < len({term.topology_key for term in pod.required}) or not (self._is_first or near <= self._near):
            return _NO_AFFINITY
        if _topologies(pod.anti, node.labels) & self._apart:
            return _ANTI_AFFINITY
        return _EXISTING if self._existing and self._existing & set(node.labels.items()) else None


def _topologies(terms: Iterable[PodAffinityTerm], labels: Mapping[str, str]) -> set[tuple[str, str]]:
    return {(term.topology_key, labels[term.topology_key]) for term in terms if term.topology_key in labels}
