"""The events of GPUs: NVML's event set, and its waiting thread on behalf of the event loop.

The thread works with every `GpuDriver`; `monitor` interprets the events.
"""

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, Protocol

from plugwright.errors import DriverGone
from plugwright.plugins.nvidia.driver import EventKind, EventSet, GpuDriver, GpuEvent
from plugwright.plugins.nvidia.nvml_library import NvmlLibrary
from plugwright.system.cpython import start_thread

__all__ = ["EventListener", "EventThread", "NvmlEvents"]

_NO_INSTANCE = 0xFFFFFFFF
_XID, _DOUBLE_BIT_ECC, _MIG = 0x8, 0x2, 0x100
_OTHERS = 0x400 | 0x800 | 0x1000 | 0x2000 | 0x4000 | 0x8000  # rows retired, poison, unavailable, recovery action
_REGISTERED = _XID | _DOUBLE_BIT_ECC | _MIG | _OTHERS
_KINDS: Mapping[int, EventKind] = {
    _XID: EventKind.XID,
    _DOUBLE_BIT_ECC: EventKind.ECC,
    _MIG: EventKind.MIG_CHANGED,
}


class EventListener(Protocol):
    """Its methods are called in the event loop, except `clock`."""

    @property
    def clock(self) -> Callable[[], float]: ...

    def on_registered(self, thread: "EventThread", watched: frozenset[str], unwatched: Mapping[str, str]) -> None: ...

    def on_event(self, thread: "EventThread", event: GpuEvent, at: float) -> None:
        """`at`: when the thread received it."""
        ...

    def on_lost(self, thread: "EventThread", error: Exception) -> None:
        """Reports the end of this thread's events."""
        ...


class EventThread:
    """Waits for the events of some GPUs.

    NVML's wait cannot be interrupted: after `stopped`, a thread ends within `wait_limit` seconds. Until then it delays
    nothing, not even the end of the process.
    """

    def __init__(self, driver: GpuDriver, uuids: tuple[str, ...], listener: EventListener, wait_limit: float) -> None:
        self.stopped = False
        self._driver, self._uuids, self._listener, self._wait_limit = driver, uuids, listener, wait_limit
        self._loop = asyncio.get_running_loop()

    def start(self) -> None:
        start_thread("nvidia events", self._run)

    def _run(self) -> None:
        """Reports whatever ends the thread, because without a receiver of events, health is not watched."""
        try:
            events = self._driver.events(self._uuids)
            try:
                self._receive(events)
            finally:
                events.close()
        except Exception as error:  # noqa: BLE001  an error of the driver's library; the listener interprets it
            self._call(partial(self._listener.on_lost, self, error))

    def _receive(self, events: EventSet) -> None:
        watched = frozenset(events.watched)
        self._call(partial(self._listener.on_registered, self, watched, dict(events.unwatched)))
        while watched and not self.stopped:
            event = events.wait(self._wait_limit)
            if event is not None:
                self._call(partial(self._listener.on_event, self, event, self._listener.clock()))

    def _call(self, function: Callable[[], None]) -> None:
        with suppress(RuntimeError):  # the loop ended while the thread waited
            self._loop.call_soon_threadsafe(self._handle, function)

    def _handle(self, function: Callable[[], None]) -> None:
        """Handles an event. A failure ends the thread: another thread registers and the GPUs are read again."""
        try:
            function()
        except Exception as error:  # noqa: BLE001  one event
            self._listener.on_lost(self, error)
            self.stopped = True


class NvmlEvents:
    """An `EventSet`. It is a user of the library, which therefore stays loaded while a thread waits in it."""

    def __init__(self, library: NvmlLibrary, uuids: tuple[str, ...]) -> None:
        self.watched: set[str] = set()
        self.unwatched: dict[str, str] = {}
        self._library = library
        self._calls = library.acquire()
        try:
            self._set = self._calls.required("nvmlEventSetCreate")
            for uuid in uuids:
                self._register(uuid)
        except BaseException:
            library.release()
            raise

    def wait(self, seconds: float) -> GpuEvent | None:
        data = self._calls.wait(self._set, int(seconds * 1000))
        return None if data is None else self._event(data)

    def close(self) -> None:
        with suppress(DriverGone):  # which has freed the set
            self._calls.optional("nvmlEventSetFree", self._set)
        self._library.release()

    def _register(self, uuid: str) -> None:
        calls = self._calls
        calls.faults.clear()
        handle = calls.optional("nvmlDeviceGetHandleByUUID", uuid)
        types = (calls.optional("nvmlDeviceGetSupportedEventTypes", handle) or 0) & _REGISTERED if handle else 0
        if types:
            calls.optional("nvmlDeviceRegisterEvents", handle, types, self._set)
        if calls.fault or not handle:
            self.unwatched[uuid] = calls.fault or "not found"
        elif types and not calls.unsupported:
            self.watched.add(uuid)

    def _event(self, data: Any) -> GpuEvent:
        self._calls.faults.clear()
        uuid = self._calls.optional("nvmlDeviceGetUUID", data.device) or ""
        kind = _KINDS.get(int(data.eventType), EventKind.RECOVERY)
        instances = [
            None if instance == _NO_INSTANCE else int(instance)
            for instance in (data.gpuInstanceId, data.computeInstanceId)
        ]
        return GpuEvent(kind, uuid, int(data.eventData) if kind is EventKind.XID else 0, *instances)
