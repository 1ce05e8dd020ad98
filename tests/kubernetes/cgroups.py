"""The one cgroup that all pods of a cluster are in, in every hierarchy of the machine.

No namespace makes it go away with the cluster, so it is named after the cluster and removed by name.
"""

import time
from contextlib import suppress
from pathlib import Path

__all__ = ["make", "names", "obstacle", "remove"]

_WANTED = {"cpu", "cpuset", "hugetlb", "memory", "pids"}  # those that a kubelet insists on where they are to be had
_REMOVAL = 10.0  # seconds that the last processes may take to be gone


def make(name: str) -> None:
    for hierarchy in _hierarchies():
        place = hierarchy / name
        place.mkdir()
        for part in ("cpuset.cpus", "cpuset.mems"):  # version 1 hands nothing down: no process could live in it
            if (place / part).exists() and not _unified(hierarchy):
                (place / part).write_text((hierarchy / part).read_text())


def remove(name: str) -> None:
    """Removes it with all below; whoever calls knows that nothing lives in there, or is about to end."""
    deadline = time.monotonic() + _REMOVAL
    for hierarchy in _mounted():
        while not _removed(hierarchy / name):
            if time.monotonic() > deadline:
                raise RuntimeError(f"{hierarchy / name} still has processes")
            time.sleep(0.05)


def names(prefix: str) -> set[str]:
    return {found.name for hierarchy in _mounted() for found in hierarchy.glob(f"{prefix}*")}


def obstacle() -> str:
    """Why no cgroup can be made here, empty if one can."""
    hierarchies = _hierarchies()
    if not hierarchies:
        return "no cgroups are mounted"
    if not _unified(hierarchies[0]):
        return ""
    there = set((hierarchies[0] / "cgroup.controllers").read_text().split())
    refused = [each for each in sorted(_WANTED & there) if not _handed_down(hierarchies[0], each)]
    return f"the cgroup at {hierarchies[0]} hands down no {', '.join(refused)}" if refused else ""


def _handed_down(hierarchy: Path, controller: str) -> bool:
    """Version 2 gives a cgroup the controllers that the one above lets go."""
    control = hierarchy / "cgroup.subtree_control"
    if controller not in control.read_text().split():
        with suppress(OSError):
            control.write_text(f"+{controller}")
    return controller in control.read_text().split()


def _hierarchies() -> list[Path]:
    """Those that a kubelet uses: of version 1, or the one of version 2 where there are no others."""
    mounted = _mounted()
    return [place for place in mounted if not _unified(place)] or mounted


def _mounted() -> list[Path]:
    """All of them; runc makes a cgroup in each, used or not."""
    mounts = [line.split() for line in Path("/proc/self/mounts").read_text().splitlines()]
    return sorted({Path(place) for _, place, kind, *_ in mounts if kind in ("cgroup", "cgroup2")})


def _unified(hierarchy: Path) -> bool:
    return (hierarchy / "cgroup.controllers").exists()


def _removed(place: Path) -> bool:
    """Whether it is gone, after another try to remove it from the leaves up."""
    try:
        for below in sorted(place.glob("**/"), key=lambda path: len(path.parts), reverse=True):
            below.rmdir()
    except FileNotFoundError:
        pass
    except OSError:
        return False
    return not place.exists()
