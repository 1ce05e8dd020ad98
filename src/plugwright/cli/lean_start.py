"""The start of `plugwright run`, which is on every node: without modules that a daemon can do without."""

import os
import re
from collections.abc import Sequence

from plugwright.system.cpython import leave_out_ssl

__all__ = ["serve_plainly"]

_PLUGIN = re.compile(r"[^-].*\.py(:\w+)?|[A-Za-z_][\w.]*:[A-Za-z_]\w*")  # FILE.py, FILE.py:CLASS, MODULE:CLASS


def serve_plainly(words: Sequence[str]) -> bool:
    """Serves the file if `run` is called plainly with these words; False if click must look at them."""
    if _names_plugin(words):
        return False
    if not _needs_ssl(words):
        leave_out_ssl()
    from plugwright.cli import failures, run_settings  # loads asyncio, now without ssl

    values = run_settings.plain_call(words, os.environ)
    if values is None:
        return False
    with failures.failing_in_one_line():
        from plugwright.cli.run_file import serve_file

        serve_file(values)
    return True


def _names_plugin(words: Sequence[str]) -> bool:
    """Whether a plugin of the user's own is to be served, which may need any module of Python."""
    return any(_PLUGIN.fullmatch(word) for word in words) or (bool(words) and not words[0].startswith("-"))


def _needs_ssl(words: Sequence[str]) -> bool:
    named = {name.removeprefix("PLUGWRIGHT_") for name, value in os.environ.items() if value}
    named |= {word.partition("=")[0].removeprefix("--").replace("-", "_").upper() for word in words}
    return "TLS_CERT" in named
