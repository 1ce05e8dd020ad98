"""Format and level of the log, for all commands."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from plugwright.sdk.log_level import LEVELS
from plugwright.sdk.logs import HumanFormatter, JsonFormatter, LogWriter, log_failure, standard_error

__all__ = ["FORMATS", "LEVELS", "configure", "failure_in_log"]

FORMATS = ("human", "json")


def configure(style: str, level: str) -> None:
    # Facts that no line shows are not collected: the caller's line, its thread, process and task.
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
    for name in ("_srcfile", "logAsyncioTasks"):  # as logging's documentation says; the latter from Python 3.12 on
        vars(logging)[name] = None
    handler = LogWriter(standard_error())
    handler.setFormatter(JsonFormatter() if style == "json" else HumanFormatter())
    logging.basicConfig(handlers=[handler], level=logging.WARNING, force=True)
    logging.getLogger("plugwright").setLevel(level.upper())


@contextmanager
def failure_in_log() -> Iterator[None]:
    """Ends a JSON log with a JSON line about a failure; otherwise failures are printed as by any command."""
    try:
        yield
    except Exception as error:
        if not log_failure(error):
            raise
        raise SystemExit(1) from error
