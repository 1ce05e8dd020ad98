"""Atomic writes (a reader sees the old content or the new), reads with a size limit, and locks.

If a process is killed during a write, its temporary file is left behind. Each writer locks its temporary file, so the
next writer can tell abandoned files and removes them.
"""

import fcntl
import os
import re
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec

from plugwright.errors import StateFileLocked

__all__ = [
    "READ_LIMIT",
    "FileCalls",
    "locked",
    "put_aside",
    "read",
    "read_pipe",
    "remove",
    "remove_unfinished",
    "write_atomically",
]

# A name with a leading dot and no extension: container runtimes and ConfigMap readers skip it.
_PREFIX = ".plugwright-"
_PRIVATE = 0o600
READ_LIMIT = 16 * 2**20  # bytes
_PIECE = 2**16
_LOCK_PAUSE = 0.005  # seconds
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW


class FileCalls(msgspec.Struct, frozen=True):
    """The system calls of a write; a test replaces them to record, to fail, or to end the process after one."""

    open: Callable[[str, int, int], int] = os.open
    write: Callable[[int, memoryview], int] = os.write
    fsync: Callable[[int], None] = os.fsync
    close: Callable[[int], None] = os.close
    rename: Callable[[str, Path], None] = os.rename
    remove: Callable[[str], None] = os.unlink


_REAL = FileCalls()


@contextmanager
def locked(path: Path, limit: float = 5.0) -> Iterator[None]:
    """While inside, no other thread or process has the lock on this directory, or on this file, made if it is missing.

    StateFileLocked if another keeps it for more than `limit` seconds.
    """
    descriptor = _open_lock(path)
    try:
        _wait_for_lock(descriptor, path, limit)
        yield
    finally:
        os.close(descriptor)


def read(path: Path, limit: int = READ_LIMIT) -> bytes:
    """The content of a regular file; ValueError for other files, and for more than `limit` bytes. OSError."""
    # Not blocking: a pipe in the place of the file must not keep its reader.
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) and not stat.S_ISDIR(status.st_mode):  # to read a directory is an OSError
            raise ValueError("it must be a regular file")
        if status.st_size > limit:
            raise ValueError(f"it must have at most {limit} bytes, got {status.st_size}")
        content = os.read(descriptor, status.st_size + 1)  # in one piece: a copy would double the memory
        return content if len(content) == status.st_size else _read_all(descriptor, limit, content)
    finally:
        os.close(descriptor)


def read_pipe(path: Path, limit: int = READ_LIMIT) -> bytes:
    """Reads a pipe until all writers have closed it; ValueError if it contains more than `limit` bytes."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return _read_all(descriptor, limit)
    finally:
        os.close(descriptor)


def _read_all(descriptor: int, limit: int, beginning: bytes = b"") -> bytes:
    content = bytearray(beginning)
    while piece := os.read(descriptor, _PIECE):
        content += piece
        if len(content) > limit:  # it grows
            raise ValueError(f"it must have at most {limit} bytes, got more")
    return bytes(content)


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
    """Replaces `path` with a file of exactly this mode, regardless of the umask; creates a missing directory.

    `sync` syncs the content before the rename, so the name always leads to a complete file. `sync_name` also waits
    until the new name is on disk. On an error the old file stays, and the temporary file (`prefix` and a number) is
    removed.
    """
    path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    remove_unfinished(path.parent, prefix)
    data = content.encode() if isinstance(content, str) else content
    descriptor, temporary = _create(path, prefix, calls)
    try:
        with _locked(descriptor):
            _fill(descriptor, data, mode, sync, calls)
            calls.rename(temporary, path)
    except BaseException:
        with suppress(OSError):
            calls.remove(temporary)
        raise
    if sync and sync_name:
        _sync_directory(path.parent)


def remove(path: Path) -> None:
    """Removes the file if it exists, and returns when the removal is on disk."""
    try:
        path.unlink()
    except FileNotFoundError:
        return
    _sync_directory(path.parent)


def put_aside(path: Path) -> Path:
    """Renames an unusable file, for an operator to inspect; returns the new path. OSError."""
    aside = path.with_name(f"{path.name}.damaged")
    path.replace(aside)
    return aside


def remove_unfinished(directory: Path, prefix: str = _PREFIX) -> None:
    """Removes temporary files of processes killed during a write."""
    temporary = re.compile(re.escape(prefix) + "[0-9]+")
    with suppress(OSError):
        for path in directory.iterdir():
            if temporary.fullmatch(path.name):
                _remove_unless_locked(path)


def _open_lock(path: Path) -> int:
    if path.is_dir():
        return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, _PRIVATE)


def _wait_for_lock(descriptor: int, path: Path, limit: float) -> None:
    """Polls instead of blocking, because a stopped process can hold the lock."""
    ends = time.monotonic() + limit
    while True:
        try:
            return fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > ends:
                raise StateFileLocked(path, limit) from None
        time.sleep(_LOCK_PAUSE)


def _remove_unless_locked(path: Path) -> None:
    with suppress(OSError):  # another user's, or being written
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        try:
            if stat.S_ISREG(os.fstat(descriptor).st_mode):
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                path.unlink()
        finally:
            os.close(descriptor)


def _create(path: Path, prefix: str, calls: FileCalls) -> tuple[int, str]:
    """A new file with a lock on it."""
    while True:
        temporary = str(path.with_name(f"{prefix}{int.from_bytes(os.urandom(4))}"))
        try:
            descriptor = calls.open(temporary, _CREATE, _PRIVATE)
        except FileExistsError:
            continue
        except OSError as error:  # with the name of the file, the same for each attempt
            raise OSError(error.errno, error.strerror, str(path)) from error
        if _lock(descriptor):
            return descriptor, temporary
        os.close(descriptor)


def _lock(descriptor: int) -> bool:
    """False if another process removed the file as abandoned before it was locked."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # a file system without locks, on which no process removes files
        return True
    return os.fstat(descriptor).st_nlink > 0


@contextmanager
def _locked(descriptor: int) -> Iterator[None]:
    """Keeps its lock while inside, although it is closed there."""
    try:
        copy = os.dup(descriptor)
    except OSError:
        os.close(descriptor)
        raise
    try:
        yield
    finally:
        os.close(copy)


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
