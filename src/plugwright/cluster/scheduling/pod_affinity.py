"""A pod's rules about other pods: affinity, anti-affinity and spread over topologies, as in its spec. Pure.

`pod_filters` compares them with the pods on the nodes. Only required rules are here: preferred terms and
`ScheduleAnyway` choose between fitting nodes, and `fit` does not score them.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from plugwright.apiserver.store import Object
from plugwright.cluster.scheduling.affinity import LabelSelector

__all__ = ["NamespaceLabels", "PodAffinity", "PodAffinityTerm", "SpreadConstraint"]

_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"

NamespaceLabels = Callable[[str], Mapping[str, str]]


@dataclass(frozen=True, slots=True)
class PodAffinityTerm:
    """Selects pods by their labels, in `namespaces` or in those whose labels `namespace_selector` matches."""

    topology_key: str
    selector: LabelSelector
    namespaces: frozenset[str]
    namespace_selector: LabelSelector

    @classmethod
    def of(cls, term: Object, namespace: str, labels: Mapping[str, str]) -> "PodAffinityTerm":
        """`namespace` and `labels` are those of the pod with the term."""
        named, selector = term.get("namespaces") or (), term.get("namespaceSelector")
        namespaces = frozenset(named or ((namespace,) if selector is None else ()))
        return cls(str(term["topologyKey"]), _selector(term, labels), namespaces, LabelSelector.of(selector))

    def matches(self, pod: "PodAffinity", namespace_labels: NamespaceLabels) -> bool:
        if not self.selector.matches(pod.labels):
            return False
        return pod.namespace in self.namespaces or self.namespace_selector.matches(namespace_labels(pod.namespace))


@dataclass(frozen=True, slots=True)
class SpreadConstraint:
    """A required constraint (`DoNotSchedule`)."""

    topology_key: str
    selector: LabelSelector
    max_skew: int
    min_domains: int
    honors_affinity: bool
    honors_taints: bool

    @classmethod
    def of(cls, constraint: Object, labels: Mapping[str, str]) -> "SpreadConstraint":
        return cls(
            str(constraint["topologyKey"]),
            _selector(constraint, labels),
            int(constraint.get("maxSkew", 1)),
            int(constraint.get("minDomains") or 1),
            constraint.get("nodeAffinityPolicy", "Honor") == "Honor",
            constraint.get("nodeTaintsPolicy", "Ignore") == "Honor",
        )


@dataclass(frozen=True, slots=True)
class PodAffinity:
    """A pod as seen by other pods' rules, and its own rules about them."""

    namespace: str
    labels: Mapping[str, str]
    required: tuple[PodAffinityTerm, ...] = ()
    anti: tuple[PodAffinityTerm, ...] = ()
    spread: tuple[SpreadConstraint, ...] = ()
    is_terminating: bool = False

    @classmethod
    def of(cls, pod: Object) -> "PodAffinity":
        metadata, spec = pod["metadata"], pod["spec"]
        namespace, labels = str(metadata.get("namespace") or ""), dict(metadata.get("labels") or {})
        affinity = spec.get("affinity") or {}

        def terms(kind: str) -> tuple[PodAffinityTerm, ...]:
            required = (affinity.get(kind) or {}).get(_REQUIRED) or ()
            return tuple(PodAffinityTerm.of(term, namespace, labels) for term in required)

        spread = tuple(
            SpreadConstraint.of(constraint, labels)
            for constraint in spec.get("topologySpreadConstraints") or ()
            if constraint.get("whenUnsatisfiable", "DoNotSchedule") == "DoNotSchedule"
        )
        is_terminating = bool(metadata.get("deletionTimestamp"))
        return cls(namespace, labels, terms("podAffinity"), terms("podAntiAffinity"), spread, is_terminating)

    @property
    def has_rules(self) -> bool:
        return bool(self.required or self.anti or self.spread)


def _selector(rule: Object, labels: Mapping[str, str]) -> LabelSelector:
    """The selector, with the pod's values of `matchLabelKeys` added as by the API server."""
    selector = rule.get("labelSelector")
    if selector is None:
        return LabelSelector()
    equal = {key: labels[key] for key in rule.get("matchLabelKeys") or () if key in labels}
    unequal = [
        {"key": key, "operator": "NotIn", "values": [labels[key]]}
        for key in rule.get("mismatchLabelKeys") or ()
        if key in labels
    ]
    both = {**selector, "matchExpressions": [*(selector.get("matchExpressions") or ()), *unequal]}
    return LabelSelector.of(both, equal)
