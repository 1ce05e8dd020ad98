"""Checks of literals when an expression is compiled: patterns, times, formats, and constant conversions."""

import re

from plugwright.allocator.cel.cel_values import EvaluationError, Uint
from plugwright.allocator.cel.celtypes import Type, unwrap_optional
from plugwright.allocator.cel.dispatch import implementation
from plugwright.allocator.cel.regex import RegexError, compiled
from plugwright.allocator.cel.syntax_tree import (
    CallNode,
    InvalidExpression,
    ListNode,
    Literal,
    MapNode,
    Node,
    children,
    located,
)

__all__ = ["convert_constants", "validate"]

_CONVERSIONS = ("bool", "bytes", "double", "dyn", "duration", "int", "string", "timestamp", "uint")
_INDEXING = ("_[_]", "_[?_]")
_VERB = re.compile(r"%(?:\.\d+)?(.?)", re.DOTALL)
_ANYTHING = "strings, bools, bytes, ints, doubles, maps, lists, types, durations, and timestamps"
_SHOWN = ("string", "bool", "bytes", "int", "uint", "double", "map", "list", "type", "duration", "timestamp", "null")
_CLAUSES: dict[str, tuple[str, tuple[str, ...], str]] = {
    "s": ("string", _SHOWN, _ANYTHING),
    "d": ("decimal", ("int", "uint"), "integers"),
    "f": ("fixed-point", ("double",), "doubles"),
    "o": ("octal", ("int", "uint"), "integers"),
    "b": ("binary", ("int", "uint", "bool"), "integers and bools"),
    "x": ("hex", ("int", "uint", "string", "bytes"), "integers, byte buffers, and strings"),
    "X": ("hex", ("int", "uint", "string", "bytes"), "integers, byte buffers, and strings"),
}


def validate(root: Node, source: str) -> None:
    """Raise `InvalidExpression` for literal arguments of matches(), duration(), timestamp() and format() in error."""
    findings: list[tuple[int, str]] = []

    def visit(node: Node, mixed: bool) -> None:
        if isinstance(node, CallNode) and node.args:
            findings.extend(_format_findings(node) if node.function == "format" else _literal_findings(node))
            mixed = mixed or node.function == "format"  # its values can have several types
        if not mixed:
            findings.extend(_mixed_findings(node))
        for child in children(node):
            visit(child, mixed)

    visit(root, mixed=False)
    if findings:
        raise InvalidExpression(located(source, findings))


def _mixed_findings(node: Node) -> list[tuple[int, str]]:
    """The elements of a list, and the keys and the values of a map, must have one type."""
    groups: list[list[tuple[Node, Type]]] = []
    if isinstance(node, ListNode):
        groups = [[(each, _inner(each, index in node.optional)) for index, each in enumerate(node.elements)]]
    elif isinstance(node, MapNode):
        keys = [(key, key.type) for key, _, _ in node.entries]
        groups = [keys, [(value, _inner(value, optional)) for _, value, optional in node.entries]]
    for group in groups:
        for each, found in group[1:]:
            if found != group[0][1]:
                return [(each.at, f"expected type '{group[0][1].shown()}' but found '{found.shown()}'")]
    return []


def _inner(node: Node, optional: bool) -> Type:
    return unwrap_optional(node.type)[0] if optional else node.type


def _literal_findings(node: CallNode) -> list[tuple[int, str]]:
    last = node.args[-1]
    if node.function not in ("matches", "duration", "timestamp") or not isinstance(last, Literal):
        return []
    if not isinstance(last.value, str) or _valid(node.function, last.value):
        return []
    return [(last.at, f"invalid {node.function} argument")]


def _valid(function: str, text: str) -> bool:
    try:
        if function == "matches":
            compiled(text)
        else:
            implementation(function)(text)
    except (RegexError, EvaluationError):
        return False
    return True


def _format_findings(node: CallNode) -> list[tuple[int, str]]:
    values = node.args[0]
    if not isinstance(node.target, Literal) or not isinstance(values, ListNode):
        return []
    verbs = [match[1] for match in _VERB.finditer(str(node.target.value)) if match[0] != "%%"]
    for index, verb in enumerate(verbs):
        if verb not in _CLAUSES and verb != "e":
            return [(node.at, f'could not parse formatting clause: unrecognized formatting clause "{verb}"')]
        if index >= len(values.elements):
            return [(node.at, f"index {index} out of range")]
        value = values.elements[index]
        name, accepted, described = _CLAUSES.get(verb, ("", (value.type.kind,), ""))
        if value.type.kind not in (*accepted, "dyn"):
            message = f"{name} clause can only be used on {described}, was given {value.type}"
            return [(value.at, f"error during formatting: {message}")]
    if len(verbs) < len(values.elements):
        counts = f"(expected {len(verbs)}, got {len(values.elements)})"
        return [(node.at, f"too many arguments supplied to string.format {counts}")]
    return []


def _is_key(node: Node) -> bool:
    """Whether a key can be looked up: not if it is a constant of another type than those of keys."""
    if isinstance(node, (ListNode, MapNode)):
        return not all(map(_is_constant, children(node)))
    return not isinstance(node, Literal) or isinstance(node.value, (bool, int, float, Uint, str))


def _is_constant(node: Node) -> bool:
    return isinstance(node, Literal) or (
        isinstance(node, (ListNode, MapNode)) and all(map(_is_constant, children(node)))
    )


def convert_constants(node: Node) -> None:
    """Fail for conversions, patterns and keys of literals that cannot succeed: the program is not built then."""
    for child in children(node):
        convert_constants(child)
    if isinstance(node, CallNode) and node.function in _INDEXING and not _is_key(node.args[1]):
        raise EvaluationError("invalid qualifier type")
    if not isinstance(node, CallNode) or not node.args or not isinstance(node.args[0], Literal):
        return
    value = node.args[0].value
    if node.function in _CONVERSIONS and node.target is None:
        implementation(node.function)(value)
    elif node.function in ("find", "findAll") and isinstance(value, str):
        compiled(value)
