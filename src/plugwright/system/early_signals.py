"""Signals while a program is still starting: from its first instruction until it can act on them.

Python needs a few tenths of a second to load a daemon. Without a handler SIGHUP would end it meanwhile, and as process
1 of a container it would not even see SIGTERM. This module loads nothing new.
"""

import os
import signal

__all__ = ["EarlyHangup", "end_on_interrupt", "handle_early_signals", "raise_on_interrupt"]


class EarlyHangup:
    """The handler of SIGHUP: remembers it for the next handler."""

    def __init__(self) -> None:
        self.received = False

    def __call__(self, _: int, __: object) -> None:
        self.received = True


def handle_early_signals() -> None:
    """SIGTERM and SIGINT end the process immediately with code 0, as nothing is served yet."""
    signal.signal(signal.SIGHUP, EarlyHangup())
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _end)


def end_on_interrupt() -> None:
    """Ctrl-C ends the process without a traceback, unless SIGINT is ignored, as in the background of a script."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)


def raise_on_interrupt() -> None:
    """Ends what `end_on_interrupt` began: Ctrl-C raises KeyboardInterrupt again."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _end(_: int, __: object) -> None:
    os._exit(0)
