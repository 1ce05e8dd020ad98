"""Cordoned devices and the operator's reasons, kept over restarts."""

import json
import logging
from collections.abc import Callable, Mapping
from itertools import count
from pathlib import Path

from plugwright.errors import ConfigError, InvalidValue
from plugwright.model import Device
from plugwright.system import files
from plugwright.text import clean

__all__ = ["Cordons"]

logger = logging.getLogger(__name__)

Reasons = dict[str, dict[str, str]]  # resource → device id → reason


class Cordons:
    """Cordons of every resource, in the file `path`; with None they last as long as the process.

    Its methods read and write the file: for a thread, one call at a time. `unreadable` is why the cordons of an earlier
    run are not known, empty if they are. While the file is there and cannot be read, none is added or removed: that
    would replace what it holds.
    """

    def __init__(self, path: Path | None) -> None:
        self.unreadable = f"the cordons in {path} have not been read yet" if path is not None else ""
        self._path = path
        self._reasons: Reasons = {}
        self._is_known = path is None

    @property
    def all(self) -> Mapping[str, Mapping[str, str]]:
        return self._reasons

    def of(self, resource: str) -> Mapping[str, str]:
        return self._reasons.get(resource, {})

    def load(self) -> None:
        """Reads the file, unless that has succeeded before; never raises."""
        if self._path is None or self._is_known:
            return
        try:
            self._reasons, self.unreadable = _load(self._path)
        except OSError as error:
            before, self.unreadable = self.unreadable, f"cannot read the cordons in {self._path}: {_text(error)}"
            if self.unreadable != before:
                logger.error("cordons not readable", extra={"path": str(self._path), "error": _text(error)})
            return
        self._is_known = True

    def add(self, resource: str, device_id: str, reason: str) -> None:
        self._replace(resource, lambda reasons: {**reasons, device_id: clean(reason)})

    def remove(self, resource: str, device_id: str) -> None:
        self._replace(resource, lambda reasons: {key: reason for key, reason in reasons.items() if key != device_id})

    def _replace(self, resource: str, change: Callable[[Mapping[str, str]], dict[str, str]]) -> None:
        """On disk first: an answer 'cordoned' must hold after a power cut."""
        self.load()
        if not self._is_known:
            raise ConfigError(f"{self.unreadable}; nothing was changed")
        changed = {**self._reasons, resource: change(self.of(resource))}
        changed = {name: changed[name] for name in sorted(changed) if changed[name]}
        if self._path is not None:
            _save(self._path, changed)
        self._reasons = changed


def _load(path: Path) -> tuple[Reasons, str]:
    """What the file holds, and what is wrong with it."""
    files.remove_unfinished(path.parent)
    try:
        stored = json.loads(path.read_bytes())
        return {str(resource): _valid(ids) for resource, ids in stored.items()}, ""
    except FileNotFoundError:
        return {}, ""
    except (ValueError, AttributeError, RecursionError) as error:
        renamed = _rename_unreadable(path)
        logger.error("cordons not readable, file renamed", extra={"path": str(renamed), "error": _text(error)})
        return {}, f"the cordons of an earlier run could not be read, they are in {renamed}: {_text(error)}"


def _text(error: Exception) -> str:
    return clean((error.strerror if isinstance(error, OSError) else "") or error)


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
