"""Being told by NVIDIA's library what happens to the GPUs of a real machine."""

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from plugwright.plugins.nvidia.driver import DriverGone, Event, EventKind
from plugwright.plugins.nvidia.nvml_library import Library

__all__ = ["NvmlEvents"]

_NO_INSTANCE = 0xFFFFFFFF
_XID, _DOUBLE_BIT_ECC, _MIG = 0x8, 0x2, 0x100
_LOOK_AGAIN = 0x400 | 0x800 | 0x1000 | 0x2000 | 0x4000 | 0x8000  # rows retired, poison, unavailable, advice changed
_WANTED = _XID | _DOUBLE_BIT_ECC | _MIG | _LOOK_AGAIN


class NvmlEvents:
    """Holds the library for itself, so that nobody closes it under a thread that waits in it."""

    def __init__(self, library: Library, uuids: tuple[str, ...]) -> None:
        self.watched: set[str] = set()
        self.unwatched: dict[str, str] = {}
        self._library = library
        self._ask = library.hold()
        try:
            self._set = self._ask.need("nvmlEventSetCreate")
            for uuid in uuids:
                self._register(uuid)
        except DriverGone:
            library.release()
            raise

    def wait(self, seconds: float) -> Event | None:
        found = self._ask.wait(self._set, int(seconds * 1000))
        return None if found is None else self._told(found)

    def close(self) -> None:
        with suppress(DriverGone):  # it took them along
            self._ask.want("nvmlEventSetFree", self._set)
        self._library.release()

    def _register(self, uuid: str) -> None:
        self._ask.faults.clear()
        handle = self._ask.want("nvmlDeviceGetHandleByUUID", uuid)
        types = (self._ask.want("nvmlDeviceGetSupportedEventTypes", handle) or 0) & _WANTED if handle else 0
        if types:
            self._ask.want("nvmlDeviceRegisterEvents", handle, types, self._set)
        if self._ask.fault or not handle:
            self.unwatched[uuid] = self._ask.fault or "not found"
        elif types and not self._ask.unsupported:
            self.watched.add(uuid)

    def _told(self, found: Any) -> Event:
        self._ask.faults.clear()
        uuid = self._ask.want("nvmlDeviceGetUUID", found.device) or ""
        kind = _KINDS.get(int(found.eventType), EventKind.RECOVERY)
        instances = [None if each == _NO_INSTANCE else int(each) for each in _instances(found)]
        return Event(kind, uuid, int(found.eventData) if kind is EventKind.XID else 0, *instances)


_KINDS: Mapping[int, EventKind] = {
    _XID: EventKind.XID,
    _DOUBLE_BIT_ECC: EventKind.ECC,
    _MIG: EventKind.MIG_CHANGED,
}


def _instances(found: Any) -> tuple[int, int]:
    return found.gpuInstanceId, found.computeInstanceId
