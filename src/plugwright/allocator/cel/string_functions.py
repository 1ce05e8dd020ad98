"""Functions on strings: search, split, replace, format and regular expressions."""

import math
import re

from plugwright.allocator.cel.cel_values import Duration, EvaluationError, Timestamp, Uint, type_name
from plugwright.allocator.cel.celtypes import Type
from plugwright.allocator.cel.dispatch import function, implementation
from plugwright.allocator.cel.regex import Regex, RegexError, compiled

__all__: list[str] = []

_VERB = re.compile(r"%(?:(?P<percent>%)|(?:\.(?P<precision>\d+))?(?P<verb>.?))", re.DOTALL)
_SPACE = "\t\n\v\f\r \x85\xa0\u1680\u2028\u2029\u202f\u205f\u3000" + "".join(map(chr, range(0x2000, 0x200B)))
_PRECISION = 1000
_RAISED = str.maketrans("-0123456789", "\u207b\u2070\u00b9\u00b2\u00b3\u2074\u2075\u2076\u2077\u2078\u2079")


def _regex(pattern: str) -> Regex:
    try:
        return compiled(pattern)
    except RegexError as error:
        raise EvaluationError(str(error)) from None


def _checked(index: int, text: str) -> int:
    if not 0 <= index <= len(text):
        raise EvaluationError(f"index out of range: {index}")
    return index


@function("substring", str, int, int)
def _substring(text: str, start: int, end: int) -> str:
    if start > end:
        raise EvaluationError(f"invalid substring range. start: {start}, end: {end}")
    return text[_checked(start, text) : _checked(end, text)]


@function("indexOf", str, str, int)
def _index_from(text: str, part: str, start: int) -> int:
    if start < 0:
        raise EvaluationError(f"index out of range: {start}")
    if not part:
        return min(start, len(text))
    return text.find(part, start)


@function("lastIndexOf", str, str, int)
def _last_index_until(text: str, part: str, end: int) -> int:
    if end < 0:
        raise EvaluationError(f"index out of range: {end}")
    if not part:
        return min(end, len(text))
    return text.rfind(part, 0, end + len(part)) if end < len(text) else -1


@function("split", str, str, int)
def _split(text: str, separator: str, limit: int) -> list[str]:
    if limit == 0:
        return []
    if not separator:
        parts = list(text)
        return parts if limit < 0 or len(parts) <= limit else [*parts[: limit - 1], "".join(parts[limit - 1 :])]
    return text.split(separator, -1 if limit < 0 else limit - 1)


@function("replace", str, str, str, int)
def _replace(text: str, old: str, new: str, limit: int) -> str:
    return text.replace(old, new, -1 if limit < 0 else limit)


@function("join", list, str)
def _join(parts: list[object], separator: str) -> str:
    if not all(isinstance(part, str) for part in parts):
        raise EvaluationError("no such overload")
    return separator.join(map(str, parts))


def _ascii(text: str, first: str, last: str, shift: int) -> str:
    return "".join(chr(ord(c) + shift) if first <= c <= last else c for c in text)


@function("strings.quote", str)
def _quote(text: str) -> str:
    names = {"\a": "a", "\b": "b", "\f": "f", "\n": "n", "\r": "r", "\t": "t", "\v": "v", "\\": "\\", '"': '"'}
    return '"' + "".join(f"\\{names[c]}" if c in names else c for c in text) + '"'


@function("find", str, str)
def _find(text: str, pattern: str) -> str:
    found = _regex(pattern).find_all(text, 1)
    return found[0] if found else ""


function("charAt", str, int)(lambda text, index: text[_checked(index, text) : index + 1])
function("contains", str, str)(lambda text, part: part in text)
function("startsWith", str, str)(str.startswith)
function("endsWith", str, str)(str.endswith)
function("findAll", str, str)(lambda text, pattern: _regex(pattern).find_all(text))
function("findAll", str, str, int)(lambda text, pattern, limit: _regex(pattern).find_all(text, limit))
function("indexOf", str, str)(str.find)
function("lastIndexOf", str, str)(str.rfind)
function("join", list)(lambda parts: _join(parts, ""))
function("lowerAscii", str)(lambda text: _ascii(text, "A", "Z", 32))
function("upperAscii", str)(lambda text: _ascii(text, "a", "z", -32))
function("matches", str, str)(lambda text, pattern: _regex(pattern).search(text))
function("replace", str, str, str)(str.replace)
function("split", str, str)(lambda text, separator: _split(text, separator, -1))
function("substring", str, int)(lambda text, start: text[_checked(start, text) :])
function("trim", str)(lambda text: text.strip(_SPACE))


@function("format", str, list)
def _format(text: str, values: list[object]) -> str:
    used = 0

    def replace(match: re.Match[str]) -> str:
        nonlocal used
        if match["percent"]:
            return "%"
        if used >= len(values):
            raise EvaluationError(f"index {used} out of range")
        used += 1
        precision = int(match["precision"] or "6") if len(match["precision"] or "") < 5 else _PRECISION + 1
        if precision > _PRECISION:
            raise EvaluationError(f"precision must not be over {_PRECISION}")
        return _formatted(match["verb"], precision, values[used - 1])

    return _VERB.sub(replace, text)


def _formatted(verb: str, precision: int, value: object) -> str:
    if verb == "s":
        return _shown(value)
    if verb in ("d", "b", "o", "x", "X") and type(value) in (int, Uint):
        return format(int(value), verb)  # type: ignore[call-overload]
    if verb == "b" and isinstance(value, bool):
        return "1" if value else "0"
    if verb in ("x", "X") and isinstance(value, (str, bytes)):
        digits = (value.encode() if isinstance(value, str) else value).hex()
        return digits if verb == "x" else digits.upper()
    if verb in ("f", "e", "d") and type(value) in (int, Uint, float):
        number = float(value)  # type: ignore[arg-type]
        if verb == "d" or not math.isfinite(number):
            return _shown(value)
        return _scientific(number, precision) if verb == "e" else format(number, f".{precision}f")
    if verb and verb in "bdefosxX":
        raise EvaluationError(f"error during formatting: %{verb} clause does not accept {type_name(value)}")
    raise EvaluationError(f'could not parse formatting clause: unrecognized formatting clause "{verb}"')


def _scientific(number: float, precision: int) -> str:
    mantissa, _, exponent = format(number, f".{precision}e").partition("e")
    return f"{mantissa}\u202f\u00d7\u202f10{exponent.removeprefix('+').translate(_RAISED)}"


def _shown(value: object) -> str:
    if isinstance(value, list):
        return f"[{', '.join(map(_literal, value))}]"
    if isinstance(value, dict):
        entries = sorted((_literal(key), _literal(each)) for key, each in value.items())
        return "{" + ", ".join(f"{key}:{each}" for key, each in entries) + "}"
    if value is None:
        return "null"
    if isinstance(value, Type):
        return value.name
    return str(implementation("string")(value))


def _literal(value: object) -> str:
    """A value inside a list or map, as CEL would write it."""
    if isinstance(value, str):
        return _quote(value)
    if isinstance(value, bytes):
        return f"b{_quote(_shown(value))}"
    if isinstance(value, float):
        return f"{value:.6f}" if math.isfinite(value) else _quote(_shown(value))
    if isinstance(value, (Duration, Timestamp)):
        return f"{type(value).__name__.lower()}({_quote(_shown(value))})"
    return _shown(value)
