"""Shared by several tests: a plugin that lists given ids, and a recorder of log records to wait for."""

import logging
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager

import pytest

from plugwright import Allocation, Device, Plugin
from plugwright.system.latest import Latest, Signal

__all__ = ["TAPE", "ListingPlugin", "LogRecorder", "recorded_log"]

TAPE = "example.com/tape"


class ListingPlugin(Plugin):
    """Lists the devices `ids`, and new ones when those are published."""

    def __init__(self, resource: str = TAPE, *ids: str) -> None:
        self.resource = resource
        self.ids = Latest(ids or ("st0", "st1"))

    async def discover(self) -> AsyncIterator[list[Device]]:
        async for ids in self.ids.changes():
            yield [Device(device_id) for device_id in ids]

    async def allocate(self, devices: object) -> Allocation:
        return Allocation(env={"SHELF": self.resource})


class LogRecorder(logging.Handler):
    """The log as lines `message: error`, with a way to wait for one; `shown` are those above DEBUG."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []
        self.shown: list[str] = []
        self._added = Signal()

    def emit(self, record: logging.LogRecord) -> None:
        line = f"{record.getMessage()}: {record.__dict__.get('error', '')}"
        self.lines.append(line)
        if record.levelno > logging.DEBUG:
            self.shown.append(line)
        self._added.notify()

    async def until(self, text: str, times: int = 1) -> None:
        """Waits until `text` is in the log so many times."""
        await self._added.until(lambda: sum(text in line for line in self.lines) >= times)


@contextmanager
def recorded_log(name: str, caplog: pytest.LogCaptureFixture) -> Iterator[LogRecorder]:
    logger, log = logging.getLogger(name), LogRecorder()
    caplog.set_level(logging.DEBUG, logger.name)
    logger.addHandler(log)
    yield log
    logger.removeHandler(log)
