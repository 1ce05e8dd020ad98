"""The kubelet's own directory, read only: registered resources and live plugin sockets.

The checkpoint names every resource that the kubelet has a plugin for, or had within the grace period; a socket with a
live server may be a plugin. The pods come from the API server: this process cannot tell if an Allocate runs,
and List of pod-resources makes the kubelet hand out the device of an unfinished Allocate a second time (3.58).
"""

from collections.abc import Iterator
from pathlib import Path

from plugwright.errors import CheckpointCorrupt, ConfigError, PlugwrightError
from plugwright.extended_resources.resources import KubeletDirectory
from plugwright.protocol import registration
from plugwright.protocol.paths import KubeletPaths
from plugwright.sdk.holdings.kubelet_checkpoint import KubeletCheckpoint
from plugwright.system import sockets
from plugwright.system.boot import boot_id

__all__ = ["read"]

_TIMEOUT = 5.0


async def read(paths: KubeletPaths) -> KubeletDirectory:
    """Raises `ConfigError` if it cannot be read: an unreadable directory must not look like an empty one."""
    try:
        registered = await _registered(paths.checkpoint)
        plugin_sockets = list(_sockets(paths.device_plugins, paths.kubelet_socket))
        registry_sockets = list(_sockets(paths.plugins_registry))
    except OSError as error:
        raise ConfigError(f"cannot read the kubelet's directory: {error}") from error
    if not (this_boot := boot_id()):
        raise ConfigError("cannot read the boot id of this machine")
    announced = [await _announced_resource(path) for path in registry_sockets]
    listening = sum(map(sockets.is_listening, plugin_sockets)) + sum(name is not None for name in announced)
    names = frozenset(name for name in announced if name)
    return KubeletDirectory(this_boot, registered, listening, names)


async def _registered(path: Path) -> frozenset[str]:
    try:
        return frozenset((await KubeletCheckpoint(path, _TIMEOUT).read()).registered)
    except CheckpointCorrupt as error:
        raise ConfigError(f"{path}: {error}") from error


def _sockets(directory: Path, apart_from: Path | None = None) -> Iterator[Path]:
    if directory.exists():
        yield from (path for path in sorted(directory.rglob("*")) if path.is_socket() and path != apart_from)


async def _announced_resource(path: Path) -> str | None:
    """The resource of a device plugin, "" for a server that does not answer, None for another driver or no server."""
    if not sockets.is_listening(path):
        return None
    try:
        async with registration.connect_watched(path) as plugin:
            info = await plugin.announce()
    except (OSError, PlugwrightError):
        return ""
    return info.name if info.kind == registration.DEVICE_PLUGIN else None
