"""Kubernetes' quantities: `500m`, `1Ki`, `3`. Pure; how one is read is `kubelet.pods`'."""

from collections.abc import Iterable, Mapping
from decimal import ROUND_CEILING, Decimal

from plugwright.errors import InvalidPod
from plugwright.kubelet import pods

__all__ = ["add", "as_text", "is_quantity", "parse"]


def is_quantity(text: object) -> bool:
    try:
        pods.quantity(str(text))
    except InvalidPod:
        return False
    return True


def parse(text: object) -> Decimal:
    """0 for what is no quantity: whoever must refuse it has done so before."""
    return pods.quantity(str(text)) if is_quantity(text) else Decimal(0)


def as_text(value: Decimal) -> str:
    """Whole numbers as they are, others in thousandths."""
    if value == value.to_integral_value():
        return str(int(value))
    return f"{int((value * 1000).to_integral_value(ROUND_CEILING))}m"


def add(amounts: Iterable[Mapping[str, Decimal]]) -> dict[str, Decimal]:
    total: dict[str, Decimal] = {}
    for amount in amounts:
        for name, value in amount.items():
            total[name] = total.get(name, Decimal(0)) + value
    return total
