"""The cost of a call: estimated before evaluation, and measured during it.

The constants and formulas are Kubernetes': they decide which selectors an API server accepts.
"""

import math
from collections.abc import Callable

from msgspec import Struct

from plugwright.allocator.cel.cel_values import Optional
from plugwright.allocator.cel.celtypes import Type

__all__ = ["FIXED", "ONE", "UNKNOWN", "Operand", "Range", "actual_cost", "estimate"]

_MOST = (1 << 64) - 1
_STRING = 0.1  # per character
_REGEX = 0.25  # per character of a pattern
_ALLOCATION = 10  # a new list
_FORMAT_REGEX = 128  # the longest regular expression of a named format


class Range(Struct, frozen=True):
    """A size or a cost between two bounds, which never overflows 64 bits."""

    low: int
    high: int

    def __add__(self, other: "Range") -> "Range":
        return Range(min(self.low + other.low, _MOST), min(self.high + other.high, _MOST))

    def __mul__(self, other: "Range") -> "Range":
        return Range(min(self.low * other.low, _MOST), min(self.high * other.high, _MOST))

    def scaled(self, factor: float) -> "Range":
        return Range(_scaled(self.low, factor), _scaled(self.high, factor))

    def union(self, other: "Range") -> "Range":
        return Range(min(self.low, other.low), max(self.high, other.high))


def _scaled(value: int, factor: float) -> int:
    product = math.ceil(float(value) * factor)
    return min(product, _MOST)


FIXED: Callable[[int], Range] = lambda value: Range(value, value)  # noqa: E731
ONE = Range(1, 1)
UNKNOWN = Range(0, _MOST)


class Operand(Struct, frozen=True):
    """An argument as estimates see it."""

    type: Type
    size: Range | None
    element: Range  # the size of its elements
    constant: object = None

    @property
    def known(self) -> Range:
        return self.size or UNKNOWN


Estimated = tuple[Range, Range | None]  # cost and size of the result
_Estimate = Callable[[list[Operand]], Estimated]


def _traversal(factor: float, *, sized: bool = False) -> _Estimate:
    return lambda args: (args[0].known.scaled(factor), args[0].known if sized else None)


def _regex(args: list[Operand]) -> Range:
    return (args[0].known + ONE).scaled(_STRING) * args[1].known.scaled(_REGEX)


def _list_scan(args: list[Operand]) -> Estimated:
    target = args[0]
    if not target.type.parameters:
        return target.known.scaled(_STRING), None
    per_element = ONE
    if target.type.parameters[0].kind in ("string", "bytes"):
        per_element = ONE + target.element.scaled(_STRING)
    return target.known * per_element, None


def _includes(args: list[Operand]) -> Estimated:
    return _list_scan(args) if args[0].type.parameters else (args[0].known, None)


def _replace(args: list[Operand]) -> Estimated:
    text, old, new = (arg.known for arg in args[:3])
    if old.low == 0:
        most, kept_most = text.high + 1, text.high
    elif new.high <= old.low:
        most, kept_most = 0, text.high
    else:
        most, kept_most = math.ceil(text.high / old.low), 0
    if old.high == 0:
        least, kept_least = text.low + 1, text.low
    elif old.high <= new.low:
        least, kept_least = 0, text.low
    else:
        least, kept_least = math.ceil(text.low / old.high), 0
    size = Range(min(least, _MOST), min(most, _MOST)) * new + Range(kept_least, kept_most)
    return text.scaled(2 * _STRING), size


def _split(args: list[Operand]) -> Estimated:
    most = args[0].known.high
    if len(args) > 2 and isinstance(args[2].constant, int):
        most = args[2].constant % (1 << 64)
    return args[0].known.scaled(2 * _STRING), Range(0, most)


def _join(args: list[Operand]) -> Estimated:
    count = args[0].known
    size = count * args[0].element
    if len(args) > 1:
        size += args[1].known * Range(max(count.low - 1, 0), max(count.high - 1, 0))
    return size.scaled(_STRING), size


def _contains_ip(args: list[Operand], extra: Range) -> Estimated:
    cost = Range(8, 32).scaled(_STRING) + extra
    return (cost + args[1].known.scaled(_STRING) if args[1].type.kind == "string" else cost), None


def _allocating(factor: float, size: Range) -> Estimated:
    return size.scaled(factor) + ONE + FIXED(_ALLOCATION), size


def _sort(args: list[Operand]) -> Estimated:
    keys = args[-1]
    text = bool(keys.type.parameters) and keys.type.parameters[0].kind in ("string", "bytes")
    return _allocating(2 + (_STRING if text else 0), keys.known * keys.known)


def _constant(arg: Operand, default: int) -> int:
    return arg.constant % (1 << 64) if isinstance(arg.constant, int) else default


def _slice(args: list[Operand]) -> Estimated:
    length = (_constant(args[2], args[0].known.high) - _constant(args[1], 0)) % (1 << 64)
    return _allocating(1, FIXED(length))


def _flatten(args: list[Operand]) -> Estimated:
    depth = _constant(args[1], _MOST) if len(args) > 1 else 1
    return _allocating(float(depth), args[0].known)


def _comparison(args: list[Operand]) -> Estimated:
    smallest = min(args[0].known.high, args[1].known.high)
    return Range(1 if smallest else 0, smallest).scaled(_STRING), None


def _concatenation(args: list[Operand]) -> Estimated:
    size = args[0].known + args[1].known
    return (ONE if args[0].type.kind == "list" else size.scaled(_STRING)), size


def _sets(factor: int) -> _Estimate:
    return lambda args: ((args[0].known * args[1].known).scaled(factor) + ONE, None)


_ESTIMATES: dict[str, _Estimate] = {
    "contains": lambda args: (args[0].known.scaled(_STRING) * args[1].known.scaled(_STRING), None),
    "containsCIDR": lambda args: _contains_ip(args, Range(4, 16).scaled(_STRING) + ONE),
    "containsIP": lambda args: _contains_ip(args, FIXED(0)),
    "distinct": lambda args: _allocating(2, args[0].known * args[0].known),
    "find": lambda args: (_regex(args), Range(0, args[0].known.high)),
    "findAll": lambda args: (_regex(args), Range(0, args[0].known.high)),
    "flatten": _flatten,
    "format": _traversal(_STRING),
    "includes": _includes,
    "ip.isCanonical": _traversal(2 * _STRING),
    "join": _join,
    "lists.range": lambda args: _allocating(1, FIXED(_constant(args[0], _MOST))),
    "matches": lambda args: (_regex(args), None),
    "replace": _replace,
    "reverse": lambda args: _allocating(1, args[0].known),
    "sets.contains": _sets(1),
    "sets.equivalent": _sets(2),
    "sets.intersects": _sets(1),
    "slice": _slice,
    "sort": _sort,
    "@sortByAssociatedKeys": _sort,
    "split": _split,
    "validate": lambda args: (args[1].known.scaled(_STRING).scaled(_FORMAT_REGEX * _REGEX), None),
    "check": lambda args: (FIXED(350000), None),
    "@in": lambda args: ((args[1].known if args[1].type.kind != "map" else ONE), None),
}
_ESTIMATES |= dict.fromkeys(("startsWith", "endsWith"), lambda args: (args[1].known.scaled(_STRING), None))
_ESTIMATES |= dict.fromkeys(("isSorted", "sum", "max", "min", "indexOf", "lastIndexOf"), _list_scan)
_ESTIMATES |= dict.fromkeys(("url", "lowerAscii", "upperAscii", "substring", "trim"), _traversal(_STRING, sized=True))
_PARSERS = ("cidr", "isIP", "isCIDR", "ip", "quantity", "isQuantity", "semver", "isSemver")
_ESTIMATES |= dict.fromkeys(_PARSERS, _traversal(_STRING))
_CONSTANT_EQUALITY = ("net.IP", "net.CIDR", "kubernetes.Quantity", "kubernetes.Semver")
_QUOTED = {"strings.quote": lambda size: Range(size.low + 2, size.high * 2 + 2)}


def estimate(function: str, args: list[Operand], parameters: tuple[Type, ...]) -> Estimated:
    """The cost of one overload without its arguments, and the size of its result."""
    kind = parameters[0].kind if parameters else ""
    if function == "ip" and kind == "opaque":
        return ONE, None
    if function == "_==_" and args[0].type == args[1].type and args[0].type.name in _CONSTANT_EQUALITY:
        return ONE, None
    if function in ("_==_", "_!=_") or (function in ("_<_", "_<=_", "_>_", "_>=_") and kind in ("string", "bytes")):
        return _comparison(args)
    if function == "@in":
        return (args[1].known if parameters[1].kind == "list" else ONE), None
    if function == "_+_" and kind in ("string", "bytes", "list"):
        return _concatenation(args) if kind != "list" else (ONE, args[0].known + args[1].known)
    if function in ("indexOf", "lastIndexOf", "sum", "max", "min", "isSorted"):
        return _list_scan(args)
    if (function, kind) in (("bytes", "string"), ("string", "bytes"), ("strings.quote", "string")):
        return _converted(function, args[0].known)
    found = _ESTIMATES.get(function)
    return found(args) if found else (ONE, None)


def _converted(function: str, size: Range) -> Estimated:
    if function == "bytes":
        result = Range(size.low, size.high * 4)
    elif function == "string":
        result = Range(size.low // 4, size.high)
    else:
        result = Range(size.low + 2, size.high * 2 + 2)
    return size.scaled(_STRING), result


def _size(value: object) -> int:
    if isinstance(value, (str, bytes, list, dict)):
        return len(value)
    return _size(value.value) if isinstance(value, Optional) and value.present else 1


def actual_cost(function: str, args: list[object], result: object) -> int:
    """The cost of a call with these arguments: the estimate for their actual sizes."""
    operands = [_actual(value) for value in args]
    if function == "join":
        return math.ceil(_size(result) * 2 * _STRING)
    return estimate(function, operands, tuple(operand.type for operand in operands))[0].high


_KINDS: dict[type, str] = {str: "string", bytes: "bytes", list: "list", dict: "map"}


def _actual(value: object) -> Operand:
    kind = _KINDS.get(type(value), "opaque")
    element = max(map(_size, value), default=0) if isinstance(value, list) and len(value) < 100 else 1
    parameters = (_actual(value[0]).type,) if isinstance(value, list) and value else ()
    constant = value if type(value) is int else None
    return Operand(Type(kind, kind, parameters), FIXED(_size(value)), FIXED(element), constant)
