"""The files mounted into containers with vgpu shares: limits, usage, locks, libraries.

All are below one root-owned directory, closed to other users: files writable by a container are reached only through
its mount, and no tenant can replace them by a link. They stay when the daemon ends, because the kubelet mounts them
again when a container restarts.
"""

import os
import shutil
import stat
import threading
from contextlib import suppress
from itertools import islice
from pathlib import Path

from plugwright.errors import PluginError
from plugwright.system import files

__all__ = ["TenantFiles"]

_CREATE = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_OPEN_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_PRIVATE = 0o700
_MOST_FILES = 1024
_SMALL = 2**20  # bytes; a container can have left a terabyte


class TenantFiles:
    """The files of containers; OSError and PluginError if a file cannot be created as required."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._writing = threading.Lock()  # files are written ahead while containers get theirs
        self._made: set[Path] = set()  # private directories, which from then on only root can change

    def directory(self, path: Path, mode: int = _PRIVATE) -> Path:
        """Makes a directory with exactly this mode; rejects a link and a directory of another user."""
        if path in self._made and not path.is_symlink() and path.is_dir():
            return path
        if path != self._root and path.is_relative_to(self._root):
            self.directory(path.parent)
        else:
            path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        path.mkdir(mode=_PRIVATE, exist_ok=True)
        descriptor = os.open(path, _OPEN_DIRECTORY)
        try:
            owner = os.fstat(descriptor).st_uid
            if owner not in (0, os.geteuid()):
                raise PluginError(f"{path} must belong to root, got user {owner}")
            os.fchmod(descriptor, mode)
        finally:
            os.close(descriptor)
        if mode == _PRIVATE:
            self._made.add(path)
        return path

    def has(self, *names: str) -> bool:
        """Whether this regular file exists, and not a link in its place."""
        try:
            return stat.S_ISREG(self._root.joinpath(*names).lstat().st_mode)
        except OSError:
            return False

    def path(self, *names: str) -> Path:
        return self._root.joinpath(*names)

    def opened(self, directory: str) -> list[str]:
        """The names of the files to which a container has written, at most `_MOST_FILES`."""
        try:
            with os.scandir(self._root / directory) as entries:
                used = (entry.name for entry in entries if entry.stat(follow_symlinks=False).st_size)
                return sorted(islice(used, _MOST_FILES))
        except FileNotFoundError:
            return []

    def fixed(self, *names: str, content: bytes) -> Path:
        """A file for containers; running containers have it mounted, so it is replaced only if it differs."""
        path = self.directory(self._root.joinpath(*names[:-1])) / names[-1]
        with suppress(OSError):
            if stat.S_ISREG(path.lstat().st_mode) and path.read_bytes() == content:
                return path
        files.write_atomically(path, content)
        return path

    def writable_file(self, *names: str, fresh: bool) -> Path:
        """A file to which its container can write. A fresh one is empty, and replaces the last container's."""
        path = self.directory(self._root.joinpath(*names[:-1])) / names[-1]
        with self._writing:
            if not fresh and path.exists():
                return path
            self._discard(path)
            descriptor = os.open(path, _CREATE, 0o600)
            try:
                os.fchmod(descriptor, 0o666)
            finally:
                os.close(descriptor)
        return path

    def writable_directory(self, *names: str, fresh: bool) -> Path:
        """A directory to which its container can write. A fresh one is empty, and replaces the last container's."""
        path = self._root.joinpath(*names)
        with self._writing:
            if fresh:
                self._discard(path)
            return self.directory(path, 0o777)

    def discard(self, *names: str) -> None:
        """Deletes a file or directory of a removed container, if it exists."""
        self._discard(self._root.joinpath(*names))

    def _discard(self, path: Path) -> None:
        """Deletes a small file; moves others away to delete them in a thread, as there can be a million."""
        try:
            status = path.lstat()
        except FileNotFoundError:
            return
        if stat.S_ISREG(status.st_mode) and status.st_size <= _SMALL:
            path.unlink(missing_ok=True)
            return
        trash = self.directory(self._root / "deleted")
        path.rename(trash / f"{path.name}-{os.urandom(8).hex()}")
        threading.Thread(target=_empty, args=(trash,), name="vgpu files", daemon=True).start()


def _empty(directory: Path) -> None:
    """Empties a directory, including leftovers of an earlier daemon."""
    for path in directory.iterdir():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)
