"""The kubelet's own directory, read only: registered resources, live plugin sockets, allocated devices.

The checkpoint names every resource that the kubelet has a plugin for, or had within the grace period; a socket with a
live server may be a plugin; the pod-resources API lists the allocated devices.
"""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from plugwright.errors import CheckpointCorrupt, ConfigError, PlugwrightError
from plugwright.extended_resources.resources import Holder, KubeletDirectory
from plugwright.protocol import checkpoint, pod_resources, registration
from plugwright.protocol.paths import KubeletPaths
from plugwright.system import sockets
from plugwright.system.boot import boot_id

__all__ = ["read"]

_TIMEOUT = 5.0


async def read(paths: KubeletPaths) -> KubeletDirectory:
    """Raises `ConfigError` if it cannot be read: an unreadable directory must not look like an empty one."""
    try:
        registered = _registered(paths.checkpoint)
        plugin_sockets = list(_sockets(paths.device_plugins, paths.kubelet_socket))
        registry_sockets = list(_sockets(paths.plugins_registry))
    except OSError as error:
        raise ConfigError(f"cannot read the kubelet's directory: {error}") from error
    if not (this_boot := boot_id()):
        raise ConfigError("cannot read the boot id of this machine")
    announced = [await _announced_resource(path) for path in registry_sockets]
    listening = sum(map(sockets.is_listening, plugin_sockets)) + sum(name is not None for name in announced)
    names = frozenset(name for name in announced if name)
    return KubeletDirectory(this_boot, registered, listening, names, await _holders(paths.pod_resources_socket))


def _registered(path: Path) -> frozenset[str]:
    try:
        return frozenset(checkpoint.decode(path.read_bytes()).registered or ())
    except FileNotFoundError:
        path.parent.stat()  # a kubelet that never had a plugin has a directory but no checkpoint
        return frozenset()
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


async def _holders(path: Path) -> dict[str, tuple[Holder, ...]]:
    try:
        async with pod_resources.connect(path) as kubelet:
            devices = await kubelet.held_devices(timeout=_TIMEOUT)
    except (OSError, PlugwrightError):  # the kubelet may be down; the API server's pods are enough then
        return {}
    holders: dict[str, tuple[Holder, ...]] = {}
    counts = Counter((device.resource, device.namespace, device.pod) for device in devices)
    for (resource, namespace, pod), count in counts.items():
        holders[resource] = (*holders.get(resource, ()), Holder(namespace, pod, count))
    return holders
