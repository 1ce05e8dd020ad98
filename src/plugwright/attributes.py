"""What claims select devices by: typed attributes, capacities and counters, with the limits of resource.k8s.io/v1.

Checked where they are made, because the API server refuses a whole ResourceSlice for one value in it. Quantities are
whole numbers here, of bytes or of what is counted.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TypeAlias

from plugwright.errors import InvalidValue

__all__ = [
    "Capacity",
    "Consumption",
    "CounterSet",
    "Quantity",
    "Version",
    "checked_attributes",
    "checked_capacity",
    "is_published",
    "whole_quantity",
]

Quantity: TypeAlias = int | str

_TEXT_LIMIT = 64  # bytes of a string or version
_VALUES_LIMIT = 32  # attributes and capacities of one device together
_COUNTERS_LIMIT = 32  # of one counter set
_VALID_VALUES_LIMIT = 10
_INTEGERS = range(-(2**63), 2**63)
_DOMAIN_LIMIT = 63
_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,31}")
_DOMAIN = re.compile(r"[a-z0-9](?:[-a-z0-9]*[a-z0-9])?(?:\.[a-z0-9](?:[-a-z0-9]*[a-z0-9])?)*")
_DNS_LABEL = re.compile(r"[a-z0-9](?:[-a-z0-9]{0,61}[a-z0-9])?")
_NUMBER = r"(?:0|[1-9][0-9]*)"
_PRERELEASE = rf"(?:{_NUMBER}|[0-9]*[A-Za-z-][0-9A-Za-z-]*)"
_SEMVER = re.compile(
    rf"{_NUMBER}\.{_NUMBER}\.{_NUMBER}(?:-{_PRERELEASE}(?:\.{_PRERELEASE})*)?(?:\+[0-9A-Za-z-]+(?:\.[0-9A-Za-z-]+)*)?"
)
_QUANTITY = re.compile(r"([0-9]{1,19})([kMGTPE]|[KMGTPE]i)?")
_UNITS = {unit: 1000**power for power, unit in enumerate("kMGTPE", 1)}
_UNITS |= {f"{unit}i": 1024**power for power, unit in enumerate("KMGTPE", 1)}
_NOTHING: Mapping[str, object] = MappingProxyType({})


class Version(str):
    """A version that claims can compare, by semantic versioning 2.0.0: `570.86.15`, but not `1.2` or `v1.2.3`."""

    __slots__ = ()

    def __new__(cls, text: str) -> "Version":
        if not isinstance(text, str) or not _SEMVER.fullmatch(text) or len(text) > _TEXT_LIMIT:
            raise InvalidValue(
                f"a version must be MAJOR.MINOR.PATCH without leading zeros, at most {_TEXT_LIMIT} bytes, got {text!r}"
            )
        return super().__new__(cls, text)


@dataclass(frozen=True, slots=True, init=False)
class Capacity:
    """How much of something a device has, such as memory.

    On a device that several claims may share, the others say how much one claim may ask for: in steps from `minimum`
    to `maximum`, or one of `values`; `default` is for a claim that does not say. Without them a claim that does not say
    gets the whole.
    """

    value: int
    default: int | None
    minimum: int | None
    maximum: int | None
    step: int | None
    values: tuple[int, ...]

    def __init__(
        self,
        value: Quantity,
        default: Quantity | None = None,
        minimum: Quantity | None = None,
        maximum: Quantity | None = None,
        step: Quantity | None = None,
        values: Iterable[Quantity] = (),
    ) -> None:
        object.__setattr__(self, "value", whole_quantity("a capacity", value))
        for name, quantity in (("default", default), ("minimum", minimum), ("maximum", maximum), ("step", step)):
            number = None if quantity is None else whole_quantity(f"{name} of a capacity", quantity)
            object.__setattr__(self, name, number)
        numbers = tuple(whole_quantity("a value of a capacity", quantity) for quantity in values)
        object.__setattr__(self, "values", numbers)
        self._check_policy()

    def _check_policy(self) -> None:
        has_range = not (self.minimum is self.maximum is self.step is None)
        if self.values and has_range:
            raise InvalidValue("a capacity must have values, or minimum, maximum and step, not both")
        if (self.values or has_range) and self.default is None:
            raise InvalidValue("a capacity with a request policy must have a default")
        if has_range and self.minimum is None:
            raise InvalidValue("a capacity with maximum or step must have a minimum")
        if self.values and (
            len(self.values) > _VALID_VALUES_LIMIT
            or list(self.values) != sorted(set(self.values))
            or self.default not in self.values
        ):
            text = f"at most {_VALID_VALUES_LIMIT}, ascending, the default among them"
            raise InvalidValue(f"values of a capacity must be {text}, got {list(self.values)}")


@dataclass(frozen=True, slots=True)
class CounterSet:
    """What the parts of one piece of hardware have together, such as the memory of a GPU with MIG devices."""

    name: str
    counters: Mapping[str, int] = field(hash=False)

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not _DNS_LABEL.fullmatch(self.name):
            raise InvalidValue(f"the name of a counter set must be a DNS label, got {self.name!r}")
        object.__setattr__(self, "counters", _counters(self.name, self.counters))


@dataclass(frozen=True, slots=True)
class Consumption:
    """What a device takes of a counter set while it is allocated."""

    of: CounterSet
    counters: Mapping[str, int] = field(hash=False)

    def __post_init__(self) -> None:
        counters = _counters(self.of.name, self.counters)
        if unknown := sorted(counters.keys() - self.of.counters.keys()):
            raise InvalidValue(f"the counter set {self.of.name} has no counter {', '.join(unknown)}")
        object.__setattr__(self, "counters", counters)


def checked_attributes(device_id: str, attributes: object) -> Mapping[str, object]:
    """Strings, integers, booleans and versions are published; values of other kinds are the plugin's own."""
    if not isinstance(attributes, Mapping):
        raise InvalidValue(f"attributes of {device_id!r} must be a mapping, got {attributes!r}")
    for name, value in attributes.items():
        if is_published(value):
            _check_name("attribute", device_id, name)
            _check_value(device_id, name, value)
        elif not isinstance(name, str):
            raise InvalidValue(f"names of attributes of {device_id!r} must be strings, got {name!r}")
    return MappingProxyType(dict(attributes)) if attributes else _NOTHING


def checked_capacity(device_id: str, capacity: object, attributes: Mapping[str, object]) -> Mapping[str, Capacity]:
    if not isinstance(capacity, Mapping):
        raise InvalidValue(f"capacity of {device_id!r} must be a mapping, got {capacity!r}")
    made = {}
    for name, value in capacity.items():
        _check_name("capacity", device_id, name)
        try:
            made[name] = value if isinstance(value, Capacity) else Capacity(value)
        except InvalidValue as error:
            raise InvalidValue(f"capacity {name} of {device_id!r}: {error}") from error
    count = len(made) + sum(map(is_published, attributes.values()))
    if count > _VALUES_LIMIT:
        raise InvalidValue(
            f"{device_id!r} must have at most {_VALUES_LIMIT} attributes and capacities together, got {count}"
        )
    return MappingProxyType(made)


def is_published(value: object) -> bool:
    """Whether claims can select by such a value."""
    return isinstance(value, str | int)  # a bool is an int, a Version a str


def whole_quantity(what: str, quantity: object) -> int:
    """The number in `80Gi`, `16G` or `80`, or a plain whole number."""
    if isinstance(quantity, int) and not isinstance(quantity, bool) and 0 <= quantity < 2**63:
        return quantity
    matched = _QUANTITY.fullmatch(quantity) if isinstance(quantity, str) else None
    number = int(matched[1]) * (_UNITS[matched[2]] if matched[2] else 1) if matched else 2**63
    if number >= 2**63:
        raise InvalidValue(f"{what} must be a whole number, or text such as 80Gi, below 8 Ei, got {quantity!r}")
    return number


def _check_name(kind: str, device_id: str, name: object) -> None:
    text = name if isinstance(name, str) else ""
    domain, slash, identifier = text.rpartition("/")
    is_domain = bool(_DOMAIN.fullmatch(domain)) and len(domain) <= _DOMAIN_LIMIT
    if not _IDENTIFIER.fullmatch(identifier) or (slash and not is_domain):
        raise InvalidValue(
            f"the name of an {kind} of {device_id!r} must have at most 32 letters, digits and '_', no digit first, "
            f"with at most a DNS name of {_DOMAIN_LIMIT} bytes and '/' before it, got {name!r}"
        )


def _check_value(device_id: str, name: str, value: object) -> None:
    if isinstance(value, int):
        if value not in _INTEGERS:
            raise InvalidValue(f"attribute {name} of {device_id!r} must fit into 64 bits, got {value}")
    elif isinstance(value, str):
        try:
            size = len(value.encode())
        except UnicodeEncodeError:
            raise InvalidValue(f"attribute {name} of {device_id!r} must be valid Unicode, got {value!r}") from None
        if size > _TEXT_LIMIT:
            raise InvalidValue(
                f"attribute {name} of {device_id!r} must have at most {_TEXT_LIMIT} bytes, got {size} in {value!r}"
            )


def _counters(name: str, counters: object) -> Mapping[str, int]:
    if not isinstance(counters, Mapping) or not 0 < len(counters) <= _COUNTERS_LIMIT:
        raise InvalidValue(f"the counter set {name} must have 1 to {_COUNTERS_LIMIT} counters, got {counters!r}")
    for counter in counters:
        if not isinstance(counter, str) or not _DNS_LABEL.fullmatch(counter):
            raise InvalidValue(f"the name of a counter of {name} must be a DNS label, got {counter!r}")
    return MappingProxyType(
        {key: whole_quantity(f"counter {key} of {name}", counters[key]) for key in sorted(counters)}
    )
