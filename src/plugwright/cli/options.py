"""Durations on the command line: `90s`, `10m`, `1.5h`, or plain seconds."""

import re

import click

__all__ = ["duration"]

_SECONDS = {"": 1, "s": 1, "m": 60, "h": 3600}


def duration(text: str) -> float:
    """The seconds of a duration; for `type=` of an option."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smh]?)", text)
    if not match or not float(match[1]):
        raise click.BadParameter(f"a duration must look like 90s or 10m, got {text!r}")
    return float(match[1]) * _SECONDS[match[2]]
