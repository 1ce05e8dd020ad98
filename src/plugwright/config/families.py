"""The registry of device families: the family of each key of the operator's file.

A family is loaded when a file uses its key: all of them together cost a daemon memory and a good part of its start.
For the same reason the entry points of other packages are looked at only when a key is not built in.
`sdk.device_family` defines what a family provides.
"""

from functools import cache
from importlib import import_module
from typing import Any

import msgspec

from plugwright.errors import ConfigError
from plugwright.sdk.device_family import ENTRY_POINTS, DeviceFamily

__all__ = ["BUILT_IN", "installed", "load"]

BUILT_IN = {
    "drm": "plugwright.plugins.generic.drm:FAMILY",
    "fpga": "plugwright.plugins.generic.fpga:FAMILY",
    "groups": "plugwright.plugins.generic.groups:FAMILY",
    "mock": "plugwright.plugins.mock:FAMILY",
    "net": "plugwright.plugins.generic.net:FAMILY",
    "nvidia": "plugwright.plugins.nvidia.family:FAMILY",
    "nvme": "plugwright.plugins.generic.nvme:FAMILY",
    "paths": "plugwright.plugins.generic.paths:FAMILY",
    "pci": "plugwright.plugins.generic.pci:FAMILY",
    "rdma": "plugwright.plugins.generic.rdma:FAMILY",
    "usb": "plugwright.plugins.generic.usb:FAMILY",
}


def load(key: str) -> DeviceFamily[Any]:
    """The family of this key: a built-in one or one of `installed`."""
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
    if key not in BUILT_IN:
        _check_strict(key, family)
    return family


@cache
def installed() -> dict[str, str]:
    """The families of other packages, as `module:attribute`; cached, as packages do not change under a process."""
    from importlib.metadata import entry_points  # 2.4 MiB and 30 ms, only for files with such a family

    return {point.name: point.value for point in entry_points(group=ENTRY_POINTS) if point.name not in BUILT_IN}


def _check_strict(key: str, family: DeviceFamily[Any]) -> None:
    """Refuses a family whose settings would ignore unknown keys, as structs of msgspec do by default."""
    kinds = [family.settings, *([family.options] if family.options else [])]
    _, definitions = msgspec.json.schema_components(kinds)
    for name, definition in definitions.items():
        if "properties" in definition and definition.get("additionalProperties", True) is not False:
            raise ConfigError(f"the device family {key!r} must forbid unknown keys in {name}: derive FamilySettings")
