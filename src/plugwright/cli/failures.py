"""Errors that end a command: one line each on stderr, wrapped on a terminal, and the exit code."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

from plugwright.errors import ConfigError, PlugwrightError
from plugwright.text import clean

__all__ = ["fail", "failing_in_one_line", "wrapped_on_terminal"]


@contextmanager
def failing_in_one_line() -> Iterator[None]:
    try:
        yield
    except BrokenPipeError:
        sys.stderr.close()  # the reader has exited; Python would report an error at exit
        sys.exit(1)
    except ConfigError as error:
        fail(str(error), *error.others)
    except OSError as error:
        fail(f"cannot use {error.filename}: {error.strerror}" if error.filename and error.strerror else str(error))
    except PlugwrightError as error:
        fail(str(error))


def fail(*messages: str) -> NoReturn:
    for message in messages:
        sys.stderr.write(f"{wrapped_on_terminal(f'plugwright: {clean(message, limit=100_000)}')}\n")
    sys.exit(1)


def wrapped_on_terminal(line: str) -> str:
    """Wraps a line between words if the error output is a terminal; elsewhere returns it unchanged."""
    if not sys.stderr.isatty():
        return line
    from shutil import get_terminal_size  # both only for a person: shutil loads bz2 and lzma
    from textwrap import fill

    width = get_terminal_size().columns
    return fill(line, width, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)
