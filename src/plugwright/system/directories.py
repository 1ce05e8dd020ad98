"""Temporary directories with the lifetime of their process, and paths short enough for unix sockets.

A directory's owner holds a lock in it, so the next process can remove the directory of a killed process. They are in
memory if possible, because temporary files need no disk.
"""

import fcntl
import hashlib
import os
import secrets
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from plugwright.system import sockets

__all__ = ["linked_directory", "short_directory"]

_PARENTS = (Path("/dev/shm"), Path("/tmp"))
_PREFIX = "pw-"
_LOCK = ".lock"
_LINK = "link"
_NAME_LENGTH = 8


@contextmanager
def linked_directory(target: Path, longest_name: int) -> Iterator[Path]:
    """`target`, or a short link to it if a socket name of `longest_name` bytes would not fit; creates `target`."""
    target.mkdir(parents=True, exist_ok=True)
    if sockets.fits(target, longest_name):
        yield target
        return
    # The same name each time: programs can find the path again after a restart.
    name = hashlib.sha256(os.fsencode(target.absolute())).hexdigest()[:_NAME_LENGTH]
    with short_directory(name=name) as directory:
        link = directory / _LINK
        link.symlink_to(target.absolute(), target_is_directory=True)
        yield link


@contextmanager
def short_directory(parent: Path | None = None, name: str = "") -> Iterator[Path]:
    """A directory of mode 0700 while inside, with this name unless it is in use."""
    parent = parent or _short_parent()
    _remove_abandoned(parent)
    unused = secrets.token_hex(_NAME_LENGTH // 2)
    made = parent / f".{_PREFIX}{unused}"
    made.mkdir(mode=0o700)
    lock = os.open(made / _LOCK, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        # Only now: no other process sees it without its lock and takes it for abandoned.
        made = _renamed(made, [parent / f"{_PREFIX}{candidate}" for candidate in (name, unused) if candidate])
        yield made
    finally:
        shutil.rmtree(made, ignore_errors=True)
        os.close(lock)


def _renamed(directory: Path, candidates: list[Path]) -> Path:
    """Renames it to the first free name; the last name always is."""
    for path in candidates[:-1]:
        with suppress(OSError):
            return directory.rename(path)
    return directory.rename(candidates[-1])


def _short_parent() -> Path:
    return next((parent for parent in _PARENTS if os.access(parent, os.W_OK | os.X_OK)), Path(tempfile.gettempdir()))


def _remove_abandoned(parent: Path) -> None:
    for lock in parent.glob(f"{_PREFIX}*/{_LOCK}"):
        with suppress(OSError):  # another user's, or removed in the meantime
            _remove_unless_locked(lock)


def _remove_unless_locked(lock: Path) -> None:
    descriptor = os.open(lock, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(lock.parent, ignore_errors=True)
    finally:
        os.close(descriptor)
