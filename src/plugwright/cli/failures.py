"""Errors that end a command: one line on stderr, and the exit code."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

from plugwright.errors import PlugwrightError
from plugwright.text import clean

__all__ = ["fail", "failing_in_one_line"]


@contextmanager
def failing_in_one_line() -> Iterator[None]:
    try:
        yield
    except BrokenPipeError:
        sys.stderr.close()  # the reader has gone; Python would complain at exit
        sys.exit(1)
    except (PlugwrightError, OSError) as error:
        fail(str(error))


def fail(message: str) -> NoReturn:
    sys.stderr.write(f"plugwright: {clean(message, limit=100_000)}\n")
    sys.exit(1)
