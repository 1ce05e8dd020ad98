"""Where CDI specs lie, and how they are written: whole or not at all, readable by everyone, ours known by name."""

import json
import logging
import os
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from plugwright.errors import InvalidValue
from plugwright.sdk import files
from plugwright.sdk.cdi import encoding
from plugwright.sdk.cdi.spec import Device, Spec, qualified_name

__all__ = ["DYNAMIC", "STATIC", "SpecDirectory", "read", "resolve"]

logger = logging.getLogger(__name__)

STATIC = Path("/etc/cdi")
DYNAMIC = Path("/var/run/cdi")
_ENDINGS = (".json", ".yaml")
_MODE = 0o644  # runtimes and people who look are not all root


@dataclass(frozen=True, slots=True)
class SpecDirectory:
    """One writer's files in a directory of many: `owner` is a part of their names.

    Files stay when the writer ends: the kubelet uses stored answers again when a container restarts, and a name that
    no file has makes that fail. `remove` is for what no pod can hold any more.
    """

    path: Path = DYNAMIC
    owner: str = "plugwright"

    def __post_init__(self) -> None:
        if not self.owner or not self.owner.replace("-", "").replace("_", "").isalnum():
            raise InvalidValue(f"an owner of CDI files has letters, digits, '-' and '_', not {self.owner!r}")

    def file(self, kind: str, part: str = "") -> Path:
        """`vendor-class_owner[.part].json`; `part` tells several files of one kind apart."""
        part = f".{part.replace('/', '_')}" if part else ""
        return self.path / f"{_stem(kind, self.owner)}{part}.json"

    def write(self, spec: Spec, part: str = "") -> Path:
        """Writes the spec so that nobody ever reads half of it; a file that is right already is left alone."""
        path, content = self.file(spec.kind, part), encoding.to_json(spec).encode()
        if not _is(path, content):
            self.path.mkdir(mode=0o755, parents=True, exist_ok=True)
            _write(path, content)
        return path

    def files(self) -> list[Path]:
        """This owner's files: no other is ever removed."""
        return [path for path in _specs_in(self.path) if self._owns(path)]

    def remove(self, keep: Iterable[Path] = ()) -> list[Path]:
        """Removes this owner's files but those to keep; returns which."""
        gone = sorted(set(self.files()) - set(keep))
        for path in gone:
            path.unlink(missing_ok=True)
        return gone

    def _owns(self, path: Path) -> bool:
        """A name alone could be another's: with the kind inside there is only one way to read it."""
        try:
            kind = read(path).kind
        except (OSError, InvalidValue):
            return False
        return path.suffix == ".json" and path.name.startswith(f"{_stem(kind, self.owner)}.")


def read(path: Path) -> Spec:
    """The spec of a JSON or YAML file."""
    text = path.read_text(encoding="utf-8")
    try:
        return encoding.from_plain(_parse(path, text))
    except InvalidValue as error:
        raise InvalidValue(f"{path}: {error}") from error


def resolve(directories: Sequence[Path] = (STATIC, DYNAMIC)) -> dict[str, Device]:
    """Every device that a runtime would find, by its qualified name.

    A later directory wins; a name that stands twice in one directory is unusable, there and before.
    """
    found: dict[str, Device] = {}
    for directory in directories:
        seen: set[str] = set()
        for name, device in _devices_in(directory):
            if name in seen:
                found.pop(name, None)
                logger.warning("CDI device in two files of one directory, unusable", extra={"device": name})
            else:
                found[name] = device
            seen.add(name)
    return dict(sorted(found.items()))


def _devices_in(directory: Path) -> Iterable[tuple[str, Device]]:
    for path in _specs_in(directory):
        try:
            spec = read(path)
        except (OSError, InvalidValue) as error:
            logger.warning("CDI spec not usable", extra={"file": str(path), "error": str(error)})
            continue
        for device in spec.devices:
            yield qualified_name(spec.kind, device.name), device


def _specs_in(directory: Path) -> list[Path]:
    try:
        return sorted(path for path in directory.iterdir() if path.suffix in _ENDINGS and path.is_file())
    except OSError:
        return []


def _stem(kind: str, owner: str) -> str:
    return f"{kind.replace('/', '-')}_{owner}"


def _parse(path: Path, text: str) -> object:
    if path.suffix == ".json":
        try:
            return json.loads(text)
        except ValueError as error:
            raise InvalidValue(f"not JSON: {error}") from error
    import yaml

    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise InvalidValue(f"not YAML: {' '.join(str(error).split())}") from error


def _is(path: Path, content: bytes) -> bool:
    try:
        return path.read_bytes() == content and path.stat().st_mode & 0o777 == _MODE
    except OSError:
        return False


def _write(path: Path, content: bytes) -> None:
    # No ending that a runtime looks for, so that nobody reads it before it is whole.
    new = path.with_name(f".{path.name}.{os.getpid()}.new")
    try:
        with new.open("wb") as file:
            file.write(content)
            file.flush()
            os.fchmod(file.fileno(), _MODE)
            os.fsync(file.fileno())
        new.replace(path)
    except OSError:
        with suppress(OSError):
            new.unlink()
        raise
    files.sync_directory(path.parent)
