"""Runs a program as in a container: with the allocated device nodes and libraries, and without the machine's own.

    unshare --mount enclosed.py ALLOCATION PROGRAM...

ALLOCATION is JSON: `hide`, files that the program must not see, and `nodes` and `mounts`, pairs of paths on the host
and in the container. All changes are mounts in a mount namespace; the machine's files stay as they are.
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
    allocation = json.loads(sys.argv[1])
    _mount("none", "/", "", _RECURSIVE | _PRIVATE)
    work = Path(tempfile.mkdtemp())
    # NVIDIA's library makes missing nodes itself where it can; a container's device cgroup would not let it use them.
    _mount("tmpfs", str(work), "tmpfs", _NO_DEVICES)
    _LIBC.prctl(_DROP_CAPABILITY, _MKNOD, 0, 0, 0)
    libraries = _mount_files(allocation["mounts"], work / "files")
    _enclose_devices(allocation["nodes"], work)
    empty = work / "empty"
    empty.touch()
    for path in sorted({os.path.realpath(path) for path in allocation["hide"]}):
        _bind(str(empty), path)
    if libraries:  # as the loader of a container would find them, whose own directories these are
        os.environ["LD_LIBRARY_PATH"] = ":".join(libraries)
    os.execv(sys.argv[2], sys.argv[2:])


def _mount_files(mounts: list[list[str]], root: Path) -> list[str]:
    """Mounts the files at their paths below `root`; returns their directories."""
    for outside, inside in mounts:
        target = root / inside.removeprefix("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        _bind_file(outside, target)
    return sorted({str((root / inside.removeprefix("/")).parent) for _, inside in mounts})


def _enclose_devices(nodes: list[list[str]], work: Path) -> None:
    """A /dev with the standard nodes of every container and the allocated ones."""
    devices = work / "dev"
    devices.mkdir()
    for outside, inside in [*([f"/dev/{name}"] * 2 for name in _ALWAYS), *nodes]:
        target = devices / inside.removeprefix("/dev/")
        if Path(outside).exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            _bind_file(outside, target)
    (devices / "shm").mkdir(exist_ok=True)
    _mount(str(devices), "/dev", "", _BIND | _RECURSIVE)


def _bind_file(outside: str, target: Path) -> None:
    target.touch()
    _bind(os.path.realpath(outside), str(target))


def _bind(source: str, target: str) -> None:
    _mount(source, target, "", _BIND)


def _mount(source: str, target: str, kind: str, flags: int) -> None:
    if _LIBC.mount(source.encode(), target.encode(), kind.encode() or None, ctypes.c_ulong(flags), None):
        sys.exit(f"mount of {source} at {target}: {os.strerror(ctypes.get_errno())}")


if __name__ == "__main__":
    main()
