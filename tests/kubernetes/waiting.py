"""Waiting for a fact, with a deadline: what tests do instead of sleeping."""

import time
from collections.abc import Callable
from typing import TypeVar

__all__ = ["until"]

T = TypeVar("T")
_PAUSE = 0.1


def until(what: str, fact: Callable[[], T | None], limit: float = 60.0, last: Callable[[], object] | None = None) -> T:
    """The first answer of `fact` that is true; fails after `limit` seconds, saying `what` and what `last` shows."""
    deadline = time.monotonic() + limit
    while not (answer := fact()):
        if time.monotonic() > deadline:
            shown = f"; seen last: {last()}" if last else ""
            raise AssertionError(f"not within {limit:.0f} s: {what}{shown}")
        time.sleep(_PAUSE)
    return answer
