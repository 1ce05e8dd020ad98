"""Node selectors and node affinity: which nodes a pod may go to, and which it would like. Pure.

Taints and tolerations: whether a pod stands what a node has. Pure.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from plugwright.cluster.store import Object

__all__ = ["Affinity", "Preference", "Term", "matches", "preferred", "read", "tolerates", "toleration"]

_NAME = "metadata.name"


@dataclass(frozen=True, slots=True)
class Term:
    """All of its expressions must hold; one without any holds nowhere."""

    labels: tuple[Object, ...]
    fields: tuple[Object, ...]

    def holds(self, name: str, labels: Mapping[str, str]) -> bool:
        if not self.labels and not self.fields:
            return False
        return all(_holds(each, labels) for each in self.labels) and all(
            _holds(each, {_NAME: name}) for each in self.fields
        )


@dataclass(frozen=True, slots=True)
class Preference:
    weight: int
    term: Term


@dataclass(frozen=True, slots=True)
class Affinity:
    terms: tuple[Term, ...] | None = None
    names: frozenset[str] | None = None
    preferences: tuple[Preference, ...] = ()


def read(spec: Object) -> Affinity:
    found = (spec.get("affinity") or {}).get("nodeAffinity") or {}
    required = found.get("requiredDuringSchedulingIgnoredDuringExecution")
    terms = tuple(_term(each) for each in (required.get("nodeSelectorTerms") or ())) if required else None
    preferences = tuple(
        Preference(int(each.get("weight", 1)), _term(each.get("preference") or {}))
        for each in found.get("preferredDuringSchedulingIgnoredDuringExecution") or ()
    )
    return Affinity(terms, _names(terms), preferences)


def matches(selector: Mapping[str, str], terms: Iterable[Term] | None, name: str, labels: Mapping[str, str]) -> bool:
    if any(labels.get(key) != value for key, value in selector.items()):
        return False
    return terms is None or any(term.holds(name, labels) for term in terms)


def preferred(preferences: Iterable[Preference], name: str, labels: Mapping[str, str]) -> int:
    return sum(each.weight for each in preferences if each.term.holds(name, labels))


def _term(term: Object) -> Term:
    labels, fields = term.get("matchExpressions") or (), term.get("matchFields") or ()
    return Term(tuple(map(_expression, labels)), tuple(map(_expression, fields)))


def _expression(given: Object) -> Object:
    """Whole, or not taken at all: what is read here is never looked at with suspicion again."""
    return {"key": str(given["key"]), "operator": given.get("operator"), "values": list(given.get("values") or ())}


def _names(terms: tuple[Term, ...] | None) -> frozenset[str] | None:
    """The nodes that the terms name, if every one of them names some: no other node is looked at then."""
    if not terms:
        return None
    named = [_named(term) for term in terms]
    found: set[str] = set()
    for names in named:
        if names is None:
            return None
        found |= names
    return frozenset(found)


def _named(term: Term) -> frozenset[str] | None:
    lists = [frozenset(each["values"]) for each in term.fields if each["operator"] == "In"]
    return frozenset.intersection(*lists) if lists else None


def _holds(expression: Object, values: Mapping[str, str]) -> bool:
    found, wanted = values.get(expression["key"]), expression["values"]
    match expression["operator"]:
        case "In":
            return found in wanted
        case "NotIn":
            return found not in wanted
        case "Exists":
            return found is not None
        case "DoesNotExist":
            return found is None
        case "Gt":
            return _compared(found, wanted, int.__gt__)
        case "Lt":
            return _compared(found, wanted, int.__lt__)
    return False


def _compared(found: str | None, wanted: list[str], compare: Callable[[int, int], bool]) -> bool:
    try:
        return found is not None and len(wanted) == 1 and compare(int(found), int(wanted[0]))
    except (TypeError, ValueError):
        return False


def tolerates(tolerations: Iterable[Object], taint: Object) -> bool:
    return toleration(tolerations, taint) is not None


def toleration(tolerations: Iterable[Object], taint: Object) -> Object | None:
    """The first that tolerates the taint."""
    return next((each for each in tolerations if _covers(each, taint)), None)


def _covers(toleration: Object, taint: Object) -> bool:
    if toleration.get("effect") and toleration["effect"] != taint["effect"]:
        return False
    exists = toleration.get("operator") == "Exists"
    if not toleration.get("key"):
        return exists
    if toleration["key"] != taint["key"]:
        return False
    return exists or toleration.get("value", "") == taint.get("value", "")
