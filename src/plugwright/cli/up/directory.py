"""The directory of one embedded cluster: who runs there, its token and certificates, and the sockets to reach it by.

One directory holds one cluster: the lock is the kernel's, so that a killed process leaves none. Without a directory of
the user's own there is one default place for each user, which goes when its cluster ends. What the objects and the
nodes keep there is the cluster's; the kubeconfig is `cluster_kubeconfig`'s.

The kubeconfig of an embedded cluster: mode 0600, written at once, and never over one that is somebody else's.
"""

import base64
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

import yaml

from plugwright.errors import ConfigError, PeerGone, PeerSilent
from plugwright.system import files, sockets

__all__ = ["Facts", "Kubeconfig", "Place", "check_foreign", "place"]

_LOCK, _FACTS, _ACCESS = "lock", "up.json", "access.json"
_OURS = {_LOCK, _FACTS, _ACCESS, "objects.db", "up.log", "kubeconfig"}  # one of them, and it is a cluster's directory
_LONGEST_SOCKET = len("node-10000.sock")
_LOOK = 0.02


@dataclass(frozen=True, slots=True)
class Facts:
    """What is told of a running cluster, to people and to other processes; never its token."""

    pid: int
    server: str
    kubeconfig: str
    state: str
    kept: bool
    control: str
    nodes: Mapping[str, Mapping[str, str]]
    resources: Mapping[str, int] = field(default_factory=dict)
    log: str | None = None

    def document(self) -> dict[str, object]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Place:
    """`kept` is whether it outlives its cluster."""

    directory: Path
    kept: bool

    @property
    def kubeconfig(self) -> Path:
        return self.directory / "kubeconfig"

    @property
    def log(self) -> Path:
        return self.directory / "up.log"

    @contextmanager
    def taken(self) -> Iterator[None]:
        """For one cluster alone; raises `ConfigError` if one runs there already."""
        self.make()
        with self._lock() as lock:
            if not _is_won(lock):
                raise self.occupied()
            if not self._is_current(lock):
                raise PeerGone(f"the cluster in {self.directory} has just ended: try again")
            self._clear()
            try:
                yield
            finally:
                (self.directory / _FACTS).unlink(missing_ok=True)
                if not self.kept:
                    shutil.rmtree(self.directory, ignore_errors=True)

    def make(self) -> None:
        """Refuses what is somebody else's, and directories with other things in them."""
        self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not self.kept:
            _check_private(self.directory)
            return
        found = {each.name for each in self.directory.iterdir()}
        if found and not found & _OURS:
            raise ConfigError(
                f"{self.directory} has other things in it, and no cluster's state; choose another --state"
            )

    def occupied(self) -> ConfigError:
        facts = self._read()
        who = f" (process {facts['pid']}, {facts['server']})" if facts else ""
        advice = f"plugwright down{self.flag}" + ("" if self.kept else "; another one needs a --state DIR of its own")
        return ConfigError(f"a cluster runs in {self.directory} already{who}: {advice}")

    @property
    def flag(self) -> str:
        """What chooses this place on the command line."""
        return f" --state {shlex.quote(str(self.directory))}" if self.kept else ""

    @contextmanager
    def sockets(self) -> Iterator[Path]:
        """Where sockets are made: here, unless their paths would be too long."""
        if sockets.fits(self.directory, _LONGEST_SOCKET):
            for left in self.directory.glob("*.sock"):
                left.unlink()
            yield self.directory
        else:
            with tempfile.TemporaryDirectory(prefix="plugwright-") as short:
                yield Path(short)

    def publish(self, facts: Facts) -> None:
        files.write_atomically(self.directory / _FACTS, json.dumps(facts.document()), mode=0o600, sync=False)

    def running(self) -> Mapping[str, Any]:
        """The facts of the cluster that runs here; raises `PeerGone` where none does."""
        if self.is_free():
            where = f"in {self.directory}" if self.kept else "here"
            raise PeerGone(f"no cluster runs {where}: `plugwright up{self.flag}` starts one")
        facts = self._read()
        if facts is None:
            raise PeerGone(f"the cluster in {self.directory} is starting or ending: try again")
        return facts

    def is_free(self) -> bool:
        with suppress(FileNotFoundError), (self.directory / _LOCK).open("rb") as lock:
            return _is_free(lock.fileno())
        return True

    def wait_until_free(self, timeout: float) -> None:
        """Until the process that runs here has ended."""
        deadline = time.monotonic() + timeout
        while not self.is_free():
            if time.monotonic() > deadline:
                raise PeerSilent(f"the cluster in {self.directory} has not ended within {timeout:g} s")
            time.sleep(_LOOK)

    def access(self) -> dict[str, Any]:
        """The token, and the port of the last run, if there was one."""
        try:
            kept = json.loads((self.directory / _ACCESS).read_bytes())
            return {"token": str(kept["token"]), "port": int(kept["port"])}
        except FileNotFoundError:
            return {"token": secrets.token_urlsafe(32), "port": 0}
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ConfigError(f"cannot read {self.directory / _ACCESS}: {error}") from error

    def keep_access(self, token: str, port: int) -> None:
        files.write_atomically(
            self.directory / _ACCESS, json.dumps({"token": token, "port": port}), mode=0o600, sync=False
        )

    def _read(self) -> dict[str, Any] | None:
        try:
            facts = json.loads((self.directory / _FACTS).read_bytes())
        except (OSError, ValueError):
            return None
        return facts if isinstance(facts, dict) else None

    def _clear(self) -> None:
        """What a cluster that was killed has left: of a temporary one everything."""
        (self.directory / _FACTS).unlink(missing_ok=True)
        for left in () if self.kept else self.directory.iterdir():
            if left.is_dir() and not left.is_symlink():
                shutil.rmtree(left)
            elif left.name not in (_LOCK, "up.log"):
                left.unlink()

    def _is_current(self, lock: int) -> bool:
        """A cluster that ended may have removed the directory in the meantime."""
        with suppress(FileNotFoundError):
            return (self.directory / _LOCK).stat().st_ino == os.fstat(lock).st_ino
        return False

    @contextmanager
    def _lock(self) -> Iterator[int]:
        descriptor = os.open(self.directory / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            yield descriptor
        finally:
            os.close(descriptor)


def place(state: Path | None, environment: Mapping[str, str]) -> Place:
    if state is not None:
        return Place(state.absolute(), kept=True)
    runtime = environment.get("XDG_RUNTIME_DIR", "")
    if runtime and Path(runtime).is_dir():
        return Place(Path(runtime).absolute() / "plugwright-up", kept=False)
    return Place(Path(tempfile.gettempdir()).absolute() / f"plugwright-{os.getuid()}", kept=False)


def _check_private(directory: Path) -> None:
    """The default place is where others may write: what is there must be ours alone."""
    if not _is_ours(directory) or stat.S_IMODE(directory.lstat().st_mode) & 0o077:
        raise ConfigError(f"{directory} is not a directory of yours alone (mode 0700); choose one with --state")


def _is_ours(directory: Path) -> bool:
    with suppress(FileNotFoundError):
        found = directory.lstat()
        return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid()
    return False


def _is_won(lock: int) -> bool:
    """Whoever only asks whether a cluster runs here has the lock for a moment, too."""
    for _ in range(5):
        if _is_free(lock):
            return True
        time.sleep(_LOOK)
    return False


def _is_free(lock: int) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


_NAME = "plugwright"
_PARTS = ("clusters", "contexts", "users")


@dataclass(frozen=True, slots=True)
class Kubeconfig:
    """`authority` is the certificate that clients are to trust."""

    server: str
    authority: Path
    token: str = field(repr=False)

    @contextmanager
    def at(self, path: Path, *, kept: bool) -> Iterator[None]:
        """There while inside, or for good."""
        text = yaml.safe_dump(self._document(), sort_keys=False)
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            files.write_atomically(path, text, mode=0o600, sync=False)
        except OSError as error:
            raise ConfigError(f"cannot write the kubeconfig {path}: {error.strerror}") from error
        try:
            yield
        finally:
            if not kept and self._is_here(path):
                path.unlink(missing_ok=True)

    def _document(self) -> dict[str, object]:
        authority = base64.b64encode(self.authority.read_bytes()).decode()
        cluster = {"server": self.server, "certificate-authority-data": authority}
        return {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": _NAME, "cluster": cluster}],
            "users": [{"name": _NAME, "user": {"token": self.token}}],
            "contexts": [{"name": _NAME, "context": {"cluster": _NAME, "user": _NAME}}],
            "current-context": _NAME,
        }

    def _is_here(self, path: Path) -> bool:
        """kubectl may have changed it, and another cluster may have written its own."""
        try:
            return self.token in path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError):
            return False


def check_foreign(path: Path) -> None:
    """Raises if there is a file that no `plugwright up` has made."""
    if path.exists() and not _is_our_kubeconfig(path):
        raise ConfigError(
            f"{path} is there and not of plugwright: choose another --kubeconfig, or replace it with --force"
        )


def _is_our_kubeconfig(path: Path) -> bool:
    try:
        document = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError):
        return False
    if not isinstance(document, dict):
        return False
    parts = [document.get(part) for part in _PARTS]
    return all(isinstance(part, list) and [_name(each) for each in part] == [_NAME] for part in parts)


def _name(entry: object) -> object:
    return entry.get("name") if isinstance(entry, dict) else None
