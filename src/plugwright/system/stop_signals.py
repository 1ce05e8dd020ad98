"""The signals that end a program, as an event."""

import asyncio
import signal
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["stop_on_signals"]

_STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextmanager
def stop_on_signals(stop: asyncio.Event) -> Iterator[None]:
    """Sets `stop` at a signal that ends the program, while inside."""
    loop = asyncio.get_running_loop()
    # nohup has SIGHUP ignored, so that the program outlives its terminal.
    handled = [number for number in _STOP_SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
    for number in handled:
        loop.add_signal_handler(number, stop.set)
    try:
        yield
    finally:
        for number in handled:
            loop.remove_signal_handler(number)
