"""The start of `plugwright run`, which runs on every node: loads no module that a daemon does not need."""

import os
import re
from collections.abc import Sequence

from plugwright.system.cpython import leave_out_ssl, leave_out_typing_extensions

__all__ = ["serve_plainly"]

_PLUGIN = re.compile(r"[^-].*\.py(:\w+)?|[A-Za-z_][\w.]*:[A-Za-z_]\w*")  # FILE.py, FILE.py:CLASS, MODULE:CLASS


def serve_plainly(words: Sequence[str]) -> bool:
    """Serves the file if `run` is called with simple arguments; returns False if click must parse them."""
    if _names_plugin(words):
        return False
    if not _needs_ssl(words):
        leave_out_ssl()
    leave_out_typing_extensions()
    from plugwright.cli import failures, run_settings  # loads asyncio, now without ssl

    values = run_settings.plain_call(words, os.environ)
    if values is None:
        return False
    with failures.failing_in_one_line():
        from plugwright.cli.run_file import serve_file

        serve_file(values)
    return True


def _names_plugin(words: Sequence[str]) -> bool:
    """Whether the user's own plugin is to be served, which could need any module of Python."""
    return any(_PLUGIN.fullmatch(word) for word in words) or (bool(words) and not words[0].startswith("-"))


def _needs_ssl(words: Sequence[str]) -> bool:
    named = {name.removeprefix("PLUGWRIGHT_") for name, value in os.environ.items() if value}
    named |= {word.partition("=")[0].removeprefix("--").replace("-", "_").upper() for word in words}
    return "TLS_CERT" in named
