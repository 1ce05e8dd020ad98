"""A file on a file system that does not answer: opening it hangs until the test releases it."""

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

__all__ = ["frozen"]

_CLASS_CONTENT, _CLOEXEC, _NONBLOCK = 0x4, 0x1, 0x2
_MARK_ADD, _OPEN_PERM, _AT_FDCWD = 0x1, 0x10000, -100


@contextmanager
def frozen(path: Path) -> Iterator[None]:
    """Every open of the file waits while inside, O_NONBLOCK or not, as on a dead NFS server.

    fanotify asks this process whether the open is allowed, and this process does not answer. Closing allows it.
    """
    library = ctypes.CDLL(None, use_errno=True)
    group = library.fanotify_init(_CLASS_CONTENT | _CLOEXEC | _NONBLOCK, os.O_RDONLY)
    if group < 0:
        pytest.skip(f"needs fanotify and root: {os.strerror(ctypes.get_errno())}")
    try:
        library.fanotify_mark.argtypes = [ctypes.c_int, ctypes.c_uint, ctypes.c_uint64, ctypes.c_int, ctypes.c_char_p]
        if library.fanotify_mark(group, _MARK_ADD, _OPEN_PERM, _AT_FDCWD, os.fsencode(path)):
            pytest.skip(f"needs permission events of fanotify: {os.strerror(ctypes.get_errno())}")
        yield
    finally:
        os.close(group)
