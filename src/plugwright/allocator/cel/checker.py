"""The type checker: resolves names and overloads, and finds the type of every node."""

from plugwright.allocator.cel import celtypes
from plugwright.allocator.cel.celtypes import (
    Substitutions,
    Type,
    is_dynamic,
    list_of,
    map_of,
    most_general,
    optional_of,
    unwrap_optional,
)
from plugwright.allocator.cel.declarations import TYPE_NAMES, Overload, device_fields, overloads
from plugwright.allocator.cel.syntax_tree import (
    CallNode,
    Comprehension,
    Ident,
    InvalidExpression,
    ListNode,
    MapNode,
    Node,
    Select,
    StructNode,
    children,
    located,
    qualified_name,
)

__all__ = ["DEVICE", "check"]

DEVICE = Type("struct", "kubernetes.DRADevice")
_LOGICAL = ("_&&_", "_||_")
_RANGES = ("dyn", "error", "parameter")


def check(root: Node, source: str, *, stored: bool) -> None:
    """Set the type of every node, and the overloads of every call. Raises `InvalidExpression`."""
    checker = _Checker(stored=stored)
    checker.check(root)
    if checker.findings:
        findings = sorted(dict.fromkeys(checker.findings), key=lambda finding: finding[0])
        raise InvalidExpression(located(source, findings))
    _resolve(root, checker.types)


def _resolve(node: Node, types: Substitutions) -> None:
    node.type = types.resolve(node.type, free_is_dyn=True)
    for child in children(node):
        _resolve(child, types)


class _Checker:
    def __init__(self, *, stored: bool) -> None:
        self.types = Substitutions()
        self.findings: list[tuple[int, str]] = []
        self._functions = overloads(stored=stored)
        self._fields = device_fields(stored=stored)
        self._variables: dict[str, list[Type]] = {"device": [DEVICE]}

    def check(self, node: Node) -> Type:
        match node:
            case Ident():
                node.type = self._ident(node)
            case Select():
                node.type = self._select(node)
            case CallNode():
                node.type = self._call(node)
            case ListNode():
                node.type = self._list(node)
            case MapNode():
                node.type = self._map(node)
            case Comprehension():
                node.type = self._comprehension(node)
            case StructNode():
                node.type = self._undeclared(node, node.name)
        return node.type

    def _report(self, node: Node, message: str) -> Type:
        self.findings.append((node.at, message))
        return celtypes.ERROR

    def _undeclared(self, node: Node, name: str) -> Type:
        return self._report(node, f"undeclared reference to '{name}' (in container '')")

    def _mismatch(self, node: Node, expected: Type, found: Type) -> Type:
        return self._report(node, f"expected type '{expected.shown()}' but found '{found.shown()}'")

    def _ident(self, node: Ident) -> Type:
        return self._named(node.name) or self._undeclared(node, node.name)

    def _named(self, name: str) -> Type | None:
        absolute = name.startswith(".")
        found = self._variables.get(name.removeprefix("."), [])
        if found:
            return found[0] if absolute else found[-1]
        return TYPE_NAMES.get(name.removeprefix("."))

    def _select(self, node: Select) -> Type:
        qualified = "" if node.test else qualified_name(node)
        if qualified in TYPE_NAMES and qualified.split(".")[0] not in self._variables:
            return TYPE_NAMES[qualified]
        selected = self._field(node, node.operand, node.field)
        return celtypes.BOOL if node.test else selected

    def _field(self, node: Node, operand: Node, field: str) -> Type:
        """The type of a field of the operand, which is optional if the operand is."""
        target, optional = unwrap_optional(self.types.resolve(self.check(operand)))
        if target.kind == "map":
            result = target.parameters[1]
        elif target.kind == "struct":
            result = self._struct_field(node, target, field)
        else:
            if target.kind == "parameter":
                self.types.assignable([celtypes.DYN], [target])
            elif target.kind not in ("dyn", "any", "error"):
                self._report(node, f"type '{target.shown()}' does not support field selection")
            result = celtypes.DYN
        result = self.types.resolve(result)
        return optional_of(result) if optional else result

    def _struct_field(self, node: Node, target: Type, field: str) -> Type:
        found = self._fields.get(field) if target == DEVICE else None
        return found or self._report(node, f"undefined field '{field}'")

    def _call(self, node: CallNode) -> Type:
        if node.function == "_?._":
            result = self._field(node, node.args[0], str(getattr(node.args[1], "value", "")))
            return result if result.name == "optional_type" else optional_of(result)
        for arg in node.args:
            self.check(arg)
        if node.target is not None:
            self._namespaced(node)
        if node.target is not None:
            self.check(node.target)
        name = node.function.removeprefix(".")
        if name not in self._functions:
            return self._undeclared(node, node.function)
        node.function = name
        return self._overload(node, self._functions[name])

    def _namespaced(self, node: CallNode) -> None:
        """`sets.contains(…)` is a function with a dot in its name, not a method of `sets`."""
        assert node.target is not None
        qualified = qualified_name(node.target)
        if qualified and f"{qualified}.{node.function}" in self._functions:
            node.function, node.target = f"{qualified}.{node.function}", None

    def _overload(self, node: CallNode, candidates: list[Overload]) -> Type:
        operands = ([node.target] if node.target else []) + node.args
        types = [operand.type for operand in operands]
        if node.function in _LOGICAL:
            return self._logical(node, candidates)
        result: Type | None = None
        node.overloads = []
        for candidate in candidates:
            if candidate.method != (node.target is not None):
                continue
            returned, *arguments = self.types.renamed((candidate.result, *candidate.arguments))
            if not self.types.assignable(types, arguments):
                continue
            node.overloads.append(candidate)
            returned = self.types.resolve(returned)
            if result is None:
                result = returned
            elif not is_dynamic(result) and returned != result:
                result = celtypes.DYN
        return result or self._no_overload(node, types)

    def _no_overload(self, node: CallNode, types: list[Type]) -> Type:
        shown = [self.types.resolve(each, free_is_dyn=True).shown() for each in types]
        signature = f"{shown[0]}.({', '.join(shown[1:])})" if node.target else f"({', '.join(shown)})"
        return self._report(node, f"found no matching overload for '{node.function}' applied to '{signature}'")

    def _logical(self, node: CallNode, candidates: list[Overload]) -> Type:
        wrong = [arg for arg in node.args if not self.types.assignable([arg.type], [celtypes.BOOL])]
        for arg in wrong:
            self._mismatch(arg, celtypes.BOOL, arg.type)
        if wrong:
            return celtypes.ERROR
        node.overloads = candidates
        return celtypes.BOOL

    def _joined(self, previous: Type | None, current: Type) -> Type:
        if previous is None:
            return current
        if self.types.assignable([previous], [current]):
            return most_general(previous, current)
        return celtypes.DYN

    def _unwrapped(self, node: Node, *, optional: bool) -> Type:
        found = self.check(node)
        if not optional:
            return found
        inner, is_optional = unwrap_optional(found)
        if not is_optional and not is_dynamic(inner):
            self._mismatch(node, optional_of(inner), inner)
        return inner

    def _list(self, node: ListNode) -> Type:
        element: Type | None = None
        for index, each in enumerate(node.elements):
            element = self._joined(element, self._unwrapped(each, optional=index in node.optional))
        return list_of(element or self.types.fresh())

    def _map(self, node: MapNode) -> Type:
        key_type: Type | None = None
        value_type: Type | None = None
        for key, value, optional in node.entries:
            key_type = self._joined(key_type, self.check(key))
            value_type = self._joined(value_type, self._unwrapped(value, optional=optional))
        return map_of(key_type or self.types.fresh(), value_type or self.types.fresh())

    def _comprehension(self, node: Comprehension) -> Type:
        self.check(node.range)
        accumulated = self.check(node.start)
        first, second = self._iterated(node)
        self._declare(node.accumulator, accumulated)
        self._declare(node.variable, first)
        if node.second:
            self._declare(node.second, second)
        self._assert(node.condition, celtypes.BOOL)
        self._assert(node.step, accumulated)
        if node.second:
            self._forget(node.second)
        self._forget(node.variable)
        result = self.types.resolve(self.check(node.result))
        self._forget(node.accumulator)
        return result

    def _iterated(self, node: Comprehension) -> tuple[Type, Type]:
        """The types of the two variables."""
        over = self.types.resolve(node.range.type)
        if over.kind == "list":
            element = over.parameters[0]
            return (celtypes.INT, element) if node.second else (element, element)
        if over.kind == "map":
            return over.parameters[0], over.parameters[1]
        if over.kind in _RANGES:
            self.types.assignable([celtypes.DYN], [over])
            return celtypes.DYN, celtypes.DYN
        message = "cannot be range of a comprehension (must be list, map, or dynamic)"
        self._report(node.range, f"expression of type '{over.shown()}' {message}")
        return celtypes.ERROR, celtypes.ERROR

    def _assert(self, node: Node, expected: Type) -> None:
        found = self.check(node)
        if not self.types.assignable([expected], [found]):
            self._mismatch(node, expected, found)

    def _declare(self, name: str, kind: Type) -> None:
        self._variables.setdefault(name, []).append(kind)

    def _forget(self, name: str) -> None:
        self._variables[name].pop()
