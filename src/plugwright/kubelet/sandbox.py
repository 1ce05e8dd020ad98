"""The sandbox of a container run as a local process: a program to mount its paths and become its command.

Run as `python sandbox.py PATHS DIRECTORY COMMAND…`: PATHS is JSON, a list of (host path, container path, read-only,
need). It enters its own mount namespace, with a user namespace if it is not root, mounts every path where the container
expects it, writes one line of JSON with its failures, and becomes the command, unless a REQUIRED path could not be
mounted. Its mounts are invisible outside and end with the command. Missing paths are created on a tmpfs over their
directory, never in it.

It imports only the standard library, because it is started for every container; `processes` starts it.
"""

import ctypes
import json
import os
import signal
import stat
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress

__all__ = ["CANNOT_START", "QUIET", "REQUIRED", "WANTED", "main"]

CANNOT_START = 127
REQUIRED, WANTED, QUIET = "required", "wanted", "quiet"  # the command does not run; reported as a problem; not reported

_NEW_MOUNTS, _NEW_USERS = 0x0002_0000, 0x1000_0000
_READ_ONLY, _REMOUNT, _BIND, _RECURSIVE, _PRIVATE = 0x1, 0x20, 0x1000, 0x4000, 0x4_0000
_LOCKED_FLAGS = 0x1 | 0x2 | 0x4 | 0x8 | 0x400 | 0x800  # mount flags that a user namespace cannot clear
_STATVFS_RELATIME, _RELATIME = 0x1000, 0x20_0000  # statvfs and mount have different bits for this one
_DEATH_SIGNAL = 1
_STAGE = "/tmp"  # the place where a new root directory is assembled

PathSpec = tuple[str, str, bool, str]  # host path, container path, read-only, need

_libc = ctypes.CDLL(None, use_errno=True)


def main(arguments: list[str]) -> None:
    _libc.prctl(_DEATH_SIGNAL, signal.SIGKILL)  # ends this process with the one that started it
    paths: list[PathSpec] = [tuple(path) for path in json.loads(arguments[0])]
    directory = arguments[1] or os.getcwd()  # noqa: PTH109  importing pathlib takes longer than all of this
    problems = list(_mount_paths(paths)) if paths else []
    try:
        os.chdir(directory)  # by name: another mount can cover it now
    except OSError as error:
        problems.append((f"working directory {directory}: {error.strerror}", REQUIRED if arguments[1] else QUIET))
    os.write(1, json.dumps([problem for problem in problems if problem[1] != QUIET]).encode() + b"\n")
    if any(need == REQUIRED for _, need in problems):
        os._exit(CANNOT_START)
    try:
        os.execvp(arguments[2], arguments[2:])  # noqa: S606
    except OSError as error:
        os.write(1, f"{arguments[2]}: {error.strerror}\n".encode())
        os._exit(CANNOT_START)


def _mount_paths(paths: Sequence[PathSpec]) -> Iterator[tuple[str, str]]:
    """Mounts every path; yields the problems, each with the need of its path."""
    try:
        _enter_namespaces()
    except OSError as error:
        text = f"no mounts and device nodes: a mount namespace is not permitted here ({error.strerror})"
        yield text, min((path[3] for path in paths), key=(REQUIRED, WANTED, QUIET).index)
        return
    view = _View()
    # All sources are opened first: one mount can cover the source of the next.
    opened = [(path, _open(path[0])) for path in paths]
    for (host_path, container_path, read_only, need), source in opened:
        try:
            if source is None:
                yield f"{host_path} does not exist on this machine", need
            elif not container_path.startswith("/"):
                yield f"path in the container must be absolute, got {container_path!r}", need
            else:
                view.mount(source, os.path.realpath(container_path), read_only)
        except OSError as error:
            yield f"{host_path} cannot be mounted at {container_path}: {error.strerror}", need


def _open(path: str) -> int | None:
    try:
        return os.open(path, os.O_PATH)
    except (OSError, ValueError):
        return None


def _enter_namespaces() -> None:
    user, group = os.getuid(), os.getgid()
    if user or _libc.unshare(_NEW_MOUNTS):
        _check(_libc.unshare(_NEW_MOUNTS | _NEW_USERS))
        for name, text in (("setgroups", "deny"), ("uid_map", f"{user} {user} 1"), ("gid_map", f"{group} {group} 1")):
            with open(f"/proc/self/{name}", "w") as file:  # noqa: PTH123
                file.write(text)
    _mount("none", "/", flags=_RECURSIVE | _PRIVATE)


class _View:
    """The file system as the container sees it."""

    def __init__(self) -> None:
        self._own: set[int] = set()  # file systems of this namespace only, in which files can be created

    def mount(self, source: int, target: str, read_only: bool) -> None:
        path = _path_of(source)
        is_directory = os.path.isdir(path)  # noqa: PTH112
        if not os.path.lexists(target):
            self._create(target, is_directory)
        _mount(path, target, flags=_BIND | (_RECURSIVE if is_directory else 0))
        if read_only:
            _mount("none", target, flags=_REMOUNT | _BIND | _READ_ONLY | _flags(target))

    def _create(self, target: str, is_directory: bool) -> None:
        parent = os.path.dirname(target)  # noqa: PTH120
        nearest = parent
        while not os.path.isdir(nearest):  # noqa: PTH112
            nearest = os.path.dirname(nearest)  # noqa: PTH120
        if os.stat(nearest).st_dev not in self._own:  # noqa: PTH116
            self._cover(nearest)
        os.makedirs(target if is_directory else parent, exist_ok=True)  # noqa: PTH103
        if not is_directory:
            _touch(target)

    def _cover(self, directory: str) -> None:
        """Mounts a tmpfs over a directory and binds its former content."""
        below = os.open(directory, os.O_PATH)
        target = directory if directory != "/" else _STAGE
        staged = os.open(target, os.O_PATH)
        mode = stat.S_IMODE(os.stat(directory).st_mode)  # noqa: PTH116
        _mount("tmpfs", target, kind="tmpfs", options=f"mode={mode:o}")
        _fill(target, below)
        if directory == "/":  # a root cannot be covered, only changed; paths hidden by the stage are bound separately
            _mount(_path_of(staged), target + _STAGE, flags=_BIND)
            os.chroot(target)
        self._own.add(os.stat(directory).st_dev)  # noqa: PTH116


def _fill(target: str, below: int) -> None:
    for name in sorted(os.listdir(_path_of(below))):  # noqa: PTH208
        with suppress(OSError):  # an entry that cannot be bound is left out
            _bind(f"{_path_of(below)}/{name}", f"{target}/{name}")


def _bind(source: str, path: str) -> None:
    if os.path.islink(source):  # noqa: PTH114
        os.symlink(os.readlink(source), path)  # noqa: PTH115, PTH211
        return
    if os.path.isdir(source):  # noqa: PTH112
        os.mkdir(path)  # noqa: PTH102
    else:
        _touch(path)
    if path != _STAGE * 2:  # it would contain itself
        _mount(source, path, flags=_BIND | _RECURSIVE)


def _touch(path: str) -> None:
    os.close(os.open(path, os.O_CREAT | os.O_WRONLY, 0o644))


def _path_of(descriptor: int) -> str:
    return f"/proc/self/fd/{descriptor}"


def _flags(path: str) -> int:
    flags = os.statvfs(path).f_flag
    return flags & _LOCKED_FLAGS | (_RELATIME if flags & _STATVFS_RELATIME else 0)


def _mount(source: str, target: str, *, kind: str = "", flags: int = 0, options: str = "") -> None:
    names = (os.fsencode(source), os.fsencode(target), kind.encode() or None)
    _check(_libc.mount(*names, ctypes.c_ulong(flags), options.encode() or None))


def _check(result: int) -> None:
    if result:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


if __name__ == "__main__":
    main(sys.argv[1:])
