"""Format and level of the log, for all commands."""

import logging

from plugwright.sdk.log_level import LEVELS
from plugwright.sdk.logs import HumanFormatter, JsonFormatter, LogWriter, standard_error

__all__ = ["FORMATS", "LEVELS", "configure"]

FORMATS = ("human", "json")


def configure(style: str, level: str) -> None:
    handler = LogWriter(standard_error())
    handler.setFormatter(JsonFormatter() if style == "json" else HumanFormatter())
    logging.basicConfig(handlers=[handler], level=logging.WARNING, force=True)
    logging.getLogger("plugwright").setLevel(level.upper())
