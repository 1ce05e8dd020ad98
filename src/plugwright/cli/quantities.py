"""Sizes as people write them in the operator's file."""

import re

from plugwright.errors import ConfigError

__all__ = ["quantity"]

_QUANTITY = re.compile(r"([0-9]{1,31})([kMGTP]|[KMGTP]i)?")
_UNITS = {unit: 1000**power for power, unit in enumerate("kMGTP", 1)}
_UNITS |= {f"{unit}i": 1024**power for power, unit in enumerate("KMGTP", 1)}


def quantity(text: int | str) -> int:
    """`40Gi`, `16G` or plain bytes."""
    if isinstance(text, int) and 0 <= text < 10**30:
        return text
    found = _QUANTITY.fullmatch(text) if isinstance(text, str) else None
    if not found:
        shown = repr(text) if isinstance(text, str) or abs(text) < 10**30 else "a number that large"
        raise ConfigError(f"a size looks like 40Gi, not {shown}")
    return int(found[1]) * (_UNITS[found[2]] if found[2] else 1)
