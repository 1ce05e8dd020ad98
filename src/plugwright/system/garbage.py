"""Garbage collection in a program that keeps hundreds of thousands of objects and must not stop for long.

A full collection goes through every object there is. What a program holds at the end of its start stays, so it is
kept out of later collections. So are the survivors of a full collection that took long: the next one has only to go
through what came after. Reference counts free such objects as before; only if they die in a reference cycle they stay.
"""

import ctypes
import gc
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress

__all__ = ["freeze", "short_pauses"]

_LONG = 0.05  # seconds
# Objects until a collection, and collections until one of the next age: a full one has some 100,000 to go through.
_YOUNG, _MIDDLE, _OLD = 5_000, 10, 1
_OLDEST = 2


def freeze() -> None:
    """Keeps all objects out of later collections; the C library gives back what loading them took."""
    gc.collect()
    gc.freeze()
    gc.collect()  # of nothing: the next full one waits until a quarter of what the last one went through is new
    with suppress(AttributeError):  # a C library other than GNU's
        ctypes.CDLL(None).malloc_trim(0)


@contextmanager
def short_pauses() -> Iterator[None]:
    """Freezes what there is, and later what made a full collection long, while inside."""
    thresholds = gc.get_threshold()
    freeze()
    gc.set_threshold(_YOUNG, _MIDDLE, _OLD)
    collected = _FullCollections().collected
    gc.callbacks.append(collected)
    try:
        yield
    finally:
        gc.callbacks.remove(collected)
        gc.set_threshold(*thresholds)
        gc.unfreeze()


class _FullCollections:
    def __init__(self) -> None:
        self._began = 0.0

    def collected(self, phase: str, info: Mapping[str, int]) -> None:
        """Called by the collector before and after."""
        if info["generation"] < _OLDEST:
            return
        if phase == "start":
            self._began = time.perf_counter()
        elif time.perf_counter() - self._began > _LONG:
            gc.freeze()
