"""Unix sockets as files: the limit of a path, whether a process listens, and whether the file is still ours."""

import errno
import os
import socket
from pathlib import Path

import msgspec

from plugwright.errors import PathTooLong
from plugwright.system.latest import Signal

__all__ = ["PATH_LIMIT", "SocketFile", "check_path", "fits", "is_listening", "listen", "listen_in_place"]

PATH_LIMIT = 107  # sun_path is 108 bytes, the last one a NUL


def fits(directory: Path, longest_name: int) -> bool:
    """Whether a socket with a name of `longest_name` bytes can be bound in `directory`."""
    return len(os.fsencode(directory)) + 1 + longest_name <= PATH_LIMIT


def check_path(path: Path) -> Path:
    """Raises PathTooLong for an overlong path, which `bind` and `connect` would refuse without a reason."""
    if len(os.fsencode(path)) > PATH_LIMIT:
        raise PathTooLong(str(path), PATH_LIMIT)
    return path


def is_listening(path: Path) -> bool:
    """Whether a process accepts connections on this socket; True in case of doubt.

    A full backlog (EAGAIN) is proof of a listener. Only a refused connection or a missing file proves the opposite: a
    caller removing stale sockets must not remove another process's socket.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        try:
            code = probe.connect_ex(os.fspath(check_path(path)))
        except PathTooLong:
            return True
    return code not in (errno.ECONNREFUSED, errno.ENOENT, errno.ENOTDIR)


def listen(path: Path, mode: int | None = 0o600) -> socket.socket:
    """A new socket file with a listening socket; the umask decides if `mode` is None."""
    check_path(path)
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        if mode is not None:
            os.fchmod(listening.fileno(), mode)  # before bind: the file never exists with another mode
        listening.bind(str(path))
        listening.listen(128)  # immediately: a socket file that refuses connections can be removed as stale
        listening.setblocking(False)
    except OSError:
        listening.close()
        raise
    return listening


def listen_in_place(path: Path) -> socket.socket:
    """Like `listen`, as the kubelet makes its pod-resources socket: the old file is removed, the new one renamed."""
    path.unlink(missing_ok=True)
    unnamed = path.with_name(".new")  # shorter than the final name, so that `check_path` reports the final one
    unnamed.unlink(missing_ok=True)
    check_path(path)
    listening = listen(unnamed, mode=None)
    try:
        unnamed.rename(path)
    except OSError:
        listening.close()
        raise
    return listening


class SocketFile(msgspec.Struct, frozen=True):
    """A socket file of this process; its inode distinguishes it from a replacement."""

    path: Path
    inode: int

    @classmethod
    def of(cls, path: Path) -> "SocketFile":
        return cls(path, path.lstat().st_ino)

    def exists(self) -> bool:
        try:
            return self.path.lstat().st_ino == self.inode
        except OSError:
            return False

    async def removed(self, changed: Signal) -> None:
        """Returns when the file was removed or replaced; `changed` reports changes of its directory."""
        await changed.until(lambda: not self.exists())

    def unlink(self) -> None:
        """Removes the file, unless another process has replaced it."""
        if self.exists():
            self.path.unlink(missing_ok=True)
