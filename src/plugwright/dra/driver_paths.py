"""The files of a driver on its node, and the evidence in them of claims that could still have devices.

The kubelet's directory for the driver contains its sockets and the checkpoint of prepared claims. The split file, which
only `serve: both` writes, records which API offers each device; its lock decides which process of a driver places
devices while an old and a new daemon run side by side. A lock without a split file means that the driver was last
served by `serve: dra`: every device belonged to claims.
"""

import fcntl
import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from plugwright.sdk.settings import Settings
from plugwright.system import files

__all__ = [
    "DriverPaths",
    "PlacementLock",
    "may_have_claims",
    "record_resource",
    "recorded_drivers",
    "recorded_states",
]

_PRIVATE = 0o600
_RESOURCE = "resource"  # the file with the name of the resource that a driver serves


class DriverPaths(msgspec.Struct, frozen=True):
    """`directory` is the kubelet's for this driver; `split` is in the daemon's state directory, if there is one."""

    driver: str
    directory: Path
    split: Path

    @classmethod
    def of(cls, settings: Settings, driver: str) -> "DriverPaths":
        directory = settings.paths.plugins / driver
        if settings.state_dir is None:
            return cls(driver, directory, directory / "split.json")
        return cls(driver, directory, settings.state_dir / f"split-{driver}.json")

    @property
    def checkpoint(self) -> Path:
        """The checkpoint of prepared claims."""
        return self.directory / "checkpoint.json"

    @property
    def lock(self) -> Path:
        return self.split.with_suffix(".lock")


class PlacementLock:
    """The lock of the process that places devices: exclusive for `serve: both`, shared for `serve: dra`.

    The methods block: call them in a thread.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor: int | None = None

    @property
    def is_held(self) -> bool:
        return self._descriptor is not None

    def exists(self) -> bool:
        """Whether a driver has served claims on this node."""
        return self._path.exists()

    def take(self, *, shared: bool = False) -> bool:
        """Takes the lock until `close`; returns False while another process has it."""
        if self._descriptor is None:
            self._path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
            descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, _PRIVATE)
            try:
                fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(descriptor)
                return False
            if not self._is_current(descriptor):  # removed by its last holder in the meantime
                os.close(descriptor)
                return False
            self._descriptor = descriptor
        return True

    def remove(self) -> None:
        """Removes the lock file, which this process holds: no driver serves claims here any more."""
        if self._descriptor is not None:
            self._path.unlink(missing_ok=True)
            self.close()

    def close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _is_current(self, descriptor: int) -> bool:
        try:
            return os.path.samestat(os.fstat(descriptor), self._path.stat())
        except FileNotFoundError:
            return False


def may_have_claims(paths: DriverPaths) -> bool:
    """Whether claims could have devices of a resource that the device plugin API serves; changes no file.

    True even without a prepared claim, because the scheduler could have allocated a device to a claim that is not
    prepared yet. A file that cannot be read could contain anything.
    """
    claims = _document(paths.checkpoint, line=1)
    states = recorded_states(paths.split)
    if claims is None or states is None:
        return True
    if not paths.split.exists() and paths.lock.exists():
        return True
    return bool(claims.get("claims")) or any(state != "listed" for state in states.values())


def record_resource(paths: DriverPaths, resource: str) -> None:
    """Records the driver's resource, because a later configuration can omit the driver."""
    path = paths.directory / _RESOURCE
    with suppress(OSError, ValueError):
        if files.read(path).decode() == resource:
            return
    with suppress(OSError):
        paths.directory.mkdir(mode=0o750, parents=True, exist_ok=True)
        files.write_atomically(path, resource, mode=0o600, sync=False, sync_name=False)


def recorded_drivers(plugins: Path, resource: str) -> list[str]:
    """The drivers that have served claims of the resource on this node."""
    found = []
    for path in sorted(plugins.glob(f"*/{_RESOURCE}")):
        with suppress(OSError, ValueError):
            if files.read(path).decode() == resource:
                found.append(path.parent.name)
    return found


def recorded_states(split: Path) -> dict[str, str] | None:
    """The state of each device in the split file: empty without a file, None if it cannot be read."""
    document = _document(split, line=0)
    if document is None:
        return None
    devices = document.get("devices") or {}
    try:
        return {device_id: str(placement["phase"]) for device_id, placement in devices.items()}
    except (AttributeError, KeyError, TypeError):
        return None


def _document(path: Path, line: int) -> dict[str, Any] | None:
    """The document in a line of the file: empty without a file, None if it cannot be read."""
    try:
        document = json.loads(files.read(path).splitlines()[line])
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, IndexError, RecursionError):
        return None
    return document if isinstance(document, dict) else None
