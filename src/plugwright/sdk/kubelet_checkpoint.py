"""The kubelet's checkpoint as the daemon reads it: for all resources at once, in a thread, and again when it changed.

The file grows with the pods of the node, a megabyte for two hundred containers, and every resource asks for its part of
it. Its format is `protocol.checkpoint`.
"""

import asyncio
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec

from plugwright.protocol import checkpoint
from plugwright.protocol.checkpoint import PodDevicesEntry
from plugwright.system.blocking import BlockingCalls

__all__ = ["Held", "KubeletCheckpoint"]

Held = Mapping[str, tuple[int, ...]]  # device id → NUMA nodes
_NOTHING: Held = {}
_WRITE_DELAY = 1.0  # seconds within which a kubelet has written its checkpoint after a list


class _File(msgspec.Struct, frozen=True):
    """What one file held; the kubelet replaces it as a whole, so another file has another identity."""

    identity: tuple[int, ...] = ()
    entries: tuple[PodDevicesEntry, ...] = ()
    held: Mapping[str, Held] = {}
    registered: Mapping[str, Sequence[str] | None] = {}


class KubeletCheckpoint:
    def __init__(self, path: Path, limit: float) -> None:
        self._path = path
        self._latest = _File()
        self._reads = BlockingCalls(f"read of {path}", limit)

    async def held(self, resource: str) -> Held:
        """The devices of `resource` that are allocated to containers, with their NUMA nodes."""
        return (await self._newest()).held.get(resource, _NOTHING)

    async def entries(self) -> Sequence[PodDevicesEntry]:
        """What is stored for the containers that hold devices of any resource."""
        return (await self._newest()).entries

    async def registered(self) -> Mapping[str, Sequence[str] | None]:
        """The Healthy devices of each resource, as the kubelet has them from the latest list."""
        return (await self._newest()).registered

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
        return await self._reads.join(self._read)

    def _read(self) -> _File:
        self._latest = _read(self._path, self._latest)
        return self._latest


def _read(path: Path, latest: _File) -> _File:
    try:
        with path.open("rb") as file:
            status = os.fstat(file.fileno())
            identity = (status.st_dev, status.st_ino, status.st_mtime_ns, status.st_size)
            if identity == latest.identity:
                return latest
            content = checkpoint.decode(file.read())
            held = checkpoint.held_by_resource(content)
            return _File(identity, content.entries or (), held, content.registered or {})
    except FileNotFoundError:
        if not path.parent.is_dir():
            raise
        return _File()  # a kubelet writes none at its start (4.31)
