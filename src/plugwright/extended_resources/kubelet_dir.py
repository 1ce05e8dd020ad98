"""What the kubelet's own directory tells of a node's resources; it is only read.

The checkpoint names every resource that the kubelet knows a plugin of, or knew in the last five minutes; a socket that
somebody listens on may be a plugin; pod-resources has what was handed out.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path

from plugwright.errors import CheckpointCorrupt, ConfigError, PlugwrightError
from plugwright.extended_resources.resources import Holder, Local
from plugwright.protocol import checkpoint, pod_resources, registration
from plugwright.protocol.paths import KubeletPaths
from plugwright.system import sockets

__all__ = ["BOOT_ID", "read"]

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")  # the kubelet reports it, so it tells which node this machine is
_TIMEOUT = 5.0


async def read(paths: KubeletPaths, boot_id: Path = BOOT_ID) -> Local:
    """Raises `ConfigError` where it cannot be read: what is not seen must not look like nothing."""
    try:
        registered = _registered(paths.checkpoint)
        found = list(_sockets(paths.device_plugins, paths.kubelet_socket))
        watched = list(_sockets(paths.plugins_registry))
        this_boot = boot_id.read_text().strip()
    except OSError as error:
        raise ConfigError(f"cannot read the kubelet's directory: {error}") from error
    announced = [await _announced(each) for each in watched]
    listening = sum(map(sockets.is_listening, found)) + sum(name is not None for name in announced)
    names = frozenset(name for name in announced if name)
    return Local(this_boot, registered, listening, names, await _holders(paths.pod_resources_socket))


def _registered(path: Path) -> frozenset[str]:
    try:
        return frozenset(checkpoint.decode(path.read_bytes()).registered or ())
    except FileNotFoundError:
        path.parent.stat()  # a kubelet that has never seen a plugin has written nothing
        return frozenset()
    except CheckpointCorrupt as error:
        raise ConfigError(f"{path}: {error}") from error


def _sockets(directory: Path, apart_from: Path | None = None) -> Iterator[Path]:
    if directory.exists():
        yield from (path for path in sorted(directory.rglob("*")) if path.is_socket() and path != apart_from)


async def _announced(path: Path) -> str | None:
    """The resource of a device plugin, "" for what does not say, None for drivers of other kinds and for nobody."""
    if not sockets.is_listening(path):
        return None
    try:
        async with registration.connect_watched(path) as plugin:
            told = await plugin.announce()
    except (OSError, PlugwrightError):
        return ""
    return told.name if told.kind == registration.DEVICE_PLUGIN else None


async def _holders(path: Path) -> dict[str, tuple[Holder, ...]]:
    try:
        async with pod_resources.connect(path) as kubelet:
            return _by_resource(await kubelet.held_devices(timeout=_TIMEOUT))
    except (OSError, PlugwrightError):  # the kubelet may be down: the API's pods are known all the same
        return {}


def _by_resource(holdings: Iterable[pod_resources.HeldDevice]) -> dict[str, tuple[Holder, ...]]:
    counts: dict[str, dict[tuple[str, str], int]] = {}
    for each in holdings:
        pods = counts.setdefault(each.resource, {})
        pods[each.namespace, each.pod] = pods.get((each.namespace, each.pod), 0) + 1
    return {name: tuple(Holder(*pod, number) for pod, number in pods.items()) for name, pods in counts.items()}
