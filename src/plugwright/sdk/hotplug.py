"""Waits for hardware to change: by the kernel's uevents, by inotify, and by a slow look now and then.

Uevents say it first; inotify sees what has no uevent (a link that udev makes later, a socket, a node made by hand); the
slow look is for what neither tells. What changed is not said: whoever waits looks at everything anew. `ears` has the
socket and the watches, which all who wait share.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from plugwright.sdk.ears import Ears
from plugwright.sdk.uevents import Uevent

__all__ = ["Hotplug", "Pace"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """Seconds. `rescan`: between slow looks; `blind`: the same where uevents cannot be heard."""

    rescan: float = 300.0
    blind: float = 30.0
    burst: float = 0.05  # news closer together than this are one
    gap: float = 1.0  # between two looks, when news do not end


class Hotplug:
    """`accept` says which uevents are of interest."""

    def __init__(
        self, accept: Callable[[Uevent], bool] = lambda event: True, ears: Ears | None = None, pace: Pace | None = None
    ) -> None:
        self._accept, self._ears, self._pace = accept, ears or Ears(), pace or Pace()
        self._changed = asyncio.Event()
        self._looked = 0.0

    def touch(self) -> None:
        """Something may have changed."""
        self._changed.set()

    def hear(self, event: Uevent) -> None:
        if self._accept(event):
            self._changed.set()

    @asynccontextmanager
    async def watching(self) -> AsyncIterator[None]:
        async with self._ears.lent_to(self):
            yield

    async def change(self, directories: Iterable[Path]) -> None:
        """Returns when something in `directories` or in the hardware may have changed since the last call returned."""
        if self._ears.follow(self, {_nearest(each) for each in directories}):
            self._changed.set()  # what came before a watch was there may have been missed
        slow = self._pace.rescan if self._ears.hears else self._pace.blind
        with suppress(TimeoutError):
            async with asyncio.timeout(slow):
                await self._changed.wait()
                await asyncio.sleep(max(self._pace.burst, self._looked + self._pace.gap - time.monotonic()))
        self._changed.clear()
        self._looked = time.monotonic()


def _nearest(directory: Path) -> Path:
    while not directory.is_dir() and directory != directory.parent:
        directory = directory.parent
    return directory
