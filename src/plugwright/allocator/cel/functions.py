"""The standard functions of CEL: operators, conversions, lists, sets and optional values."""

import math
import operator
from collections.abc import Callable

from plugwright.allocator.cel import celtypes
from plugwright.allocator.cel.cel_values import (
    ABSENT,
    EvaluationError,
    Optional,
    Uint,
    compare,
    equal,
    type_name,
)
from plugwright.allocator.cel.celtypes import Type, list_of, map_of
from plugwright.allocator.cel.declarations import TYPE_NAMES
from plugwright.allocator.cel.dispatch import function

__all__ = ["in_list", "integer", "unsigned"]


def integer(value: int) -> int:
    if -(1 << 63) <= value < 1 << 63:
        return value
    raise EvaluationError("integer overflow")


def unsigned(value: int) -> Uint:
    if 0 <= value < 1 << 64:
        return Uint(value)
    raise EvaluationError("unsigned integer overflow")


def _arithmetic(name: str, calculate: Callable[[int, int], int]) -> None:
    function(name, int, int)(lambda a, b: integer(calculate(a, b)))
    function(name, Uint, Uint)(lambda a, b: unsigned(calculate(int(a), int(b))))


def _quotient(left: int, right: int) -> int:
    if right == 0:
        raise EvaluationError("division by zero")
    return abs(left) // abs(right) * (1 if (left < 0) == (right < 0) else -1)


def _remainder(left: int, right: int) -> int:
    if right == 0:
        raise EvaluationError("modulus by zero")
    integer(_quotient(left, right))
    return left - right * _quotient(left, right)


def _divided(left: float, right: float) -> float:
    if right != 0:
        return left / right
    if left == 0 or math.isnan(left):
        return math.nan
    return math.copysign(math.inf, left) * math.copysign(1.0, right)


_arithmetic("_+_", operator.add)
_arithmetic("_-_", operator.sub)
_arithmetic("_*_", operator.mul)
_arithmetic("_/_", _quotient)
_arithmetic("_%_", _remainder)
function("_+_", float, float)(operator.add)
function("_-_", float, float)(operator.sub)
function("_*_", float, float)(operator.mul)
function("_/_", float, float)(_divided)
function("_+_", str, str)(operator.add)
function("_+_", bytes, bytes)(operator.add)
function("_+_", list, list)(operator.add)
function("-_", int)(lambda value: integer(-value))
function("-_", float)(operator.neg)
function("!_", bool)(operator.not_)
function("_<_", object, object)(lambda a, b: compare(a, b) < 0)
function("_<=_", object, object)(lambda a, b: compare(a, b) <= 0)
function("_>_", object, object)(lambda a, b: compare(a, b) > 0)
function("_>=_", object, object)(lambda a, b: compare(a, b) >= 0)
function("_==_", object, object)(equal)


@function("_!=_", object, object)
def _unequal(left: object, right: object) -> bool:
    try:
        return not equal(left, right)
    except EvaluationError:  # in cel-go, values that cannot be compared are unequal
        return True


@function("@in", object, list)
def in_list(value: object, elements: list[object]) -> bool:
    for element in elements:
        try:
            if equal(value, element):
                return True
        except EvaluationError:
            continue
    return False


@function("@in", object, dict)
def _in_map(value: object, entries: dict[object, object]) -> bool:
    return _find(entries, value) is not ABSENT


def _find(entries: dict[object, object], key: object) -> Optional:
    if not isinstance(key, (str, int, float)):
        raise EvaluationError(f"unsupported key type: {type_name(key)}")
    for candidate in (key,) if key in entries else ():
        if type(key) is str or (type(key) is bool) == any(type(each) is bool for each in entries):
            return Optional(dict.get(entries, candidate), present=True)
    return ABSENT


@function("_[_]", list, object)
def _element(elements: list[object], index: object) -> object:
    if type(index) not in (int, Uint, float) or index != int(index):  # type: ignore[call-overload]
        raise EvaluationError(f"unsupported index type '{type_name(index)}' in list")
    if not 0 <= index < len(elements):  # type: ignore[operator]
        raise EvaluationError(f"index out of bounds: {int(index)}")  # type: ignore[call-overload]
    return elements[int(index)]  # type: ignore[call-overload]


@function("_[_]", dict, object)
def _entry(entries: dict[object, object], key: object) -> object:
    if type(key) is str:
        try:
            return entries[key]
        except KeyError:
            raise EvaluationError(f"no such key: {key}") from None
    found = _find(entries, key)
    if not found.present:
        raise EvaluationError(f"no such key: {key}")
    return found.value


@function("_[?_]", object, object)
def _optional_entry(container: object, key: object) -> Optional:
    if isinstance(container, Optional):
        return _optional_entry(container.value, key) if container.present else ABSENT
    try:
        if isinstance(container, dict):
            return Optional(_entry(container, key), present=True)
        if isinstance(container, list):
            return Optional(_element(container, key), present=True)
    except EvaluationError:
        return ABSENT
    raise EvaluationError("no such overload")


function("_[_]", Optional, object)(_optional_entry)


def _conversion_error(value: object, target: str) -> EvaluationError:
    return EvaluationError(f"type conversion error from '{type_name(value)}' to '{target}'")


@function("int", str)
def _int_of_text(text: str) -> int:
    digits = text.removeprefix("-").removeprefix("+")
    if not (digits.isascii() and digits.isdigit()) or len(digits) > 20 or len(text) - len(digits) > 1:
        raise _conversion_error(text, "int")
    value = int(text)
    if not -(1 << 63) <= value < 1 << 63:
        raise _conversion_error(text, "int")
    return value


@function("uint", str)
def _uint_of_text(text: str) -> Uint:
    if not (text.isascii() and text.isdigit()) or len(text) > 20 or int(text) >= 1 << 64:
        raise _conversion_error(text, "uint")
    return Uint(text)


@function("double", str)
def _double_of_text(text: str) -> float:
    try:
        if text.strip() != text or "_" in text:
            raise _conversion_error(text, "double")
        return float(text)
    except ValueError:
        raise _conversion_error(text, "double") from None


@function("int", float)
def _int_of_double(value: float) -> int:
    if not -(2.0**63) < value < 2.0**63:
        raise EvaluationError("integer overflow")
    return int(value)


@function("uint", float)
def _uint_of_double(value: float) -> Uint:
    if not 0 <= value < 2.0**64:
        raise EvaluationError("unsigned integer overflow")
    return Uint(value)


@function("bool", str)
def _bool_of_text(text: str) -> bool:
    if text in ("1", "t", "T", "TRUE", "true", "True"):
        return True
    if text in ("0", "f", "F", "FALSE", "false", "False"):
        return False
    raise _conversion_error(text, "bool")


@function("string", bytes)
def _text_of_bytes(value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        raise EvaluationError("invalid UTF-8 in bytes, cannot convert to string") from None


@function("string", float)
def _text_of_double(value: float) -> str:
    """The shortest digits, in the notation that Go's %g chooses."""
    if math.isinf(value) or math.isnan(value):
        return "NaN" if math.isnan(value) else "+Inf" if value > 0 else "-Inf"
    mantissa, _, exponent = f"{value:e}".partition("e")
    if value != 0 and not -4 <= int(exponent) < 21:
        digits, _, _ = repr(value).partition("e")
        mantissa = digits.rstrip("0").rstrip(".") if "e" in repr(value) else mantissa.rstrip("0").rstrip(".")
        return f"{mantissa}e{exponent[0]}{abs(int(exponent)):02d}"
    text = repr(value)
    return f"{value:.0f}" if "e" in text else text.removesuffix(".0")


for _name, _type in (
    ("int", int),
    ("uint", Uint),
    ("double", float),
    ("bool", bool),
    ("string", str),
    ("bytes", bytes),
):
    function(_name, _type)(lambda value: value)
function("int", Uint)(lambda value: integer(int(value)))
function("uint", int)(unsigned)
function("double", int)(float)
function("double", Uint)(float)
function("string", bool)(lambda value: "true" if value else "false")
function("string", int)(str)
function("string", Uint)(lambda value: str(int(value)))
function("bytes", str)(str.encode)
function("dyn", object)(lambda value: value)


@function("type", object)
def _type_of(value: object) -> Type:
    name = type_name(value)
    if isinstance(value, list):
        return list_of(celtypes.DYN)
    if isinstance(value, dict):
        return map_of(celtypes.DYN, celtypes.DYN)
    return TYPE_NAMES[name].parameters[0] if name in TYPE_NAMES else Type("struct", name)


for _sized in (str, bytes, list, dict):
    function("size", _sized)(len)


@function("cel.@mapInsert", dict, object, object)
def _insert(entries: dict[object, object], key: object, value: object) -> dict[object, object]:
    if _find(entries, key).present:
        raise EvaluationError(f"insert failed: key {key} already exists")
    return {**entries, key: value}


@function("cel.@mapInsert", dict, dict)
def _insert_all(entries: dict[object, object], more: dict[object, object]) -> dict[object, object]:
    for key, value in more.items():
        entries = _insert(entries, key, value)
    return entries


@function("optional.ofNonZeroValue", object)
def _of_non_zero(value: object) -> Optional:
    return Optional(value, present=True) if value not in (None, False, 0, "", b"", [], {}) else ABSENT


@function("value", Optional)
def _value(optional: Optional) -> object:
    if not optional.present:
        raise EvaluationError("optional.none() dereference")
    return optional.value


function("optional.none")(lambda: ABSENT)
function("optional.of", object)(lambda value: Optional(value, present=True))
function("hasValue", Optional)(lambda optional: optional.present)
function("optional.unwrap unwrapOpt", list)(lambda optionals: [each.value for each in optionals if each.present])
