"""The options of `plugwright join` and its state directory: the owner's id, the lock, and access to the process.

The command loads this module to parse flags, so it imports no module of the cluster.
"""

import fcntl
import json
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from plugwright.errors import ConfigError
from plugwright.system import files

__all__ = ["JoinFlags", "JoinInfo", "JoinState"]

_ID, _INFO, _LOCK = "joined-by", "join.json", "join.lock"


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinFlags:
    """The flags; times are seconds."""

    context: str = ""
    kubeconfig: Path | None = None
    nodes: int | None = None
    file: Path | None = None
    state: Path | None = None
    processes: bool = False
    taint: bool = True
    kubelet_address: str = "127.0.0.1"
    heartbeat: float = 10.0
    timeout: float | None = None


@dataclass(frozen=True, slots=True)
class JoinInfo:
    """A description of the joined nodes for people and other processes."""

    pid: int
    server: str
    version: str
    owner: str
    control: str
    nodes: dict[str, dict[str, str]]
    page: str = ""  # its address, with a token; empty: no page

    def document(self) -> dict[str, object]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class JoinState:
    """Without a `path` nothing is stored, and the id is new each time."""

    path: Path | None

    @contextmanager
    def locked(self) -> Iterator[str]:
        """Holds the directory for one process; yields the id of its nodes."""
        if self.path is None:
            yield secrets.token_hex(6)
            return
        try:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            lock = os.open(self.path / _LOCK, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise ConfigError(f"cannot use {self.path}: {error.strerror}") from error
        try:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise ConfigError(f"the nodes of {self.path} are joined already, by another process") from None
            yield self._owner()
        finally:
            with suppress(FileNotFoundError):
                (self.path / _INFO).unlink()
            os.close(lock)

    def publish(self, info: JoinInfo) -> None:
        if self.path is not None:
            files.write_atomically(self.path / _INFO, json.dumps(info.document()).encode(), mode=0o600)

    def running(self) -> dict[str, Any]:
        """The process behind these nodes."""
        assert self.path is not None
        try:
            found: dict[str, Any] = json.loads((self.path / _INFO).read_bytes())
        except (OSError, ValueError):
            raise ConfigError(f"no nodes of {self.path} are joined now") from None
        return found

    def forget(self) -> None:
        """Forgets the id after the nodes were removed from the cluster: later nodes are different nodes."""
        assert self.path is not None
        (self.path / _ID).unlink(missing_ok=True)

    def _owner(self) -> str:
        assert self.path is not None
        with suppress(FileNotFoundError):
            text = (self.path / _ID).read_text().strip()
            if text:
                return text
        owner = secrets.token_hex(6)
        files.write_atomically(self.path / _ID, f"{owner}\n".encode())
        return owner
