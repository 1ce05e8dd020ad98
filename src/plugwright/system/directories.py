"""Temporary directories that live as long as their process, with paths short enough for unix sockets.

A directory's owner holds a lock in it, so the next process can remove what a killed one left. They are in memory where
possible: what does not outlive a process need not wait for a disk.
"""

import fcntl
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


@contextmanager
def linked_directory(target: Path, longest_name: int) -> Iterator[Path]:
    """`target`, or a short link to it where a socket name of `longest_name` bytes would not fit; makes `target`."""
    target.mkdir(parents=True, exist_ok=True)
    if sockets.fits(target, longest_name):
        yield target
        return
    with short_directory() as directory:
        link = directory / _LINK
        link.symlink_to(target.absolute(), target_is_directory=True)
        yield link


@contextmanager
def short_directory(parent: Path | None = None) -> Iterator[Path]:
    """A directory of mode 0700 while inside."""
    parent = parent or _short_parent()
    _remove_abandoned(parent)
    name = f"{_PREFIX}{secrets.token_hex(4)}"
    unfinished, finished = parent / f".{name}", parent / name
    unfinished.mkdir(mode=0o700)
    lock = os.open(unfinished / _LOCK, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        unfinished.rename(finished)  # only now: no other process sees it without its lock and takes it for abandoned
        yield finished
    finally:
        shutil.rmtree(finished, ignore_errors=True)
        os.close(lock)


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
