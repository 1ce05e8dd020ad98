"""The end signals of a program, as an event."""

import asyncio
import signal
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["stop_on_signals"]

_STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextmanager
def stop_on_signals(stop: asyncio.Event) -> Iterator[None]:
    """Sets `stop` at an end signal, while inside."""
    loop = asyncio.get_running_loop()
    # nohup ignores SIGHUP, to let the program outlive its terminal.
    handled = [number for number in _STOP_SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
    for number in handled:
        loop.add_signal_handler(number, stop.set)
    try:
        yield
    finally:
        for number in handled:
            loop.remove_signal_handler(number)
