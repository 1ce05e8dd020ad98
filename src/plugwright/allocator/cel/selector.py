"""Selectors: expressions that are true for the devices that a request can get."""

from collections.abc import Mapping

from msgspec import Struct

from plugwright.allocator.cel import celtypes
from plugwright.allocator.cel.cel_values import EvaluationError, Semver, parse_quantity, parse_semver, type_name
from plugwright.allocator.cel.checker import check
from plugwright.allocator.cel.costs import estimated_cost
from plugwright.allocator.cel.evaluator import BudgetExhausted, Frame, compile_closure
from plugwright.allocator.cel.parser import parse
from plugwright.allocator.cel.regex import RegexError
from plugwright.allocator.cel.syntax_tree import InvalidExpression, Node
from plugwright.allocator.cel.validators import convert_constants, validate

__all__ = [
    "COST_LIMIT",
    "LENGTH_LIMIT",
    "CelDevice",
    "CompiledSelector",
    "SelectorError",
    "SelectorTooCostly",
    "compile_selector",
    "version",
]

COST_LIMIT = 1_000_000
LENGTH_LIMIT = 10 * 1024  # bytes of an expression, by the API server's validation


class SelectorError(Exception):
    """A selector that does not compile or whose evaluation failed. The message is the API server's."""


class SelectorTooCostly(SelectorError):
    """A selector whose estimated cost is over the limit."""


class _Domains(dict[str, dict[str, object]]):
    """Attributes or capacities by domain; an unknown domain is empty."""

    def __missing__(self, domain: str) -> dict[str, object]:
        return {}


class CelDevice(Struct):
    """A device as selectors see it. Attributes and capacities are grouped by domain."""

    driver: str
    attributes: Mapping[str, Mapping[str, object]]  # bool, int, str, a `Semver`, or a list of them
    capacity: Mapping[str, Mapping[str, str]]  # quantities
    allow_multiple: bool = False
    _fields: dict[str, object] | None = None

    def fields(self) -> dict[str, object]:
        """The value of the variable `device`. Raises `EvaluationError` for an invalid quantity."""
        if self._fields is None:
            capacity = {
                domain: {name: parse_quantity(amount) for name, amount in amounts.items()}
                for domain, amounts in self.capacity.items()
            }
            self._fields = {
                "driver": self.driver,
                "attributes": _Domains({domain: dict(values) for domain, values in self.attributes.items()}),
                "capacity": _Domains(capacity),  # type: ignore[arg-type]
                "allowMultipleAllocations": self.allow_multiple,
            }
        return self._fields


class CompiledSelector:
    """A compiled expression."""

    def __init__(self, expression: str, root: Node, cost: int) -> None:
        self.expression = expression
        self.cost = cost
        self._closure, self._size = compile_closure(root, metered=cost > COST_LIMIT)

    def matches(self, device: CelDevice) -> bool:
        """Whether the expression is true for the device. Raises `SelectorError` for an error or an exhausted budget."""
        frame: Frame = [None] * self._size
        try:
            frame[0], frame[1] = device.fields(), COST_LIMIT
            value = self._closure(frame)
        except (EvaluationError, BudgetExhausted) as error:
            raise SelectorError(str(error)) from None
        if value is True or value is False:
            return value
        name = type_name(value)
        conversion = f"unsupported type conversion from '{name}' to bool"
        raise SelectorError(f"CEL result of type {name} could not be converted to bool: {conversion}")


def compile_selector(expression: str, *, stored: bool = False) -> CompiledSelector:
    """Compiles an expression; raises `SelectorError` if it does not compile, is not boolean, or can cost too much.

    `stored` compiles as kube-scheduler does for objects that the API server has already accepted: newer functions are
    available, and the cost is limited only during evaluation.
    """
    try:
        root = parse(expression)
        check(root, expression, stored=stored)
        validate(root, expression)
    except InvalidExpression as error:
        raise SelectorError(f"compilation failed: {error}") from None
    unknown = celtypes.DYN if stored else celtypes.ANY
    if root.type not in (celtypes.BOOL, unknown):
        raise SelectorError(f"must evaluate to bool or the unknown type, not {root.type}")
    try:
        convert_constants(root)
    except (EvaluationError, RegexError) as error:
        raise SelectorError(f"program instantiation failed: {error}") from None
    cost = estimated_cost(root)
    if cost > COST_LIMIT and not stored:
        raise SelectorTooCostly("too complex, exceeds cost limit")
    return CompiledSelector(expression, root, cost)


def version(text: str) -> Semver:
    """The value of a version attribute. Raises `SelectorError`."""
    try:
        return parse_semver(text)
    except EvaluationError as error:
        raise SelectorError(f"parse semantic version: {error}") from None
