"""A program ends at a signal, unless whoever started it has it ignored."""

import asyncio
import os
import signal
from collections.abc import Iterator

import pytest

from plugwright.system.stop_signals import stop_on_signals


@pytest.fixture
def hangups_ignored() -> Iterator[None]:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
async def test_a_signal_stops_the_program(number: signal.Signals) -> None:
    stop = asyncio.Event()
    with stop_on_signals(stop):
        os.kill(os.getpid(), number)
        async with asyncio.timeout(60):
            await stop.wait()


@pytest.mark.usefixtures("hangups_ignored")
async def test_a_hangup_that_nohup_ignores_does_not_stop_it() -> None:
    stop = asyncio.Event()
    with stop_on_signals(stop):
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
        assert signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL
    assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
