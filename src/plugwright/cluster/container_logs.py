"""What containers that run as processes have written: a file for each, under their node's directory.

A container that does not run writes nothing: its log says what it would have got from its devices.
"""

import shutil
from collections.abc import Iterator
from pathlib import Path

from plugwright.kubelet.pod_table import RunContainerOptions

__all__ = ["ContainerLogs", "granted_text"]

_LARGEST = 10 * 2**20  # as much as a kubelet keeps before it begins anew


class ContainerLogs:
    def __init__(self, root: Path) -> None:
        self._root = root

    def write(self, uid: str, container: str, text: str) -> None:
        """Adds a line, or several."""
        path = self._path(uid, container)
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if path.exists() and path.stat().st_size > _LARGEST:
            path.unlink()
        with path.open("a", encoding="utf-8") as file:
            file.write(text if text.endswith("\n") else f"{text}\n")

    def read(self, uid: str, container: str) -> str:
        try:
            return self._path(uid, container).read_text(encoding="utf-8", errors="replace")
        except FileNotFoundError:
            return ""

    def forget(self, uid: str) -> None:
        shutil.rmtree(self._root / uid, ignore_errors=True)

    def _path(self, uid: str, container: str) -> Path:
        return self._root / uid / f"{container}.log"


def granted_text(granted: RunContainerOptions) -> str:
    """Sorted, one fact a line."""
    return "".join(f"{line}\n" for line in _lines(granted))


def _lines(granted: RunContainerOptions) -> Iterator[str]:
    for name, value in sorted(granted.env.items()):
        yield f"env {name}={value}"
    for mount in granted.mounts:
        yield f"mount {mount.host_path} at {mount.container_path} ({'ro' if mount.read_only else 'rw'})"
    for node in granted.nodes:
        yield f"device {node.host_path} as {node.container_path} ({node.permissions})"
    for name, value in sorted(granted.annotations.items()):
        yield f"annotation {name}={value}"
    for name in granted.cdi:
        yield f"cdi {name}"
