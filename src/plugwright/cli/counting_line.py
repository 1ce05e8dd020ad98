"""The progress of long operations on the error output: a bar on a terminal, occasional plain lines elsewhere."""

import os
import shutil
import sys
import time
from typing import TextIO

__all__ = ["CountingLine"]

_SILENT = 1.0  # seconds at the start: short operations need no bar
_REDRAWN, _REPEATED = 0.1, 10.0  # seconds between two drawings on a terminal, and between two plain lines
_ERASE = "\r\x1b[K"
_BAR = 20


class CountingLine:
    """`512 of 1000 nodes started, 6 s`; without a `total`, `512 packages, 6 s`. Leaving `with` erases it."""

    def __init__(self, what: str, total: int = 0, stream: TextIO | None = None) -> None:
        self._what, self._total, self._stream = what, total, stream or sys.stderr
        self._is_terminal = self._stream.isatty() and os.environ.get("TERM") != "dumb"
        self._began = time.monotonic()
        self._next = self._began + (_SILENT if self._is_terminal else _REPEATED)
        self._is_drawn = False

    def __enter__(self) -> "CountingLine":
        return self

    def __exit__(self, *error: object) -> None:
        self.erase()

    def show(self, count: int) -> None:
        """Call this after every step: most calls draw nothing."""
        now = time.monotonic()
        if now < self._next:
            return
        self._next = now + (_REDRAWN if self._is_terminal else _REPEATED)
        text = self._text(count, now - self._began)
        if self._is_terminal:
            self._is_drawn = True
            self._write(_ERASE + self._bar(count, text))
        else:
            self._write(f"{text}\n")

    def erase(self) -> None:
        """Call this before other output, and at the end."""
        if self._is_drawn:
            self._is_drawn, self._next = False, 0.0  # drawn again with the next step
            self._write(_ERASE)

    def _text(self, count: int, seconds: float) -> str:
        of = f" of {self._total}" if self._total else ""
        return f"{count}{of} {self._what}, {seconds:.0f} s"

    def _bar(self, count: int, text: str) -> str:
        width = shutil.get_terminal_size().columns - 1
        if not self._total or width < len(text) + _BAR + 3:
            return text[: max(width, 1)]
        full = min(_BAR, _BAR * count // self._total)
        return f"[{'#' * full}{'.' * (_BAR - full)}] {text}"

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()
