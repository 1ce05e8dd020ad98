"""Capacity that several claims share: how much a request consumes of a device, and whether that much is left. Pure.

Requests are rounded by the driver's request policy. Upstream computes with 64-bit integers; a request that exceeds them
is an error there and here.
"""

import functools
from collections.abc import Mapping
from decimal import ROUND_CEILING, Decimal
from typing import Any

from msgspec import Struct

from plugwright.allocator.features import Features
from plugwright.errors import InvalidValue
from plugwright.quantity import parse, suffix_of, written

__all__ = ["Amount", "DeviceCapacity", "amount", "capacities", "consumption", "largest_request", "shortage"]

_MAX_INT64 = 2**63 - 1
_NOTHING: Mapping[str, Decimal] = {}


class Amount(Struct, frozen=True):
    """A quantity: its value, and the kind of suffix it is written with."""

    value: Decimal
    suffix: str

    def __str__(self) -> str:
        return written(self.value, self.suffix)


class DeviceCapacity(Struct, frozen=True):
    """One capacity of a device with its request policy."""

    value: Amount
    default: Amount | None = None
    values: tuple[Amount, ...] = ()
    has_range: bool = False
    minimum: Amount | None = None
    maximum: Amount | None = None
    step: Amount | None = None


@functools.lru_cache(4096)
def amount(text: str) -> Amount:
    """Raises `InvalidValue` unless it is a quantity."""
    return Amount(parse(text), suffix_of(text))


def capacities(published: Mapping[str, Any]) -> Mapping[str, DeviceCapacity]:
    """The capacities of a device as its slice has them."""
    return {name: _capacity(entry) for name, entry in published.items()}


def _capacity(entry: Mapping[str, Any]) -> DeviceCapacity:
    policy = entry.get("requestPolicy") or {}
    valid = policy.get("validRange")
    limits = {key: amount(str(text)) for key, text in (valid or {}).items() if text is not None}
    return DeviceCapacity(
        value=amount(str(entry.get("value", "0"))),
        default=None if policy.get("default") is None else amount(str(policy["default"])),
        values=tuple(amount(str(text)) for text in policy.get("validValues") or ()),
        has_range=valid is not None,
        minimum=limits.get("min"),
        maximum=limits.get("max"),
        step=limits.get("step"),
    )


def consumption(
    requested: Mapping[str, Amount], published: Mapping[str, DeviceCapacity], features: Features
) -> Mapping[str, Amount]:
    """The consumption of each capacity of a device by a request. Raises `InvalidValue` if that cannot be computed."""
    consumed: dict[str, Amount] = {}
    for name, capacity in published.items():
        try:
            consumed[name] = _consumed(requested.get(name), capacity, features)
        except InvalidValue as error:
            raise InvalidValue(f'capacity "{name}": {error}') from None
        if consumed[name].value < 0:
            raise InvalidValue(f'capacity "{name}": capacity value is negative')
    return consumed


def shortage(
    requested: Mapping[str, Amount],
    published: Mapping[str, DeviceCapacity],
    used: tuple[Mapping[str, Decimal] | None, ...],
    features: Features,
) -> str:
    """Why a device lacks capacity for a request, empty if it has enough. `used` are amounts in use by other shares."""
    missing = next((name for name in requested if name not in published), None)
    if missing is not None:
        return f"no capacity {missing}"
    for name, consumed in consumption(requested, published, features).items():
        capacity = published[name]
        if _violates_policy(consumed, capacity, features):
            return f"{consumed} of {name} violates the request policy"
        in_use = sum(((shares or _NOTHING).get(name, Decimal(0)) for shares in used), Decimal(0))
        if consumed.value + in_use > capacity.value.value:
            free = Amount(max(capacity.value.value - in_use, Decimal(0)), capacity.value.suffix)
            return f"{consumed} of {name} requested, {free} of {capacity.value} left"
    return ""


def largest_request(capacity: DeviceCapacity, used: Decimal) -> Decimal:
    """The largest amount that the request policy allows of what is left; zero or less if there is none."""
    left = capacity.value.value - used
    if capacity.values:
        return max((value.value for value in capacity.values if value.value <= left), default=Decimal(0))
    if capacity.maximum is not None:
        left = min(left, capacity.maximum.value)
    if capacity.minimum is None:
        return left
    lowest, step = capacity.minimum.value, capacity.step.value if capacity.step else Decimal(0)
    if left < lowest:
        return Decimal(0)
    return left - (left - lowest) % step if step > 0 else left


def _consumed(requested: Amount | None, capacity: DeviceCapacity, features: Features) -> Amount:
    if requested is None:
        return capacity.default or capacity.value
    if capacity.has_range and capacity.minimum is not None:
        return _rounded_to_range(requested, capacity.minimum, capacity, features)
    return next((value for value in capacity.values if requested.value <= value.value), requested)


def _rounded_to_range(requested: Amount, minimum: Amount, capacity: DeviceCapacity, features: Features) -> Amount:
    if requested.value < minimum.value:
        return minimum
    if capacity.step is None:
        return requested
    suffix = "binary" if features.rounds_to_binary else capacity.step.suffix
    scale = 1000 if _counts_in_thousandths(capacity, features) else 1
    wanted = _scaled(requested, scale)
    if (scale != 1 and not _exact(requested, scale)) or wanted > _MAX_INT64:
        raise InvalidValue(_unrepresentable(requested))
    lowest, step = _scaled(minimum, scale), _scaled(capacity.step, scale)
    if step <= 0:
        raise InvalidValue(f"the step of a range must be positive, got {capacity.step}")
    rounded = lowest + -(-(wanted - lowest) // step) * step
    if rounded > _MAX_INT64:
        raise InvalidValue(_unrepresentable(requested))
    return Amount(Decimal(rounded) / scale, suffix)


def _unrepresentable(requested: Amount) -> str:
    return f"capacity request cannot be represented in the device's range arithmetic: {requested}"


def _violates_policy(consumed: Amount, capacity: DeviceCapacity, features: Features) -> bool:
    if consumed == capacity.default:
        return False
    if capacity.has_range:
        return _outside_range(consumed, capacity, features)
    return bool(capacity.values) and all(consumed.value != value.value for value in capacity.values)


def _outside_range(consumed: Amount, capacity: DeviceCapacity, features: Features) -> bool:
    if capacity.maximum is not None and consumed.value > capacity.maximum.value:
        return True
    if capacity.step is None:
        return False
    scale = 1000 if _counts_in_thousandths(capacity, features) else 1
    if scale != 1 and not _exact(consumed, scale):
        return True
    step = _scaled(capacity.step, scale)
    lowest = 0 if capacity.minimum is None else _scaled(capacity.minimum, scale)
    return step <= 0 or (_scaled(consumed, scale) - lowest) % step != 0


def _counts_in_thousandths(capacity: DeviceCapacity, features: Features) -> bool:
    if not features.fractional_ranges:
        return False
    limits = [limit for limit in (capacity.minimum, capacity.maximum, capacity.step) if limit is not None]
    smallest = 0 if capacity.step is None else _scaled(capacity.step, 1000)
    return all(_exact(limit, 1000) for limit in limits) and (capacity.step is None or smallest >= 1)


def _exact(quantity: Amount, scale: int) -> bool:
    scaled = quantity.value * scale
    return scaled == scaled.to_integral_value() and abs(scaled) <= _MAX_INT64


def _scaled(quantity: Amount, scale: int) -> int:
    return int((quantity.value * scale).to_integral_value(ROUND_CEILING))
