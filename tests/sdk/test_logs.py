"""A log record as a person reads it: the message, then its facts."""

import fcntl
import json
import logging
import os
import sys
from collections.abc import Iterator
from types import TracebackType

import pytest

from plugwright.cli.logs import JsonFormatter
from plugwright.sdk.logs import HumanFormatter, LogWriter, dropped_lines, facts

ErrorInfo = tuple[type[BaseException], BaseException, TracebackType | None]


def record(error: ErrorInfo | None = None, extra: dict[str, object] | None = None) -> logging.LogRecord:
    logger = logging.getLogger("plugwright.test")
    return logger.makeRecord(logger.name, logging.WARNING, "file.py", 1, "registered", (), error, extra=extra)


def shown(**extra: object) -> str:
    return HumanFormatter().format(record(extra=extra)).partition(" ")[2]


def test_facts_are_the_fields_of_extra_in_order() -> None:
    assert list(facts(record(extra={"resource": "a/b", "endpoint": "x"}))) == ["resource", "endpoint"]
    assert facts(record()) == {}


@pytest.mark.parametrize(
    ("extra", "line"),
    [
        ({}, "warning registered"),
        ({"resource": "a/b"}, "warning registered  resource=a/b"),
        ({"reason": "not there"}, 'warning registered  reason="not there"'),
        ({"devices": ["a", "b"], "count": 2}, "warning registered  devices=a,b count=2"),
    ],
)
def test_a_line_is_the_message_and_then_its_facts(extra: dict[str, object], line: str) -> None:
    assert shown(**extra) == line


def test_an_exception_follows_with_its_traceback() -> None:
    try:
        raise ValueError("nonsense")
    except ValueError:
        info = sys.exc_info()
    assert info[0] is not None
    lines = HumanFormatter().format(record(info)).splitlines()
    assert lines[0].endswith("registered")
    assert lines[1] == "Traceback (most recent call last):"
    assert lines[-1] == "ValueError: nonsense"


@pytest.mark.parametrize("text", ["two\nlines", "carriage\rreturn", 'a "quoted" word', "\x1b[31m red"])
def test_a_fact_cannot_be_taken_for_something_else(text: str) -> None:
    line = shown(error=text, resource="a/b")
    assert line.isprintable()
    assert line.endswith(" resource=a/b")
    assert '"quoted" word' not in line


@pytest.mark.parametrize("text", ["\x9b31m", "\u202e", "\u2066", "\x00", "\x7f", "\u2028", "\udcff"])
def test_nothing_that_a_terminal_obeys_is_in_a_line(text: str) -> None:
    try:
        raise ValueError(text)
    except ValueError:
        info = sys.exc_info()
    assert info[0] is not None
    for formatter in (HumanFormatter(), JsonFormatter()):
        lines = formatter.format(record(info, {"reason": f"a{text} b", "word": f"a{text}"})).split("\n")
        assert all(line.isprintable() for line in lines)
        assert text not in "".join(lines)


@pytest.mark.parametrize("text", ["\x9b31m", "\u202e", "plain", "Größe", '"', "\n", "\U000e0001"])
def test_json_says_what_was_there(text: str) -> None:
    assert json.loads(JsonFormatter().format(record(extra={"reason": text})))["reason"] == text


class Pipe:
    """A log's pipe of the smallest size."""

    def __init__(self) -> None:
        self.reading, self.writing = os.pipe()
        fcntl.fcntl(self.writing, fcntl.F_SETPIPE_SZ, 4096)

    def read(self, until: str) -> list[str]:
        text = b""
        while until.encode() not in text:
            text += os.read(self.reading, 65536)
        return text.decode().splitlines()


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    pipe = Pipe()
    yield pipe
    os.close(pipe.reading)
    os.close(pipe.writing)


@pytest.fixture
def log() -> Iterator[logging.Logger]:
    logger = logging.Logger("plugwright.test.writer")  # noqa: LOG001  of this test alone
    yield logger
    for handler in logger.handlers:
        handler.close()


def writer(log: logging.Logger, pipe: Pipe, limit: int = 2**20) -> LogWriter:
    handler = LogWriter(pipe.writing, limit)
    handler.setFormatter(logging.Formatter("%(message)s"))
    log.addHandler(handler)
    return handler


def test_lines_are_written_in_their_order(log: logging.Logger, pipe: Pipe) -> None:
    handler = writer(log, pipe)
    for number in range(2000):
        log.info("line %d", number)
    assert pipe.read("line 1999\n") == [f"line {number}" for number in range(2000)]
    assert handler.dropped == 0


def test_a_log_that_nobody_reads_keeps_nobody_waiting_and_says_what_is_missing(log: logging.Logger, pipe: Pipe) -> None:
    handler = writer(log, pipe, limit=20_000)
    for number in range(2000):
        log.info("%099d", number)  # with its end 100 bytes
    missing = handler.dropped
    assert 2000 - (20_000 + 4096 + 100) / 100 <= missing < 2000
    lines = pipe.read("log lines dropped")
    numbers = [int(line) for line in lines[:-1]]
    assert numbers == sorted(numbers)
    assert len(numbers) == 2000 - missing
    log.info("again")
    assert pipe.read("again")[-1] == "again"
    assert handler.dropped == missing


def test_a_flush_waits_for_what_is_read_and_not_for_what_is_not(log: logging.Logger, pipe: Pipe) -> None:
    handler = writer(log, pipe)
    log.info("short")
    handler.flush(60)
    assert pipe.read("\n") == ["short"]
    log.info("x" * 10_000)
    handler.flush(0.05)
    handler.flush(3600)  # not again for the same reader
    assert len(pipe.read("\n")[0]) == 10_000
    log.info("end")
    handler.flush(60)
    assert pipe.read("end") == ["end"]


def test_a_pipe_that_another_process_made_non_blocking_is_waited_for(log: logging.Logger, pipe: Pipe) -> None:
    os.set_blocking(pipe.writing, False)
    handler = writer(log, pipe)
    for number in range(500):
        log.info("%099d", number)
    assert [int(line) for line in pipe.read(f"{499:099d}\n")] == list(range(500))
    assert handler.dropped == 0


def test_a_reader_that_has_gone_is_no_trouble(log: logging.Logger) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    handler = LogWriter(writing)
    log.addHandler(handler)
    log.info("for nobody")
    handler.flush(60)
    os.close(writing)
    assert handler.dropped == 1


def test_a_line_that_cannot_be_formatted_is_still_a_line(log: logging.Logger, pipe: Pipe) -> None:
    writer(log, pipe)
    log.info("%d lines", "three")
    assert pipe.read("\n") == ["INFO '%d lines' (not formatted: TypeError)"]


def test_dropped_lines_of_the_log_are_counted_for_status_and_metrics(pipe: Pipe) -> None:
    handler = LogWriter(pipe.writing, limit=0)
    before = dropped_lines()
    logging.getLogger().addHandler(handler)
    try:
        logging.getLogger().error("for nobody")
        assert dropped_lines() == before + 1
    finally:
        logging.getLogger().removeHandler(handler)
