"""Who plays in several tests: a plugin that lists what it is given, and an ear for the log."""

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager

import pytest

from plugwright import Allocation, Device, Plugin
from plugwright.system.concurrency import Latest

__all__ = ["TAPE", "Ear", "Shelf", "listening"]

TAPE = "example.com/tape"


class Shelf(Plugin):
    """Lists what it is given."""

    def __init__(self, resource: str = TAPE, *ids: str) -> None:
        self.resource = resource
        self.ids = Latest(ids or ("st0", "st1"))

    async def discover(self) -> AsyncIterator[list[Device]]:
        async for ids in self.ids.changes():
            yield [Device(each) for each in ids]

    async def allocate(self, devices: object) -> Allocation:
        return Allocation(env={"SHELF": self.resource})


class Ear(logging.Handler):
    """Hears what is logged, and wakes whoever waits for it."""

    def __init__(self) -> None:
        super().__init__()
        self.heard: list[str] = []
        self.news = asyncio.Event()

    def emit(self, record: logging.LogRecord) -> None:
        self.heard.append(f"{record.getMessage()}: {record.__dict__.get('error', '')}")
        self.news.set()

    async def hears(self, text: str, times: int = 1) -> None:
        while sum(text in each for each in self.heard) < times:
            self.news.clear()
            await self.news.wait()


@contextmanager
def listening(name: str, caplog: pytest.LogCaptureFixture) -> Iterator[Ear]:
    logger, ear = logging.getLogger(name), Ear()
    caplog.set_level(logging.DEBUG, logger.name)
    logger.addHandler(ear)
    yield ear
    logger.removeHandler(ear)
