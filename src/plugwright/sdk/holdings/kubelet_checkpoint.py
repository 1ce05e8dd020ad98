"""The kubelet's checkpoint as the ledger reads it: for all resources at once, in a thread, only after changes.

The file grows with the pods of the node, a megabyte for two hundred containers. Its format is `protocol.checkpoint`.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from plugwright.errors import CheckpointCorrupt, PlugwrightError
from plugwright.protocol import checkpoint, messages
from plugwright.protocol.checkpoint import PodDevicesEntry
from plugwright.sdk.holdings.overlaps import Name
from plugwright.sdk.holdings.records import PodRecord
from plugwright.system import files
from plugwright.system.blocking import BlockingCalls

__all__ = ["CheckpointContent", "Held", "KubeletCheckpoint"]

Held = Mapping[str, tuple[int, ...]]  # device id → NUMA nodes
_LARGEST = 8 * 2**20  # bytes, for 1,600 containers; decoding needs twelve times as much memory
_WRITE_DELAY = 1.0  # seconds after a list within which a kubelet has written its checkpoint


class CheckpointContent(msgspec.Struct, frozen=True):
    """The content of one file; the kubelet replaces the file atomically, so each version has its own identity.

    `written` is in seconds since the epoch, and 0 if there is no file.
    """

    identity: tuple[int, ...] = ()
    entries: tuple[PodDevicesEntry, ...] = ()
    held: Mapping[str, Held] = {}
    records: Mapping[Name, tuple[PodRecord, ...]] = {}
    written: float = 0.0
    registered: Mapping[str, Sequence[str] | None] = {}  # Healthy devices by resource, from the latest list


class KubeletCheckpoint:
    def __init__(self, path: Path, limit: float) -> None:
        self._path = path
        self._latest = CheckpointContent()
        self._reads = BlockingCalls(f"read of {path}", limit)

    async def rewritten(self, resend: Callable[[], None]) -> None:
        """Makes the kubelet write the file, by sending a device list again.

        The kubelet does not write it when it frees a device (3.60), but after every device list (4.31).
        """
        resend()
        await asyncio.sleep(_WRITE_DELAY)

    async def read(self) -> CheckpointContent:
        """The file's content. OSError or CheckpointCorrupt if unreadable, FileNotFoundError without its directory.

        Only one thread reads at a time, so that threads do not accumulate on a disk that hangs.
        """
        return await self._reads.join(self._read)

    def _read(self) -> CheckpointContent:
        self._latest = _read(self._path, self._latest)
        return self._latest


def _read(path: Path, latest: CheckpointContent) -> CheckpointContent:
    try:
        status = path.stat()  # a file that replaces this one before it is read is read again
        identity = (status.st_dev, status.st_ino, status.st_mtime_ns, status.st_size)
        if identity == latest.identity:
            return latest
        content = checkpoint.decode(_bounded(path))
        entries, held = content.entries or (), checkpoint.held_by_resource(content)
        return CheckpointContent(
            identity, entries, held, _records(entries), status.st_mtime_ns / 1e9, content.registered or {}
        )
    except FileNotFoundError:
        if not path.parent.is_dir():
            raise
        return CheckpointContent()  # a kubelet writes none when it starts (4.31)


def _bounded(path: Path) -> bytes:
    try:
        return files.read(path, _LARGEST)
    except ValueError as error:
        raise CheckpointCorrupt(str(error)) from error


def _records(entries: Iterable[PodDevicesEntry]) -> dict[Name, tuple[PodRecord, ...]]:
    records: dict[Name, tuple[PodRecord, ...]] = {}
    for entry in entries:
        record = PodRecord(entry.pod_uid, entry.container)
        with suppress(PlugwrightError):  # another plugin's answer that cannot be decoded
            answer = messages.decode(entry.answer or b"")
            nodes = tuple(node.host_path for node in answer.nodes)
            values = (value for text in answer.env.values() for value in text.split(","))
            names = (*(device.rpartition("=")[2] for device in answer.cdi), *filter(None, values))
            record = PodRecord(entry.pod_uid, entry.container, nodes, names)
        for device_id in {key for device_ids in (entry.devices or {}).values() for key in device_ids or ()}:
            name = entry.resource, device_id
            records[name] = (*records.get(name, ()), record)
    return records
