"""CEL's macros, expanded at parse time into folds, as in cel-go: their cost depends on that form."""

from collections.abc import Callable

from plugwright.allocator.cel import celtypes
from plugwright.allocator.cel.syntax_tree import (
    CallNode,
    Comprehension,
    Ident,
    ListNode,
    Literal,
    MapNode,
    Node,
    Select,
)

__all__ = ["ACCUMULATOR", "MacroError", "expand"]

ACCUMULATOR = "@result"
_UNUSED = "#unused"
_INPUT = "@__sortBy_input__"


class MacroError(Exception):
    """A macro with arguments it does not accept."""

    def __init__(self, node: Node, message: str) -> None:
        super().__init__(message)
        self.node = node


def expand(call: CallNode) -> Node:
    """The expansion of a macro, or the call itself."""
    if call.target is None:
        return _has(call) if call.function == "has" and len(call.args) == 1 else call
    macro = _MACROS.get((call.function, len(call.args)))
    expanded = macro(call, call.target) if macro else None
    return expanded or call


def _has(call: CallNode) -> Node:
    selected = call.args[0]
    if not isinstance(selected, Select):
        raise MacroError(selected, "invalid argument to has() macro")
    return Select(at=call.at, operand=selected.operand, field=selected.field, test=True)


def _variable(node: Node, message: str = "argument must be a simple name") -> str:
    if not isinstance(node, Ident):
        raise MacroError(node, message)
    if node.name in (ACCUMULATOR, "__result__"):
        raise MacroError(node, "iteration variable overwrites accumulator variable")
    return node.name


def _variables(call: CallNode, count: int) -> tuple[str, str]:
    first = _variable(call.args[0])
    second = _variable(call.args[1]) if count > 1 else ""
    if first == second:
        raise MacroError(call.args[1], f"duplicate variable name: {first}")
    return first, second


class _Writer:
    """Writes nodes at one place in the source."""

    def __init__(self, at: int) -> None:
        self.at = at

    def true(self) -> Node:
        return Literal(at=self.at, value=True, type=celtypes.BOOL)

    def false(self) -> Node:
        return Literal(at=self.at, value=False, type=celtypes.BOOL)

    def number(self, value: int) -> Node:
        return Literal(at=self.at, value=value, type=celtypes.INT)

    def result(self) -> Node:
        return Ident(at=self.at, name=ACCUMULATOR)

    def call(self, function: str, *args: Node) -> Node:
        return CallNode(at=self.at, function=function, target=None, args=list(args))

    def method(self, target: Node, function: str, *args: Node) -> Node:
        return CallNode(at=self.at, function=function, target=target, args=list(args))

    def list(self, *elements: Node) -> Node:
        return ListNode(at=self.at, elements=list(elements))

    def fold(self, over: Node, variables: tuple[str, str], start: Node, steps: tuple[Node, Node, Node]) -> Node:
        condition, step, result = steps
        return Comprehension(
            at=self.at,
            range=over,
            variable=variables[0],
            second=variables[1],
            accumulator=ACCUMULATOR,
            start=start,
            condition=condition,
            step=step,
            result=result,
        )

    def bind(self, name: str, value: Node, body: Node) -> Node:
        return Comprehension(
            at=self.at,
            range=self.list(),
            variable=_UNUSED,
            second="",
            accumulator=name,
            start=value,
            condition=self.false(),
            step=Ident(at=self.at, name=name),
            result=body,
        )


def _all(call: CallNode, target: Node) -> Node:
    write, variables = _Writer(call.at), _variables(call, len(call.args) - 1)
    condition = write.call("@not_strictly_false", write.result())
    step = write.call("_&&_", write.result(), call.args[-1])
    return write.fold(target, variables, write.true(), (condition, step, write.result()))


def _exists(call: CallNode, target: Node) -> Node:
    write, variables = _Writer(call.at), _variables(call, len(call.args) - 1)
    condition = write.call("@not_strictly_false", write.call("!_", write.result()))
    step = write.call("_||_", write.result(), call.args[-1])
    return write.fold(target, variables, write.false(), (condition, step, write.result()))


def _exists_one(call: CallNode, target: Node) -> Node:
    write, variables = _Writer(call.at), _variables(call, len(call.args) - 1)
    more = write.call("_+_", write.result(), write.number(1))
    step = write.call("_?_:_", call.args[-1], more, write.result())
    result = write.call("_==_", write.result(), write.number(1))
    return write.fold(target, variables, write.number(0), (write.true(), step, result))


def _map(call: CallNode, target: Node) -> Node:
    write = _Writer(call.at)
    name = _variable(call.args[0], "argument is not an identifier")
    return _collected(write, target, (name, ""), (write.list(), _appended(write, call.args[-1])), call.args[1:-1])


def _filter(call: CallNode, target: Node) -> Node:
    write = _Writer(call.at)
    name = _variable(call.args[0], "argument is not an identifier")
    return _collected(write, target, (name, ""), (write.list(), _appended(write, call.args[0])), call.args[1:])


def _transform_list(call: CallNode, target: Node) -> Node:
    write, variables = _Writer(call.at), _variables(call, 2)
    return _collected(write, target, variables, (write.list(), _appended(write, call.args[-1])), call.args[2:-1])


def _transform_map(call: CallNode, target: Node) -> Node:
    write, variables = _Writer(call.at), _variables(call, 2)
    inserted = [Ident(at=call.at, name=variables[0])] if call.function == "transformMap" else []
    step = write.call("cel.@mapInsert", write.result(), *inserted, call.args[-1])
    return _collected(write, target, variables, (MapNode(at=call.at, entries=[]), step), call.args[2:-1])


def _appended(write: _Writer, element: Node) -> Node:
    return write.call("_+_", write.result(), write.list(element))


def _collected(
    write: _Writer, over: Node, variables: tuple[str, str], parts: tuple[Node, Node], filters: list[Node]
) -> Node:
    start, step = parts
    for condition in filters:
        step = write.call("_?_:_", condition, step, write.result())
    return write.fold(over, variables, start, (write.true(), step, write.result()))


def _sort_by(call: CallNode, target: Node) -> Node:
    write = _Writer(call.at)
    if not isinstance(target, (ListNode, Select, Ident, Comprehension, CallNode)):
        message = "sortBy can only be applied to a list, identifier, comprehension, call or select expression"
        raise MacroError(target, message)
    keys = _map(call, Ident(at=call.at, name=_INPUT))
    return write.bind(_INPUT, target, write.method(Ident(at=call.at, name=_INPUT), "@sortByAssociatedKeys", keys))


def _bind(call: CallNode, target: Node) -> Node | None:
    if not isinstance(target, Ident) or target.name != "cel":
        return None
    if not isinstance(call.args[0], Ident):
        raise MacroError(call.args[0], "cel.bind() variable names must be simple identifiers")
    return _Writer(call.at).bind(call.args[0].name, call.args[1], call.args[2])


def _opt_map(call: CallNode, target: Node) -> Node:
    write = _Writer(call.at)
    if not isinstance(call.args[0], Ident):
        raise MacroError(call.args[0], f"{call.function}() variable name must be a simple identifier")
    body = write.bind(call.args[0].name, write.method(target, "value"), call.args[1])
    present = write.call("optional.of", body) if call.function == "optMap" else body
    return write.call("_?_:_", write.method(target, "hasValue"), present, write.call("optional.none"))


_MACROS: dict[tuple[str, int], Callable[[CallNode, Node], Node | None]] = {
    ("all", 2): _all,
    ("all", 3): _all,
    ("exists", 2): _exists,
    ("exists", 3): _exists,
    ("exists_one", 2): _exists_one,
    ("exists_one", 3): _exists_one,
    ("existsOne", 3): _exists_one,
    ("map", 2): _map,
    ("map", 3): _map,
    ("filter", 2): _filter,
    ("transformList", 3): _transform_list,
    ("transformList", 4): _transform_list,
    ("transformMap", 3): _transform_map,
    ("transformMap", 4): _transform_map,
    ("transformMapEntry", 3): _transform_map,
    ("transformMapEntry", 4): _transform_map,
    ("sortBy", 2): _sort_by,
    ("bind", 3): _bind,
    ("optMap", 2): _opt_map,
    ("optFlatMap", 2): _opt_map,
}
