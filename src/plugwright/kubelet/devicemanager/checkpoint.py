"""The device manager's checkpoint file: how it is read at a start, and how a write survives a crash.

The file's format is `protocol.checkpoint`; its content, and when it is written, is `manager`. An unusable file is never
lost: it is moved aside.
"""

import os
from dataclasses import dataclass
from itertools import count
from pathlib import Path

from msgspec.structs import replace

from plugwright.errors import CheckpointCorrupt, MalformedMessage
from plugwright.protocol import checkpoint, messages
from plugwright.protocol.checkpoint import Checkpoint, PodDevicesEntry
from plugwright.protocol.checkpoint_encoder import CheckpointEncoder
from plugwright.system import files
from plugwright.system.files import FileCalls

__all__ = ["CheckpointFile", "LoadedCheckpoint"]

_EMPTY = Checkpoint(entries=None, registered={})
_TEMPORARY = "."  # The kubelet's temporary file is a dot and digits beside the checkpoint (4.30).
_SYSTEM_CALLS = FileCalls()


@dataclass(frozen=True, slots=True)
class LoadedCheckpoint:
    """The usable content of the file; `problem` describes the unusable part and the reason."""

    checkpoint: Checkpoint
    problem: str = ""
    kept_aside: Path | None = None


class CheckpointFile:
    def __init__(self, path: Path, *, plain_lists: bool, calls: FileCalls = _SYSTEM_CALLS) -> None:
        self._path, self._plain_lists, self._calls = path, plain_lists, calls
        self._encoder = CheckpointEncoder()

    def load(self) -> LoadedCheckpoint:
        """Never raises: a corrupt checkpoint contributes nothing, and the kubelet starts empty (4.29)."""
        files.remove_unfinished(self._path.parent, _TEMPORARY)
        try:
            content = checkpoint.decode(self._path.read_bytes(), self._plain_lists)
        except FileNotFoundError:
            return LoadedCheckpoint(_EMPTY)
        except CheckpointCorrupt as error:
            return self._move_aside(str(error))
        except OSError as error:
            return self._move_aside(f"cannot be read: {error.strerror}")
        return _without_undecodable(content)

    def save(self, state: Checkpoint) -> None:
        """Replaces the file; returns when the data is on disk, or raises OSError and the old file stays (4.30)."""
        # Like the kubelet without a sync of the directory: after a power failure the old file is as good.
        data = self._encoder.encode(state)
        files.write_atomically(self._path, data, mode=0o600, sync_name=False, prefix=_TEMPORARY, calls=self._calls)

    def _move_aside(self, problem: str) -> LoadedCheckpoint:
        # Into a directory, because kubelets before 1.33 remove every other file here when they start (1.18).
        directory = self._path.with_name(f"{self._path.name}.bad")
        candidates = (directory / str(number) for number in count(1))
        aside = next(path for path in candidates if not os.path.lexists(path))
        try:
            directory.mkdir(exist_ok=True)
            self._path.rename(aside)
        except OSError as error:
            text = f"{problem}; it cannot be moved aside either: {error.strerror}; starting empty"
            return LoadedCheckpoint(_EMPTY, text)
        return LoadedCheckpoint(_EMPTY, f"{problem}; kept as {aside}, starting empty", aside)


def _without_undecodable(content: Checkpoint) -> LoadedCheckpoint:
    """Drops the entries whose response does not decode; the others are kept (4.28)."""
    checked = [(entry, _problem(entry)) for entry in content.entries or ()]
    problems = [problem for _, problem in checked if problem]
    if not problems:
        return LoadedCheckpoint(content)
    usable = tuple(entry for entry, problem in checked if not problem)
    return LoadedCheckpoint(replace(content, entries=usable), "; ".join(problems))


def _problem(entry: PodDevicesEntry) -> str:
    try:
        messages.decode(entry.answer or b"")
    except MalformedMessage as error:
        return f"dropped what pod {entry.pod_uid}, container {entry.container} holds of {entry.resource}: {error}"
    return ""
