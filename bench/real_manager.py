"""The real kubelet's own device manager, where it was built (`make build/devicemanager`) and root can hide a directory.

Its directory is a constant, so it runs in a mount namespace with another one in that place.
"""

import os
import subprocess
import tempfile
from pathlib import Path

__all__ = ["allocations_per_second", "obstacle"]

_PROGRAM = Path("build/devicemanager")
_YARDSTICK = Path("build/yardstick")
_HIDDEN = (
    "mount --make-rprivate / && mount -t tmpfs none /var/lib && mkdir /var/lib/kubelet"
    ' && mount --bind "$0" /var/lib/kubelet && exec "$@"'
)


def obstacle() -> str:
    """Why it cannot be measured here; empty if it can."""
    if not _PROGRAM.exists() or not _YARDSTICK.exists():
        return "make build/devicemanager build/yardstick"
    return "" if os.geteuid() == 0 else "needs root"


def allocations_per_second(count: int) -> float:
    with tempfile.TemporaryDirectory(prefix="bench-") as place:
        command = [str(_PROGRAM.absolute()), "-count", str(count)]
        manager = subprocess.Popen(
            ["unshare", "--mount", "sh", "-c", _HIDDEN, place, *command],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        assert manager.stdout is not None
        manager.stdout.readline()  # it listens
        plugin = subprocess.Popen(
            [str(_YARDSTICK), "-dir", f"{place}/device-plugins", "-count", str(count)], stderr=subprocess.DEVNULL
        )
        try:
            said = manager.stdout.readline().split()
            if manager.wait() or said[:1] != ["rate"]:
                raise RuntimeError(f"the real device manager ended with {manager.returncode}")
            return float(said[1])
        finally:
            manager.kill()
            plugin.kill()
            plugin.wait()
            manager.stdout.close()
