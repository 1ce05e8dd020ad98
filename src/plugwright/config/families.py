"""The registry of device families: which key of the operator's file is whose.

A family is loaded when a file uses its key: all of them together cost a daemon memory and a good part of its start.
For the same reason the entry points of other packages are looked at only when a key is not one of our own. What a
family must provide is `sdk.families`.
"""

from functools import cache
from importlib import import_module
from typing import Any

from plugwright.errors import ConfigError
from plugwright.sdk.families import ENTRY_POINTS, DeviceFamily

__all__ = ["BUILT_IN", "installed", "load"]

BUILT_IN = {
    **{
        key: f"plugwright.config.generic_build:{key.upper()}"
        for key in ("drm", "fpga", "groups", "net", "nvme", "paths", "pci", "rdma", "usb")
    },
    "mock": "plugwright.plugins.mock:FAMILY",
    "nvidia": "plugwright.plugins.nvidia.family:FAMILY",
}


def load(key: str) -> DeviceFamily[Any]:
    """The family of this key, which is one of ours or one of `installed`."""
    target = BUILT_IN.get(key) or installed()[key]
    module, _, attribute = target.partition(":")
    try:
        family = getattr(import_module(module), attribute)
    except Exception as error:
        if key in BUILT_IN:
            raise
        raise ConfigError(f"the device family {key!r} cannot be loaded from {target}: {error!r}") from error
    if not isinstance(family, DeviceFamily):
        raise ConfigError(f"the device family {key!r} must be a DeviceFamily, got {target}: {family!r}")
    return family


@cache
def installed() -> dict[str, str]:
    """The families that other packages bring, as `module:attribute`; what is in a process does not change."""
    from importlib.metadata import entry_points  # 2 MiB, for files with such a family

    return {point.name: point.value for point in entry_points(group=ENTRY_POINTS) if point.name not in BUILT_IN}
