"""Cordoned devices and the operator's reasons, kept over restarts."""

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
    """Cordons of every resource, in the file `path`; with None they last as long as the process."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._reasons = _load(path) if path is not None else {}

    def of(self, resource: str) -> Mapping[str, str]:
        return self._reasons.get(resource, {})

    def add(self, resource: str, device_id: str, reason: str) -> None:
        self._replace(resource, {**self.of(resource), device_id: reason})

    def remove(self, resource: str, device_id: str) -> None:
        self._replace(resource, {key: reason for key, reason in self.of(resource).items() if key != device_id})

    def _replace(self, resource: str, reasons: dict[str, str]) -> None:
        """On disk first: an answer 'cordoned' must hold after a power cut."""
        changed = {**self._reasons, resource: reasons}
        changed = {name: changed[name] for name in sorted(changed) if changed[name]}
        if self._path is not None:
            _save(self._path, changed)
        self._reasons = changed


def _load(path: Path) -> Reasons:
    files.remove_unfinished(path.parent)
    try:
        stored = json.loads(path.read_bytes())
        return {str(resource): _valid(ids) for resource, ids in stored.items()}
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise ConfigError(f"cannot read the cordons in {path}: {error.strerror}") from error
    except (ValueError, AttributeError, RecursionError) as error:
        renamed = _rename_unreadable(path)
        logger.error("cordons not readable, file renamed", extra={"path": str(renamed), "error": str(error)})
        return {}


def _valid(reasons: Mapping[str, str]) -> dict[str, str]:
    """Without ids and reasons that no device can have: one of them would break the whole resource."""
    valid = {}
    for device_id, reason in reasons.items():
        try:
            valid[Device(device_id, "Unhealthy", reason).id] = reason
        except InvalidValue as error:
            logger.error("cordon ignored", extra={"id": device_id, "error": str(error)})
    return valid


def _rename_unreadable(path: Path) -> Path:
    """Under a name that no earlier one has: nothing is lost."""
    names = (path.with_name(f"{path.name}.unreadable-{number}") for number in count(1))
    return path.replace(next(name for name in names if not name.exists()))


def _save(path: Path, reasons: Reasons) -> None:
    try:
        files.write_atomically(path, json.dumps(reasons, indent=2) + "\n", mode=0o600)
    except OSError as error:
        raise ConfigError(f"cannot write the cordons to {path}: {error.strerror}; nothing was changed") from error
