"""plugwright: the toolkit for Kubernetes device plugins.

The public names, loaded when they are first used: a program that only makes `Device` values loads no server.
"""

from importlib import import_module
from typing import TYPE_CHECKING

__all__ = [
    "Allocation",
    "ConfigError",
    "Device",
    "DeviceNode",
    "Health",
    "InvalidValue",
    "Limits",
    "Mount",
    "Plugin",
    "PluginError",
    "PlugwrightError",
    "Registration",
    "Settings",
    "Timeouts",
    "__version__",
    "run",
    "serving",
]

if TYPE_CHECKING:  # what a type checker sees; `_HOMES` is the same for the interpreter, and a test compares them
    from plugwright.errors import ConfigError, InvalidValue, PluginError, PlugwrightError
    from plugwright.model import Allocation, Device, DeviceNode, Health, Mount
    from plugwright.sdk.plugin import Plugin
    from plugwright.sdk.run import run, serving
    from plugwright.sdk.settings import Limits, Registration, Settings, Timeouts
    from plugwright.version import __version__

_HOMES = {
    "plugwright.errors": ("ConfigError", "InvalidValue", "PluginError", "PlugwrightError"),
    "plugwright.model": ("Allocation", "Device", "DeviceNode", "Health", "Mount"),
    "plugwright.sdk.plugin": ("Plugin",),
    "plugwright.sdk.run": ("run", "serving"),
    "plugwright.sdk.settings": ("Limits", "Timeouts", "Registration", "Settings"),
    "plugwright.version": ("__version__",),
}


def __getattr__(name: str) -> object:
    for home, names in _HOMES.items():
        if name in names:
            return getattr(import_module(home), name)
    raise AttributeError(f"module 'plugwright' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
