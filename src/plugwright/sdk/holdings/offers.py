"""The stored memory of how hardware was last offered: shows changes after a restart, and our offers to other releases.

Each release has a file in `offers` of the node's directory. While two of its processes run, as during a rolling update
with maxSurge, each has its own file and treats the other as a neighbour; the next start joins their files. Earlier
versions stored `offers.json` in the directory of the release: it is read while the new file does not exist, and
removed once it does.
"""

import asyncio
import fcntl
import logging
import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path

from msgspec.structs import replace

from plugwright.errors import PlugwrightError, StateFileDamaged
from plugwright.sdk.holdings.neighbours import SIBLING
from plugwright.sdk.holdings.overlaps import Name, Offer
from plugwright.sdk.holdings.records import Memory
from plugwright.sdk.ownership import owner_file
from plugwright.sdk.serve_settings import ServeMode
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
_WRITTEN_LIMIT = 1.0  # seconds that an Allocate waits until the memory of its offer is stored
_MOST_PROCESSES = 8  # of one release at once; more share the first file
_FORMAT = JsonFormat(Memory, 1, indent=None)


class OfferMemory:
    """Keeps nothing without a state directory. `is_written` is False until the present offers are on disk.

    `outdated` are earlier offers that are still on disk because the present ones cannot be written: the next run would
    trust them.
    """

    def __init__(self, settings: Settings) -> None:
        self.is_written = Latest(value=True)
        self.outdated: Memory | None = None
        self.directory: Path | None = None
        self._file: StateFile[Memory] | None = None
        self._earlier: Path | None = None
        if settings.state_dir is not None and settings.node_directory is not None:
            self.directory = settings.node_directory / _DIRECTORY
            self._name = settings.release.replace("/", "_")  # no name in a release has this character
            self._file = StateFile(self.directory / f"{self._name}.json", _FORMAT)
            self._earlier = settings.state_dir / _EARLIER
        self._disk = BlockingCalls("memory of offers", _LIMIT)
        self._problems, self._turn = LogOnce(logger), asyncio.Lock()
        self._on_disk: Memory | None = None
        self._losses = 0  # number of times that our file was missing or damaged
        self._others: dict[str, tuple[tuple[int, ...], Memory]] = {}  # with the identity of each file
        self._seen: tuple[int, ...] = ()  # identity of our own file
        self._lock: int | None = None  # descriptor of the lock of our file
        self._left: list[Path] = []  # files of processes of this release that have ended

    @property
    def is_kept(self) -> bool:
        return self._file is not None

    def was_served(self, resource: str) -> bool:
        """Whether a plugwright daemon has ever served the resource on this node."""
        return self.directory is not None and owner_file(self.directory.parent, resource).exists()

    async def read(self) -> Memory | None:
        """The memory of an earlier run; None if there is none, or if it cannot be read, which is logged."""
        if self._file is None:
            return None
        try:
            return await self._disk.run(self._read)
        except (OSError, PlugwrightError) as error:
            facts = {"path": str(self._file.path), "error": clean(error)}
            logger.warning("how devices were last offered is not known", extra=facts)
            return None

    async def write(self, memory: Memory) -> bool:
        """Returns whether the memory is on disk; does not wait for a broken disk."""
        file = self._file
        async with self._turn:  # an earlier memory must not replace a later one
            return await self._replace(file, memory)

    async def _replace(self, file: StateFile[Memory] | None, memory: Memory) -> bool:
        is_written = True
        if memory == self._on_disk:
            self.outdated = None  # the offers are again those on disk
        elif file is not None:
            self.is_written.publish_if_changed(value=False)
            losses = self._losses
            try:
                await self._disk.run(lambda: self._write(file, memory))
                self._on_disk = memory if self._losses == losses else None  # lost meanwhile: it is written again
                self.outdated = None
                self._problems.recovered(_DIRECTORY)
            except (OSError, PlugwrightError) as error:
                facts = {"path": str(file.path), "error": clean(error)}
                text = "how devices are offered cannot be written"
                self._problems.error(text, clean(error), key=_DIRECTORY, extra=facts)
                is_written, self.outdated = False, self._on_disk
        self.is_written.publish_if_changed(value=True)
        return is_written

    async def written(self) -> None:
        """Returns when the present offers are on disk, so that a later run does not trust older ones."""
        if not self.is_written.value:
            await asyncio.wait_for(self.is_written.until(bool), _WRITTEN_LIMIT)

    def unrecorded(self, offers: Mapping[Name, Offer]) -> set[Name]:
        """The present offers that cannot be written, and of which earlier ones are on disk."""
        if self.outdated is None:
            return set()
        recorded = {offer.name: offer for offer in self.outdated.offers}
        return {name for name, offer in offers.items() if offer != recorded.get(name)}

    async def read_others(self) -> Mapping[str, Memory]:
        """`others` in a thread. OSError or PlugwrightError."""
        return await self._disk.run(self.others)

    def others(self) -> Mapping[str, Memory]:
        """The memories of other releases, by release; an unreadable file is logged once and omitted. Blocks."""
        if self.directory is None or self._file is None:
            return {}
        found = {}
        for path in sorted(self.directory.glob("*.json")):
            if path != self._file.path:
                memory = self._other(path)
                if memory is not None:
                    found[f"{SIBLING}{path.stem}" if self._is_of_release(path) else path.stem] = memory
        if not self._is_there():
            self._losses, self._on_disk = self._losses + 1, None  # it is written again
        return found

    def _is_there(self) -> bool:
        """Whether this release's file is readable."""
        assert self._file is not None
        try:
            status = self._file.path.stat()
            if (identity := (status.st_ino, status.st_mtime_ns, status.st_size)) != self._seen:
                StateFile(self._file.path, _FORMAT, StateFileOptions(set_aside=False)).read()
                self._seen = identity
        except (OSError, PlugwrightError):
            return False
        return True

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

    def may_have_sibling(self) -> bool:
        """Whether another process of the release can be running; without a state directory that is not known."""
        own = self._file
        return own is None or any(path != own.path and _is_taken(path) for path in self._paths())

    def close(self) -> None:
        """Another process of the release may continue the file."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _read(self) -> Memory | None:
        """Our own file, joined with those of other processes of the release."""
        assert self.directory is not None
        file = self._file = StateFile(self._taken_path(), _FORMAT)
        memory = self._on_disk = file.read()
        if memory is None and self._earlier is not None:
            memory = StateFile(self._earlier, _FORMAT).read()
        dated = [] if memory is None else [(_written(file.path), memory)]
        for path in self.directory.glob("*.json"):
            if path != file.path and self._is_of_release(path) and (other := self._other(path)) is not None:
                dated.append((_written(path), other))
                if _is_free(path):
                    self._left.append(path)
        return _joined(memory for _, memory in sorted(dated, key=lambda pair: -pair[0]))

    def _write(self, file: StateFile[Memory], memory: Memory) -> None:
        with suppress(StateFileDamaged):  # it has been set aside
            file.read()
        file.change(lambda _: memory)
        if self._earlier is not None:
            files.remove(self._earlier)
            self._earlier = None
        while self._left:
            if _is_free(path := self._left.pop()):
                files.remove(path)

    def _is_of_release(self, path: Path) -> bool:
        return path.stem.partition(SIBLING)[0] == self._name

    def _taken_path(self) -> Path:
        """The first file of the release that no other process has; it is ours until `close`."""
        assert self.directory is not None
        self.close()
        with suppress(OSError):  # without a lock, as on a read-only disk, all processes have the first file
            self.directory.mkdir(mode=0o755, parents=True, exist_ok=True)
        for path in self._paths():
            self._lock = _locked(path)
            if self._lock is not None:
                return path
        return self._paths()[0]

    def _paths(self) -> list[Path]:
        assert self.directory is not None
        first = self.directory / f"{self._name}.json"
        return [first, *(first.with_stem(f"{self._name}{SIBLING}{n}") for n in range(1, _MOST_PROCESSES))]


def _locked(path: Path) -> int | None:
    """The descriptor of the lock of a process's file; None if another process has it, or it cannot be locked."""
    try:
        descriptor = os.open(_lock_of(path), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        return None
    return descriptor


def _lock_of(path: Path) -> Path:
    return path.with_name(f".{path.stem}.lock")


def _is_taken(path: Path) -> bool:
    return _lock_of(path).exists() and not _is_free(path)


def _is_free(path: Path) -> bool:
    """Whether the process that wrote the file has ended."""
    descriptor = _locked(path)
    if descriptor is not None:
        os.close(descriptor)
    return descriptor is not None


def _written(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except FileNotFoundError:
        return 0.0


def _joined(memories: Iterable[Memory]) -> Memory | None:
    """What processes of one release remember, the latest first; None if they remember nothing."""
    joined: Memory | None = None
    for memory in memories:
        if joined is None:
            joined = memory
            continue
        apis = dict(joined.resources)
        for resource, (api, driver) in memory.resources.items():
            known = apis.get(resource, (api, driver))
            apis[resource] = known if known[0] is api else (ServeMode.BOTH, known[1])
        offers = {offer.name: offer for offer in (*memory.offers, *joined.offers)}
        claimed = tuple(sorted({*joined.claimed, *memory.claimed}))
        joined = replace(joined, resources=apis, offers=tuple(offers.values()), claimed=claimed)
    return joined
