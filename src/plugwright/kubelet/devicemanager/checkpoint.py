"""The device manager's state on disk: when the checkpoint is read, and how it is written.

The file's format is `protocol.checkpoint`'s; what is in it, and when it is saved, is decided in `manager`. One journal
writes one file, one save at a time. A file that cannot be used is never lost: it is kept aside.
"""

import os
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path

from plugwright.errors import CheckpointCorrupt, MalformedMessage
from plugwright.protocol import checkpoint, messages
from plugwright.protocol.checkpoint import Checkpoint, PodDevicesEntry
from plugwright.protocol.checkpoint_encoder import Encoder
from plugwright.system import files
from plugwright.system.files import FileCalls

__all__ = ["Journal", "Loaded"]

_EMPTY = Checkpoint(entries=None, registered={})
_TEMPORARY = re.compile(r"\.[0-9]+")


_REAL = FileCalls()


@dataclass(frozen=True, slots=True)
class Loaded:
    """What the file said, or nothing; `problem` says what could not be used of it, and why."""

    checkpoint: Checkpoint
    problem: str = ""
    kept_aside: Path | None = None


class Journal:
    def __init__(self, path: Path, *, plain_lists: bool, calls: FileCalls = _REAL) -> None:
        self._path, self._plain_lists, self._calls = path, plain_lists, calls
        self._encoder = Encoder()

    def load(self) -> Loaded:
        """Never raises: a kubelet whose checkpoint cannot be used starts without (4.29)."""
        self._remove_temporary_files()
        try:
            found = checkpoint.decode(self._path.read_bytes(), self._plain_lists)
        except FileNotFoundError:
            return Loaded(_EMPTY)
        except CheckpointCorrupt as error:
            return self._put_aside(str(error))
        except OSError as error:
            return self._put_aside(f"cannot be read: {error.strerror}")
        return _without_undecodable(found)

    def save(self, state: Checkpoint) -> None:
        """Returns when the state is on disk, in place of the one before; or raises OSError, and that one stays (4.30).

        The data is synced before the name moves to it: whatever happens in between, the name leads to a whole file.
        """
        # As the kubelet, not waiting for the name to be on disk: after a power failure the file before is as good.
        data = self._encoder.encode(state)
        files.write_atomically(self._path, data, mode=0o600, sync_name=False, calls=self._calls)

    def _remove_temporary_files(self) -> None:
        """A kubelet that was killed while it wrote leaves one behind."""
        with suppress(OSError):
            for path in self._path.parent.iterdir():
                if _TEMPORARY.fullmatch(path.name) and path.is_file() and not path.is_symlink():
                    path.unlink()

    def _put_aside(self, problem: str) -> Loaded:
        aside = next(path for path in self._names_aside() if not os.path.lexists(path))
        try:
            aside.parent.mkdir(exist_ok=True)
            self._path.rename(aside)
        except OSError as error:
            return Loaded(_EMPTY, f"{problem}; it cannot be kept aside either: {error.strerror}; starting empty")
        return Loaded(_EMPTY, f"{problem}; kept as {aside}, starting empty", aside)

    def _names_aside(self) -> Iterator[Path]:
        """In a directory, since older kubelets remove every other file from theirs when they start (1.18)."""
        directory = self._path.with_name(f"{self._path.name}.bad")
        return (directory / str(number) for number in count(1))


def _without_undecodable(found: Checkpoint) -> Loaded:
    checked = [(entry, _problem(entry)) for entry in found.entries or ()]
    problems = [problem for _, problem in checked if problem]
    if not problems:
        return Loaded(found)
    return Loaded(
        replace(found, entries=tuple(entry for entry, problem in checked if not problem)), "; ".join(problems)
    )


def _problem(entry: PodDevicesEntry) -> str:
    """4.28: an entry whose answer does not decode is dropped, and the others are kept."""
    try:
        messages.decode(entry.answer or b"")
    except MalformedMessage as error:
        return f"dropped what pod {entry.pod_uid}, container {entry.container} holds of {entry.resource}: {error}"
    return ""
