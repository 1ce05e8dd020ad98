"""Atomic writes: a reader sees the old content or the new, never half of it."""

import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

__all__ = ["FileCalls", "write_atomically"]

_PRIVATE = 0o600
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW


@dataclass(frozen=True, slots=True)
class FileCalls:
    """The system calls of a write; a test replaces them to record, to fail, or to end the process after one."""

    open: Callable[[str, int, int], int] = os.open
    write: Callable[[int, memoryview], int] = os.write
    fsync: Callable[[int], None] = os.fsync
    close: Callable[[int], None] = os.close
    rename: Callable[[str, Path], None] = os.rename
    remove: Callable[[str], None] = os.unlink


_REAL = FileCalls()


def write_atomically(
    path: Path,
    content: bytes | str,
    *,
    mode: int = 0o644,
    sync: bool = True,
    sync_name: bool = True,
    calls: FileCalls = _REAL,
) -> None:
    """Replaces `path` by a file of exactly this mode, whatever the umask; its directory is made where it is missing.

    `sync` syncs the content before the name moves to it: whatever happens, the name leads to a whole file. `sync_name`
    also waits until the new name is on disk. On an error the old file stays and the temporary one is removed.
    """
    path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    data = content.encode() if isinstance(content, str) else content
    descriptor, temporary = _create(path, calls)
    try:
        _fill(descriptor, data, mode, sync, calls)
        calls.rename(temporary, path)
    except BaseException:
        with suppress(OSError):
            calls.remove(temporary)
        raise
    if sync and sync_name:
        _sync_directory(path.parent)


def _create(path: Path, calls: FileCalls) -> tuple[int, str]:
    # A name that begins with a dot and has no ending of its own: container runtimes and ConfigMap readers skip it. The
    # kubelet's own temporary files are named the same way.
    while True:
        temporary = str(path.with_name(f".{int.from_bytes(os.urandom(4))}"))
        with suppress(FileExistsError):
            return calls.open(temporary, _CREATE, _PRIVATE), temporary


def _fill(descriptor: int, data: bytes, mode: int, sync: bool, calls: FileCalls) -> None:
    try:
        left = memoryview(data)
        while left:
            left = left[calls.write(descriptor, left) :]
        if mode != _PRIVATE:
            os.fchmod(descriptor, mode)
        if sync:
            calls.fsync(descriptor)
    finally:
        calls.close(descriptor)


def _sync_directory(directory: Path) -> None:
    """A rename is on disk only when the directory is."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
