"""Format and level of the log, for all commands."""

import logging

from plugwright.sdk.logs import HumanFormatter, JsonFormatter

__all__ = ["FORMATS", "LEVELS", "configure"]

FORMATS = ("human", "json")
LEVELS = ("debug", "info", "warning", "error")


def configure(style: str, level: str) -> None:
    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter() if style == "json" else HumanFormatter())
    logging.basicConfig(handlers=[handler], level=logging.WARNING, force=True)
    logging.getLogger("plugwright").setLevel(level.upper())
    # grpclib logs a traceback for errors that `protocol.grpc_errors` has already answered.
    logging.getLogger("grpclib").setLevel(logging.CRITICAL if level != "debug" else logging.DEBUG)
