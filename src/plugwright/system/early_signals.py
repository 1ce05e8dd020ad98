"""Signals while a daemon is still starting: from its first instruction until it can act on them.

Python needs a few tenths of a second to load a daemon. Without a handler SIGHUP would end it in that time, and as
process 1 of a container it would not even see SIGTERM. This module loads nothing that is not loaded already.
"""

import os
import signal

__all__ = ["EarlyHangup", "handle_early_signals"]


class EarlyHangup:
    """The handler of SIGHUP: remembers it for the handler that replaces it."""

    def __init__(self) -> None:
        self.received = False

    def __call__(self, _: int, __: object) -> None:
        self.received = True


def handle_early_signals() -> None:
    """SIGTERM and SIGINT end the process immediately with code 0, as nothing is served yet."""
    signal.signal(signal.SIGHUP, EarlyHangup())
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _end)


def _end(_: int, __: object) -> None:
    os._exit(0)
