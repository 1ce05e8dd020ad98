"""The syntax tree of an expression, and the errors that point into its source."""

from msgspec import Struct, field

from plugwright.allocator.cel.celtypes import DYN, Type
from plugwright.allocator.cel.declarations import Overload

__all__ = [
    "CallNode",
    "Comprehension",
    "Ident",
    "InvalidExpression",
    "ListNode",
    "Literal",
    "MapNode",
    "Node",
    "Select",
    "StructNode",
    "children",
    "located",
    "qualified_name",
]


class InvalidExpression(Exception):
    """An expression that does not compile; the message names every place."""


def located(source: str, findings: list[tuple[int, str]]) -> str:
    """Messages as cel-go prints them: line, column and a mark below the source."""
    parts = []
    for offset, message in findings:
        before = source[:offset]
        line, column = before.count("\n"), offset - (before.rfind("\n") + 1)
        shown = source.split("\n")[line]
        parts.append(f"ERROR: <input>:{line + 1}:{column + 1}: {message}\n | {shown}\n | {'.' * column}^")
    return "\n".join(parts)


class Node(Struct, eq=False, kw_only=True):
    """A part of an expression, with its offset in the source and the type the checker found."""

    at: int
    type: Type = DYN
    overloads: list[Overload] = field(default_factory=list)  # of calls


class Literal(Node, eq=False):
    value: object
    type: Type


class Ident(Node, eq=False):
    name: str


class Select(Node, eq=False):
    operand: Node
    field: str
    test: bool = False  # has(operand.field)


class CallNode(Node, eq=False):
    function: str
    target: Node | None
    args: list[Node]


class ListNode(Node, eq=False):
    elements: list[Node]
    optional: frozenset[int] = frozenset()  # indices of optional elements


class MapNode(Node, eq=False):
    entries: list[tuple[Node, Node, bool]]  # key, value, whether the value is optional


class StructNode(Node, eq=False):
    name: str


class Comprehension(Node, eq=False):
    """A fold over a list or the keys of a map: the form of every macro with a variable."""

    range: Node
    variable: str
    second: str  # the second variable, or ""
    accumulator: str
    start: Node
    condition: Node
    step: Node
    result: Node

    @property
    def is_bind(self) -> bool:
        """`cel.bind`: a fold over nothing."""
        nothing = isinstance(self.range, ListNode) and not self.range.elements
        return nothing and isinstance(self.condition, Literal) and self.condition.value is False


def children(node: Node) -> list[Node]:
    match node:
        case Select():
            return [node.operand]
        case CallNode():
            return ([node.target] if node.target else []) + node.args
        case ListNode():
            return node.elements
        case MapNode():
            return [each for key, value, _ in node.entries for each in (key, value)]
        case Comprehension():
            return [node.range, node.start, node.condition, node.step, node.result]
    return []


def qualified_name(node: Node) -> str:
    """`a.b` as a name, or nothing if the node is something else."""
    if isinstance(node, Ident):
        return node.name
    if isinstance(node, Select) and not node.test and (prefix := qualified_name(node.operand)):
        return f"{prefix}.{node.field}"
    return ""
