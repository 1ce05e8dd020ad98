"""Cordoned devices and the operator's reasons, kept over restarts."""

import json
import logging
import threading
from collections.abc import Callable, Mapping
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

    Its methods read and write the file: for a thread. `unreadable` is why the cordons of an earlier run are not known,
    empty if they are. While the file is there and cannot be read, none is added or removed: that would replace what it
    holds.
    """

    def __init__(self, path: Path | None) -> None:
        self.unreadable = f"the cordons in {path} have not been read yet" if path is not None else ""
        self._path = path
        self._reasons: Reasons = {}
        self._lock = threading.RLock()

    @property
    def all(self) -> Mapping[str, Mapping[str, str]]:
        return self._reasons

    def of(self, resource: str) -> Mapping[str, str]:
        return self._reasons.get(resource, {})

    def load(self) -> None:
        """Reads the file, unless that has succeeded before; never raises."""
        with self._lock:
            if self._path is None or not self.unreadable:
                return
            try:
                self._reasons = _load(self._path)
            except Exception as error:  # noqa: BLE001  whatever is wrong with it: what it holds is not known
                self.fail(_text(error))
            else:
                self.unreadable = ""

    def fail(self, reason: str) -> None:
        """The file cannot be read, or not now."""
        before, self.unreadable = self.unreadable, f"cannot read the cordons in {self._path}: {reason}"
        if self.unreadable != before:
            logger.error("cordons not readable", extra={"path": str(self._path), "error": reason})

    def add(self, resource: str, device_id: str, reason: str) -> None:
        self._replace(resource, lambda reasons: {**reasons, device_id: clean(reason)})

    def remove(self, resource: str, device_id: str) -> None:
        self._replace(resource, lambda reasons: {key: reason for key, reason in reasons.items() if key != device_id})

    def _replace(self, resource: str, change: Callable[[Mapping[str, str]], dict[str, str]]) -> None:
        """On disk first: an answer 'cordoned' must hold after a power cut."""
        with self._lock:
            self.load()
            if self.unreadable:
                raise ConfigError(f"{self.unreadable}; nothing was changed")
            changed = {**self._reasons, resource: change(self.of(resource))}
            changed = {name: changed[name] for name in sorted(changed) if changed[name]}
            if self._path is not None:
                _save(self._path, changed)
            self._reasons = changed


def _load(path: Path) -> Reasons:
    """What the file holds; raises whatever is wrong with it."""
    files.remove_unfinished(path.parent)
    try:
        stored = json.loads(path.read_bytes())
    except FileNotFoundError:
        return {}
    if not isinstance(stored, dict) or not all(isinstance(reasons, dict) for reasons in stored.values()):
        raise InvalidValue("it must hold an object of objects: resource, device id, reason")
    return {resource: _valid(reasons) for resource, reasons in stored.items()}


def _text(error: Exception) -> str:
    return clean((error.strerror if isinstance(error, OSError) else "") or error)


def _valid(reasons: Mapping[str, object]) -> dict[str, str]:
    """Without ids that no device can have: one of them would break the whole resource."""
    valid = {}
    for device_id, reason in reasons.items():
        try:
            valid[Device(device_id).id] = clean(reason)
        except InvalidValue as error:
            logger.error("cordon ignored", extra={"id": clean(device_id), "error": clean(error)})
    return valid


def _save(path: Path, reasons: Reasons) -> None:
    try:
        files.write_atomically(path, json.dumps(reasons, indent=2) + "\n", mode=0o600)
    except OSError as error:
        raise ConfigError(f"cannot write the cordons to {path}: {error.strerror}; nothing was changed") from error
