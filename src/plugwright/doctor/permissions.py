"""Permissions of directories, sockets and specs: whether the daemon may use them, and whether others may change them.

The chart's daemon is root without capabilities, so permissions apply to it, even if they do not apply to this program.
"""

import os
import stat
from pathlib import Path

__all__ = ["EXECUTE", "FULL", "WRITE", "is_closed", "mode_of", "other_writer"]

FULL, WRITE, EXECUTE = 0o7, 0o2, 0o1
_UNMAPPED = 65534  # an owner outside of this user namespace


def is_closed(path: Path, needed: int) -> bool:
    """Whether the permissions deny this to root, or to this user. False if `path` does not exist."""
    try:
        status = path.stat()
    except OSError:
        return False
    if _UNMAPPED in (status.st_uid, status.st_gid):
        return False
    if status.st_uid in (0, os.geteuid()):
        return status.st_mode >> 6 & needed != needed
    if status.st_gid in (0, os.getegid()):
        return status.st_mode >> 3 & needed != needed
    return status.st_mode & needed != needed


def mode_of(path: Path) -> str:
    status = path.stat()
    return f"mode {stat.S_IMODE(status.st_mode):04o} of user {status.st_uid}"


def other_writer(status: os.stat_result, usual: int) -> tuple[str, str] | None:
    """Other users who may write to a file or directory, with the command that prevents it; its `usual` mode."""
    if status.st_mode & stat.S_IWOTH:
        return "every user", f"chmod {usual:04o}"
    if status.st_uid not in (0, os.geteuid(), _UNMAPPED):
        return f"its owner, user {status.st_uid},", "chown 0:0"
    if status.st_mode & stat.S_IWGRP and status.st_gid not in (0, os.getegid(), _UNMAPPED):
        return f"group {status.st_gid}", "chmod g-w"
    return None
