"""The file in which a node remembers where each device of a resource is, over restarts and reboots.

A phase is on disk before it takes effect. A file that cannot be used, damaged or of a later version, is put aside, and
every device then counts as disputed until its holders are known: it is never guessed which API had it.

An old and a new daemon may run side by side during an upgrade. The one that has the lock decides; the other one follows
what the file says.
"""

import fcntl
import logging
import os
import threading
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from plugwright.dra.api_split.moves import Placement
from plugwright.sdk import sysfs
from plugwright.sdk.serve_settings import Api, ServeSettings
from plugwright.sdk.sysfs import BOOT_ID
from plugwright.system import files
from plugwright.text import clean

__all__ = ["SplitFile", "SplitState", "settings_text", "state_path"]

logger = logging.getLogger(__name__)

_VERSION = 1
_PRIVATE = 0o600
_MOST_ABSENT = 1000  # devices that are kept in mind though discovery no longer lists them


@dataclass(frozen=True, slots=True)
class SplitState:
    """`handover` is the side that an operator wants all devices on, None if that is left to the split.

    `settings` are those that the targets were made by, as a text. `lost`: there was a state, and it is not known.
    """

    placements: Mapping[str, Placement] = field(default_factory=dict)
    handover: Api | None = None
    settings: str = ""
    boot: str = ""
    lost: bool = False


class _SplitContent(msgspec.Struct, kw_only=True, omit_defaults=True):
    version: int
    boot: str
    settings: str
    handover: Api | None = None
    devices: dict[str, Placement] = {}


class SplitFile:
    """The methods block: for a thread."""

    def __init__(self, path: Path, boot_id: Path = BOOT_ID) -> None:
        self.path = path
        self._boot_id = boot_id
        self._lock: int | None = None
        self._writing = threading.Lock()
        self._begun = self._written = 0

    @property
    def is_locked(self) -> bool:
        """Whether this process decides."""
        return self._lock is not None

    def lock(self) -> bool:
        """Whether this process decides from now on; until `close`."""
        if self._lock is None:
            self.path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
            name = self.path.with_suffix(".lock")
            descriptor = os.open(name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, _PRIVATE)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(descriptor)
                return False
            self._lock = descriptor
        return True

    def close(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def load(self) -> SplitState:
        """OSError if the disk cannot be read: what it holds is then to be waited for."""
        try:
            content = msgspec.json.decode(self.path.read_bytes(), type=_SplitContent)
        except FileNotFoundError:
            return SplitState()
        except msgspec.MsgspecError as error:
            return self._put_aside(clean(error))
        if content.version != _VERSION:
            return self._put_aside(f"it must have version {_VERSION}, got {content.version}")
        return SplitState(content.devices, content.handover, content.settings, content.boot)

    def number(self) -> int:
        """Of the next state to save: on a disk that hung, an earlier one never replaces a later one."""
        self._begun += 1
        return self._begun

    def save(self, number: int, state: SplitState, present: Collection[str]) -> None:
        """`present` are the devices that discovery lists; of the others, only so many are kept."""
        absent = sorted(state.placements.keys() - set(present))[:_MOST_ABSENT]
        kept = {key: state.placements[key] for key in sorted({*absent, *(state.placements.keys() & set(present))})}
        content = _SplitContent(
            version=_VERSION, boot=self.boot_id(), settings=state.settings, handover=state.handover, devices=kept
        )
        with self._writing:
            if number > self._written:
                files.write_atomically(self.path, msgspec.json.encode(content) + b"\n", mode=_PRIVATE)
                self._written = number

    def boot_id(self) -> str:
        return sysfs.attribute(self._boot_id.parent, self._boot_id.name)

    def _put_aside(self, problem: str) -> SplitState:
        facts = {"path": str(self.path), "kept": str(files.put_aside(self.path)), "error": problem}
        logger.error("it is not known which API had each device: offered by neither until that is clear", extra=facts)
        return SplitState(lost=True)


def state_path(state_dir: Path | None, driver_dir: Path, driver: str) -> Path:
    """In the daemon's state directory, or where it has none beside the driver's checkpoint of claims."""
    return state_dir / f"split-{driver}.json" if state_dir is not None else driver_dir / "split.json"


def settings_text(serve: ServeSettings) -> str:
    """What the targets follow from: other settings, other targets."""
    return msgspec.json.encode((serve.api, serve.split)).decode()
