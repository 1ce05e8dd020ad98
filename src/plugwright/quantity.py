"""Kubernetes quantities (`500m`, `1Ki`, `3`), and the effective requests of a pod. Pure."""

import re
from collections.abc import Iterable, Mapping
from decimal import ROUND_CEILING, Decimal, InvalidOperation, localcontext

from plugwright.errors import InvalidValue

# fmt: off
__all__ = [
    "add", "as_text", "canonical", "effective_requests", "is_quantity", "parse", "suffix_of", "whole", "written",
    "zero_if_invalid",
]
# fmt: on

_POWERS = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_UNITS = {unit: Decimal(10) ** power for unit, power in _POWERS.items()}
_UNITS |= {f"{unit}i": Decimal(1024) ** power for power, unit in enumerate("KMGTPE", 1)}
_EXACT_DIGITS = 17  # before the point: with nine decimal places they fit into the usual precision of 28
_DIGITS = 40  # the API server rejects longer quantities
_QUANTITY = re.compile(r"([+-]?(?:\d+\.?\d*|\.\d+))([numkMGTPE]?|[KMGTPE]i|[eE][+-]?\d+)", re.ASCII)

_BINARY = [(f"{unit}i", Decimal(1024) ** power) for power, unit in reversed([*enumerate("KMGTPE", 1)])]
_DECIMAL = [(unit, Decimal(10) ** power) for unit, power in reversed(_POWERS.items())]
_EXPONENTS = {unit: f"e{power}" if unit else "" for unit, power in _POWERS.items()}
_WRITTEN = re.compile(r"[+-]?[0-9.]+[eEinumkKMGTP]*[-+]?[0-9]*")
_EXPONENT = re.compile(r"[eE][-+]?\d")


def parse(text: str) -> Decimal:
    """`2`, `500m`, `1Ki` or `1e3` as a number."""
    match = _QUANTITY.fullmatch(text) if len(text) <= _DIGITS else None
    if match is None:
        raise InvalidValue(f"a quantity must look like 2 or 500m, got {text[:_DIGITS]!r}")
    value = _value(match[1], match[2])
    if value is None or value.adjusted() > _DIGITS:
        raise InvalidValue(f"a quantity must fit into 64 bits, got {text!r}")
    return value


def _value(number: str, unit: str) -> Decimal | None:
    try:
        return Decimal(number) * _UNITS[unit] if unit in _UNITS else Decimal(number + unit)
    except InvalidOperation:  # an exponent out of range
        return None


def is_quantity(text: object) -> bool:
    try:
        parse(str(text))
    except InvalidValue:
        return False
    return bool(_WRITTEN.fullmatch(str(text)))


def zero_if_invalid(text: object) -> Decimal:
    """The number; zero for an invalid quantity in objects that were validated before."""
    return parse(str(text)) if is_quantity(text) else Decimal(0)


def whole(value: Decimal) -> int:
    """The number rounded up: a part of a device counts as one."""
    return int(value.to_integral_value(ROUND_CEILING))


def as_text(value: Decimal) -> str:
    """Whole numbers unchanged, others in thousandths."""
    return str(int(value)) if value == value.to_integral_value() else f"{whole(value * 1000)}m"


def canonical(amount: object) -> str:
    """The notation of an API server: with the largest unit that leaves a whole number."""
    text = str(amount)
    return written(parse(text), suffix_of(text)) if is_quantity(text) else text


def suffix_of(text: str) -> str:
    """The kind of a quantity's suffix: `binary`, `exponent` or `decimal`."""
    if text.endswith("i"):
        return "binary"
    return "exponent" if _EXPONENT.search(text) else "decimal"


def written(value: Decimal, suffix: str) -> str:
    """A number in the notation of an API server. Fractions and small numbers have no binary suffix."""
    if value.adjusted() > _EXACT_DIGITS:
        with localcontext(prec=2 * _DIGITS):
            return _written(value, suffix)
    return _written(value, suffix)


def _written(value: Decimal, suffix: str) -> str:
    if suffix == "binary" and value == value.to_integral_value() and abs(value) >= _BINARY[-1][1]:
        unit, size = next((row for row in _BINARY if value % row[1] == 0), ("", Decimal(1)))
    else:
        value = value.quantize(_DECIMAL[-1][1], ROUND_CEILING)
        unit, size = next((row for row in _DECIMAL if value % row[1] == 0), _DECIMAL[-1])
        unit = _EXPONENTS[unit] if suffix == "exponent" else unit
    return f"{int(value / size)}{unit}" if value else "0"


def add(amounts: Iterable[Mapping[str, Decimal]]) -> dict[str, Decimal]:
    total: dict[str, Decimal] = {}
    for amount in amounts:
        for name, value in amount.items():
            total[name] = total.get(name, Decimal(0)) + value
    return total


def effective_requests(containers: Iterable[tuple[str, Mapping[str, int]]]) -> dict[str, int]:
    """A pod's peak request of every resource, as counted by the scheduler and the kubelet.

    `containers` are (`init`, `sidecar` or `main`; requests) in the pod's order. Main containers and sidecars run
    together; an init container runs together with the sidecars before it.
    """
    peak: dict[str, int] = {}
    sidecars: dict[str, int] = {}
    total: dict[str, int] = {}
    for kind, requests in containers:
        for resource, amount in requests.items():
            if kind == "init":
                peak[resource] = max(peak.get(resource, 0), amount + sidecars.get(resource, 0))
                continue
            total[resource] = total.get(resource, 0) + amount
            if kind == "sidecar":
                sidecars[resource] = sidecars.get(resource, 0) + amount
    return {name: max(total.get(name, 0), peak.get(name, 0)) for name in total | peak}
