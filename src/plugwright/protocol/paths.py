"""The kubelet's directories and sockets."""

import os
from collections.abc import Mapping
from pathlib import Path

import msgspec

from plugwright.errors import ConfigError

__all__ = ["KubeletPaths"]

_DEFAULT = Path("/var/lib/kubelet")


class KubeletPaths(msgspec.Struct, frozen=True):
    """The directories of this node's kubelet.

    A kubelet's `--root-dir` moves `plugins_registry` and `pod-resources`, but never `device-plugins`:
    so it is a separate value.
    """

    root: Path = _DEFAULT
    device_plugins: Path = _DEFAULT / "device-plugins"

    @classmethod
    def under(cls, root: str | Path | None = None, device_plugins: str | Path | None = None) -> "KubeletPaths":
        """The paths under `root`; None comes from the environment, then from the default."""
        return cls.from_environment(os.environ, root, device_plugins)

    @classmethod
    def from_environment(
        cls,
        environment: Mapping[str, str],
        root: str | Path | None = None,
        device_plugins: str | Path | None = None,
    ) -> "KubeletPaths":
        root = _absolute(root or environment.get("PLUGWRIGHT_KUBELET_DIR") or _DEFAULT)
        chosen = device_plugins or environment.get("PLUGWRIGHT_DEVICE_PLUGINS_DIR")
        return cls(root, _absolute(chosen) if chosen else root / "device-plugins")

    @property
    def kubelet_socket(self) -> Path:
        return self.device_plugins / "kubelet.sock"

    @property
    def checkpoint(self) -> Path:
        return self.device_plugins / "kubelet_internal_checkpoint"

    @property
    def plugins_registry(self) -> Path:
        return self.root / "plugins_registry"

    @property
    def plugins(self) -> Path:
        """The sockets and files of DRA drivers, each driver in a directory of its name."""
        return self.root / "plugins"

    @property
    def pod_resources_socket(self) -> Path:
        return self.root / "pod-resources" / "kubelet.sock"


def _absolute(path: str | Path) -> Path:
    path = Path(path)
    if not path.is_absolute():
        raise ConfigError(f"kubelet directory must be an absolute path, got {str(path)!r}")
    return path
