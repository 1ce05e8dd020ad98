"""The mount namespace of a program under test, in which the node's directories are those of the test.

`/var/lib/kubelet`, `/etc/cdi`, `/var/run/cdi` and the user's binds are replaced there, so that a program with built-in
paths works and leaves nothing on the host. A missing path is added without changing the host: its nearest existing
parent becomes a directory in memory with links to the former entries.
"""

import functools
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from plugwright.errors import ConfigError

__all__ = ["KUBELET", "Mount", "command_in", "enter", "is_free", "parse_bind", "translate"]

KUBELET = Path("/var/lib/kubelet")
_KERNEL = (Path("/proc"), Path("/sys"))  # file systems in which nothing can be added
_ENTRY = Path(__file__).with_name("namespace_entry.py")


@dataclass(frozen=True, slots=True)
class Mount:
    """`source` on the host is `destination` for the program."""

    source: Path
    destination: Path

    @property
    def covered(self) -> Path:
        """The directory whose entries the mount hides or replaces: the first existing parent on this machine."""
        place = self.destination
        return place if place.exists() else next(parent for parent in place.parents if parent.is_dir())


def parse_bind(text: str) -> Mount:
    """`SRC:DST`; raises ConfigError if SRC does not exist or nothing can be mounted on DST."""
    source, colon, destination = text.partition(":")
    mount = Mount(Path(source).absolute(), Path(destination))
    if not (source and colon and mount.destination.is_absolute()):
        raise ConfigError(f"--bind must be SRC:DST with an absolute DST, got {text!r}")
    if not mount.source.exists():
        raise ConfigError(f"--bind: no such file or directory: {source}")
    if mount.destination == Path("/") or ".." in mount.destination.parts:
        raise ConfigError(f"--bind must name a directory or a file below /, got {destination!r}")
    if any(mount.destination.is_relative_to(kernel) for kernel in _KERNEL) and not mount.destination.exists():
        raise ConfigError(f"--bind: {destination} must exist, since nothing can be added there: bind the whole of /sys")
    return mount


@functools.cache
def enter() -> tuple[str, ...] | None:
    """The command that enters a mount namespace, or None if the system forbids it."""
    for flags in (("--mount",), ("--mount", "--map-root-user")):
        command = ("unshare", *flags, "--propagation", "private")
        if (
            shutil.which("unshare")
            and subprocess.run([*command, "true"], capture_output=True, check=False).returncode == 0
        ):
            return command
    return None


def is_free() -> bool:
    """Whether a namespace has no other effect: without rights the program would be root of a user namespace."""
    command = enter()
    return command is not None and "--map-root-user" not in command


def command_in(work: Path, mounts: Sequence[Mount], command: Sequence[str]) -> list[str]:
    """The command for starting the command in a namespace; `work` is a directory for the former entries."""
    enters = enter()
    assert enters is not None, "Target.check allows nothing else"
    places = [str(path) for mount in mounts for path in (mount.source, mount.destination)]
    return [*enters, sys.executable, "-I", "-S", str(_ENTRY), str(work), *places, "--", *command]


def translate(path: Path, mounts: Sequence[Mount]) -> Path:
    """The host path of the program's `path`; the last mount wins, as in the namespace."""
    for mount in reversed(mounts):
        if path.is_relative_to(mount.destination):
            return mount.source / path.relative_to(mount.destination)
    return path
