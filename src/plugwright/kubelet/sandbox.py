"""A container's view of the file system, and in it the container's command. A program of its own.

Run as `python enclosure.py PLACES COMMAND…`: PLACES is JSON, a list of (host path, path inside, read-only). It enters
a mount namespace of its own, with a user namespace where it is not root, puts every place where the container is
to find it, writes what it could not do as one line of JSON, and becomes the command. Nothing it does is seen outside
or outlives the command. Paths that are not there yet are made on top of the directory they belong to, never in it.

Only the standard library: it is started for every container, and `processes` is the only one that starts it.
"""

import ctypes
import json
import os
import signal
import stat
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress

__all__ = ["CANNOT_START", "main"]

CANNOT_START = 127

_NEW_MOUNTS, _NEW_USERS = 0x0002_0000, 0x1000_0000
_READ_ONLY, _REMOUNT, _BIND, _RECURSIVE, _PRIVATE = 0x1, 0x20, 0x1000, 0x4000, 0x4_0000
_KEPT = 0x1 | 0x2 | 0x4 | 0x8 | 0x400 | 0x800  # flags of a mount that a user namespace may not clear
_RELATIVE_TIMES_SEEN, _RELATIVE_TIMES = 0x1000, 0x20_0000  # statvfs and mount spell this one differently
_DEATH_SIGNAL = 1
_STAGE = "/tmp"  # where a new root is put together

Place = tuple[str, str, bool]

_libc = ctypes.CDLL(None, use_errno=True)


def main(arguments: list[str]) -> None:
    _libc.prctl(_DEATH_SIGNAL, signal.SIGKILL)  # whoever started us was killed: so are we
    places: list[Place] = [tuple(each) for each in json.loads(arguments[0])]
    here = os.getcwd()  # noqa: PTH109  pathlib costs more than all of this
    notes = list(_arranged(places)) if places else []
    with suppress(OSError):
        os.chdir(here)  # by its name: what lies there may be another view of it now
    _tell(notes)
    try:
        os.execvp(arguments[1], arguments[1:])  # noqa: S606
    except OSError as error:
        os.write(1, f"{arguments[1]}: {error.strerror}\n".encode())
        os._exit(CANNOT_START)


def _tell(notes: Sequence[str]) -> None:
    os.write(1, json.dumps(notes).encode() + b"\n")


def _arranged(places: Sequence[Place]) -> Iterator[str]:
    """Puts everything in its place; what it cannot do, it says."""
    try:
        _enter()
    except OSError as error:
        yield f"no mounts and device nodes: a mount namespace is not permitted here ({error.strerror})"
        return
    view = _View()
    # All are opened first: what is put in one place may cover where the next one lies.
    opened = [(place, _opened(place[0])) for place in places]
    for (host, inside, read_only), source in opened:
        try:
            if source is None:
                yield f"{host} is not on this machine"
            elif not inside.startswith("/"):
                yield f"{inside or 'an empty path'} is no place in a container"
            else:
                view.put(source, os.path.realpath(inside), read_only)
        except OSError as error:
            yield f"{host} cannot be put at {inside}: {error.strerror}"


def _opened(path: str) -> int | None:
    try:
        return os.open(path, os.O_PATH)
    except (OSError, ValueError):
        return None


def _enter() -> None:
    user, group = os.getuid(), os.getgid()
    if user or _libc.unshare(_NEW_MOUNTS):
        _check(_libc.unshare(_NEW_MOUNTS | _NEW_USERS))
        for name, text in (("setgroups", "deny"), ("uid_map", f"{user} {user} 1"), ("gid_map", f"{group} {group} 1")):
            with open(f"/proc/self/{name}", "w") as file:  # noqa: PTH123
                file.write(text)
    _mount("none", "/", flags=_RECURSIVE | _PRIVATE)


class _View:
    """The tree as the container sees it."""

    def __init__(self) -> None:
        self._ours: set[int] = set()  # file systems that nobody else sees: there we may make files

    def put(self, source: int, inside: str, read_only: bool) -> None:
        path = _path_of(source)
        is_directory = os.path.isdir(path)  # noqa: PTH112
        if not os.path.lexists(inside):
            self._make(inside, is_directory)
        _mount(path, inside, flags=_BIND | (_RECURSIVE if is_directory else 0))
        if read_only:
            _mount("none", inside, flags=_REMOUNT | _BIND | _READ_ONLY | _flags(inside))

    def _make(self, inside: str, is_directory: bool) -> None:
        parent = os.path.dirname(inside)  # noqa: PTH120
        nearest = parent
        while not os.path.isdir(nearest):  # noqa: PTH112
            nearest = os.path.dirname(nearest)  # noqa: PTH120
        if os.stat(nearest).st_dev not in self._ours:  # noqa: PTH116
            self._cover(nearest)
        os.makedirs(inside if is_directory else parent, exist_ok=True)  # noqa: PTH103
        if not is_directory:
            _touch(inside)

    def _cover(self, directory: str) -> None:
        """A directory of our own in its place, in which everything that was there is found again."""
        below = os.open(directory, os.O_PATH)
        place = directory if directory != "/" else _STAGE
        staged = os.open(place, os.O_PATH)
        mode = stat.S_IMODE(os.stat(directory).st_mode)  # noqa: PTH116
        _mount("tmpfs", place, kind="tmpfs", options=f"mode={mode:o}")
        _fill(place, below)
        if directory == "/":  # a root cannot be covered, only changed; what the stage hides is shown apart
            _mount(_path_of(staged), place + _STAGE, flags=_BIND)
            os.chroot(place)
        self._ours.add(os.stat(directory).st_dev)  # noqa: PTH116


def _fill(place: str, below: int) -> None:
    for name in sorted(os.listdir(_path_of(below))):  # noqa: PTH208
        with suppress(OSError):  # what cannot be shown is left out
            _show(f"{_path_of(below)}/{name}", f"{place}/{name}")


def _show(source: str, path: str) -> None:
    if os.path.islink(source):  # noqa: PTH114
        os.symlink(os.readlink(source), path)  # noqa: PTH115, PTH211
        return
    if os.path.isdir(source):  # noqa: PTH112
        os.mkdir(path)  # noqa: PTH102
    else:
        _touch(path)
    if path != _STAGE * 2:  # it would be shown inside itself
        _mount(source, path, flags=_BIND | _RECURSIVE)


def _touch(path: str) -> None:
    os.close(os.open(path, os.O_CREAT | os.O_WRONLY, 0o644))


def _path_of(descriptor: int) -> str:
    return f"/proc/self/fd/{descriptor}"


def _flags(path: str) -> int:
    seen = os.statvfs(path).f_flag
    return seen & _KEPT | (_RELATIVE_TIMES if seen & _RELATIVE_TIMES_SEEN else 0)


def _mount(source: str, target: str, *, kind: str = "", flags: int = 0, options: str = "") -> None:
    words = (os.fsencode(source), os.fsencode(target), kind.encode() or None)
    _check(_libc.mount(*words, ctypes.c_ulong(flags), options.encode() or None))


def _check(result: int) -> None:
    if result:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


if __name__ == "__main__":
    main(sys.argv[1:])
