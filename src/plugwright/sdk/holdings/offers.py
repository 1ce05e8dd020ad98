"""The memory of how hardware was last offered, in the state directory, so that a restart knows what has changed."""

import logging
from pathlib import Path

from plugwright.errors import PlugwrightError
from plugwright.sdk.holdings.records import Memory
from plugwright.system.blocking import BlockingCalls
from plugwright.system.latest import Latest
from plugwright.system.log_once import LogOnce
from plugwright.system.state_file import JsonFormat, StateFile
from plugwright.text import clean

__all__ = ["OfferMemory"]

logger = logging.getLogger(__name__)

_FILE = "offers.json"
_LIMIT = 5.0  # seconds


class OfferMemory:
    """`directory` is None if nothing is kept. `is_written` is False while what is offered is not on disk yet."""

    def __init__(self, directory: Path | None) -> None:
        self.is_written = Latest(value=True)
        self._file = None
        if directory is not None:
            self._file = StateFile(directory / _FILE, JsonFormat(Memory, 1, indent=None))
        self._disk = BlockingCalls("memory of offers", _LIMIT)
        self._problems = LogOnce(logger)
        self._on_disk: Memory | None = None

    @property
    def is_kept(self) -> bool:
        return self._file is not None

    async def read(self) -> Memory | None:
        """What an earlier run remembered; None if there is nothing, or it cannot be read, which is logged."""
        if self._file is None:
            return None
        try:
            self._on_disk = await self._disk.run(self._file.read)
        except (OSError, PlugwrightError) as error:
            facts = {"path": str(self._file.path), "error": clean(error)}
            logger.warning("how devices were last offered is not known", extra=facts)
        return self._on_disk

    async def write(self, memory: Memory) -> None:
        """Returns when it is on disk, or cannot be: allocations do not wait for a broken disk."""
        file = self._file
        if file is not None and memory != self._on_disk:
            self.is_written.publish_if_changed(value=False)
            try:
                await self._disk.run(lambda: file.change(lambda _: memory))
                self._on_disk = memory
                self._problems.recovered()
            except (OSError, PlugwrightError) as error:
                facts = {"path": str(file.path), "error": clean(error)}
                self._problems.error("how devices are offered cannot be written", clean(error), extra=facts)
        self.is_written.publish_if_changed(value=True)
