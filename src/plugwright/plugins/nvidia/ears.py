"""A thread that waits for what happens to GPUs, and tells it to somebody in the event loop."""

import asyncio
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Protocol

from plugwright.plugins.nvidia.gpus import Driver, DriverGone, Event

__all__ = ["Ear", "Listener"]


class Listener(Protocol):
    """Whoever is told; always in the event loop."""

    def listening(self, ear: "Ear", watched: frozenset[str], unwatched: Mapping[str, str]) -> None: ...

    def heard(self, ear: "Ear", event: Event) -> None: ...

    def deafened(self, ear: "Ear", why: str) -> None: ...


class Ear:
    """NVIDIA's library cannot be woken: a thread that is not needed any more is left behind, and ends within `patience`
    seconds. It holds nobody up meanwhile, not even the end of the process.
    """

    def __init__(self, driver: Driver, uuids: tuple[str, ...], listener: Listener, patience: float) -> None:
        self.left = False
        self._driver, self._uuids, self._listener, self._patience = driver, uuids, listener, patience
        self._loop = asyncio.get_running_loop()

    def start(self) -> None:
        threading.Thread(target=self._work, name="nvidia events", daemon=True).start()

    def _work(self) -> None:
        try:
            events = self._driver.events(self._uuids)
        except DriverGone as error:
            self._tell(partial(self._listener.deafened, self, str(error)))
            return
        watched = frozenset(events.watched)
        self._tell(partial(self._listener.listening, self, watched, dict(events.unwatched)))
        try:
            while watched and not self.left:
                event = events.wait(self._patience)
                if event is not None:
                    self._tell(partial(self._listener.heard, self, event))
        except DriverGone as error:
            self._tell(partial(self._listener.deafened, self, str(error)))
        finally:
            events.close()

    def _tell(self, news: Callable[[], None]) -> None:
        with suppress(RuntimeError):  # the loop ended while the thread waited
            self._loop.call_soon_threadsafe(news)
