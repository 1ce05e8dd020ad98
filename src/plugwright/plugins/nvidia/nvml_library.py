"""NVIDIA's management library (NVML): loads it, shares it between threads, reloads it, and interprets its errors.

After an update of the driver the loaded library no longer matches it, so it is unloaded when its last user closes it.
Only this module imports pynvml.
"""

import _ctypes
import ctypes
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from plugwright.errors import DriverGone
from plugwright.text import clean

__all__ = ["FabricInfo", "NvmlCalls", "NvmlLibrary"]

_NAME = "libnvidia-ml.so.1"
_DIRECTORIES = (
    "usr/lib64",
    "usr/lib/x86_64-linux-gnu",
    "usr/lib/aarch64-linux-gnu",
    "lib64",
    "lib/x86_64-linux-gnu",
    "lib/aarch64-linux-gnu",
)
_UNSUPPORTED = (3, 13, 25)  # NOT_SUPPORTED, FUNCTION_NOT_FOUND, ARGUMENT_VERSION_MISMATCH
_NOT_FOUND = (2, 6)  # INVALID_ARGUMENT, NOT_FOUND
_DRIVER_GONE = (1, 9, 12, 18)  # UNINITIALIZED, DRIVER_NOT_LOADED, LIBRARY_NOT_FOUND, LIB_RM_VERSION_MISMATCH
_DRIVER_UNLOADED = (9, 12)  # those of them that are permanent
_GPU_LOST = (6, 15, 16, 28)  # NOT_FOUND, GPU_IS_LOST, RESET_REQUIRED, GPU_NOT_FOUND
_TIMEOUT = 10


class NvmlLibrary:
    """The single reader opens and closes it; each thread waiting for events acquires and releases it.

    `binding` returns the module to use as pynvml.
    """

    def __init__(self, root: Path, binding: Callable[[], Any] | None = None) -> None:
        self._root = root
        self._binding = binding or _import_pynvml
        self._lock = threading.Lock()
        self._users = 0
        self._is_open = False

    def open(self) -> "NvmlCalls":
        with self._lock:
            if not self._is_open:
                self._initialize()
                self._is_open = True
            return NvmlCalls(self._binding())

    def close(self) -> None:
        with self._lock:
            if self._is_open:
                self._is_open = False
                self._shut_down()

    def acquire(self) -> "NvmlCalls":
        with self._lock:
            self._initialize()
            return NvmlCalls(self._binding())

    def release(self) -> None:
        with self._lock:
            self._shut_down()

    def _initialize(self) -> None:
        nvml = self._binding()
        try:
            if self._users == 0:
                self._load(nvml)
            nvml.nvmlInit()
        except (nvml.NVMLError, OSError) as error:
            self._unload(nvml)
            unloaded = getattr(error, "value", _DRIVER_UNLOADED[0]) in _DRIVER_UNLOADED
            raise DriverGone(f"no NVIDIA driver: {error}", unloaded) from error
        self._users += 1

    def _shut_down(self) -> None:
        nvml = self._binding()
        with suppress(nvml.NVMLError):
            nvml.nvmlShutdown()
        self._users -= 1
        self._unload(nvml)

    def _load(self, nvml: Any) -> None:
        """Loads the library from the driver's root if it is there, otherwise by the loader."""
        if self._root == Path("/"):
            return
        paths = [self._root / directory / _NAME for directory in _DIRECTORIES]
        path = next((path for path in paths if path.exists()), None)
        if path is not None:
            nvml.nvmlLib = ctypes.CDLL(str(path))

    def _unload(self, nvml: Any) -> None:
        """Lets the next user load the library of the driver installed by then; pynvml counts other users."""
        if self._users or nvml.nvmlLib is None or getattr(nvml, "_nvmlLib_refcount", 0) > 0:
            return
        handle, nvml.nvmlLib = nvml.nvmlLib._handle, None
        nvml._nvmlGetFunctionPointer_cache.clear()
        with suppress(OSError):
            _ctypes.dlclose(handle)


class FabricInfo(msgspec.Struct, frozen=True):
    """A GPU's registration with its NVLink fabric, in NVML's numbers; `error` is its error once it is completed."""

    state: int
    error: str
    health: int


class NvmlCalls:
    """Calls by name, with classified errors: DriverGone is raised, faults of the GPU are collected in `faults`."""

    def __init__(self, nvml: Any) -> None:
        self._nvml = nvml
        self.faults: list[str] = []
        self.lost = False  # whether a fault means that the GPU is lost
        self.unsupported = False  # whether the GPU does not support the last call

    @property
    def fault(self) -> str:
        return self.faults[0] if self.faults else ""

    def required(self, name: str, *arguments: object) -> Any:
        """DriverGone for any error."""
        try:
            return getattr(self._nvml, name)(*arguments)
        except (self._nvml.NVMLError, UnicodeError) as error:
            raise DriverGone(f"{name} failed: {error}") from error

    def optional(self, name: str, *arguments: object) -> Any:
        """The result; None after an error, which is a fault unless the GPU does not support the call."""
        return self._call(name, arguments, _UNSUPPORTED)

    def lookup(self, name: str, *arguments: object) -> Any:
        """Like `optional`, but None without a fault if NVML reports no such device."""
        return self._call(name, arguments, _UNSUPPORTED + _NOT_FOUND)

    def reserved_memory(self, handle: object) -> int:
        """Bytes of a GPU reserved by the driver; 0 if the driver or pynvml does not report them."""
        version = getattr(self._nvml, "nvmlMemory_v2", None)
        info = self.lookup("nvmlDeviceGetMemoryInfo", handle, version) if version else None
        return int(info.reserved) if info else 0

    def used_memory(self, handle: object) -> int | None:
        """Bytes in use, without those reserved by the driver, if it distinguishes them."""
        version = getattr(self._nvml, "nvmlMemory_v2", None)
        info = self.lookup("nvmlDeviceGetMemoryInfo", handle, version) if version else None
        info = info or self.lookup("nvmlDeviceGetMemoryInfo", handle)
        return int(info.used) if info else None

    def fabric(self, handle: object) -> FabricInfo | None:
        try:
            info = self._nvml.c_nvmlGpuFabricInfoV_t()
        except AttributeError:  # pynvml is older than the call
            return None
        if self.lookup("nvmlDeviceGetGpuFabricInfoV", handle, ctypes.byref(info)) is None:
            return None
        error = clean(self._nvml.NVMLError(info.status)) if info.status else ""
        return FabricInfo(int(info.state), error, int(info.healthMask))

    def wait(self, event_set: object, milliseconds: int) -> Any:
        try:
            return self._nvml.nvmlEventSetWait_v2(event_set, milliseconds)
        except self._nvml.NVMLError as error:
            if error.value == _TIMEOUT:
                return None
            raise DriverGone(f"waiting for events failed: {error}") from error

    def _call(self, name: str, arguments: tuple[object, ...], harmless: tuple[int, ...]) -> Any:
        self.unsupported = False
        try:
            return getattr(self._nvml, name)(*arguments)
        except self._nvml.NVMLError as error:
            if error.value in _DRIVER_GONE:
                raise DriverGone(f"{name} failed: {error}") from error
            if error.value in harmless:
                self.unsupported = True
            else:
                self.faults.append(clean(error))
                self.lost = self.lost or error.value in _GPU_LOST
            return None
        except AttributeError:  # pynvml is older than the call
            self.unsupported = True
            return None
        except Exception as error:  # noqa: BLE001  one GPU's response, such as a name that is not UTF-8
            self.faults.append(clean(f"{name} failed: {type(error).__name__}: {error}"))
            return None


def _import_pynvml() -> Any:
    known = sys.modules.get("pynvml")
    if known is not None:
        return known
    try:
        import pynvml  # type: ignore[import-untyped]
    except ImportError as error:
        raise DriverGone(
            "NVIDIA GPUs need the extra: pip install 'plugwright[nvidia]', or in a pod plugwright-tools"
        ) from error
    # Importing pynvml takes 17 MiB, of which it needs 7: the C library keeps the rest unless trimmed.
    with suppress(AttributeError):  # not the GNU C library
        ctypes.CDLL(None).malloc_trim(0)
    return pynvml
