"""The options of `plugwright up` and its state directory: lock, credentials, sockets, and the kubeconfig.

One directory holds one cluster: the lock is the kernel's, so a killed process leaves none. Without --state every user
has one temporary directory, which is removed with its cluster. `cluster.embedded` manages objects and nodes'
directories in it. The command loads this module to parse flags, so it imports no module of the cluster.
"""

import fcntl
import json
import os
import secrets
import shlex
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from plugwright.errors import ConfigError, PeerGone, PeerSilent
from plugwright.system import directories, files
from plugwright.system.program_name import program_name

__all__ = ["ClusterInfo", "StateDirectory", "UpOptions", "state_directory"]

_LOCK, _INFO, _CREDENTIALS, _LOG = "lock", "up.json", "access.json", "up.log"
_OUR_FILES = {_LOCK, _INFO, _CREDENTIALS, _LOG, "objects.db", "kubeconfig"}  # any of them marks a state directory
_LONGEST_SOCKET = len("node-10000.sock")
_POLL = 0.02  # seconds between two checks of the lock


@dataclass(frozen=True, slots=True, kw_only=True)
class UpOptions:
    """Times are seconds. Without `timeout` it runs until it is stopped; without `port` the last port is reused."""

    nodes: int = 1
    config: Path | None = None
    bare: bool = False
    kubeconfig: Path | None = None
    force: bool = False
    port: int | None = None
    timeout: float | None = None
    detach: bool = False
    processes: bool = False
    heartbeat: float = 10.0
    silence: float = 50.0
    plugin_grace: float = 300.0
    version: str = "1.36"
    entrypoints: tuple[tuple[str, tuple[str, ...]], ...] = ()  # images, and the commands of their containers


@dataclass(frozen=True, slots=True)
class ClusterInfo:
    """The description of a running cluster for people and other processes, without its token.

    The address of its page contains a separate token.
    """

    pid: int
    server: str
    kubeconfig: str
    state: str
    kept: bool
    control: str
    nodes: Mapping[str, Mapping[str, str]]
    resources: Mapping[str, int] = field(default_factory=dict)
    log: str | None = None
    page: str = ""  # empty: no page

    def document(self) -> dict[str, object]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class StateDirectory:
    """`kept` tells whether the directory outlives its cluster."""

    path: Path
    kept: bool

    @property
    def kubeconfig(self) -> Path:
        return self.path / "kubeconfig"

    @property
    def log(self) -> Path:
        return self.path / _LOG

    @property
    def flag(self) -> str:
        """The flag for this directory on the command line."""
        return f" --state {shlex.quote(str(self.path))}" if self.kept else ""

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Holds the directory for one cluster; raises `ConfigError` if one runs there already."""
        self.create()
        with self._open_lock() as lock:
            if not _lock_with_retries(lock):
                raise self.in_use_error()
            if not self._is_current(lock):
                raise PeerGone(f"the cluster in {self.path} has just ended: try again")
            self._remove_leftovers()
            try:
                yield
            finally:
                (self.path / _INFO).unlink(missing_ok=True)
                if not self.kept:
                    shutil.rmtree(self.path, ignore_errors=True)

    def create(self) -> None:
        """Creates the directory; rejects another user's, and a directory with foreign files."""
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not self.kept:
            _check_private(self.path)
            return
        names = {path.name for path in self.path.iterdir()}
        if names and not names & _OUR_FILES:
            raise ConfigError(f"{self.path} must be empty or a cluster's state directory: choose another --state")

    def in_use_error(self) -> ConfigError:
        info = self._read_info()
        process = f" (process {info['pid']}, {info['server']})" if info else ""
        advice = f"end it with `{program_name()} down{self.flag}`"
        advice += "" if self.kept else ", or give another one a --state DIR of its own"
        return ConfigError(f"a cluster runs in {self.path} already{process}: {advice}")

    @contextmanager
    def sockets(self) -> Iterator[Path]:
        """The directory for sockets: this directory, or a short link to it if their paths would be too long."""
        for abandoned in self.path.glob("*.sock"):
            abandoned.unlink()
        with directories.linked_directory(self.path, _LONGEST_SOCKET) as directory:
            yield directory

    def publish(self, info: ClusterInfo) -> None:
        files.write_atomically(self.path / _INFO, json.dumps(info.document()), mode=0o600, sync=False)

    def running_cluster(self) -> Mapping[str, Any]:
        """The document of the running cluster; raises `PeerGone` if none runs."""
        if self.is_free():
            where = f"in {self.path}" if self.kept else "here"
            raise PeerGone(f"no cluster runs {where}: `plugwright up{self.flag}` starts one")
        info = self._read_info()
        if info is None:
            raise PeerGone(f"the cluster in {self.path} is starting or ending: try again")
        return info

    def is_free(self) -> bool:
        with suppress(FileNotFoundError), (self.path / _LOCK).open("rb") as lock:
            return _try_lock(lock.fileno())
        return True

    def wait_until_free(self, timeout: float) -> None:
        """Returns when the running cluster has ended."""
        deadline = time.monotonic() + timeout
        while not self.is_free():
            if time.monotonic() > deadline:
                raise PeerSilent(f"the cluster in {self.path} has not ended within {timeout:g} s")
            time.sleep(_POLL)

    def credentials(self) -> tuple[str, int]:
        """The token and the port of the last run; without one a new token, and 0."""
        try:
            document = json.loads((self.path / _CREDENTIALS).read_bytes())
            return str(document["token"]), int(document["port"])
        except FileNotFoundError:
            return secrets.token_urlsafe(32), 0
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ConfigError(f"cannot read {self.path / _CREDENTIALS}: {error}") from error

    def save_credentials(self, token: str, port: int) -> None:
        text = json.dumps({"token": token, "port": port})
        files.write_atomically(self.path / _CREDENTIALS, text, mode=0o600, sync=False)

    def _read_info(self) -> dict[str, Any] | None:
        try:
            info = json.loads((self.path / _INFO).read_bytes())
        except (OSError, ValueError):
            return None
        return info if isinstance(info, dict) else None

    def _remove_leftovers(self) -> None:
        """Removes the files of a killed cluster; all files, if the directory is temporary."""
        (self.path / _INFO).unlink(missing_ok=True)
        for path in () if self.kept else self.path.iterdir():
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            elif path.name not in (_LOCK, _LOG):
                path.unlink()

    def _is_current(self, lock: int) -> bool:
        """Whether the lock still belongs to the directory: an ended cluster can have removed both."""
        with suppress(FileNotFoundError):
            return (self.path / _LOCK).stat().st_ino == os.fstat(lock).st_ino
        return False

    @contextmanager
    def _open_lock(self) -> Iterator[int]:
        descriptor = os.open(self.path / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            yield descriptor
        finally:
            os.close(descriptor)


def state_directory(state: Path | None, environment: Mapping[str, str]) -> StateDirectory:
    """The directory of --state, or the user's temporary directory."""
    if state is not None:
        return StateDirectory(state.absolute(), kept=True)
    runtime = environment.get("XDG_RUNTIME_DIR", "")
    if runtime and Path(runtime).is_dir():
        return StateDirectory(Path(runtime).absolute() / "plugwright-up", kept=False)
    return StateDirectory(Path(tempfile.gettempdir()).absolute() / f"plugwright-{os.getuid()}", kept=False)


def _check_private(directory: Path) -> None:
    """Checks the temporary directory, whose parent can be writable by others: owned by this user, mode 0700."""
    private = False
    with suppress(FileNotFoundError):  # a cluster that has just ended can have removed it
        status = directory.lstat()
        is_ours = stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid()
        private = is_ours and not stat.S_IMODE(status.st_mode) & 0o077
    if not private:
        raise ConfigError(
            f"{directory} must be a directory that only you can open (mode 0700): choose another with --state"
        )


def _lock_with_retries(lock: int) -> bool:
    """Takes the lock with retries, because commands checking for a running cluster also hold it for a moment."""
    for _ in range(5):
        if _try_lock(lock):
            return True
        time.sleep(_POLL)
    return False


def _try_lock(lock: int) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
