"""Durations on the command line: `90s`, `10m`, `1.5h`, or plain seconds."""

import re

import click

__all__ = ["duration"]

_SECONDS = {"": 1, "s": 1, "m": 60, "h": 3600}


def duration(text: str) -> float:
    """Seconds; for `type=` of an option."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([smh]?)", text)
    if not found or not float(found[1]):
        raise click.BadParameter(f"{text!r} is no duration such as 90s or 10m")
    return float(found[1]) * _SECONDS[found[2]]
