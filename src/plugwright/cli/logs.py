"""Format and level of the log, for all commands."""

import json
import logging
import time

from plugwright.sdk.logs import HumanFormatter, LogWriter, facts, standard_error

__all__ = ["FORMATS", "LEVELS", "JsonFormatter", "configure"]

FORMATS = ("human", "json")
LEVELS = ("debug", "info", "warning", "error")


class JsonFormatter(logging.Formatter):
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
        text = json.dumps(line, default=str, ensure_ascii=False, skipkeys=True)
        return text if text.isprintable() else "".join(map(_printable, text))


def _printable(character: str) -> str:
    """JSON leaves C1 and bidirectional controls as they are; a terminal obeys them."""
    return character if character.isprintable() else json.dumps(character)[1:-1]


def configure(style: str, level: str) -> None:
    handler = LogWriter(standard_error())
    handler.setFormatter(JsonFormatter() if style == "json" else HumanFormatter())
    logging.basicConfig(handlers=[handler], level=logging.WARNING, force=True)
    logging.getLogger("plugwright").setLevel(level.upper())
