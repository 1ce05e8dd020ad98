"""Log lines, in text and JSON format. A separate thread writes them, so a stuck reader blocks nothing.

`LogWriter` accepts a line without waiting. One thread writes: the first line immediately, and lines following within a
moment together, because waking a thread takes longer than an allocation. If the reader has stopped reading, lines wait
in memory up to a limit, and beyond it the newest are dropped and counted. `cli.logs` and `environment` choose between
the two formats.
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
from plugwright.system.cpython import start_thread
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
_FLUSH_LIMIT = 0.25  # seconds; a stop has 0.9 in total
_BEGIN_LIMIT = 3.0  # seconds that a thread can take to start on a very busy machine
_GATHER = 0.02  # seconds between two writes
_BATCH = 65_536  # bytes written at once


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
    """Fields as text: `resource=example.com/tape devices=st0,st1`"""
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
    """The escaped character. JSON does not escape C1 and bidirectional controls, but a terminal obeys them."""
    return character if character.isprintable() else json.dumps(character)[1:-1]


def _shown(value: object) -> str:
    text = ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
    if text and text.isprintable() and not set(text) & set(' "'):
        return text
    return escaped(json.dumps(text, ensure_ascii=False))


class LogWriter(logging.Handler):
    """Writes to a file descriptor; at most `limit` bytes wait to be written.

    Does not use `sys.stderr`: its lock, held by a thread whose write hangs, would keep the process from ending.
    """

    def __init__(self, descriptor: int, limit: int = 2**20) -> None:
        super().__init__()
        self.dropped = 0
        self._descriptor, self._limit = descriptor, limit
        self._lines: deque[bytes] = deque()
        self._waiting = 0  # bytes, including those being written
        self._reported = 0  # dropped lines that a log line has reported
        self._stuck = False  # a flush has timed out
        self._gathers = False  # the thread is going to wake up without a notification
        self._flushes = 0  # callers waiting for a flush
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._begins_by = 0.0  # when a thread that has not started is abandoned

    def emit(self, record: logging.LogRecord) -> None:
        try:
            line = self.format(record)
        except Exception as error:  # noqa: BLE001  an argument's __str__ failed; the line reports it
            line = f"{record.levelname} {record.msg!r} (not formatted: {type(error).__name__})"
        self._add(line.encode(errors="backslashreplace") + b"\n")

    def flush(self, limit: float = _FLUSH_LIMIT) -> None:
        """Waits until everything is written, up to `limit`; does not wait again for an unresponsive reader."""
        with self._changed:
            if self._stuck or self._thread is threading.current_thread():
                return
            self._flushes += 1
            self._changed.notify_all()
            self._stuck = not self._changed.wait_for(lambda: not self._waiting, limit)
            self._flushes -= 1

    def _add(self, line: bytes) -> None:
        with self._changed:
            if self._waiting + len(line) > self._limit:
                self.dropped += 1
                return
            self._lines.append(line)
            self._waiting += len(line)
            if not self._gathers or self._waiting > _BATCH:
                self._changed.notify_all()
            if not self._has_writer():
                with suppress(RuntimeError):  # no thread available: the next line tries again
                    self._thread = start_thread("plugwright-log", self._write_all)
                    self._begins_by = time.monotonic() + _BEGIN_LIMIT

    def _has_writer(self) -> bool:
        """Whether a thread writes or has yet to start; while the interpreter exits, none starts."""
        return self._thread is not None and (self._thread.is_alive() or time.monotonic() < self._begins_by)

    def _write_all(self) -> None:
        with self._changed:
            if self._thread is not threading.current_thread():
                return  # it started too late and was replaced
        last = 0.0
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._lines)
                pause = last + _GATHER - time.monotonic()
                if pause > 0:
                    self._gathers = True
                    self._changed.wait_for(lambda: self._flushes or self._waiting > _BATCH, pause)
                    self._gathers = False
                lines = self._take()
            last = time.monotonic()
            data = b"".join(lines)
            written = _written(self._descriptor, data)
            with self._changed:
                self.dropped += 0 if written else len(lines)
                self._waiting -= len(data)
                self._stuck = False
                self._changed.notify_all()
                missing = self.dropped - self._reported if written and not self._lines else 0
                self._reported += missing
            if missing:
                self.handle(_about_dropped(missing))

    def _take(self) -> list[bytes]:
        """Takes the first line and as many following lines as fit into one write."""
        lines: list[bytes] = []
        size = 0
        while self._lines and (not lines or size + len(self._lines[0]) <= _BATCH):
            lines.append(self._lines.popleft())
            size += len(lines[-1])
        return lines


def _written(descriptor: int, line: bytes) -> bool:
    rest = memoryview(line)
    while rest:
        try:
            rest = rest[os.write(descriptor, rest) :]
        except BlockingIOError:  # another process has made the pipe non-blocking
            select.select([], [descriptor], [])
        except OSError:  # its reader has ended, or the disk behind it is full
            return False
    return True


def _about_dropped(count: int) -> logging.LogRecord:
    logger = logging.getLogger(__name__)
    extra = {"count": count}
    return logger.makeRecord(logger.name, logging.WARNING, "", 0, "log lines dropped", (), None, extra=extra)


def standard_error() -> int:
    """The descriptor of stderr, even if a program has replaced `sys.stderr` by an object without one."""
    try:
        return sys.stderr.fileno()
    except (AttributeError, OSError, ValueError):
        return 2


def dropped_lines() -> int:
    return sum(handler.dropped for handler in _writers())


def flush() -> None:
    """Writes all lines before the program ends or writes to stderr, to keep their order."""
    for handler in _writers():
        handler.flush()


def log_failure(error: Exception) -> bool:
    """Logs the program's final error if the log is JSON, because its reader could not parse a plain line."""
    if not any(isinstance(writer.formatter, JsonFormatter) for writer in _writers()):
        return False
    expected = isinstance(error, PlugwrightError | OSError)
    facts = {"error": clean(error) if expected else clean(f"{type(error).__name__}: {error}")}
    logging.getLogger(__name__).error("daemon failed", extra=facts, exc_info=None if expected else error)
    flush()
    return True


def _writers() -> list[LogWriter]:
    return [handler for handler in logging.getLogger().handlers if isinstance(handler, LogWriter)]
