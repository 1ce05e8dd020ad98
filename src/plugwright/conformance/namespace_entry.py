"""Runs inside a new mount namespace: `namespace_entry.py WORK [SRC DST]... -- CMD...` mounts, then becomes the command.

It is a separate program and imports nothing of plugwright, because each start of a program under test waits for it.
"""

# pathlib would take longer to load than everything else.
# ruff: noqa: PTH102, PTH103, PTH109, PTH110, PTH114, PTH115, PTH112, PTH118, PTH120, PTH123, PTH208, PTH211, S606

import ctypes
import os
import sys

__all__ = ["main"]

_BIND, _RECURSIVE = 0x1000, 0x4000
_libc = ctypes.CDLL(None, use_errno=True)


def main(arguments: list[str]) -> None:
    work, *rest = arguments
    end = rest.index("--")
    for number in range(0, end, 2):
        _place(rest[number], rest[number + 1], os.path.join(work, str(number)))
    command = rest[end + 1 :]
    os.execvp(command[0], command)


def _place(source: str, destination: str, former: str) -> None:
    if not os.path.exists(destination):
        parent = destination
        while not os.path.isdir(parent):
            parent = os.path.dirname(parent)
        if os.path.realpath(parent) == "/":
            _replace_root(former)
        else:
            _cover(os.path.realpath(parent), former)
        if os.path.isdir(source):
            os.makedirs(destination)
        else:
            os.makedirs(os.path.dirname(destination), exist_ok=True)
            open(destination, "w").close()
    _mount(source, destination, "none", _BIND | _RECURSIVE)


def _cover(directory: str, former: str) -> None:
    """Replaces the directory by one in memory, with links to its former entries: more can be added without a trace."""
    os.makedirs(former, exist_ok=True)
    _mount(directory, former, "none", _BIND | _RECURSIVE)
    _mount("tmpfs", directory, "tmpfs", 0)
    for name in os.listdir(former):
        os.symlink(os.path.join(former, name), os.path.join(directory, name))


def _replace_root(place: str) -> None:
    """Makes a directory in memory the root, with the entries of the former root, because a mount on / has no effect."""
    os.makedirs(place, exist_ok=True)
    _mount("tmpfs", place, "tmpfs", 0)
    for name in os.listdir("/"):
        former, entry = os.path.join("/", name), os.path.join(place, name)
        if os.path.islink(former):
            os.symlink(os.readlink(former), entry)
            continue
        if os.path.isdir(former):
            os.mkdir(entry)
        else:
            open(entry, "w").close()
        _mount(former, entry, "none", _BIND | _RECURSIVE)
    directory = os.getcwd()
    os.chroot(place)
    os.chdir(directory)


def _mount(source: str, target: str, kind: str, flags: int) -> None:
    options = b"mode=0755" if kind == "tmpfs" else None
    if _libc.mount(os.fsencode(source), os.fsencode(target), kind.encode(), flags, options):
        number = ctypes.get_errno()
        sys.exit(f"plugwright verify: cannot mount {source} on {target}: {os.strerror(number)}")


if __name__ == "__main__":
    main(sys.argv[1:])
