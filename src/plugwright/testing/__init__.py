"""For the tests of plugin authors: an emulated kubelet around their plugin, and pods to ask it for devices.

The public names, loaded when they are first used: pytest loads this package in every project where plugwright is
installed.
"""

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING

__all__ = [
    "ContainerWaiting",
    "Kubelet",
    "KubeletSettings",
    "PluginProcess",
    "PodRefused",
    "Timing",
    "plugin_process",
    "pod_requesting",
    "running",
]

if TYPE_CHECKING:  # what a type checker sees; `_HOMES` is the same for the interpreter, and a test compares them
    from plugwright.errors import ContainerWaiting, PodRefused
    from plugwright.kubelet.kubelet import Kubelet
    from plugwright.kubelet.settings import KubeletSettings, Timing
    from plugwright.testing.plugin_process import PluginProcess, plugin_process
    from plugwright.testing.pods import pod_requesting
    from plugwright.testing.running import running

_HOMES = {
    "plugwright.errors": ("ContainerWaiting", "PodRefused"),
    "plugwright.kubelet.kubelet": ("Kubelet",),
    "plugwright.kubelet.settings": ("KubeletSettings", "Timing"),
    "plugwright.testing.plugin_process": ("PluginProcess", "plugin_process"),
    "plugwright.testing.pods": ("pod_requesting",),
    "plugwright.testing.running": ("running",),
}


def __getattr__(name: str) -> object:
    for home, names in _HOMES.items():
        if name in names:
            return getattr(import_module(home), name)
    raise AttributeError(f"module 'plugwright.testing' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__


class _Facade(ModuleType):
    """Python makes every loaded submodule an attribute of its package; here two have the name of their function."""

    def __setattr__(self, name: str, value: object) -> None:
        if not (name in __all__ and isinstance(value, ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Facade
