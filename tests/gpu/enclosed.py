"""Runs a program as a container would: with the device nodes and libraries it is given, and without the machine's own.

    unshare --mount enclosed.py GIVEN PROGRAM...

GIVEN is JSON: `hide`, files that it must not see, and `nodes` and `mounts`, pairs of paths outside and inside.
Everything is done by mounts in a namespace of its own; the machine's files stay as they are.
"""

import ctypes
import json
import os
import sys
import tempfile
from pathlib import Path

_BIND, _PRIVATE, _RECURSIVE, _NO_DEVICES = 4096, 1 << 18, 16384, 4
_DROP_CAPABILITY, _MKNOD = 24, 27
_ALWAYS = ("null", "zero", "full", "random", "urandom", "tty")
_LIBC = ctypes.CDLL(None, use_errno=True)


def main() -> None:
    given = json.loads(sys.argv[1])
    _mount("none", "/", "", _RECURSIVE | _PRIVATE)
    work = Path(tempfile.mkdtemp())
    # NVIDIA's library makes missing nodes itself where it can; a container's device cgroup would not let it use them.
    _mount("tmpfs", str(work), "tmpfs", _NO_DEVICES)
    _LIBC.prctl(_DROP_CAPABILITY, _MKNOD, 0, 0, 0)
    libraries = _give_files(given["mounts"], work / "given")
    _enclose_devices(given["nodes"], work)
    empty = work / "empty"
    empty.touch()
    for path in sorted({os.path.realpath(each) for each in given["hide"]}):
        _bind(str(empty), path)
    if libraries:  # as the loader of a container would find them, whose own directories these are
        os.environ["LD_LIBRARY_PATH"] = ":".join(libraries)
    os.execv(sys.argv[2], sys.argv[2:])


def _give_files(mounts: list[list[str]], root: Path) -> list[str]:
    """The files that were given, at their paths below `root`; the directories they are in."""
    for outside, inside in mounts:
        place = root / inside.removeprefix("/")
        place.parent.mkdir(parents=True, exist_ok=True)
        _keep(outside, place)
    return sorted({str((root / inside.removeprefix("/")).parent) for _, inside in mounts})


def _enclose_devices(nodes: list[list[str]], work: Path) -> None:
    """A /dev with nothing in it but what every container has, and what was given."""
    devices = work / "dev"
    devices.mkdir()
    for outside, inside in [*([f"/dev/{name}"] * 2 for name in _ALWAYS), *nodes]:
        place = devices / inside.removeprefix("/dev/")
        if Path(outside).exists():
            place.parent.mkdir(parents=True, exist_ok=True)
            _keep(outside, place)
    (devices / "shm").mkdir(exist_ok=True)
    _mount(str(devices), "/dev", "", _BIND | _RECURSIVE)


def _keep(outside: str, place: Path) -> Path:
    place.touch()
    _bind(os.path.realpath(outside), str(place))
    return place


def _bind(source: str, target: str) -> None:
    _mount(source, target, "", _BIND)


def _mount(source: str, target: str, kind: str, flags: int) -> None:
    if _LIBC.mount(source.encode(), target.encode(), kind.encode() or None, ctypes.c_ulong(flags), None):
        sys.exit(f"mount of {source} at {target}: {os.strerror(ctypes.get_errno())}")


if __name__ == "__main__":
    main()
