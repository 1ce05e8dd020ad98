"""This machine: whether a cluster can live on it, the packages it lacks, and what killed runs have left on it."""

import fcntl
import os
import platform
import secrets
import shutil
import subprocess
import sys
from pathlib import Path

from tests.kubernetes import building, cgroups
from tests.kubernetes.enclosure import PATH, UNSHARE

__all__ = ["ARCHITECTURE", "Place", "cni_plugins", "install", "install_packages", "obstacles", "remove_remains"]

ARCHITECTURE = {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())
_PREFIX = "plugwright-k8s-"
_PARENT = Path("/tmp")  # not $TMPDIR: the path of a socket may have 107 bytes
_CNI = (Path("/usr/lib/cni"), Path("/opt/cni/bin"))
_PACKAGES = {"runc": "runc", "busybox": "busybox-static", "openssl": "openssl", "ip": "iproute2"}


class Place:
    """A directory for one cluster, and its name. Whoever holds the lock is alive; the rest are remains."""

    def __init__(self) -> None:
        self.name = f"{_PREFIX}{secrets.token_hex(4)}"
        self.directory = _PARENT / self.name
        unfinished = _PARENT / f".{self.name}"
        unfinished.mkdir(mode=0o755)
        self.lock = _locked(unfinished / "lock", os.O_CREAT)
        unfinished.rename(self.directory)  # nobody sees it without its lock, and takes it for remains

    def remove(self) -> None:
        os.close(self.lock)
        _remove(self.name)


def obstacles(go_needed: bool) -> list[str]:
    """Every reason why there can be no cluster here, in words for people."""
    if sys.platform != "linux":
        return [f"this is {sys.platform}, not Linux"]
    if os.geteuid() != 0:
        return ["this is not root"]
    found = [f"there is no {each}" for each in ("unshare", "nsenter", "mount") if not _find(each)]
    if go_needed and not shutil.which("go"):
        found.append("there is no Go to build Kubernetes with")
    if _lacking() and not shutil.which("apt-get"):
        found.append(f"there is no {', '.join(_lacking())}, and no apt-get to install them")
    return found or [each for each in (_namespaces_refused(), cgroups.obstacle()) if each]


def install_packages() -> None:
    """Install the packages that a cluster needs and this machine lacks."""
    install(*_lacking())


def install(*packages: str) -> None:
    if not packages:
        return
    print(f"installing {', '.join(packages)}", flush=True)
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    with building.one_at_a_time("packages"):  # apt-get fails if another one runs
        for command in (["apt-get", "update"], ["apt-get", "install", "-y", "--no-install-recommends", *packages]):
            done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
            if done.returncode:
                raise RuntimeError(f"{' '.join(command)} failed:\n{done.stderr[-2000:]}")


def cni_plugins() -> Path | None:
    wanted = ("ptp", "host-local", "loopback")
    return next((place for place in _CNI if all((place / each).exists() for each in wanted)), None)


def remove_remains() -> list[str]:
    """Removes what runs that were killed have left: their processes are gone with their namespaces."""
    left = {path.name for path in _PARENT.glob(f"{_PREFIX}*")} | cgroups.names(_PREFIX)
    dead = [name for name in sorted(left) if _is_dead(_PARENT / name / "lock")]
    for name in dead:
        _remove(name)
    return dead


def _lacking() -> list[str]:
    lacking = [package for program, package in _PACKAGES.items() if not _find(program)]
    if "busybox-static" not in lacking and not _is_static(Path(_find("busybox"))):
        lacking.append("busybox-static")
    return lacking if cni_plugins() else [*lacking, "containernetworking-plugins"]


def _find(program: str) -> str:
    return shutil.which(program, path=PATH) or ""


def _is_static(program: Path) -> bool:
    """Whether it names no loader: in an image of its own there is none."""
    return b"/ld-" not in program.read_bytes()[:4096]


def _namespaces_refused() -> str:
    done = subprocess.run([*UNSHARE, "true"], capture_output=True, text=True, check=False)
    return f"no namespaces can be made: {done.stderr.strip()}" if done.returncode else ""


def _locked(path: Path, flags: int = 0) -> int:
    descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | flags)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise
    return descriptor


def _is_dead(lock: Path) -> bool:
    try:
        os.close(_locked(lock))
    except BlockingIOError:
        return False
    except FileNotFoundError:
        return True  # only its cgroup is left, or what was being removed when that was killed
    return True


def _remove(name: str) -> None:
    cgroups.remove(name)
    shutil.rmtree(_PARENT / name, ignore_errors=True)  # another run may be about the same remains
