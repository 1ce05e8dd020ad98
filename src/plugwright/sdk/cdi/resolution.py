"""CDI devices by name, as a container runtime finds them in its directories."""

import logging
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from plugwright.errors import InvalidValue
from plugwright.sdk.cdi.files import DYNAMIC, STATIC, read
from plugwright.sdk.cdi.spec import ContainerEdits, Device, Spec, qualified_name

__all__ = ["edits_for", "resolve"]

logger = logging.getLogger(__name__)


def resolve(directories: Sequence[Path] = (STATIC, DYNAMIC)) -> dict[str, Device]:
    """All devices by name. A later directory wins; a name twice in one directory is unusable, there and before."""
    return {name: device for name, (_, device) in _found(directories).items()}


def edits_for(names: Iterable[str], directories: Sequence[Path] = (STATIC, DYNAMIC)) -> list[ContainerEdits]:
    """The changes of a runtime to a container with these devices: each spec's own edits once, then each device's."""
    found, names = _found(directories), list(names)
    unknown = [name for name in names if name not in found]
    if unknown:
        places = ", ".join(map(str, directories))
        raise InvalidValue(f"CDI devices must be in a spec in {places}, got {', '.join(unknown)}, which are in none")
    specs = {id(spec): spec for spec, _ in (found[name] for name in names)}
    return [*(spec.edits for spec in specs.values()), *(found[name][1].edits for name in names)]


def _found(directories: Sequence[Path]) -> dict[str, tuple[Spec, Device]]:
    devices: dict[str, tuple[Spec, Device]] = {}
    for directory in directories:
        seen: set[str] = set()
        for name, spec, device in _devices_in(directory):
            if name in seen:
                devices.pop(name, None)
                logger.warning("CDI device in two files of one directory, unusable", extra={"device": name})
            else:
                devices[name] = spec, device
            seen.add(name)
    return dict(sorted(devices.items()))


def _devices_in(directory: Path) -> Iterator[tuple[str, Spec, Device]]:
    for path in sorted(directory.iterdir()) if directory.is_dir() else []:
        if path.suffix not in (".json", ".yaml") or not path.is_file():
            continue
        try:
            spec = read(path)
        except (OSError, InvalidValue) as error:
            logger.warning("CDI spec not usable", extra={"file": str(path), "error": str(error)})
            continue
        for device in spec.devices:
            yield qualified_name(spec.kind, device.name), spec, device
