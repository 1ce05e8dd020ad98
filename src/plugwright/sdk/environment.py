"""The variables that `run(plugin)` obeys: those of `plugwright run`, with the same names and values.

A setting that a program leaves at its default comes from its variable; the kubelet's directories are read where they
are used, in `protocol.paths`.
"""

import logging
from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from plugwright.errors import ConfigError
from plugwright.sdk.logs import HumanFormatter, JsonFormatter
from plugwright.sdk.settings import Registration, Settings

__all__ = ["configure_logs", "with_environment"]

_PREFIX = "PLUGWRIGHT_"
_FORMATS: Mapping[str, Callable[[], logging.Formatter]] = {"human": HumanFormatter, "json": JsonFormatter}
_LEVELS = ("debug", "info", "warning", "error")


def with_environment(settings: Settings, environment: Mapping[str, str]) -> Settings:
    """`settings`, with the variables' values where it has its defaults."""
    ways = tuple(way.value for way in Registration)
    values: dict[str, Any] = {
        "registration": Registration(_choice(environment, "REGISTRATION", ways, Registration.DIRECT.value)),
        "state_dir": _path(environment, "STATE_DIR"),
        "control_socket": _path(environment, "CONTROL_SOCKET"),
        "listen": environment.get(f"{_PREFIX}LISTEN", ""),
    }
    defaults = {field.name: field.default for field in fields(settings)}
    return replace(
        settings, **{name: value for name, value in values.items() if getattr(settings, name) == defaults[name]}
    )


def configure_logs(environment: Mapping[str, str]) -> None:
    """The level of our own lines; and where the program has no logging of its own, lines on stderr."""
    level = _choice(environment, "LOG_LEVEL", _LEVELS, "")
    style = _choice(environment, "LOG_FORMAT", tuple(_FORMATS), "human")
    root, own = logging.getLogger(), logging.getLogger("plugwright")
    if not root.hasHandlers():
        handler = logging.StreamHandler()
        handler.setFormatter(_FORMATS[style]())
        root.addHandler(handler)
        own.setLevel(logging.INFO)
    if level:
        own.setLevel(level.upper())


def _path(environment: Mapping[str, str], name: str) -> Path | None:
    text = environment.get(_PREFIX + name, "")
    return Path(text) if text else None


def _choice(environment: Mapping[str, str], name: str, choices: tuple[str, ...], default: str) -> str:
    text = environment.get(_PREFIX + name) or default
    if text and text not in choices:
        raise ConfigError(f"{_PREFIX}{name} must be one of {', '.join(choices)}, got {text!r}")
    return text
