"""Compiles a checked syntax tree into Python closures."""

from collections.abc import Callable, Iterable

from plugwright.allocator.cel import functions, kubernetes_functions, list_functions, string_functions, time_functions
from plugwright.allocator.cel.call_costs import actual_cost
from plugwright.allocator.cel.cel_values import ABSENT, EvaluationError, Optional
from plugwright.allocator.cel.declarations import TYPE_NAMES
from plugwright.allocator.cel.dispatch import Implementation, implementation
from plugwright.allocator.cel.syntax_tree import (
    CallNode,
    Comprehension,
    Ident,
    ListNode,
    Literal,
    MapNode,
    Node,
    Select,
    qualified_name,
)

__all__ = ["BudgetExhausted", "Closure", "Frame", "compile_closure"]

_LIBRARIES = (
    functions,
    list_functions,
    kubernetes_functions,
    string_functions,
    time_functions,
)  # imported for their registrations

Frame = list[object]  # the device, the remaining budget, then one slot per variable
Closure = Callable[[Frame], object]
_DEVICE, _BUDGET, _FIRST = 0, 1, 2
_UNSET = object()
_NO_OVERLOAD = "no such overload"


class BudgetExhausted(Exception):
    """The evaluation cost more than its limit."""


def compile_closure(root: Node, *, metered: bool) -> tuple[Closure, int]:
    """A function of a frame, and the frame's size. A metered function deducts every step from the frame's budget."""
    compiler = _Metered() if metered else _Compiler()
    return compiler.compile(root), compiler.size


class _Compiler:
    def __init__(self) -> None:
        self.size = _FIRST
        self._slots: dict[str, list[tuple[int, Closure | None]]] = {}

    def compile(self, node: Node) -> Closure:
        match node:
            case Literal():
                return _constant(node.value)
            case Ident():
                return self._ident(node)
            case Select():
                return self._select(node)
            case CallNode():
                return self._call(node)
            case ListNode():
                return self._list(node)
            case MapNode():
                return self._map(node)
            case Comprehension():
                return self._bind(node) if node.is_bind else self._comprehension(node)
        raise AssertionError(f"unexpected node {node!r}")

    def _slot(self) -> int:
        self.size += 1
        return self.size - 1

    def _ident(self, node: Ident) -> Closure:
        name = node.name.removeprefix(".")
        if not self._slots.get(name):
            if name == "device":
                return lambda frame: frame[_DEVICE]
            return _constant(TYPE_NAMES[name].parameters[0])
        slot, start = self._slots[name][0 if node.name != name else -1]

        def read(frame: Frame) -> object:
            value = frame[slot]
            if value is _UNSET and start is not None:  # cel.bind evaluates its value at first use
                try:
                    value = frame[slot] = start(frame)
                except EvaluationError as error:
                    value = frame[slot] = error
            if isinstance(value, EvaluationError):
                raise value
            return value

        return read

    def _select(self, node: Select) -> Closure:
        if node.type.kind == "type" and (name := qualified_name(node)) in TYPE_NAMES:
            return _constant(TYPE_NAMES[name].parameters[0])
        operand, field = self.compile(node.operand), node.field
        if node.test:
            return lambda frame: _selected(operand(frame), field) is not ABSENT

        def select(frame: Frame) -> object:
            container = operand(frame)
            try:
                return container[field]  # type: ignore[index]
            except (KeyError, TypeError, IndexError):
                if isinstance(container, Optional):
                    return _selected(container.value, field) if container.present else ABSENT
                raise EvaluationError(f"no such key: {field}") from None

        return select

    def _call(self, node: CallNode) -> Closure:
        special = _SPECIAL.get(node.function)
        operands = ([node.target] if node.target else []) + node.args
        closures = [self.compile(each) for each in operands]
        if special is not None:
            return special(closures)
        called = self._called(node.function, closures, implementation(node.function))
        if all(getattr(each, "constant", False) for each in closures) and not isinstance(self, _Metered):
            return _folded(called)
        return called

    def _called(self, name: str, closures: list[Closure], called: Implementation) -> Closure:
        if len(closures) == 1:
            (only,) = closures
            return lambda frame: called(only(frame))
        if len(closures) == 2:
            first, second = closures
            return lambda frame: called(first(frame), second(frame))
        return lambda frame: called(*[closure(frame) for closure in closures])

    def _list(self, node: ListNode) -> Closure:
        closures = [self.compile(each) for each in node.elements]
        if not node.optional:
            built: Closure = lambda frame: [closure(frame) for closure in closures]  # noqa: E731
            return _folded(built) if all(getattr(each, "constant", False) for each in closures) else built
        flagged = [(closure, index in node.optional) for index, closure in enumerate(closures)]

        def build(frame: Frame) -> object:
            elements = []
            for closure, optional in flagged:
                value = closure(frame)
                if not optional:
                    elements.append(value)
                elif not isinstance(value, Optional):
                    raise EvaluationError(f"cannot initialize optional list element from non-optional value {value}")
                elif value.present:
                    elements.append(value.value)
            return elements

        return build

    def _map(self, node: MapNode) -> Closure:
        closures = [(self.compile(key), self.compile(value), optional) for key, value, optional in node.entries]

        def build(frame: Frame) -> object:
            entries: dict[object, object] = {}
            for key_of, value_of, optional in closures:
                key, value = key_of(frame), value_of(frame)
                if not isinstance(key, (str, int, float)):
                    raise EvaluationError("unsupported key type")
                if not optional:
                    entries[key] = value
                elif isinstance(value, Optional) and value.present:
                    entries[key] = value.value
            return entries

        return build

    def _bind(self, node: Comprehension) -> Closure:
        slot, start = self._slot(), self.compile(node.start)
        self._slots.setdefault(node.accumulator, []).append((slot, start))
        body = self.compile(node.result)
        self._slots[node.accumulator].pop()

        def bind(frame: Frame) -> object:
            frame[slot] = _UNSET
            return body(frame)

        return bind

    def _comprehension(self, node: Comprehension) -> Closure:
        over, start = self.compile(node.range), self.compile(node.start)
        slots = [(name, self._slot()) for name in (node.accumulator, node.variable, node.second)]
        for name, slot in slots:
            self._slots.setdefault(name, []).append((slot, None))
        condition, step = self.compile(node.condition), self.compile(node.step)
        for name, _ in slots[1:]:
            self._slots[name].pop()
        result = self.compile(node.result)
        self._slots[node.accumulator].pop()
        (_, total), (_, first), (_, second) = slots
        pairs = bool(node.second)

        def fold(frame: Frame) -> object:
            items = _items(over(frame), pairs=pairs)
            frame[total] = start(frame)
            for item in items:
                frame[first], frame[second] = item if pairs else (item, None)  # type: ignore[misc]
                if condition(frame) is False:
                    break
                try:
                    frame[total] = step(frame)
                except EvaluationError as error:
                    frame[total] = error
            return result(frame)

        return fold


class _Metered(_Compiler):
    """Deducts the cost of every step, as cel-go's cost tracker does."""

    def compile(self, node: Node) -> Closure:
        closure = super().compile(node)
        price = _price(node)
        if not price:
            return closure

        def pay(frame: Frame) -> object:
            _spend(frame, price)
            return closure(frame)

        return pay

    def _called(self, name: str, closures: list[Closure], called: Implementation) -> Closure:
        def call(frame: Frame) -> object:
            args = [closure(frame) for closure in closures]
            result: object = None
            try:
                result = called(*args)
            finally:
                _spend(frame, actual_cost(name, args, result))
            return result

        return call


def _spend(frame: Frame, price: int) -> None:
    frame[_BUDGET] -= price  # type: ignore[operator]
    if frame[_BUDGET] < 0:  # type: ignore[operator]
        raise BudgetExhausted("operation cancelled: actual cost limit exceeded")


def _price(node: Node) -> int:
    match node:
        case Ident() | Select():
            return 0 if isinstance(node, Select) and node.test else 1
        case ListNode():
            return 10
        case MapNode():
            return 30
    return 0


def _constant(value: object) -> Closure:
    closure: Closure = lambda frame: value  # noqa: E731
    closure.constant = True  # type: ignore[attr-defined]
    return closure


def _folded(closure: Closure) -> Closure:
    """A call of constants, evaluated once; an error is raised at run time."""
    try:
        return _constant(closure([]))
    except EvaluationError:
        return closure


def _selected(container: object, field: str) -> Optional:
    """The field if it is there. The unknown domains of a device are there, and empty."""
    if isinstance(container, Optional):
        return _selected(container.value, field) if container.present else ABSENT
    try:
        return Optional(container[field], present=True)  # type: ignore[index]
    except (KeyError, TypeError, IndexError):
        return ABSENT


def _items(value: object, *, pairs: bool) -> Iterable[object]:
    if isinstance(value, list):
        return list(enumerate(value)) if pairs else value
    if isinstance(value, dict):
        return list(value.items()) if pairs else list(value)
    raise EvaluationError(f"got '{type(value).__name__}', expected iterable type")


def _logical(closures: list[Closure], decisive: bool) -> Closure:
    """`||` and `&&`: the decisive value wins over an error on the other side."""
    left, right = closures

    def decide(frame: Frame) -> object:
        failed: EvaluationError | None = None
        try:
            value = left(frame)
            if value is decisive:
                return decisive
            if value is not (not decisive):
                failed = EvaluationError(_NO_OVERLOAD)
        except EvaluationError as error:
            failed = error
        try:
            value = right(frame)
        except EvaluationError as error:
            raise (failed or error) from None
        if value is decisive:
            return decisive
        if failed is not None:
            raise failed
        if value is not (not decisive):
            raise EvaluationError(_NO_OVERLOAD)
        return value

    return decide


def _conditional(closures: list[Closure]) -> Closure:
    condition, yes, no = closures

    def choose(frame: Frame) -> object:
        value = condition(frame)
        if value is True:
            return yes(frame)
        if value is False:
            return no(frame)
        raise EvaluationError(_NO_OVERLOAD)

    return choose


def _not_strictly_false(closures: list[Closure]) -> Closure:
    (inner,) = closures

    def check(frame: Frame) -> object:
        try:
            return inner(frame) is not False
        except EvaluationError:
            return True

    return check


def _optional_select(closures: list[Closure]) -> Closure:
    operand, field = closures
    return lambda frame: _selected(operand(frame), str(field(frame)))


def _or(closures: list[Closure], *, unwrap: bool) -> Closure:
    first, second = closures

    def choose(frame: Frame) -> object:
        value = first(frame)
        if not isinstance(value, Optional):
            raise EvaluationError(_NO_OVERLOAD)
        if not value.present:
            return second(frame)
        return value.value if unwrap else value

    return choose


_SPECIAL: dict[str, Callable[[list[Closure]], Closure]] = {
    "_||_": lambda closures: _logical(closures, True),
    "_&&_": lambda closures: _logical(closures, False),
    "_?_:_": _conditional,
    "@not_strictly_false": _not_strictly_false,
    "_?._": _optional_select,
    "or": lambda closures: _or(closures, unwrap=False),
    "orValue": lambda closures: _or(closures, unwrap=True),
}
