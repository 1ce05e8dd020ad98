"""The names of our sockets, and clearing away those that a killed run left behind."""

import os
import re
import socket
import time
import zlib
from contextlib import suppress
from pathlib import Path

from plugwright.errors import PathTooLong
from plugwright.protocol import paths

__all__ = ["fixed_name", "fresh_name", "is_dead", "remove_stale"]

_PREFIX = "plugwright-"
_NEWBORN = 1.0  # a socket younger than this may belong to someone who is about to listen


def fresh_name(resource: str) -> str:
    """A name no socket had before: a kubelet may still be busy with the last one."""
    return f"{_PREFIX}{_stem(resource)}-{os.urandom(3).hex()}.sock"


def fixed_name(resource: str) -> str:
    """The one name this resource has in plugins_registry."""
    return f"{_PREFIX}{_stem(resource)}.sock"


def _stem(resource: str) -> str:
    """Readable, and different for different resources, within the room that the kernel leaves."""
    readable = re.sub(r"[^a-z0-9]+", "_", resource.lower())[-24:].strip("_")
    return f"{readable}-{zlib.crc32(resource.encode()):08x}"


def remove_stale(directory: Path) -> list[str]:
    """Removes sockets of ours that nobody listens on any more: what a killed run left behind."""
    removed = []
    with suppress(OSError):
        for path in sorted(directory.glob(f"{_PREFIX}*.sock")):
            if is_dead(path):
                path.unlink(missing_ok=True)
                removed.append(path.name)
    return removed


def is_dead(path: Path) -> bool:
    """Whether it is a socket that nobody listens on any more."""
    try:
        if not path.is_socket() or time.time() - path.lstat().st_ctime < _NEWBORN:
            return False
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            probe.setblocking(False)
            probe.connect(os.fspath(paths.check_socket_path(path)))
    except ConnectionRefusedError:
        return True
    except (OSError, PathTooLong):
        return False
    return False
