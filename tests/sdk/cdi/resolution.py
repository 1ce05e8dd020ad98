"""CDI devices by name, as a container runtime finds them in its directories."""

import logging
from collections.abc import Iterator, Sequence
from pathlib import Path

from plugwright.errors import InvalidValue
from plugwright.sdk import cdi

__all__ = ["resolve"]

logger = logging.getLogger(__name__)


def resolve(directories: Sequence[Path] = (cdi.STATIC, cdi.DYNAMIC)) -> dict[str, cdi.Device]:
    """A later directory wins; a name that is twice in one directory is unusable, there and before."""
    devices: dict[str, cdi.Device] = {}
    for directory in directories:
        seen: set[str] = set()
        for name, device in _devices_in(directory):
            if name in seen:
                devices.pop(name, None)
                logger.warning("CDI device in two files of one directory, unusable", extra={"device": name})
            else:
                devices[name] = device
            seen.add(name)
    return dict(sorted(devices.items()))


def _devices_in(directory: Path) -> Iterator[tuple[str, cdi.Device]]:
    for path in sorted(directory.iterdir()) if directory.is_dir() else []:
        if path.suffix not in (".json", ".yaml") or not path.is_file():
            continue
        try:
            spec = cdi.read(path)
        except (OSError, InvalidValue) as error:
            logger.warning("CDI spec not usable", extra={"file": str(path), "error": str(error)})
            continue
        for device in spec.devices:
            yield cdi.qualified_name(spec.kind, device.name), device
