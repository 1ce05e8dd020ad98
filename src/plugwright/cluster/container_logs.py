"""Container logs of an emulated node: one file per container that runs as a process.

A container that is not run writes nothing; `options_text` is its log instead: what it would have got from its devices.
"""

import shutil
from collections.abc import Iterator
from pathlib import Path

from plugwright.kubelet.pod_table import RunContainerOptions

__all__ = ["ContainerLogs", "options_text"]

_LARGEST = 10 * 2**20  # the size at which a kubelet rotates a log


class ContainerLogs:
    def __init__(self, root: Path) -> None:
        self._root = root

    def write(self, uid: str, container: str, text: str) -> None:
        """Appends one line or several."""
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

    def remove(self, uid: str) -> None:
        shutil.rmtree(self._root / uid, ignore_errors=True)

    def _path(self, uid: str, container: str) -> Path:
        return self._root / uid / f"{container}.log"


def options_text(options: RunContainerOptions) -> str:
    """One variable, mount, device node, annotation or CDI name a line."""
    return "".join(f"{line}\n" for line in _lines(options))


def _lines(options: RunContainerOptions) -> Iterator[str]:
    for name, value in sorted(options.env.items()):
        yield f"env {name}={value}"
    for mount in options.mounts:
        yield f"mount {mount.host_path} at {mount.container_path} ({'ro' if mount.read_only else 'rw'})"
    for node in options.nodes:
        yield f"device {node.host_path} as {node.container_path} ({node.permissions})"
    for name, value in sorted(options.annotations.items()):
        yield f"annotation {name}={value}"
    for name in options.cdi:
        yield f"cdi {name}"
