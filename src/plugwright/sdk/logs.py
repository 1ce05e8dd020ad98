"""Log lines, for people and as JSON, and the thread that writes them: a log that nobody reads keeps nothing waiting.

`LogWriter` takes a line without ever waiting. One thread writes; when its reader has stopped reading, lines wait in
memory up to a limit, and beyond that the newest are dropped and counted. `cli.logs` and `environment` choose
between the two.
"""

import json
import logging
import os
import select
import sys
import threading
import time
from collections import deque
from collections.abc import Mapping
from contextlib import suppress

from plugwright.errors import PlugwrightError
from plugwright.text import clean, escaped

__all__ = [
    "HumanFormatter",
    "JsonFormatter",
    "LogWriter",
    "dropped_lines",
    "facts",
    "flush",
    "log_failure",
    "shown_facts",
    "standard_error",
]

_OWN = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
_FLUSH_LIMIT = 0.25  # seconds; a stop has 0.9 for everything


def facts(record: logging.LogRecord) -> dict[str, object]:
    """The fields of `extra`, in their order."""
    return {name: value for name, value in vars(record).items() if name not in _OWN}


class HumanFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        clock = time.strftime("%H:%M:%S", time.localtime(record.created))
        fields = shown_facts(facts(record))
        message = escaped(record.getMessage())
        line = f"{clock} {record.levelname.lower():7} {message}{'  ' + fields if fields else ''}"
        return f"{line}\n{self._traceback(record)}" if record.exc_info else line

    def _traceback(self, record: logging.LogRecord) -> str:
        assert record.exc_info
        return "\n".join(map(escaped, self.formatException(record.exc_info).split("\n")))


def shown_facts(fields: Mapping[str, object]) -> str:
    """`resource=example.com/tape devices=st0,st1`"""
    return " ".join(f"{name}={_shown(value)}" for name, value in fields.items())


class JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        moment = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        line = {
            "time": f"{moment}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "message": record.getMessage(),
            **facts(record),
        }
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        text = json.dumps(line, default=str, ensure_ascii=False, skipkeys=True)
        return text if text.isprintable() else "".join(map(_printable, text))


def _printable(character: str) -> str:
    """JSON leaves C1 and bidirectional controls as they are; a terminal obeys them."""
    return character if character.isprintable() else json.dumps(character)[1:-1]


def _shown(value: object) -> str:
    text = ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
    if text and text.isprintable() and not set(text) & set(' "'):
        return text
    return escaped(json.dumps(text, ensure_ascii=False))


class LogWriter(logging.Handler):
    """Writes to a file descriptor; at most `limit` bytes wait to be written.

    Not to `sys.stderr`: its lock, held by a thread whose write hangs, would keep the process from ending.
    """

    def __init__(self, descriptor: int, limit: int = 2**20) -> None:
        super().__init__()
        self.dropped = 0
        self._descriptor, self._limit = descriptor, limit
        self._lines: deque[bytes] = deque()
        self._waiting = 0  # bytes, with those being written
        self._reported = 0  # dropped lines that the log has a line about
        self._stuck = False  # a flush has waited in vain
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None

    def emit(self, record: logging.LogRecord) -> None:
        try:
            line = self.format(record)
        except Exception as error:  # noqa: BLE001  of an argument's __str__; the line says so, and nothing else ends
            line = f"{record.levelname} {record.msg!r} (not formatted: {type(error).__name__})"
        self._add(line.encode(errors="backslashreplace") + b"\n")

    def flush(self, limit: float = _FLUSH_LIMIT) -> None:
        """Waits until all is written, but not longer than `limit`, and not twice for a reader that does not read."""
        with self._changed:
            if not self._stuck and self._thread is not threading.current_thread():
                self._stuck = not self._changed.wait_for(lambda: not self._waiting, limit)

    def _add(self, line: bytes) -> None:
        with self._changed:
            if self._waiting + len(line) > self._limit:
                self.dropped += 1
                return
            self._lines.append(line)
            self._waiting += len(line)
            self._changed.notify_all()
            if self._thread is None or not self._thread.is_alive():
                thread = threading.Thread(target=self._write_all, name="plugwright-log", daemon=True)
                with suppress(RuntimeError):  # no thread left: the next line tries again
                    thread.start()
                    self._thread = thread

    def _write_all(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._lines)
                line = self._lines.popleft()
            written = _written(self._descriptor, line)
            with self._changed:
                self.dropped += not written
                self._waiting -= len(line)
                self._stuck = False
                self._changed.notify_all()
                missing = self.dropped - self._reported if written and not self._lines else 0
                self._reported += missing
            if missing:
                self.handle(_about_dropped(missing))


def _written(descriptor: int, line: bytes) -> bool:
    rest = memoryview(line)
    while rest:
        try:
            rest = rest[os.write(descriptor, rest) :]
        except BlockingIOError:  # another process has made the pipe non-blocking
            select.select([], [descriptor], [])
        except OSError:  # its reader has gone, or the disk behind it is full
            return False
    return True


def _about_dropped(count: int) -> logging.LogRecord:
    logger = logging.getLogger(__name__)
    extra = {"count": count}
    return logger.makeRecord(logger.name, logging.WARNING, "", 0, "log lines dropped", (), None, extra=extra)


def standard_error() -> int:
    """The descriptor of stderr, also where a program has replaced `sys.stderr` by something without one."""
    try:
        return sys.stderr.fileno()
    except (AttributeError, OSError, ValueError):
        return 2


def dropped_lines() -> int:
    return sum(handler.dropped for handler in _writers())


def flush() -> None:
    """Before the end, or before something else writes to stderr: lines keep their order."""
    for handler in _writers():
        handler.flush()


def log_failure(error: Exception) -> bool:
    """Logs what ends the program, if the log is JSON: a plain line would be the one that its reader cannot read."""
    if not any(isinstance(writer.formatter, JsonFormatter) for writer in _writers()):
        return False
    expected = isinstance(error, PlugwrightError | OSError)
    facts = {"error": clean(error) if expected else clean(f"{type(error).__name__}: {error}")}
    logging.getLogger(__name__).error("daemon failed", extra=facts, exc_info=None if expected else error)
    flush()
    return True


def _writers() -> list[LogWriter]:
    return [handler for handler in logging.getLogger().handlers if isinstance(handler, LogWriter)]
