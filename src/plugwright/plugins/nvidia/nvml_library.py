"""Calls into NVIDIA's management library: which errors mean that the driver is gone, and which say something of a GPU.

The library can be taken anew: after an update of the driver the old one, still in memory, no longer fits it.
"""

import _ctypes
import ctypes
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from plugwright.plugins.nvidia.driver import DriverGone

__all__ = ["Library", "Questions"]

_NAME = "libnvidia-ml.so.1"
_PLACES = (
    "usr/lib64",
    "usr/lib/x86_64-linux-gnu",
    "usr/lib/aarch64-linux-gnu",
    "lib64",
    "lib/x86_64-linux-gnu",
    "lib/aarch64-linux-gnu",
)
_UNSUPPORTED = (3, 13, 25)  # NOT_SUPPORTED, FUNCTION_NOT_FOUND, ARGUMENT_VERSION_MISMATCH
_NOT_THERE = (2, 6)  # INVALID_ARGUMENT, NOT_FOUND
_GONE = (1, 9, 12, 18)  # UNINITIALIZED, DRIVER_NOT_LOADED, LIBRARY_NOT_FOUND, LIB_RM_VERSION_MISMATCH
_UNLOADED = (9, 12)  # of those, the ones that say more than "not now"
_LOST = (6, 15, 16, 28)  # NOT_FOUND, GPU_IS_LOST, RESET_REQUIRED, GPU_NOT_FOUND
_TIMEOUT = 10


class Library:
    """Opened by the one who reads, and held by those who wait for events. `binding`: what stands for pynvml."""

    def __init__(self, root: Path, binding: Callable[[], Any] | None = None) -> None:
        self._root = root
        self._binding = binding or _pynvml
        self._lock = threading.Lock()
        self._holders = 0
        self._reading = False

    def open(self) -> "Questions":
        with self._lock:
            if not self._reading:
                self._begin()
                self._reading = True
            return Questions(self._binding())

    def close(self) -> None:
        with self._lock:
            if self._reading:
                self._reading = False
                self._end()

    def hold(self) -> "Questions":
        with self._lock:
            self._begin()
            return Questions(self._binding())

    def release(self) -> None:
        with self._lock:
            self._end()

    def _begin(self) -> None:
        nvml = self._binding()
        try:
            if self._holders == 0:
                self._load(nvml)
            nvml.nvmlInit()
        except (nvml.NVMLError, OSError) as error:
            self._unload(nvml)
            unloaded = getattr(error, "value", _UNLOADED[0]) in _UNLOADED
            raise DriverGone(f"no NVIDIA driver: {error}", unloaded) from error
        self._holders += 1

    def _end(self) -> None:
        nvml = self._binding()
        with suppress(nvml.NVMLError):
            nvml.nvmlShutdown()
        self._holders -= 1
        self._unload(nvml)

    def _load(self, nvml: Any) -> None:
        """From the driver's own root where it has one; else the loader finds it."""
        if self._root == Path("/"):
            return
        places = [self._root / place / _NAME for place in _PLACES]
        found = next((place for place in places if place.exists()), None)
        if found is not None:
            nvml.nvmlLib = ctypes.CDLL(str(found))

    def _unload(self, nvml: Any) -> None:
        """So that the next one to begin gets the library as it is by then; pynvml counts who else holds it."""
        if self._holders or nvml.nvmlLib is None or getattr(nvml, "_nvmlLib_refcount", 0) > 0:
            return
        handle, nvml.nvmlLib = nvml.nvmlLib._handle, None
        nvml._nvmlGetFunctionPointer_cache.clear()
        with suppress(OSError):
            _ctypes.dlclose(handle)


class Questions:
    """Questions whose answers may be missing. `faults` are errors that say something of the GPU asked about."""

    def __init__(self, nvml: Any) -> None:
        self._nvml = nvml
        self.faults: list[str] = []
        self.lost = False  # whether one of them says that the GPU is not there any more
        self.unsupported = False  # whether the last question was one that the GPU does not know

    @property
    def fault(self) -> str:
        return self.faults[0] if self.faults else ""

    def need(self, name: str, *arguments: object) -> Any:
        try:
            return getattr(self._nvml, name)(*arguments)
        except self._nvml.NVMLError as error:
            raise DriverGone(f"{name} failed: {error}") from error

    def want(self, name: str, *arguments: object) -> Any:
        """The answer, or None; why there is none is a fault, unless the GPU does not know the question."""
        return self._ask(name, arguments, _UNSUPPORTED)

    def find(self, name: str, *arguments: object) -> Any:
        """The answer, or None where there is no such thing."""
        return self._ask(name, arguments, _UNSUPPORTED + _NOT_THERE)

    def wait(self, events: object, milliseconds: int) -> Any:
        try:
            return self._nvml.nvmlEventSetWait_v2(events, milliseconds)
        except self._nvml.NVMLError as error:
            if error.value == _TIMEOUT:
                return None
            raise DriverGone(f"waiting for events failed: {error}") from error

    def _ask(self, name: str, arguments: tuple[object, ...], harmless: tuple[int, ...]) -> Any:
        self.unsupported = False
        try:
            return getattr(self._nvml, name)(*arguments)
        except self._nvml.NVMLError as error:
            if error.value in _GONE:
                raise DriverGone(f"{name} failed: {error}") from error
            if error.value in harmless:
                self.unsupported = True
            else:
                self.faults.append(str(error))
                self.lost = self.lost or error.value in _LOST
            return None
        except AttributeError:  # a pynvml that is older than the question
            self.unsupported = True
            return None


def _pynvml() -> Any:
    known = sys.modules.get("pynvml")
    if known is not None:
        return known
    try:
        import pynvml  # type: ignore[import-untyped]
    except ImportError as error:
        raise DriverGone("NVIDIA GPUs need the extra: pip install 'plugwright[nvidia]'") from error
    _give_back()
    return pynvml


def _give_back() -> None:
    """Loading pynvml takes 17 MiB and needs 7: the C library keeps the rest until it is told to give it back."""
    with suppress(AttributeError):  # a C library that is not GNU's
        ctypes.CDLL(None).malloc_trim(0)
