"""Label selectors, node affinity, taints and tolerations: a pod's possible and preferred nodes. Pure.

`pod_affinity` implements rules about other pods.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from plugwright.allocator.node_selector import NodeSelectorTerm, label_expression, labels_match
from plugwright.apiserver.store import Object

__all__ = ["LabelSelector", "NodeAffinity", "PreferredTerm", "matching_toleration", "tolerates"]


@dataclass(frozen=True, slots=True)
class LabelSelector:
    """`expressions` must all match; None matches nothing, like an omitted selector."""

    expressions: tuple[Mapping[str, Any], ...] | None = None

    @classmethod
    def of(cls, selector: Object | None, also: Mapping[str, str] | None = None) -> "LabelSelector":
        """`also` are additional labels, which must be equal."""
        if selector is None:
            return cls()
        equal = {**(selector.get("matchLabels") or {}), **(also or {})}
        labels = [{"key": key, "operator": "In", "values": [value]} for key, value in equal.items()]
        return cls(tuple(map(label_expression, (*labels, *(selector.get("matchExpressions") or ())))))

    @property
    def is_empty(self) -> bool:
        """Whether it matches everything."""
        return self.expressions == ()

    def matches(self, labels: Mapping[str, str]) -> bool:
        return self.expressions is not None and all(labels_match(expression, labels) for expression in self.expressions)


@dataclass(frozen=True, slots=True)
class PreferredTerm:
    weight: int
    term: NodeSelectorTerm


@dataclass(frozen=True, slots=True)
class NodeAffinity:
    """A pod's node selector and node affinity.

    One of the `terms` must match; None if the pod has no required terms. `node_names` are the only possible matches, if
    every term names nodes.
    """

    selector: Mapping[str, str]
    terms: tuple[NodeSelectorTerm, ...] | None = None
    node_names: frozenset[str] | None = None
    preferred: tuple[PreferredTerm, ...] = ()

    @classmethod
    def of(cls, spec: Object) -> "NodeAffinity":
        affinity = (spec.get("affinity") or {}).get("nodeAffinity") or {}
        required = affinity.get("requiredDuringSchedulingIgnoredDuringExecution")
        terms = tuple(map(NodeSelectorTerm.of, required.get("nodeSelectorTerms") or ())) if required else None
        preferred = tuple(
            PreferredTerm(int(entry.get("weight", 1)), NodeSelectorTerm.of(entry.get("preference") or {}))
            for entry in affinity.get("preferredDuringSchedulingIgnoredDuringExecution") or ()
        )
        return cls(dict(spec.get("nodeSelector") or {}), terms, _node_names(terms), preferred)

    def matches(self, name: str, labels: Mapping[str, str]) -> bool:
        if any(labels.get(key) != value for key, value in self.selector.items()):
            return False
        return self.terms is None or any(term.matches(name, labels) for term in self.terms)

    def score(self, name: str, labels: Mapping[str, str]) -> int:
        """The weight of the matching preferred terms."""
        return sum(entry.weight for entry in self.preferred if entry.term.matches(name, labels))


def tolerates(tolerations: Iterable[Object], taint: Object) -> bool:
    return matching_toleration(tolerations, taint) is not None


def matching_toleration(tolerations: Iterable[Object], taint: Object) -> Object | None:
    """The first toleration of the taint."""
    return next((toleration for toleration in tolerations if _covers(toleration, taint)), None)


def _covers(toleration: Object, taint: Object) -> bool:
    if toleration.get("effect") and toleration["effect"] != taint["effect"]:
        return False
    exists = toleration.get("operator") == "Exists"
    if not toleration.get("key"):
        return exists
    if toleration["key"] != taint["key"]:
        return False
    return exists or toleration.get("value", "") == taint.get("value", "")


def _node_names(terms: tuple[NodeSelectorTerm, ...] | None) -> frozenset[str] | None:
    if not terms:
        return None
    names: set[str] = set()
    for term in terms:
        if term.node_names is None:
            return None
        names |= term.node_names
    return frozenset(names)
