"""plugwright: the toolkit for devices on Kubernetes: device plugins and DRA drivers.

The public names are loaded at their first use: a program that only makes `Device` values loads no server.
"""

from importlib import import_module
from typing import TYPE_CHECKING

__all__ = [
    "Allocation",
    "Capacity",
    "ConfigError",
    "Consumption",
    "CounterSet",
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
    "ServeMode",
    "ServeSettings",
    "Settings",
    "Split",
    "TaintSettings",
    "Timeouts",
    "Version",
    "__version__",
    "run",
    "serving",
]

if TYPE_CHECKING:  # for type checkers; `_HOMES` is the same for the interpreter, and a test compares them
    from plugwright.attributes import Capacity, Consumption, CounterSet, Version
    from plugwright.errors import ConfigError, InvalidValue, PluginError, PlugwrightError
    from plugwright.model import Allocation, Device, DeviceNode, Health, Mount
    from plugwright.sdk.plugin import Plugin
    from plugwright.sdk.serve_settings import ServeMode, ServeSettings, Split, TaintSettings
    from plugwright.sdk.settings import Limits, Registration, Settings, Timeouts
    from plugwright.serve import run, serving
    from plugwright.version import __version__

_HOMES = {
    "plugwright.attributes": ("Capacity", "Consumption", "CounterSet", "Version"),
    "plugwright.errors": ("ConfigError", "InvalidValue", "PluginError", "PlugwrightError"),
    "plugwright.model": ("Allocation", "Device", "DeviceNode", "Health", "Mount"),
    "plugwright.sdk.plugin": ("Plugin",),
    "plugwright.sdk.settings": ("Limits", "Timeouts", "Registration", "Settings"),
    "plugwright.sdk.serve_settings": ("ServeMode", "ServeSettings", "Split", "TaintSettings"),
    "plugwright.serve": ("run", "serving"),
    "plugwright.version": ("__version__",),
}


def __getattr__(name: str) -> object:
    from plugwright.deprecation import current_name  # `import plugwright` alone loads no module

    current = current_name(name)
    for home, names in _HOMES.items():
        if current in names:
            return getattr(import_module(home), current)
    raise AttributeError(f"module 'plugwright' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
