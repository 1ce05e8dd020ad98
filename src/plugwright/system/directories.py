"""Directories that live as long as their process: in memory where possible, with paths short enough for sockets.

Whoever holds the lock in it is alive. What a killed process left is removed when the next one starts.
"""

import fcntl
import os
import secrets
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

__all__ = ["directory", "place"]

_MEMORY = Path("/dev/shm")
_PREFIX = "pw-"
_LOCK = ".lock"


def place() -> Path:
    """What does not outlive the cluster need not reach a disk: there every allocation would wait for it."""
    return _MEMORY if os.access(_MEMORY, os.W_OK | os.X_OK) else Path(tempfile.gettempdir())


@contextmanager
def directory(parent: Path) -> Iterator[Path]:
    _remove_remains(parent)
    name = f"{_PREFIX}{secrets.token_hex(4)}"
    unfinished, finished = parent / f".{name}", parent / name
    unfinished.mkdir(mode=0o700)
    lock = os.open(unfinished / _LOCK, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        unfinished.rename(finished)  # nobody sees it without its lock, and takes it for remains
        yield finished
    finally:
        shutil.rmtree(finished, ignore_errors=True)
        os.close(lock)


def _remove_remains(parent: Path) -> None:
    for lock in parent.glob(f"{_PREFIX}*/{_LOCK}"):
        with suppress(OSError):  # another user's, or gone in the meantime
            _remove_unless_held(lock)


def _remove_unless_held(lock: Path) -> None:
    descriptor = os.open(lock, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(lock.parent, ignore_errors=True)
    finally:
        os.close(descriptor)
