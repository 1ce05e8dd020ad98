"""Log lines, for people and as JSON: the message, then its facts. `cli.logs` and `environment` choose between them."""

import json
import logging
import time
from collections.abc import Mapping

__all__ = ["HumanFormatter", "JsonFormatter", "facts", "shown_facts"]

_OWN = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


def facts(record: logging.LogRecord) -> dict[str, object]:
    """The fields of `extra`, in their order."""
    return {name: value for name, value in vars(record).items() if name not in _OWN}


class HumanFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        clock = time.strftime("%H:%M:%S", time.localtime(record.created))
        fields = shown_facts(facts(record))
        line = f"{clock} {record.levelname.lower():7} {record.getMessage()}{'  ' + fields if fields else ''}"
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


def shown_facts(fields: Mapping[str, object]) -> str:
    """`resource=example.com/tape devices=st0,st1`"""
    return " ".join(f"{name}={_shown(value)}" for name, value in fields.items())


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
        return json.dumps(line, default=str, ensure_ascii=False)


def _shown(value: object) -> str:
    text = ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
    return text if text.isprintable() and not set(text) & set(' "') and text else json.dumps(text, ensure_ascii=False)
