"""A program that goes on when its command has returned: a process of its own, told of when it is ready.

Forked before there are threads or event loops. Whatever goes wrong until it is ready is said by the command itself.
"""

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from plugwright.errors import ClusterError, ConfigError

__all__ = ["detached"]

Tell = Callable[[object], None]


def detached(work: Callable[[Tell], None], log: Path) -> object:
    """Does `work` in another process, which writes to `log`; returns what `work` tells, as soon as it does."""
    reading, writing = os.pipe()
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o600)
    sys.stdout.flush()
    sys.stderr.flush()
    if os.fork() == 0:
        os.close(reading)
        _leave_terminal(descriptor)
        _be_detached(work, writing)
    os.close(writing)
    os.close(descriptor)
    with os.fdopen(reading, "rb") as pipe:
        told = pipe.read()
    return _understood(told, log)


def _leave_terminal(log: int) -> None:
    os.setsid()
    nothing = os.open(os.devnull, os.O_RDONLY)
    for descriptor, number in ((nothing, 0), (log, 1), (log, 2)):
        os.dup2(descriptor, number)
    os.close(nothing)
    os.close(log)


def _be_detached(work: Callable[[Tell], None], writing: int) -> NoReturn:
    """Never comes back: what called us goes on in the other process."""
    with os.fdopen(writing, "wb") as pipe:

        def tell(fact: object) -> None:
            pipe.write(json.dumps({"ok": fact}).encode())
            pipe.close()

        try:
            work(tell)
        except BaseException as error:
            if not pipe.closed:
                pipe.write(json.dumps({"error": str(error) or type(error).__name__}).encode())
            raise  # for the log
    sys.exit(0)


def _understood(told: bytes, log: Path) -> object:
    if not told:
        raise ClusterError(f"it has ended before it was ready: {log} may say why")
    answer = json.loads(told)
    if "error" in answer:
        raise ConfigError(answer["error"])
    return answer["ok"]
