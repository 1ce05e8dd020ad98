"""Runs a program as in a container of an ordinary image: with what was allocated, and without the machine's own driver.

    unshare --mount enclosed.py CONTAINER PROGRAM...

CONTAINER is JSON. `nodes` and `mounts` are pairs of paths on the host and in the container. `hide` are the files of the
machine's driver: they are gone, and so are the links to them, from the directories that files are mounted into. The
loader's cache is made after that: like that of an image, it does not know the driver. What hooks do then comes last:
`links` are pairs of a link's target and path, and `folders` are added to the cache.

All changes are mounts in a mount namespace; the machine's files stay as they are.
"""

import ctypes
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

_BIND, _PRIVATE, _RECURSIVE, _NO_DEVICES = 4096, 1 << 18, 16384, 4
_DROP_CAPABILITY, _MKNOD = 24, 27
_ALWAYS = ("null", "zero", "full", "random", "urandom", "tty")
_CACHE = "/etc/ld.so.cache"
_OWN = "/usr/local/plugwright"
_LIBC = ctypes.CDLL(None, use_errno=True)


def main() -> None:
    container = json.loads(sys.argv[1])
    _mount("none", "/", "", _RECURSIVE | _PRIVATE)
    work = Path(tempfile.mkdtemp())
    # NVIDIA's library makes missing nodes itself where it can; a container's device cgroup would not let it use them.
    _mount("tmpfs", str(work), "tmpfs", _NO_DEVICES)
    _LIBC.prctl(_DROP_CAPABILITY, _MKNOD, 0, 0, 0)
    if container["hide"]:
        _enclose_files(container, work)
    _enclose_devices(container["nodes"], work)
    os.execv(sys.argv[2], sys.argv[2:])


def _enclose_files(container: dict[str, Any], work: Path) -> None:
    hidden = {os.path.realpath(path) for path in container["hide"]}
    sources = {inside: _kept(outside, work) for outside, inside in container["mounts"]}
    _make_own_directories(sources)
    (work / "empty").touch()
    targets = [*sources, *(path for _, path in container["links"])]
    # An image has the directories of its loader; what an ordinary one may lack is left out here.
    parents = {target: os.path.realpath(Path(target).parent) for target in targets}
    copies = {parent: _copy(parent, hidden, work) for parent in sorted(set(parents.values())) if Path(parent).is_dir()}
    for path in sorted(hidden):
        _bind(str(work / "empty"), path)
    for parent, copy in copies.items():
        _bind(str(copy), parent)
    _make_cache(work, [])
    for target, source in sources.items():
        if parents[target] in copies:
            (copies[parents[target]] / Path(target).name).touch()
            _bind(str(source), target)
    for aim, path in container["links"]:
        if parents[path] in copies:
            (copies[parents[path]] / Path(path).name).symlink_to(aim)
    if container["folders"]:
        _make_cache(work, container["folders"])


def _make_own_directories(targets: Iterable[str]) -> None:
    """Those that no image has and a runtime makes, on a file system of the container's own."""
    parents = {str(Path(target).parent) for target in targets if target.startswith(f"{_OWN}/")}
    if parents:
        Path(_OWN).mkdir(exist_ok=True)
        _mount("tmpfs", _OWN, "tmpfs", 0)
    for parent in sorted(parents):
        Path(parent).mkdir(parents=True, exist_ok=True)


def _kept(path: str, work: Path) -> Path:
    """The file under another name, under which it stays when its own is hidden."""
    kept = work / "files" / str(len(list((work / "files").iterdir())) if (work / "files").exists() else 0)
    kept.parent.mkdir(exist_ok=True)
    kept.touch()
    _bind(os.path.realpath(path), str(kept))
    return kept


def _copy(directory: str, hidden: set[str], work: Path) -> Path:
    """A directory to which files can be added: links to those of the machine, without the hidden ones."""
    original, copy = (work / kind / directory.strip("/").replace("/", "_") for kind in ("original", "copy"))
    original.mkdir(parents=True)
    copy.mkdir(parents=True)
    _mount(directory, str(original), "", _BIND | _RECURSIVE)
    for path in sorted(Path(directory).iterdir()):
        if os.path.realpath(path) not in hidden:
            aim = path.readlink() if path.is_symlink() else original / path.name
            (copy / path.name).symlink_to(aim)
    return copy


def _make_cache(work: Path, folders: Iterable[object]) -> None:
    cache = work / f"cache{len(list(work.iterdir()))}"
    command = ["/sbin/ldconfig", "-X", "-C", str(cache), *map(str, folders)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _bind(str(cache), _CACHE)


def _enclose_devices(nodes: list[list[str]], work: Path) -> None:
    """A /dev with the standard nodes of every container and the allocated ones."""
    devices = work / "dev"
    devices.mkdir()
    for outside, inside in [*([f"/dev/{name}"] * 2 for name in _ALWAYS), *nodes]:
        target = devices / inside.removeprefix("/dev/")
        if Path(outside).exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            target.touch()
            _bind(os.path.realpath(outside), str(target))
    (devices / "shm").mkdir(exist_ok=True)
    _mount(str(devices), "/dev", "", _BIND | _RECURSIVE)


def _bind(source: str, target: str) -> None:
    _mount(source, target, "", _BIND)


def _mount(source: str, target: str, kind: str, flags: int) -> None:
    if _LIBC.mount(source.encode(), target.encode(), kind.encode() or None, ctypes.c_ulong(flags), None):
        sys.exit(f"mount of {source} at {target}: {os.strerror(ctypes.get_errno())}")


if __name__ == "__main__":
    main()
