"""Detects the replacement of the socket directory under a running daemon, as by `kubeadm reset` and a new join.

inotify does not always report it: a mount, or a process with the deleted directory open, keeps it alive. A mount
shows the deleted directory indefinitely. Only a new container with a new mount can then see the kubelet's present
directory, so the daemon must end. Without a mount the new directory has the same path, and is watched again.
"""

import logging
import os
from pathlib import Path

import msgspec

from plugwright.errors import DirectoryReplaced
from plugwright.system.concurrency import Backoff
from plugwright.system.inotify import Directory

__all__ = ["watch_for_replacement"]

logger = logging.getLogger(__name__)

_LONGEST_LOOK = 30.0  # seconds between two checks of an empty directory


class _Look(msgspec.Struct, frozen=True):
    """The observed state of the directory."""

    inode: int = 0  # 0: there is no directory
    is_deleted: bool = False
    is_empty: bool = True


async def watch_for_replacement(directory: Directory, first_look: float = 0.1) -> None:
    """Runs forever, or raises `DirectoryReplaced`.

    Checks after every event, and periodically while the directory is empty, because files are removed before it is.
    """
    backoff, inode = Backoff(first_look, max(first_look, _LONGEST_LOOK)), 0
    while True:
        seen = directory.changed.count
        found = _look(directory.path)
        if found.is_deleted:
            raise DirectoryReplaced(str(directory.path))
        if inode and found.inode not in (0, inode):
            logger.warning("directory of the sockets was replaced", extra={"directory": str(directory.path)})
            directory.watch_again()
            seen = directory.changed.count
        inode = found.inode or inode
        if not found.is_empty:
            backoff.reset()
        await directory.changed.wait(seen, backoff.delay() if found.is_empty else None)


def _look(path: Path) -> _Look:
    try:
        status = path.stat()
        with os.scandir(path) as entries:
            return _Look(status.st_ino, status.st_nlink == 0, next(entries, None) is None)
    except OSError:
        return _Look()
