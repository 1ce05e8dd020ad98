"""Kubernetes' quantities: `500m`, `1Ki`, `3`. Pure; how one is read is `kubelet.pods`'."""

import re
from collections.abc import Iterable, Mapping
from decimal import ROUND_CEILING, Decimal

from plugwright.errors import InvalidPod
from plugwright.kubelet import pods

__all__ = ["add", "as_text", "canonical", "is_quantity", "parse"]

_BINARY = [(f"{unit}i", Decimal(1024) ** power) for power, unit in reversed([*enumerate("KMGTPE", 1)])]
_DECIMAL = [
    (unit, Decimal(10) ** (18 - 3 * step))
    for step, unit in enumerate(["E", "P", "T", "G", "M", "k", "", "m", "u", "n"])
]

_EXPONENTS = {unit: f"e{18 - 3 * step}" if unit else "" for step, (unit, _) in enumerate(_DECIMAL)}
_WRITTEN = re.compile(r"[+-]?[0-9.]+[eEinumkKMGTP]*[-+]?[0-9]*")
_EXPONENT = re.compile(r"[eE][-+]?\d")


def is_quantity(text: object) -> bool:
    try:
        pods.quantity(str(text))
    except InvalidPod:
        return False
    return bool(_WRITTEN.fullmatch(str(text)))


def parse(text: object) -> Decimal:
    """0 for what is no quantity: whoever must refuse it has done so before."""
    return pods.quantity(str(text)) if is_quantity(text) else Decimal(0)


def as_text(value: Decimal) -> str:
    """Whole numbers as they are, others in thousandths."""
    if value == value.to_integral_value():
        return str(int(value))
    return f"{int((value * 1000).to_integral_value(ROUND_CEILING))}m"


def canonical(given: object) -> str:
    """The one way in which a server writes a quantity: with the largest unit that leaves a whole number."""
    text = str(given)
    if not is_quantity(text):
        return text
    value = parse(text)
    if text.endswith("i") and value == value.to_integral_value() and abs(value) >= _BINARY[-1][1]:
        unit, size = next((each for each in _BINARY if value % each[1] == 0), ("", Decimal(1)))
    else:
        value = value.quantize(_DECIMAL[-1][1], ROUND_CEILING)
        unit, size = next((each for each in _DECIMAL if value % each[1] == 0), _DECIMAL[-1])
        unit = _EXPONENTS[unit] if _EXPONENT.search(text) else unit
    return f"{int(value / size)}{unit}" if value else "0"


def add(amounts: Iterable[Mapping[str, Decimal]]) -> dict[str, Decimal]:
    total: dict[str, Decimal] = {}
    for amount in amounts:
        for name, value in amount.items():
            total[name] = total.get(name, Decimal(0)) + value
    return total
