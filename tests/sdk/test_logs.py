"""A log record as a person reads it: the message, then its facts."""

import logging
import sys
from types import TracebackType

import pytest

from plugwright.sdk.logs import HumanFormatter, facts

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
