"""Test tools for plugin authors: an emulated kubelet beside their plugin, and pods with devices.

The public names are loaded at their first use, because pytest loads this package in every project where plugwright is
installed.
"""

from importlib import import_module
from typing import TYPE_CHECKING

__all__ = [
    "ContainerWaiting",
    "InvalidPod",
    "Kubelet",
    "KubeletFindings",
    "KubeletSettings",
    "Machine",
    "PeerGone",
    "PeerRefused",
    "PluginError",
    "PluginKubelet",
    "PluginProcess",
    "PodRefused",
    "Timing",
    "claim_requesting",
    "plugin_process",
    "pod_requesting",
    "running",
]

if TYPE_CHECKING:  # for type checkers; `_HOMES` is the same for the interpreter, and a test compares them
    from plugwright.errors import (
        ContainerWaiting,
        InvalidPod,
        KubeletFindings,
        PeerGone,
        PeerRefused,
        PluginError,
        PodRefused,
    )
    from plugwright.kubelet.kubelet import Kubelet
    from plugwright.kubelet.settings import KubeletSettings, Timing
    from plugwright.testing.claim_requests import claim_requesting
    from plugwright.testing.harness import PluginKubelet, running
    from plugwright.testing.machine import Machine
    from plugwright.testing.pods import pod_requesting
    from plugwright.testing.processes import PluginProcess, plugin_process

_HOMES = {
    "plugwright.errors": (
        "ContainerWaiting",
        "InvalidPod",
        "KubeletFindings",
        "PeerGone",
        "PeerRefused",
        "PluginError",
        "PodRefused",
    ),
    "plugwright.kubelet.kubelet": ("Kubelet",),
    "plugwright.kubelet.settings": ("KubeletSettings", "Timing"),
    "plugwright.testing.processes": ("PluginProcess", "plugin_process"),
    "plugwright.testing.machine": ("Machine",),
    "plugwright.testing.claim_requests": ("claim_requesting",),
    "plugwright.testing.pods": ("pod_requesting",),
    "plugwright.testing.harness": ("PluginKubelet", "running"),
}


def __getattr__(name: str) -> object:
    for home, names in _HOMES.items():
        if name in names:
            return getattr(import_module(home), name)
    raise AttributeError(f"module 'plugwright.testing' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
