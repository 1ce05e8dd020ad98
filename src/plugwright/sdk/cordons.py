"""Devices that an operator has taken out, and why; kept over restarts."""

import json
import logging
from collections.abc import Mapping
from itertools import count
from pathlib import Path

from plugwright.errors import ConfigError, InvalidValue
from plugwright.model import Device
from plugwright.system import files

__all__ = ["Cordons"]

logger = logging.getLogger(__name__)

Reasons = dict[str, dict[str, str]]  # resource → device id → reason


class Cordons:
    """`path` None: they last as long as the process."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._reasons = _load(path) if path is not None else {}

    def of(self, resource: str) -> Mapping[str, str]:
        return self._reasons.get(resource, {})

    def add(self, resource: str, device_id: str, reason: str) -> None:
        self._replace(resource, {**self.of(resource), device_id: reason})

    def remove(self, resource: str, device_id: str) -> None:
        self._replace(resource, {each: why for each, why in self.of(resource).items() if each != device_id})

    def _replace(self, resource: str, reasons: dict[str, str]) -> None:
        """On disk first: an answer that says 'cordoned' must hold after a power cut."""
        changed = {**self._reasons, resource: reasons}
        changed = {each: changed[each] for each in sorted(changed) if changed[each]}
        if self._path is not None:
            _save(self._path, changed)
        self._reasons = changed


def _load(path: Path) -> Reasons:
    try:
        stored = json.loads(path.read_bytes())
        return {str(resource): _checked(ids) for resource, ids in stored.items()}
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise ConfigError(f"cannot read the cordons in {path}: {error.strerror}") from error
    except (ValueError, AttributeError, RecursionError) as error:
        aside = _put_aside(path)
        logger.error("cordons not readable, put aside", extra={"path": str(aside), "error": str(error)})
        return {}


def _checked(ids: Mapping[str, str]) -> dict[str, str]:
    """Without what no device could be called or be out of order for: it would break the whole resource."""
    good = {}
    for each, why in ids.items():
        try:
            good[Device(each, "Unhealthy", why).id] = why
        except InvalidValue as error:
            logger.error("cordon not taken over", extra={"id": each, "error": str(error)})
    return good


def _put_aside(path: Path) -> Path:
    """Under a name that no earlier one has: nothing is lost."""
    number = next(each for each in count(1) if not path.with_name(f"{path.name}.unreadable-{each}").exists())
    return path.replace(path.with_name(f"{path.name}.unreadable-{number}"))


def _save(path: Path, reasons: Reasons) -> None:
    try:
        files.write_atomically(path, json.dumps(reasons, indent=2) + "\n", mode=0o600)
    except OSError as error:
        raise ConfigError(f"cannot keep the cordon in {path}: {error.strerror}; nothing was changed") from error
