"""How a directory of a test is removed."""

import errno
import time
from tempfile import TemporaryDirectory

__all__ = ["remove"]

_LIMIT = 10.0  # seconds


def remove(directory: "TemporaryDirectory[str]") -> None:
    """A thread that nobody waits for any longer may still write its last file there."""
    ends = time.monotonic() + _LIMIT
    while True:
        try:
            directory.cleanup()
            break
        except OSError as error:
            if error.errno != errno.ENOTEMPTY or time.monotonic() > ends:
                raise
        time.sleep(0.01)
