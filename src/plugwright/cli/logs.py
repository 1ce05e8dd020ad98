"""Format and level of the log, for all commands."""

import json
import logging
import time

from plugwright.sdk.logs import HumanFormatter, facts

__all__ = ["FORMATS", "LEVELS", "configure"]

FORMATS = ("human", "json")
LEVELS = ("debug", "info", "warning", "error")


class _JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        moment = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        line = {
            "time": f"{moment}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "message": record.getMessage(),
            **facts(record),
        }
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str, ensure_ascii=False)


def configure(style: str, level: str) -> None:
    handler = logging.StreamHandler()
    handler.setFormatter(_JsonFormatter() if style == "json" else HumanFormatter())
    logging.basicConfig(handlers=[handler], level=logging.WARNING, force=True)
    logging.getLogger("plugwright").setLevel(level.upper())
    # grpclib logs a traceback for errors that `protocol.grpc_errors` has already answered.
    logging.getLogger("grpclib").setLevel(logging.CRITICAL if level != "debug" else logging.DEBUG)
