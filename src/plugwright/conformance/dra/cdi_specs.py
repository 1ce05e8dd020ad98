"""CDI devices as a runtime finds them in its directories: the names, and the edits of each."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

__all__ = ["CdiDevice", "cdi_devices", "spec_files"]

CdiDevice = Mapping[str, Any]
_ENDINGS = (".json", ".yaml")


def cdi_devices(directories: Sequence[Path]) -> dict[str, CdiDevice]:
    """The entry of each device by its qualified name; files that cannot be read have none."""
    found: dict[str, CdiDevice] = {}
    for directory in directories:
        paths = sorted(directory.iterdir()) if directory.is_dir() else []
        for path in paths:
            if path.suffix in _ENDINGS:
                found |= _devices(path)
    return found


def spec_files(directories: Sequence[Path], name: str) -> int:
    """How many files define the device of this qualified name."""
    paths = [path for directory in directories if directory.is_dir() for path in directory.iterdir()]
    return sum(name in _devices(path) for path in paths if path.suffix in _ENDINGS)


def _devices(path: Path) -> dict[str, CdiDevice]:
    try:
        text = path.read_text()
        spec = json.loads(text) if path.suffix == ".json" else yaml.safe_load(text)
        return {f"{spec['kind']}={device['name']}": device for device in spec["devices"]}
    except (OSError, ValueError, KeyError, TypeError, yaml.YAMLError):
        return {}
