"""The root directory of an emulated kubelet: claiming it, and the cleanup of a starting kubelet.

The callers decide which sockets are served in it.
"""

from pathlib import Path

from plugwright.errors import ConfigError
from plugwright.protocol.paths import KubeletPaths
from plugwright.system import sockets

__all__ = ["claim", "clean"]

_MARKER = ".plugwright-kubelet"  # present in every root that an emulated kubelet created
_MADE_BEFORE = (
    "device-plugins",
    "plugins",
    "plugins_registry",
)  # by a plugin, or a volume of its container, that was first
_REAL_ROOT = Path("/var/lib/kubelet")
_DEPRECATION = "DEPRECATION"


def claim(paths: KubeletPaths) -> None:
    """Creates and marks the root; refuses a real kubelet's directory and foreign files."""
    root = paths.root
    if root.resolve() == _REAL_ROOT or _REAL_ROOT in root.resolve().parents:
        raise ConfigError(f"{root} belongs to a real kubelet; give the emulated one a directory of its own")
    for path in (paths.kubelet_socket, paths.pod_resources_socket):
        sockets.check_path(path)
    if sockets.is_listening(paths.kubelet_socket):
        raise ConfigError(f"a kubelet is already serving {paths.kubelet_socket}")
    try:
        root.mkdir(parents=True, exist_ok=True)
        if not (root / _MARKER).exists():
            unknown_files = sorted(entry.name for entry in root.iterdir() if entry.name not in _MADE_BEFORE)
            if unknown_files:
                raise ConfigError(f"{root} contains files that no emulated kubelet wrote, such as {unknown_files[0]}")
            (root / _MARKER).touch(mode=0o644)
    except OSError as error:
        raise ConfigError(f"cannot use {root}: {error.strerror}") from error


def clean(paths: KubeletPaths, *, only_sockets: bool, writes_deprecation: bool) -> list[str]:
    """Removes what a starting kubelet removes, including plugins' sockets (1.12 to 1.18); returns the names."""
    directory = paths.device_plugins
    directory.mkdir(mode=0o755, parents=True, exist_ok=True)
    removed = []
    for path in sorted(directory.iterdir()):
        if path != paths.checkpoint and _is_removed(path, only_sockets):
            path.unlink(missing_ok=True)
            removed.append(path.name)
    if writes_deprecation:
        (directory / _DEPRECATION).touch()
    return removed


def _is_removed(path: Path, only_sockets: bool) -> bool:
    try:
        path.stat()
    except OSError:
        return False  # A dangling symbolic link stays (1.14).
    if path.is_dir():
        return False
    return path.is_socket() or not only_sockets
