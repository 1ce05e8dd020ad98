"""The variables for `run(plugin)`, with the names and values of `plugwright run`.

A variable sets a setting left at its default; `protocol.paths` reads the kubelet's directories where
they are used.
"""

import logging
from collections.abc import Callable, Mapping
from typing import Any

from msgspec.structs import FieldInfo, fields, replace

from plugwright.errors import ConfigError
from plugwright.sdk.log_level import LEVELS
from plugwright.sdk.logs import HumanFormatter, JsonFormatter, LogWriter, standard_error
from plugwright.sdk.settings import Registration, Settings

__all__ = ["configure_logs", "with_environment"]

_PREFIX = "PLUGWRIGHT_"
_FORMATS: Mapping[str, Callable[[], logging.Formatter]] = {"human": HumanFormatter, "json": JsonFormatter}
_READ_ELSEWHERE = ("kubelet_dir", "device_plugins_dir", "cordons")  # in `protocol.paths`, and in the operator's file
_PLAIN = {"node_name": "NODE_NAME", "pod_uid": "POD_UID"}  # as pods commonly get them


def with_environment(settings: Settings, environment: Mapping[str, str]) -> Settings:
    """`settings`, with its defaults replaced by the variables' values: `state_dir` is PLUGWRIGHT_STATE_DIR."""
    changes: dict[str, Any] = {}
    for item in fields(settings):
        text = environment.get(_PREFIX + item.name.upper(), "") or environment.get(_PLAIN.get(item.name, ""), "")
        if text and item.name not in _READ_ELSEWHERE and getattr(settings, item.name) == item.default:
            changes[item.name] = _converted(item, text)
    return replace(settings, **changes)


def _converted(item: FieldInfo, text: str) -> object:
    if item.type is Registration:
        return Registration(_choice({_PREFIX + item.name.upper(): text}, item.name.upper(), tuple(Registration), ""))
    if item.type == tuple[str, ...]:
        return tuple(text.split(","))
    if item.type is float:
        return _seconds(_PREFIX + item.name.upper(), text)
    return text  # a path becomes one in Settings


def _seconds(name: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ConfigError(f"{name} must be a number of seconds, got {text!r}") from None


def configure_logs(environment: Mapping[str, str]) -> None:
    """Sets the level of our own lines, and if the program configures no logging, writes lines to stderr."""
    level = _choice(environment, "LOG_LEVEL", LEVELS, "")
    style = _choice(environment, "LOG_FORMAT", tuple(_FORMATS), "human")
    root, own = logging.getLogger(), logging.getLogger("plugwright")
    if not root.hasHandlers():
        handler = LogWriter(standard_error())
        handler.setFormatter(_FORMATS[style]())
        root.addHandler(handler)
        own.setLevel(logging.INFO)
    if level:
        own.setLevel(level.upper())


def _choice(environment: Mapping[str, str], name: str, choices: tuple[str, ...], default: str) -> str:
    text = environment.get(_PREFIX + name) or default
    if text and text not in choices:
        raise ConfigError(f"{_PREFIX}{name} must be one of {', '.join(choices)}, got {text!r}")
    return text
