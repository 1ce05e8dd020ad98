"""Values of options: durations, times and paths."""

import re
from datetime import datetime
from pathlib import Path
from typing import Any

import click

__all__ = ["UncheckedPath", "duration", "moment", "optional_duration"]

_SECONDS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86_400}


class UncheckedPath(click.Path):
    """A path that is not accessed while options are parsed, because its file system can hang."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        return Path(value)


def duration(text: str) -> float:
    """The seconds in `90s`, `10m`, `1.5h` or plain seconds; for `type=` of an option."""
    if not (seconds := optional_duration(text)):
        raise click.BadParameter(f"a duration must look like 90s or 10m, got {text!r}")
    return seconds


def optional_duration(text: str) -> float:
    """Like `duration`, but also allows 0."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smhd]?)", str(text))
    if not match:
        raise click.BadParameter(f"a duration must look like 90s or 10m, got {text!r}")
    return float(match[1]) * _SECONDS[match[2]]


def moment(text: str) -> float:
    """The seconds since the epoch of `2026-12-01T08:00Z`; without a zone, in that of this machine. For `type=`."""
    try:
        return datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError) as error:
        raise click.BadParameter(f"a time must look like 2026-12-01T08:00Z, got {text!r}") from error
