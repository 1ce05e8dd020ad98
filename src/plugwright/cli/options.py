"""Values and flags of options: durations, addresses, and flags that an environment variable sets too."""

import re

import click

__all__ = ["addresses", "duration", "env_option"]

_SECONDS = {"": 1, "s": 1, "m": 60, "h": 3600}


def duration(text: str) -> float:
    """The seconds in `90s`, `10m`, `1.5h` or plain seconds; for `type=` of an option."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smh]?)", text)
    if not match or not float(match[1]):
        raise click.BadParameter(f"a duration must look like 90s or 10m, got {text!r}")
    return float(match[1]) * _SECONDS[match[2]]


def addresses(text: str) -> tuple[str, ...]:
    """The words of `10.0.0.7,gateway`; for `type=` of an option."""
    return tuple(filter(None, (word.strip() for word in text.split(","))))


def env_option(flag: str, prefix: str = "PLUGWRIGHT_", **settings: object) -> click.Option:
    """An option that an environment variable sets too: `--kubelet-dir` is PLUGWRIGHT_KUBELET_DIR."""
    variable = prefix + flag.removeprefix("--").replace("-", "_").upper()
    return click.Option([flag], envvar=variable, show_envvar=True, **settings)  # type: ignore[arg-type]
