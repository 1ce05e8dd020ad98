"""Garbage collection for a program with hundreds of thousands of objects and without long pauses.

A full collection visits every object. Objects existing at the end of the start are long-lived, so they are excluded
from later collections. So are the survivors of a slow full collection: the next collection visits only newer objects.
Reference counts still free excluded objects, except those in reference cycles.
"""

import ctypes
import gc
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress

__all__ = ["freeze", "short_pauses"]

_LONG = 0.05  # seconds
# Objects per collection, and collections per collection of the next generation: a full one visits some 100,000.
_YOUNG, _MIDDLE, _OLD = 5_000, 10, 1
_OLDEST = 2


def freeze() -> None:
    """Excludes all objects from later collections, and returns unused memory of the C library to the system."""
    gc.collect()
    gc.freeze()
    gc.collect()  # of nothing: the next full collection waits until a quarter of the objects is new
    with suppress(AttributeError):  # a C library other than GNU's
        ctypes.CDLL(None).malloc_trim(0)


@contextmanager
def short_pauses() -> Iterator[None]:
    """While inside, freezes all present objects, and later the survivors of slow full collections."""
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
