"""One owner per resource: a lock in the node's directory, for a single release of plugwright.

Two daemons with the same resource replace each other's list with every change (2.22), and both look healthy. So a
daemon serves a resource only while it holds the lock; other daemons wait, and report its owner. Two pods of one release
can hold the lock together: a rolling update with maxSurge starts the new pod before the old one ends.

The lock is the kernel's (flock), so a killed daemon never leaves it behind. The file contains the release and the boot
id of its holder, for waiting daemons.
"""

import asyncio
import fcntl
import logging
import os
import time
from pathlib import Path

import msgspec

from plugwright.errors import PlugwrightError
from plugwright.sdk.settings import Settings
from plugwright.system.blocking import BlockingCalls
from plugwright.system.boot import boot_id
from plugwright.system.concurrency import Backoff
from plugwright.system.cpython import sha256
from plugwright.system.latest import Latest
from plugwright.system.log_once import LogOnce
from plugwright.text import clean

__all__ = ["Owner", "OwnerLock", "Ownership", "owner_file"]

logger = logging.getLogger(__name__)

_DIRECTORY = "owners"
_LONGEST_NAME = 200  # characters; a file system allows 255
_LIMIT = 4096  # bytes of the file to read
_RETRY = 0.2, 2.0  # seconds; the first and the longest wait for another owner
_DISK_LIMIT = 5.0  # seconds
_MODE = 0o600


class Owner(msgspec.Struct, frozen=True):
    """The process owning a resource."""

    release: str
    boot: str
    pod: str = ""  # uid of its pod; empty outside of pods
    pid: int = 0  # in its own namespace
    since: float = 0.0

    def __str__(self) -> str:
        process = f"pod uid {self.pod}" if self.pod else f"process {self.pid}"
        return f"release {self.release} ({process})" if self.release else "another daemon"

    def shares_with(self, other: "Owner") -> bool:
        """Whether both can serve: two pods of one release during a rolling update."""
        is_same = (self.release, self.boot) == (other.release, other.boot)
        return is_same and bool(self.pod and other.pod) and self.pod != other.pod


_UNKNOWN = Owner("", "")


def owner_file(directory: Path, resource: str) -> Path:
    """The lock of a resource in the directory of the node."""
    name = resource.replace("/", "_")  # no domain contains this character
    return directory / _DIRECTORY / (name if len(name) <= _LONGEST_NAME else sha256(name.encode()))


class OwnerLock:
    """The lock in the file `path` for the process `owner`. The methods block: call them in a thread."""

    def __init__(self, path: Path, owner: Owner) -> None:
        self._path, self._owner = path, owner
        self._descriptor: int | None = None

    def take(self) -> Owner | None:
        """Takes the resource until `close` and returns None; returns its owner if another process has it. OSError."""
        if self._descriptor is not None:
            return None
        self._path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, _MODE)
        try:
            owner = self._locked(descriptor)
            if owner == self._owner or self._owner.shares_with(owner):
                self._descriptor, descriptor = descriptor, -1
                return None
            return owner
        finally:
            if descriptor >= 0:
                os.close(descriptor)

    def close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _locked(self, descriptor: int) -> Owner:
        """The owner in the file, read under a shared lock; takes a file over first if no process has locked it."""
        if _lock(descriptor, fcntl.LOCK_EX):
            content = msgspec.json.encode(self._owner)
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, content, 0)
        # Not atomic: another process can take the lock between the two. The file then contains its name.
        if not _lock(descriptor, fcntl.LOCK_SH):
            return _UNKNOWN
        try:
            return msgspec.json.decode(os.pread(descriptor, _LIMIT, 0), type=Owner)
        except (msgspec.DecodeError, UnicodeDecodeError):
            return _UNKNOWN


class Ownership:
    """Ownership of one resource. `owner` is the other process owning it, or empty."""

    def __init__(self, resource: str, settings: Settings) -> None:
        self.resource = resource
        self.owner = Latest("")
        self._disk = BlockingCalls(f"owner of {resource}", _DISK_LIMIT, at_once=1)
        self._problems = LogOnce(logger)
        self._lock: OwnerLock | None = None
        if (directory := settings.node_directory) is not None:
            own = Owner(settings.release, boot_id(), settings.pod_uid, os.getpid(), round(time.time(), 3))
            self._lock = OwnerLock(owner_file(directory, resource), own)

    async def acquire(self) -> bool:
        """Returns when this daemon owns the resource: whether another process owned it before.

        If the lock cannot be used, the resource is served without it.
        """
        lock, retry = self._lock, Backoff(*_RETRY)
        while lock is not None:
            try:
                owner = await self._disk.run(lock.take)
            except (OSError, PlugwrightError) as error:
                facts = {"resource": self.resource, "error": clean(error)}
                self._problems.warning("owner of the resource unknown, serving it", clean(error), extra=facts)
                break
            if owner is None:
                break
            self._wait_for(owner)
            await asyncio.sleep(retry.delay())
        was_owned = bool(self.owner.value)
        if was_owned:
            logger.info("resource taken over", extra={"resource": self.resource, "from": self.owner.value})
        self.owner.publish_if_changed("")
        return was_owned

    def close(self) -> None:
        """Lets other daemons serve the resource."""
        if self._lock is not None:
            self._lock.close()

    def _wait_for(self, owner: Owner) -> None:
        text = clean(f"owned by {owner}")
        facts = {"resource": self.resource, "owner": clean(str(owner))}
        self._problems.warning("resource is owned by another daemon, waiting", text, extra=facts)
        self.owner.publish_if_changed(text)


def _lock(descriptor: int, kind: int) -> bool:
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
