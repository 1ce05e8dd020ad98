"""The values of expressions at run time: their types, equality and order."""

import ipaddress
import re
from decimal import Decimal
from functools import lru_cache

from msgspec import Struct

from plugwright import quantity
from plugwright.allocator.cel.celtypes import Type
from plugwright.errors import InvalidValue

__all__ = [
    "ABSENT",
    "Cidr",
    "Duration",
    "EvaluationError",
    "Format",
    "Ip",
    "Optional",
    "Quantity",
    "Semver",
    "Timestamp",
    "Uint",
    "Url",
    "compare",
    "equal",
    "parse_quantity",
    "parse_semver",
    "type_name",
]


class EvaluationError(Exception):
    """An error at run time, which `||` and `&&` can absorb."""


class Uint(int):
    """An unsigned integer of 64 bits."""


class Duration(Struct, frozen=True, order=True):
    nanoseconds: int


class Timestamp(Struct, frozen=True, order=True):
    nanoseconds: int  # since 1970, UTC


class Quantity(Struct, frozen=True):
    """An amount. The result of arithmetic is no right operand of `==` in Kubernetes, hence `computed`."""

    amount: Decimal
    computed: bool = False


class Semver(Struct, frozen=True):
    """A semantic version; build metadata does not count."""

    numbers: tuple[int, int, int]
    prerelease: tuple[int | str, ...] = ()

    def key(self) -> tuple[object, ...]:
        """Numbers sort before words; no prerelease sorts after every prerelease."""
        words = tuple((0, each, "") if isinstance(each, int) else (1, 0, each) for each in self.prerelease)
        return (self.numbers, not self.prerelease, words)


class Ip(Struct, frozen=True):
    address: ipaddress.IPv4Address | ipaddress.IPv6Address


class Cidr(Struct, frozen=True):
    interface: ipaddress.IPv4Interface | ipaddress.IPv6Interface


class Url(Struct, frozen=True):
    text: str


class Format(Struct, frozen=True):
    name: str


class Optional(Struct, frozen=True):
    value: object = None
    present: bool = False


ABSENT = Optional()

_NAMES: dict[type, str] = {
    bool: "bool",
    int: "int",
    Uint: "uint",
    float: "double",
    str: "string",
    bytes: "bytes",
    list: "list",
    dict: "map",
    type(None): "null_type",
    Duration: "google.protobuf.Duration",
    Timestamp: "google.protobuf.Timestamp",
    Quantity: "kubernetes.Quantity",
    Semver: "kubernetes.Semver",
    Url: "kubernetes.URL",
    Format: "kubernetes.NamedFormat",
    Ip: "net.IP",
    Cidr: "net.CIDR",
    Optional: "optional_type",
    Type: "type",
}
_NUMBERS = (int, Uint, float)
_ORDERED = (str, bool, bytes, Duration, Timestamp)
_OWN = (Quantity, Semver, Ip, Cidr, Url, Format)  # their equality refuses other types
_SEMVER = re.compile(r"(\d+)\.(\d+)\.(\d+)(?:-([0-9A-Za-z.-]+))?(?:\+([0-9A-Za-z.-]+))?", re.ASCII)
_LONGEST = 20  # digits of a number in a version


def type_name(value: object) -> str:
    return _NAMES.get(type(value)) or ("map" if isinstance(value, dict) else "kubernetes.DRADevice")


@lru_cache(maxsize=8192)
def parse_quantity(text: str) -> Quantity:
    if not quantity.is_quantity(text):
        pattern = "^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$"
        raise EvaluationError(f"quantities must match the regular expression '{pattern}'")
    try:
        return Quantity(quantity.parse(text))
    except InvalidValue as error:
        raise EvaluationError(str(error)) from None


@lru_cache(maxsize=8192)
def parse_semver(text: str) -> Semver:
    """A version as `semver()` reads it. Raises `EvaluationError`."""
    if text.count(".") < 2:
        raise EvaluationError("Version string empty" if not text else "No Major.Minor.Patch elements found")
    match = _SEMVER.fullmatch(text)
    if match is None:
        raise EvaluationError(_bad_number(text))
    for name, number in zip(("Major", "Minor", "Patch"), match.groups()[:3], strict=True):
        if len(number) > 1 and number[0] == "0":
            raise EvaluationError(f'{name} number must not contain leading zeroes "{number}"')
        if len(number) > _LONGEST or int(number) >= 1 << 64:
            raise EvaluationError(f'strconv.ParseUint: parsing "{number}": value out of range')
    words = [_identifier(each) for each in match[4].split(".")] if match[4] else []
    if match[5] and not all(match[5].split(".")):
        raise EvaluationError("Build meta data is empty")
    return Semver((int(match[1]), int(match[2]), int(match[3])), tuple(words))


def _bad_number(text: str) -> str:
    numbers = re.split(r"[-+]", text, maxsplit=1)[0].split(".", 2)
    for name, number in zip(("major", "minor", "patch"), numbers, strict=False):
        if not (number.isascii() and number.isdigit()):
            return f'Invalid character(s) found in {name} number "{number[:100]}"'
    return f'Invalid character(s) found in version "{text[:100]}"'


def _identifier(word: str) -> int | str:
    if not word:
        raise EvaluationError("Prerelease is empty")
    if not word.isdigit():
        return word
    if len(word) > 1 and word[0] == "0":
        raise EvaluationError(f'Numeric PreRelease version must not contain leading zeroes "{word}"')
    return int(word) if len(word) <= _LONGEST else word


def equal(left: object, right: object) -> bool:
    """`left == right`. Numbers are equal across their types, other types differ."""
    kind = type(left)
    if kind is type(right) and kind in (str, int, bool):
        return left == right
    if left is None or right is None:
        return left is right
    if kind in _NUMBERS:
        return type(right) in _NUMBERS and left == right
    if kind in _OWN:
        return _own_equal(left, right)
    if isinstance(left, list):
        return isinstance(right, list) and len(left) == len(right) and not _any_unequal(left, right)
    if isinstance(left, dict):
        return isinstance(right, dict) and _maps_equal(left, right)
    if isinstance(left, Optional) and isinstance(right, Optional):
        return left.present == right.present and (not left.present or equal(left.value, right.value))
    if isinstance(left, Type) and isinstance(right, Type):
        return left.name == right.name
    return kind is type(right) and left == right


def _own_equal(left: object, right: object) -> bool:
    if type(left) is not type(right):
        raise EvaluationError("no such overload")
    if isinstance(left, Quantity) and isinstance(right, Quantity):
        if right.computed:
            raise EvaluationError("no such overload")
        return left.amount == right.amount
    return left == right


def _any_unequal(left: list[object], right: list[object]) -> bool:
    """Elements whose equality is an error count as equal, as in cel-go."""
    for one, other in zip(left, right, strict=True):
        try:
            if not equal(one, other):
                return True
        except EvaluationError:
            continue
    return False


def _maps_equal(left: dict[object, object], right: dict[object, object]) -> bool:
    return len(left) == len(right) and all(
        key in right and not _any_unequal([value], [right[key]]) for key, value in left.items()
    )


def compare(left: object, right: object) -> int:
    """-1, 0 or 1. Raises `EvaluationError` for values without an order."""
    kind, other = type(left), type(right)
    if kind in _NUMBERS and other in _NUMBERS:
        if left != left or right != right:
            raise EvaluationError("NaN values cannot be ordered")
    elif kind is not other or kind not in _ORDERED:
        raise EvaluationError("no such overload")
    return (left > right) - (left < right)  # type: ignore[operator,no-any-return]
