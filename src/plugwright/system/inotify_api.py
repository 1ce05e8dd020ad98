"""The kernel's inotify(7), through the C library: one instance, its watches and its events.

Python has no module for it. `inotify` shares an instance among all watchers of directories.
"""

import ctypes
import os
import struct
from enum import IntFlag
from pathlib import Path

import msgspec

__all__ = ["Event", "Inotify", "Mask"]

_HEAD = struct.Struct("iIII")  # watch, mask, cookie, length of the name
_BUFFER = 32_768  # octets of one read: a thousand events, or a hundred with the longest names


class Mask(IntFlag):
    CLOSE_WRITE = 0x8
    MOVED_FROM = 0x40
    MOVED_TO = 0x80
    CREATE = 0x100
    DELETE = 0x200
    DELETE_SELF = 0x400
    MOVE_SELF = 0x800
    Q_OVERFLOW = 0x4000
    IGNORED = 0x8000
    ONLYDIR = 0x1000000
    MASK_ADD = 0x20000000


class Event(msgspec.Struct, frozen=True):
    """`name` is the entry of the directory; empty for the directory itself."""

    watch: int
    mask: int
    name: str


class Inotify:
    """OSError if the kernel has no instance or no watch left."""

    def __init__(self) -> None:
        self._library = ctypes.CDLL(None, use_errno=True)
        self.fd = self._checked(self._library.inotify_init1(os.O_CLOEXEC | os.O_NONBLOCK))

    def add_watch(self, path: Path, mask: Mask) -> int:
        """The watch; the same watch for the same directory."""
        return self._checked(self._library.inotify_add_watch(self.fd, os.fsencode(path), ctypes.c_uint32(mask)), path)

    def remove_watch(self, watch: int) -> None:
        self._checked(self._library.inotify_rm_watch(self.fd, watch))

    def read(self) -> list[Event]:
        """Some of the pending events, if any."""
        try:
            data = os.read(self.fd, _BUFFER)
        except BlockingIOError:
            return []
        events, position = [], 0
        while position < len(data):
            watch, mask, _, length = _HEAD.unpack_from(data, position)
            position += _HEAD.size + length
            name = data[position - length : position].rstrip(b"\0")
            events.append(Event(watch, mask, os.fsdecode(name)))
        return events

    def close(self) -> None:
        os.close(self.fd)

    def _checked(self, result: int, path: Path | None = None) -> int:
        if result < 0:
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code), *([str(path)] if path else []))
        return result
