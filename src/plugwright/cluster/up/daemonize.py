"""Runs work in a background process; the command returns when the process is ready.

The process is forked before there are threads or event loops. Until it is ready, the command reports its errors.
"""

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from plugwright.errors import ClusterError, ConfigError

__all__ = ["daemonize"]

Ready = Callable[[object], None]


def daemonize(work: Callable[[Ready], None], log: Path) -> object:
    """Runs `work` in a process with its output in `log`; returns the JSON value passed to `ready` by `work`."""
    read_end, write_end = os.pipe()
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o600)
    sys.stdout.flush()
    sys.stderr.flush()
    if os.fork() == 0:
        os.close(read_end)
        _leave_terminal(descriptor)
        _run_child(work, write_end)
    os.close(write_end)
    os.close(descriptor)
    with os.fdopen(read_end, "rb") as pipe:
        message = pipe.read()
    return _result(message, log)


def _leave_terminal(log: int) -> None:
    os.setsid()
    null = os.open(os.devnull, os.O_RDONLY)
    for descriptor, number in ((null, 0), (log, 1), (log, 2)):
        os.dup2(descriptor, number)
    os.close(null)
    os.close(log)


def _run_child(work: Callable[[Ready], None], write_end: int) -> NoReturn:
    with os.fdopen(write_end, "wb") as pipe:

        def ready(value: object) -> None:
            pipe.write(json.dumps({"ok": value}).encode())
            pipe.close()

        try:
            work(ready)
        except BaseException as error:
            if not pipe.closed:
                pipe.write(json.dumps({"error": str(error) or type(error).__name__}).encode())
            raise  # for the log
    sys.exit(0)


def _result(message: bytes, log: Path) -> object:
    if not message:
        raise ClusterError(f"the cluster ended before it was ready; its log is {log}")
    answer = json.loads(message)
    if "error" in answer:
        raise ConfigError(answer["error"])
    return answer["ok"]
