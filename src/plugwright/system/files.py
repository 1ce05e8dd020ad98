"""Atomic writes: a reader sees the old content or the new, never half of it.

A process that is killed in the middle of a write leaves its temporary file behind. Writers share a lock of the
directory, so whoever gets it alone knows that the temporary files in it are nobody's, and removes them.
"""

import fcntl
import os
import re
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

__all__ = ["FileCalls", "remove_unfinished", "write_atomically"]

# A name that begins with a dot and has no ending of its own: container runtimes and ConfigMap readers skip it.
_PREFIX = ".plugwright-"
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
    prefix: str = _PREFIX,
    calls: FileCalls = _REAL,
) -> None:
    """Replaces `path` by a file of exactly this mode, whatever the umask; its directory is made where it is missing.

    `sync` syncs the content before the name moves to it: whatever happens, the name leads to a whole file. `sync_name`
    also waits until the new name is on disk. On an error the old file stays and the temporary one, `prefix` and a
    number, is removed.
    """
    path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    data = content.encode() if isinstance(content, str) else content
    with _opened(path.parent) as directory:
        _remove_unfinished(directory, prefix)
        fcntl.flock(directory, fcntl.LOCK_SH)
        descriptor, temporary = _create(path, prefix, calls)
        try:
            _fill(descriptor, data, mode, sync, calls)
            calls.rename(temporary, path)
        except BaseException:
            with suppress(OSError):
                calls.remove(temporary)
            raise
        if sync and sync_name:
            os.fsync(directory)  # a rename is on disk only when the directory is


def remove_unfinished(directory: Path, prefix: str = _PREFIX) -> None:
    """Removes what processes left in a directory that were killed in the middle of a write."""
    with suppress(OSError), _opened(directory) as descriptor:
        _remove_unfinished(descriptor, prefix)


@contextmanager
def _opened(directory: Path) -> Iterator[int]:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _remove_unfinished(directory: int, prefix: str) -> None:
    """Leaves the directory locked for its caller alone, or everything as it is while another process writes in it."""
    temporary = re.compile(re.escape(prefix) + "[0-9]+")
    with suppress(OSError):
        fcntl.flock(directory, fcntl.LOCK_EX | fcntl.LOCK_NB)
        for name in filter(temporary.fullmatch, os.listdir(directory)):
            if stat.S_ISREG(os.stat(name, dir_fd=directory, follow_symlinks=False).st_mode):
                os.unlink(name, dir_fd=directory)


def _create(path: Path, prefix: str, calls: FileCalls) -> tuple[int, str]:
    while True:
        temporary = str(path.with_name(f"{prefix}{int.from_bytes(os.urandom(4))}"))
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
