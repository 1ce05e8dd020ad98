"""The stored memory of how hardware was last offered: shows changes after a restart, and our offers to other releases.

Each release has a file in `offers` of the node's directory. Earlier versions stored `offers.json` in the directory of
the release: it is read while the new file does not exist, and removed once it does.
"""

import asyncio
import logging
from collections.abc import Mapping
from pathlib import Path

from plugwright.errors import PlugwrightError
from plugwright.sdk.holdings.records import Memory
from plugwright.sdk.settings import Settings
from plugwright.system import files
from plugwright.system.blocking import BlockingCalls
from plugwright.system.latest import Latest
from plugwright.system.log_once import LogOnce
from plugwright.system.state_file import JsonFormat, StateFile, StateFileOptions
from plugwright.text import clean

__all__ = ["OfferMemory"]

logger = logging.getLogger(__name__)

_DIRECTORY = "offers"
_EARLIER = "offers.json"
_LIMIT = 5.0  # seconds
_FORMAT = JsonFormat(Memory, 1, indent=None)


class OfferMemory:
    """Keeps nothing without a state directory. `is_written` is False until the present offers are on disk."""

    def __init__(self, settings: Settings) -> None:
        self.is_written = Latest(value=True)
        self.directory: Path | None = None
        self._file: StateFile[Memory] | None = None
        self._earlier: Path | None = None
        if settings.state_dir is not None and settings.node_directory is not None:
            self.directory = settings.node_directory / _DIRECTORY
            name = settings.release.replace("/", "_")  # no name in a release has this character
            self._file = StateFile(self.directory / f"{name}.json", _FORMAT)
            self._earlier = settings.state_dir / _EARLIER
        self._disk = BlockingCalls("memory of offers", _LIMIT)
        self._problems, self._turn = LogOnce(logger), asyncio.Lock()
        self._on_disk: Memory | None = None
        self._others: dict[str, tuple[tuple[int, ...], Memory]] = {}  # with the identity of each file

    @property
    def is_kept(self) -> bool:
        return self._file is not None

    async def read(self) -> Memory | None:
        """The memory of an earlier run; None if there is none, or if it cannot be read, which is logged."""
        if self._file is None:
            return None
        try:
            self._on_disk = await self._disk.run(self._read)
        except (OSError, PlugwrightError) as error:
            facts = {"path": str(self._file.path), "error": clean(error)}
            logger.warning("how devices were last offered is not known", extra=facts)
        return self._on_disk

    async def write(self, memory: Memory) -> None:
        """Returns when the memory is on disk or cannot be written: allocations do not wait for a broken disk."""
        file = self._file
        async with self._turn:  # an earlier memory must not replace a later one
            await self._replace(file, memory)

    async def _replace(self, file: StateFile[Memory] | None, memory: Memory) -> None:
        if file is not None and memory != self._on_disk:
            self.is_written.publish_if_changed(value=False)
            try:
                await self._disk.run(lambda: self._write(file, memory))
                self._on_disk = memory
                self._problems.recovered(_DIRECTORY)
            except (OSError, PlugwrightError) as error:
                facts = {"path": str(file.path), "error": clean(error)}
                text = "how devices are offered cannot be written"
                self._problems.error(text, clean(error), key=_DIRECTORY, extra=facts)
        self.is_written.publish_if_changed(value=True)

    def others(self) -> Mapping[str, Memory]:
        """The memories of other releases, by release; an unreadable file is logged once and omitted. Blocks."""
        if self.directory is None or self._file is None:
            return {}
        found = {}
        for path in sorted(self.directory.glob("*.json")):
            if path != self._file.path:
                memory = self._other(path)
                if memory is not None:
                    found[path.stem] = memory
        if self._on_disk is not None and not self._file.path.exists():
            self._on_disk = None  # lost: the next change writes it again
        return found

    def _other(self, path: Path) -> Memory | None:
        try:
            status = path.stat()
            identity = (status.st_ino, status.st_mtime_ns, status.st_size)
            known = self._others.get(path.stem)
            if known is None or known[0] != identity:
                content = StateFile(path, _FORMAT, StateFileOptions(set_aside=False)).read()
                if content is None:
                    return None
                known = self._others[path.stem] = identity, content
        except (OSError, PlugwrightError) as error:
            facts = {"path": str(path), "error": clean(error)}
            self._problems.warning("what another release offers is not known", clean(error), key=path, extra=facts)
            return None
        self._problems.recovered(path)
        return known[1]

    def _read(self) -> Memory | None:
        assert self._file is not None
        memory = self._file.read()
        if memory is None and self._earlier is not None:
            memory = StateFile(self._earlier, _FORMAT).read()
        return memory

    def _write(self, file: StateFile[Memory], memory: Memory) -> None:
        file.change(lambda _: memory)
        if self._earlier is not None:
            files.remove(self._earlier)
            self._earlier = None
