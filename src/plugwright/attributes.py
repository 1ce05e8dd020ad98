"""The data by which claims select devices: typed attributes, capacities, counters; limits as in resource.k8s.io/v1.

Values are checked when they are made, because the API server rejects a whole ResourceSlice for one invalid value.
Quantities are whole numbers here, of bytes or of counted units.
"""

import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import TypeAlias

import msgspec

from plugwright.errors import InvalidValue
from plugwright.frozen import FrozenValue, freeze, frozen
from plugwright.grammars import DNS_LABEL, DNS_SUBDOMAIN, checked_list
from plugwright.text import clean

__all__ = [
    "NO_ATTRIBUTES",
    "NO_CAPACITY",
    "Capacity",
    "ClaimReference",
    "Consumption",
    "CounterSet",
    "Quantity",
    "Version",
    "checked_attributes",
    "checked_capacity",
    "checked_consumption",
    "is_published",
    "whole_quantity",
]

Quantity: TypeAlias = int | str

NO_ATTRIBUTES: Mapping[str, object] = MappingProxyType({})
NO_CAPACITY: "Mapping[str, Capacity]" = MappingProxyType({})

_TEXT_LIMIT = 64  # bytes of a string or version
_NAME_LIMIT = 32
_DOMAIN_LIMIT = 63
_VALUES_LIMIT = 32  # attributes and capacities of one device together
_COUNTERS_LIMIT = 32  # of one counter set
_CONSUMPTION_LIMIT = 2  # counter sets from which one device consumes
_VALID_VALUES_LIMIT = 10
_LARGEST = 2**63 - 1
_SHOWN = 200  # characters of a value in an error message
_IDENTIFIER = re.compile(rf"[A-Za-z_][A-Za-z0-9_]{{0,{_NAME_LIMIT - 1}}}")
_NUMBER = r"(?:0|[1-9][0-9]*)"
_PRERELEASE = rf"(?:{_NUMBER}|[0-9]*[A-Za-z-][0-9A-Za-z-]*)"
_SEMVER = re.compile(
    rf"{_NUMBER}\.{_NUMBER}\.{_NUMBER}(?:-{_PRERELEASE}(?:\.{_PRERELEASE})*)?(?:\+[0-9A-Za-z-]+(?:\.[0-9A-Za-z-]+)*)?"
)
# Whole numbers only, without `plugwright.quantity`: it needs decimal, half a MiB that the daemon does not need.
_QUANTITY = re.compile(r"([0-9]{1,31})([kMGTPE]|[KMGTPE]i)?")
_UNITS = {unit: 1000**power for power, unit in enumerate("kMGTPE", 1)}
_UNITS |= {f"{unit}i": 1024**power for power, unit in enumerate("KMGTPE", 1)}


class Version(str):
    """A version, compared by claims by semantic versioning 2.0.0: `570.86.15`, but not `1.2` or `v1.2.3`."""

    __slots__ = ()

    def __new__(cls, text: str) -> "Version":
        if not isinstance(text, str) or len(text) > _TEXT_LIMIT or not _SEMVER.fullmatch(text):
            raise InvalidValue(
                f"a version must be MAJOR.MINOR.PATCH without leading zeros, at most {_TEXT_LIMIT} bytes, "
                f"got {_shown(text)}"
            )
        return super().__new__(cls, text)


class ClaimReference(msgspec.Struct, frozen=True):
    """The ResourceClaim for which a device was allocated, and the claim's request."""

    uid: str
    namespace: str
    name: str
    request: str


@frozen()
class Capacity(FrozenValue):
    """The amount of a device's resource, such as memory.

    On a device for several claims, the other fields limit how much one claim can request: in steps from `minimum` to
    `maximum`, or one of `values`; `default` is for a claim without an amount. Without them such a claim
    gets everything.
    """

    __slots__ = __match_args__ = ("value", "default", "minimum", "maximum", "step", "values")

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
        freeze(self, "value", whole_quantity("a capacity", value))
        for name, quantity in (("default", default), ("minimum", minimum), ("maximum", maximum), ("step", step)):
            number = None if quantity is None else whole_quantity(f"{name} of a capacity", quantity)
            freeze(self, name, number)
        numbers = tuple(whole_quantity("a value of a capacity", number) for number in checked_list("values", values))
        freeze(self, "values", numbers)
        self._check_policy()

    @property
    def has_policy(self) -> bool:
        """Whether it limits how much one claim can request."""
        return self.default is not None

    def _check_policy(self) -> None:
        has_range = not (self.minimum is self.maximum is self.step is None)
        if self.values and has_range:
            raise InvalidValue("a capacity must have values, or minimum, maximum and step, not both")
        if self.default is None:
            if self.values or has_range:
                raise InvalidValue("a capacity with values, minimum, maximum or step must have a default")
            return
        if self.default > self.value:
            raise InvalidValue(f"the default of a capacity must be at most the whole, {self.value}, got {self.default}")
        if self.values:
            self._check_values(self.default)
        elif has_range:
            self._check_range(self.default)

    def _check_values(self, default: int) -> None:
        ascending = list(self.values) == sorted(set(self.values))
        if not ascending or len(self.values) > _VALID_VALUES_LIMIT or self.values[-1] > self.value:
            text = f"at most {_VALID_VALUES_LIMIT}, ascending, none above {self.value}"
            raise InvalidValue(f"values of a capacity must be {text}, got {list(self.values)}")
        if default not in self.values:
            raise InvalidValue(f"the default of a capacity must be one of {list(self.values)}, got {default}")

    def _check_range(self, default: int) -> None:
        if self.minimum is None:
            raise InvalidValue("a capacity with maximum or step must have a minimum")
        most = self.value if self.maximum is None else self.maximum
        if most > self.value or not self.minimum <= default <= most:
            raise InvalidValue(
                f"minimum ≤ default ≤ maximum ≤ {self.value} must hold for a capacity, "
                f"got {self.minimum}, {default}, {most}"
            )
        if self.step is not None:
            self._check_step(self.step, self.minimum, default)

    def _check_step(self, step: int, minimum: int, default: int) -> None:
        ends = [default] if self.maximum is None else [default, self.maximum]
        if step <= 0 or minimum + step > self.value or any((end - minimum) % step for end in ends):
            text = "default and maximum are whole steps from the minimum, and one step is within the whole"
            raise InvalidValue(f"the step of a capacity must be such that {text}, got {step}")


@frozen(unhashed=("counters",))
class CounterSet(FrozenValue):
    """The common resources of the parts of one piece of hardware, such as the memory of a GPU with MIG devices."""

    __slots__ = __match_args__ = ("name", "counters")

    name: str
    counters: Mapping[str, int]

    def __init__(self, name: str, counters: Mapping[str, Quantity]) -> None:
        if not isinstance(name, str) or not DNS_LABEL.fullmatch(name):
            raise InvalidValue(f"the name of a counter set must be a DNS label, got {_shown(name)}")
        freeze(self, "name", name)
        freeze(self, "counters", _counters(name, counters))


@frozen(unhashed=("counters",))
class Consumption(FrozenValue):
    """A device's consumption from a counter set while it is allocated."""

    __slots__ = __match_args__ = ("of", "counters")

    of: CounterSet
    counters: Mapping[str, int]

    def __init__(self, of: CounterSet, counters: Mapping[str, Quantity]) -> None:
        if not isinstance(of, CounterSet):
            raise InvalidValue(f"a consumption must be of a CounterSet, got {_shown(of)}")
        taken = _counters(of.name, counters)
        if unknown := sorted(taken.keys() - of.counters.keys()):
            raise InvalidValue(f"the counter set {of.name} has no counter {', '.join(unknown)}")
        for name, number in taken.items():
            if number > of.counters[name]:
                raise InvalidValue(f"counter {name} of {of.name} must be at most {of.counters[name]}, got {number}")
        freeze(self, "of", of)
        freeze(self, "counters", taken)


def checked_attributes(device_id: str, attributes: object) -> Mapping[str, object]:
    """The checked attributes. Strings, integers, booleans and versions are published; others are the plugin's own."""
    if type(attributes) is not dict and not isinstance(attributes, Mapping):
        raise InvalidValue(f"attributes of {device_id!r} must be a mapping, got {_shown(attributes)}")
    if not attributes:
        return NO_ATTRIBUTES
    made = dict(attributes)
    for name, value in made.items():
        kind = type(value)
        # Most are like this, and a list can contain 60,000 devices.
        plain = (kind is str and len(value) <= _TEXT_LIMIT and value.isascii()) or (
            kind is int and value.bit_length() < 64
        )
        if not (plain and _is_name(name)):
            _check_attribute(device_id, name, value)
    return MappingProxyType(made)


def checked_capacity(
    device_id: str, capacity: object, attributes: Mapping[str, object], allow_multiple: bool
) -> Mapping[str, Capacity]:
    """The checked capacities. Also counts `attributes`, which share a limit with them."""
    if not isinstance(capacity, Mapping):
        raise InvalidValue(f"capacity of {device_id!r} must be a mapping, got {_shown(capacity)}")
    made = {name: _capacity(device_id, name, capacity[name]) for name in capacity}
    for name, value in made.items():
        if value.has_policy and not allow_multiple:
            raise InvalidValue(f"capacity {name} of {device_id!r} must have no default without allow_multiple")
    if len(made) + len(attributes) > _VALUES_LIMIT:
        count = len(made) + sum(map(is_published, attributes.values()))
        if count > _VALUES_LIMIT:
            text = f"at most {_VALUES_LIMIT} attributes and capacities together, got {count}"
            raise InvalidValue(f"{device_id!r} must have {text}")
    return MappingProxyType(made) if made else NO_CAPACITY


def checked_consumption(device_id: str, consumes: object) -> tuple[Consumption, ...]:
    made = []
    for consumption in checked_list(f"consumes of {device_id!r}", consumes):
        if not isinstance(consumption, Consumption):
            raise InvalidValue(f"consumes of {device_id!r} must be Consumption values, got {_shown(consumption)}")
        made.append(consumption)
    names = [consumption.of.name for consumption in made]
    if len(names) > _CONSUMPTION_LIMIT or len(set(names)) < len(names):
        raise InvalidValue(
            f"{device_id!r} must consume of at most {_CONSUMPTION_LIMIT} different counter sets, got {names}"
        )
    return tuple(made)


def is_published(value: object) -> bool:
    """Whether claims can select by this value."""
    return isinstance(value, str | int)  # a bool is an int, a Version a str


def whole_quantity(what: str, quantity: object) -> int:
    """The number in `80Gi`, `16G` or `80`, or a plain whole number."""
    number = -1
    if isinstance(quantity, int) and not isinstance(quantity, bool):
        number = quantity
    elif isinstance(quantity, str) and (matched := _QUANTITY.fullmatch(quantity)):
        number = int(matched[1]) * (_UNITS[matched[2]] if matched[2] else 1)
    if number < 0:
        raise InvalidValue(f"{what} must look like 40Gi, got {_shown(quantity)}")
    if number > _LARGEST:
        raise InvalidValue(f"{what} must be below 8Ei, got {_shown(quantity)}")
    return number


@lru_cache(maxsize=1024)  # the same names occur in every device of a list
def _is_name(name: object) -> bool:
    if not isinstance(name, str):
        return False
    domain, slash, identifier = name.rpartition("/")
    if slash and (len(domain) > _DOMAIN_LIMIT or not DNS_SUBDOMAIN.fullmatch(domain)):
        return False
    return _IDENTIFIER.fullmatch(identifier) is not None


def _capacity(device_id: str, name: object, value: object) -> Capacity:
    if not _is_name(name):
        raise InvalidValue(_wrong_name("capacity", device_id, name))
    try:
        return value if isinstance(value, Capacity) else Capacity(value)  # type: ignore[arg-type]  # it checks
    except InvalidValue as error:
        raise InvalidValue(f"capacity {name} of {device_id!r}: {error}") from error


def _wrong_name(kind: str, device_id: str, name: object) -> str:
    return (
        f"names of {kind} values of {device_id!r} must have at most {_NAME_LIMIT} letters, digits and '_', no digit "
        f"first, with at most a DNS name of {_DOMAIN_LIMIT} bytes and '/' before it, got {_shown(name)}"
    )


def _check_attribute(device_id: str, name: object, value: object) -> None:
    if not isinstance(name, str):
        raise InvalidValue(f"names of attributes of {device_id!r} must be strings, got {_shown(name)}")
    if not is_published(value):
        return
    if not _is_name(name):
        raise InvalidValue(_wrong_name("attribute", device_id, name))
    what = f"attribute {name} of {device_id!r}"
    if isinstance(value, int):
        if not -_LARGEST - 1 <= value <= _LARGEST:
            raise InvalidValue(f"{what} must fit into 64 bits, got {_shown(value)}")
    elif isinstance(value, str):
        try:
            size = len(value.encode())
        except UnicodeEncodeError:
            raise InvalidValue(f"{what} must be valid Unicode, got {_shown(value)}") from None
        if size > _TEXT_LIMIT:
            raise InvalidValue(f"{what} must have at most {_TEXT_LIMIT} bytes, got {size} in {_shown(value)}")


def _counters(name: str, counters: object) -> Mapping[str, int]:
    if not isinstance(counters, Mapping):
        raise InvalidValue(f"counters of {name} must be a mapping, got {_shown(counters)}")
    if not 0 < len(counters) <= _COUNTERS_LIMIT:
        raise InvalidValue(f"the counter set {name} must have 1 to {_COUNTERS_LIMIT} counters, got {len(counters)}")
    made = {}
    for counter, quantity in counters.items():
        if not isinstance(counter, str) or not DNS_LABEL.fullmatch(counter):
            raise InvalidValue(f"the name of a counter of {name} must be a DNS label, got {_shown(counter)}")
        made[counter] = whole_quantity(f"counter {counter} of {name}", quantity)
    return MappingProxyType(dict(sorted(made.items())))


def _shown(value: object) -> str:
    """A value for an error message; Python refuses to convert an integer of more than 4300 digits."""
    if isinstance(value, int) and value.bit_length() > 128:
        return "a number that large"
    return clean(repr(value), _SHOWN)
