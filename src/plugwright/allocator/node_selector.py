"""Node selectors: terms over a node's labels and its name. Pure."""

from collections.abc import Callable, Mapping
from typing import Any

from msgspec import Struct

from plugwright.errors import InvalidValue

__all__ = ["NodeSelector", "NodeSelectorTerm", "label_expression", "labels_match"]

_NAME = "metadata.name"
_LABEL_OPERATORS = {"In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"}


class NodeSelectorTerm(Struct, frozen=True):
    """All of its expressions must match; a term without any matches no node."""

    labels: tuple[Mapping[str, Any], ...]
    fields: tuple[Mapping[str, Any], ...]

    @classmethod
    def of(cls, term: Mapping[str, Any]) -> "NodeSelectorTerm":
        labels, fields = term.get("matchExpressions") or (), term.get("matchFields") or ()
        return cls(tuple(map(label_expression, labels)), tuple(map(label_expression, fields)))

    @property
    def node_names(self) -> frozenset[str] | None:
        """The nodes that its fields name; None if it names none."""
        names = [frozenset(expression["values"]) for expression in self.fields if expression["operator"] == "In"]
        return frozenset.intersection(*names) if names else None

    def matches(self, name: str, labels: Mapping[str, str]) -> bool:
        if not self.labels and not self.fields:
            return False
        return all(labels_match(expression, labels) for expression in self.labels) and all(
            labels_match(expression, {_NAME: name}) for expression in self.fields
        )


class NodeSelector(Struct, frozen=True):
    """The selector of a slice or a device: one of its terms must match."""

    terms: tuple[NodeSelectorTerm, ...]

    @classmethod
    def of(cls, selector: Mapping[str, Any]) -> "NodeSelector":
        """Raises `InvalidValue` for an unknown operator: such a selector must not match by accident."""
        terms = tuple(map(NodeSelectorTerm.of, selector.get("nodeSelectorTerms") or ()))
        for term in terms:
            for expression in term.labels:
                if expression["operator"] not in _LABEL_OPERATORS:
                    raise InvalidValue(
                        f"operator must be one of {sorted(_LABEL_OPERATORS)}, got {expression['operator']!r}"
                    )
            for expression in term.fields:
                if expression["operator"] not in ("In", "NotIn") or len(expression["values"]) != 1:
                    raise InvalidValue(f"a field needs In or NotIn with one value, got {dict(expression)}")
        return cls(terms)

    def matches(self, name: str, labels: Mapping[str, str]) -> bool:
        return any(term.matches(name, labels) for term in self.terms)


def label_expression(expression: Mapping[str, Any]) -> Mapping[str, Any]:
    """Checked once, when an object is read: a malformed expression raises here and never while nodes are matched."""
    return {
        "key": str(expression["key"]),
        "operator": expression.get("operator"),
        "values": list(expression.get("values") or ()),
    }


def labels_match(expression: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    value, values = labels.get(expression["key"]), expression["values"]
    match expression["operator"]:
        case "In":
            return value in values
        case "NotIn":
            return value not in values
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
        case "Gt":
            return _compares(value, values, int.__gt__)
        case "Lt":
            return _compares(value, values, int.__lt__)
    return False


def _compares(value: str | None, values: list[str], compare: Callable[[int, int], bool]) -> bool:
    try:
        return value is not None and len(values) == 1 and compare(int(value), int(values[0]))
    except (TypeError, ValueError):
        return False
