"""A bounded, append-only file of records, one JSON line each: cheap to append to and safe to kill.

At half the limit the file is renamed, replacing the previously renamed file, so the newest half is always kept. Readers
skip lines cut off by a crash or written by another program. The methods block: on an event loop, call them through
`BlockingCalls`.
"""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Generic, TypeVar

import msgspec

__all__ = ["Journal"]

T = TypeVar("T")
_LINE_LIMIT = 64 * 1024  # bytes; a longer line is not ours


class Journal(Generic[T]):
    """Records of the type `kind`, in at most `limit` bytes; only one process appends."""

    def __init__(self, path: Path, kind: type[T], limit: int) -> None:
        self.path, self._half = path, limit // 2
        self._earlier = path.with_name(f"{path.name}.1")
        self._encoder, self._decoder = msgspec.json.Encoder(), msgspec.json.Decoder(kind)

    def append(self, records: Sequence[T]) -> None:
        """Raises OSError. Not synced: a power failure loses the last seconds."""
        lines = b"".join(self._encoder.encode(record) + b"\n" for record in records)
        self.path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
        descriptor = os.open(self.path, flags, 0o600)
        try:
            size = os.fstat(descriptor).st_size
            if size and os.pread(descriptor, 1, size - 1) != b"\n":  # a write was torn
                lines = b"\n" + lines
            with os.fdopen(descriptor, "ab", closefd=False) as file:
                file.write(lines)
        finally:
            os.close(descriptor)
        if size + len(lines) >= self._half:
            self.path.replace(self._earlier)

    def records(self) -> Iterator[T]:
        """Every readable record, from the oldest to the newest; one line is in memory at a time. OSError."""
        for path in (self._earlier, self.path):
            try:
                descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
            except FileNotFoundError:
                continue
            with os.fdopen(descriptor, "rb") as file:
                while line := file.readline(_LINE_LIMIT):
                    try:
                        yield self._decoder.decode(line)
                    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
                        continue
