"""Cordons: devices taken out of service by operators, kept over restarts, and the rules of the configuration.

A cordon is for one device, with its author, time and optional end. A rule is a part of the configuration, and cordons
every matching device on every node with the file. `cordon_controller` applies and ends them.

Cordons belong to the node: all its daemons share one file. A change is made to the file's present content, under a
lock, so no daemon overwrites a cordon of another.

The file has the shape of the first version, resource → device id → reason, and additionally the key `format` with the
version and the other fields of each cordon. So an older daemon keeps the cordons and only loses their authors and ends.
The version is increased when older daemons must not read the file.
"""

import json
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path

import msgspec
from msgspec.structs import replace

from plugwright.errors import ConfigError, InvalidValue, StateFileDamaged
from plugwright.model import Device
from plugwright.system import files
from plugwright.system.log_once import LogOnce
from plugwright.system.state_file import NewerVersion, StateFile, StateFileOptions
from plugwright.text import clean

__all__ = ["CORDONS_FILE", "LATEST", "Cordon", "CordonRule", "Cordons", "cordons_problem"]

logger = logging.getLogger(__name__)

CORDONS_FILE = "cordons.json"  # in the directory of the node
_VERSION = 2  # the first version had no number
_LARGEST = 2**20  # bytes; 200 for each cordon are usual
_FORMAT = "format"  # no resource has this name, because theirs contain a slash
LATEST = 253_402_300_799.0  # the last second of the year 9999


class Cordon(msgspec.Struct, frozen=True):
    """The cordon of one device; times are seconds since the epoch."""

    reason: str
    by: str = ""  # empty: not known
    since: float = 0.0  # 0: not known
    until: float = math.inf

    def is_over(self, now: float) -> bool:
        return self.until <= now


class CordonRule(msgspec.Struct, frozen=True):
    """A cordon in the configuration. Patterns can contain `*` and `?`; one pattern of a list must match."""

    resource: str
    reason: str
    ids: Sequence[str] = ()  # empty: every id
    attributes: Mapping[str, Sequence[str]] = {}  # all of them must match; case is ignored
    until: float = math.inf

    def is_over(self, now: float) -> bool:
        return self.until <= now

    def is_for(self, resource: str) -> bool:
        return fnmatchcase(resource, self.resource)

    def matches(self, device: Device) -> bool:
        """Whether a device is cordoned, if the rule is for its resource."""
        if self.ids and not any(fnmatchcase(device.id, pattern) for pattern in self.ids):
            return False
        return all(
            name in device.attributes and _is_like(device.attributes[name], patterns)
            for name, patterns in self.attributes.items()
        )


def _is_like(value: object, patterns: Sequence[str]) -> bool:
    text = clean(value).lower()
    return any(fnmatchcase(text, pattern.lower()) for pattern in patterns)


_Stored = dict[str, dict[str, Cordon]]  # by resource, then by device id


class Cordons:
    """Cordons of every resource, stored in the file `path`; without a path they last as long as the process.

    The methods read and write the file: call them in a thread, one at a time. `unreadable` is why the cordons of an
    earlier run are not known, empty if they are. While the file cannot be read, it is not changed, and no cordon is
    added or removed.
    """

    def __init__(self, path: Path | None) -> None:
        self.unreadable = f"the cordons in {path} have not been read yet" if path is not None else ""
        self._file = _state_file(path) if path is not None else None
        self._cordons: _Stored = {}
        self._problems = LogOnce(logger)

    @property
    def all(self) -> Mapping[str, Mapping[str, Cordon]]:
        return self._cordons

    def of(self, resource: str) -> Mapping[str, Cordon]:
        return self._cordons.get(resource, {})

    def load(self) -> None:
        """Reads the file, unless it has been read before; never raises."""
        if self._file is None or not self.unreadable:
            return
        try:
            files.remove_unfinished(self._file.path.parent)
            self._cordons = self._file.read() or {}
        except StateFileDamaged as error:
            self.fail(error.problem)
        except OSError as error:
            self.fail(clean(error.strerror or error))
        else:
            self.unreadable = ""

    def fail(self, reason: str) -> None:
        """Records the file as unreadable."""
        if self._file is None:
            return
        self.unreadable = f"cannot read the cordons in {self._file.path}: {reason}"
        self._problems.error("cordons not readable", reason, extra={"path": str(self._file.path), "error": reason})

    def add(self, resource: str, device_id: str, cordon: Cordon) -> None:
        cordon = replace(cordon, reason=clean(cordon.reason), by=clean(cordon.by))
        self._replace(lambda stored: {**stored, resource: {**stored.get(resource, {}), device_id: cordon}})

    def remove(self, resource: str, device_id: str) -> None:
        def without(stored: _Stored) -> _Stored:
            cordons = {key: cordon for key, cordon in stored.get(resource, {}).items() if key != device_id}
            return {**stored, resource: cordons}

        self._replace(without)

    def merge(self, others: Mapping[str, Mapping[str, Cordon]]) -> None:
        """Adds the cordons of another file; an already cordoned device keeps its cordon. ConfigError."""

        def merged(stored: _Stored) -> _Stored:
            resources = [*stored, *(resource for resource in others if resource not in stored)]
            return {resource: {**others.get(resource, {}), **stored.get(resource, {})} for resource in resources}

        self._replace(merged)

    def read_again(self) -> bool:
        """Applies the changes of other daemons; returns whether there were any. Never raises.

        A removed or unreadable file ends no cordon.
        """
        if self._file is None or self.unreadable:
            return False
        try:
            stored = self._file.read()
        except (OSError, StateFileDamaged) as error:
            reason = error.problem if isinstance(error, StateFileDamaged) else clean(error.strerror or error)
            facts = {"path": str(self._file.path), "error": reason}
            self._problems.error("cordons of other daemons not readable", reason, extra=facts)
            return False
        self._problems.recovered()
        if stored is None or stored == self._cordons:
            return False
        self._cordons = stored
        return True

    def remove_ended(self, now: float) -> list[tuple[str, str, Cordon]]:
        """Removes ended cordons from memory, and from the file if it can be written; returns them."""
        ended = [
            (resource, device_id, cordon)
            for resource, cordons in self._cordons.items()
            for device_id, cordon in cordons.items()
            if cordon.is_over(now)
        ]
        if ended:
            try:
                self._save(lambda stored: _without_ended(stored, now))
            except ConfigError as error:  # a cordon in the file also ends by its time
                logger.warning("expired cordons are still in the file", extra={"error": str(error)})
                self._cordons = _without_ended(self._cordons, now)
        return ended

    def _replace(self, change: Callable[[_Stored], _Stored]) -> None:
        self.load()
        if self.unreadable:
            raise ConfigError(f"{self.unreadable}; nothing was changed")
        self._save(change)

    def _save(self, change: Callable[[_Stored], _Stored]) -> None:
        """Writes to disk first: the answer 'cordoned' must hold after a power cut."""

        def changed(stored: _Stored | None) -> _Stored:
            # A file removed in the meantime ends no cordon.
            cordons = change(self._cordons if stored is None else stored)
            return {resource: cordons[resource] for resource in sorted(cordons) if cordons[resource]}

        if self._file is None:
            self._cordons = changed(None)
            return
        try:
            self._cordons = self._file.change(changed) or {}
        except StateFileDamaged as error:
            raise ConfigError(
                f"cannot read the cordons in {self._file.path}: {error.problem}; nothing was changed"
            ) from error
        except OSError as error:
            reason = error.strerror or error
            raise ConfigError(
                f"cannot write the cordons to {self._file.path}: {reason}; nothing was changed"
            ) from error


def cordons_problem(path: Path) -> str:
    """Why the cordons in a file cannot be read; empty if they can, or if there is no file. Changes nothing."""
    try:
        _state_file(path).read()
    except StateFileDamaged as error:
        return error.problem
    except OSError as error:
        return clean(error.strerror or error)
    return ""


def _state_file(path: Path) -> "StateFile[_Stored]":
    return StateFile(path, _CordonFormat(), StateFileOptions(set_aside=False, limit=_LARGEST))


def _without_ended(stored: _Stored, now: float) -> _Stored:
    left = {
        resource: {device_id: cordon for device_id, cordon in cordons.items() if not cordon.is_over(now)}
        for resource, cordons in stored.items()
    }
    return {resource: cordons for resource, cordons in left.items() if cordons}


class _CordonFormat:
    def encode(self, value: _Stored) -> bytes:
        reasons = {
            resource: {device_id: cordon.reason for device_id, cordon in cordons.items()}
            for resource, cordons in value.items()
        }
        details = {
            resource: {device_id: _details(cordon) for device_id, cordon in cordons.items()}
            for resource, cordons in value.items()
        }
        content = {**reasons, _FORMAT: {"version": _VERSION, "details": details}}
        return json.dumps(content, indent=2).encode() + b"\n"

    def decode(self, content: bytes) -> _Stored:
        stored = json.loads(content)  # half of a surrogate pair in an operator's text must not make the file invalid
        if not isinstance(stored, dict) or not all(isinstance(reasons, dict) for reasons in stored.values()):
            raise InvalidValue("it must hold an object of objects: resource, device id, reason")
        details = _read_details(stored.pop(_FORMAT, {}))
        return {resource: _valid(reasons, details.get(resource)) for resource, reasons in stored.items()}


def _details(cordon: Cordon) -> dict[str, object]:
    until = {"until": cordon.until} if math.isfinite(cordon.until) else {}
    return {"by": cordon.by, "since": cordon.since, **until}


def _read_details(form: Mapping[str, object]) -> Mapping[str, object]:
    version = form.get("version", 1)
    # An older daemon that has rewritten the file has kept the number as a string, and no details.
    number = int(version) if isinstance(version, str) and version.isdecimal() else version
    if not isinstance(number, int) or number > _VERSION:
        raise NewerVersion(
            f"a newer plugwright has written it, in format {clean(version)}; this one reads formats up to {_VERSION}"
        )
    details = form.get("details")
    return details if isinstance(details, dict) else {}


def _valid(reasons: Mapping[str, object], details: object) -> dict[str, Cordon]:
    """Omits impossible ids, because an invalid id would break the whole resource."""
    valid = {}
    for device_id, reason in reasons.items():
        try:
            cordon = _cordon(reason, details.get(device_id) if isinstance(details, dict) else None)
            valid[Device(device_id).id] = cordon
        except InvalidValue as error:
            logger.error("cordon ignored", extra={"id": clean(device_id), "error": clean(error)})
    return valid


def _cordon(reason: object, details: object) -> Cordon:
    known = details if isinstance(details, dict) else {}
    since, until = _time(known.get("since"), 0.0), _time(known.get("until"), math.inf)
    return Cordon(clean(reason), clean(known.get("by") or ""), since, until)


def _time(value: object, otherwise: float) -> float:
    is_time = isinstance(value, int | float) and 0 <= value <= LATEST
    return float(value) if is_time else otherwise  # type: ignore[arg-type]
