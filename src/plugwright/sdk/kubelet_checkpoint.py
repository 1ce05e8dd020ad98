"""The kubelet's checkpoint as the daemon reads it: for all resources at once, in a thread, and again when it changed.

The file grows with the pods of the node, a megabyte for two hundred containers, and every resource asks for its part of
it. Its format is `protocol.checkpoint`.
"""

import asyncio
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from plugwright.protocol import checkpoint
from plugwright.protocol.checkpoint import PodDevicesEntry
from plugwright.system.concurrency import begin_in_thread

__all__ = ["Held", "KubeletCheckpoint"]

Held = Mapping[str, tuple[int, ...]]  # device id → NUMA nodes
_NOTHING: Held = {}
_WRITE_DELAY = 1.0  # seconds within which a kubelet has written its checkpoint after a list


@dataclass(frozen=True, slots=True)
class _File:
    """What one file held; the kubelet replaces it as a whole, so another file has another identity."""

    identity: tuple[int, ...] = ()
    entries: tuple[PodDevicesEntry, ...] = ()
    held: Mapping[str, Held] = field(default_factory=dict)


class KubeletCheckpoint:
    def __init__(self, path: Path, limit: float) -> None:
        self._path, self._limit = path, limit
        self._latest = _File()
        self._reading: asyncio.Future[_File] | None = None

    async def held(self, resource: str) -> Held:
        """The devices of `resource` that are allocated to containers, with their NUMA nodes."""
        return (await self._newest()).held.get(resource, _NOTHING)

    async def entries(self) -> Sequence[PodDevicesEntry]:
        """What is stored for the containers that hold devices of any resource."""
        return (await self._newest()).entries

    async def rewritten(self, resend: Callable[[], None]) -> None:
        """Has the kubelet write the file, by a device list sent once more.

        It writes none when it frees a device (3.60), but after every device list (4.31).
        """
        resend()
        await asyncio.sleep(_WRITE_DELAY)

    async def _newest(self) -> _File:
        """OSError or CheckpointCorrupt if it cannot be read, FileNotFoundError if there is not even its directory.

        One thread reads at a time: a disk that hangs must not collect them.
        """
        reading = self._reading
        if reading is None:
            reading = self._reading = begin_in_thread("checkpoint", partial(_read, self._path, self._latest))
            reading.add_done_callback(self._end)
        done, _ = await asyncio.wait((reading,), timeout=self._limit)
        if not done:
            raise TimeoutError(f"{self._path} could not be read within {self._limit:g} s")
        return reading.result()

    def _end(self, reading: "asyncio.Future[_File]") -> None:
        self._reading = None
        if reading.exception() is None:
            self._latest = reading.result()


def _read(path: Path, latest: _File) -> _File:
    try:
        with path.open("rb") as file:
            status = os.fstat(file.fileno())
            identity = (status.st_dev, status.st_ino, status.st_mtime_ns, status.st_size)
            if identity == latest.identity:
                return latest
            content = checkpoint.decode(file.read())
            return _File(identity, content.entries or (), checkpoint.held_by_resource(content))
    except FileNotFoundError:
        if not path.parent.is_dir():
            raise
        return _File()  # a kubelet writes none at its start (4.31)
