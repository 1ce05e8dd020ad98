"""The pod devices: which container holds which devices, and the plugin's response for them.

Pure: the entries are what the checkpoint keeps. Which devices a container gets is decided in `allocation`. Devices for
takeover by a pod's later containers from its init containers are kept here as well, while the pod is admitted.
"""

from collections.abc import Collection, Iterable, Mapping, Set
from dataclasses import dataclass

from plugwright.kubelet.pods import ContainerKind
from plugwright.protocol.checkpoint import PodDevicesEntry

__all__ = ["NO_NUMA", "AllocationKey", "PodDevices", "ReusableDevices", "by_numa_node"]

NO_NUMA = -1  # the node under which a device without topology is recorded


@dataclass(frozen=True, slots=True, order=True)
class AllocationKey:
    """A container and one of the resources it requests."""

    pod_uid: str
    container: str
    resource: str


class PodDevices:
    """The entries by key, and the devices in use by resource."""

    def __init__(self, entries: Iterable[PodDevicesEntry] = ()) -> None:
        self._entries = {AllocationKey(entry.pod_uid, entry.container, entry.resource): entry for entry in entries}
        self._pods: dict[str, list[AllocationKey]] = {}
        for key in self._entries:
            self._pods.setdefault(key.pod_uid, []).append(key)
        self._in_use: dict[str, set[str]] = {}
        self.rebuild_in_use()

    @property
    def entries(self) -> tuple[PodDevicesEntry, ...]:
        return tuple(self._entries.values())

    def has_pod(self, pod_uid: str) -> bool:
        return pod_uid in self._pods

    def has_resource(self, resource: str) -> bool:
        """Whether a device of the resource is or was marked as in use, which makes it a device resource (3.10)."""
        return resource in self._in_use

    def in_use(self, resource: str) -> Collection[str]:
        return self._in_use.get(resource, ())

    def entry(self, key: AllocationKey) -> PodDevicesEntry | None:
        return self._entries.get(key)

    def device_ids(self, key: AllocationKey) -> tuple[str, ...]:
        entry = self._entries.get(key)
        return tuple(sorted(_device_ids(entry))) if entry else ()

    def of_container(self, pod_uid: str, container: str) -> list[PodDevicesEntry]:
        """The entries of a container, sorted by resource."""
        keys = [key for key in self._pods.get(pod_uid, ()) if key.container == container]
        return [self._entries[key] for key in sorted(keys)]

    def of_pod(self, pod_uid: str, resource: str) -> frozenset[str]:
        keys = [key for key in self._pods.get(pod_uid, ()) if key.resource == resource]
        return frozenset().union(*(_device_ids(self._entries[key]) for key in keys))

    def mark_in_use(self, resource: str, device_ids: Collection[str]) -> None:
        """Marks devices as in use, which happens before Allocate is called (3.27)."""
        self._in_use.setdefault(resource, set()).update(device_ids)

    def insert(self, key: AllocationKey, devices: Mapping[int, tuple[str, ...]], response: bytes) -> None:
        if key not in self._entries:
            self._pods.setdefault(key.pod_uid, []).append(key)
        self._entries[key] = PodDevicesEntry(key.pod_uid, key.container, key.resource, devices, response)

    def remove_inactive(self, active: Set[str]) -> list[str]:
        """Removes the entries of inactive pods and frees their devices; returns their uids (3.57)."""
        removed = sorted(self._pods.keys() - active)
        for uid in removed:
            for key in self._pods.pop(uid):
                del self._entries[key]
        if removed:
            self.rebuild_in_use()
        return removed

    def rebuild_in_use(self) -> None:
        """Drops every mark without an entry."""
        self._in_use = {}
        for key, entry in self._entries.items():
            self._in_use.setdefault(key.resource, set()).update(_device_ids(entry))

    def holders(self, resource: str | None = None) -> dict[str, str]:
        """The uid of one pod for each device id, of one resource or whatever the resource (7.8)."""
        return {
            device_id: key.pod_uid
            for key, entry in self._entries.items()
            if resource in (None, entry.resource)
            for device_id in _device_ids(entry)
        }


def _device_ids(entry: PodDevicesEntry) -> frozenset[str]:
    return frozenset(device_id for ids in (entry.devices or {}).values() for device_id in ids or ())


def by_numa_node(device_ids: Iterable[str], nodes: Mapping[str, tuple[int, ...]]) -> Mapping[int, tuple[str, ...]]:
    """The ids under each of their NUMA nodes, or under -1 (3.44)."""
    ids_by_node: dict[int, list[str]] = {}
    for device_id in device_ids:
        for node in nodes.get(device_id) or (NO_NUMA,):
            ids_by_node.setdefault(node, []).append(device_id)
    return {node: tuple(sorted(ids)) for node, ids in sorted(ids_by_node.items())}


class ReusableDevices:
    """The devices of init containers for takeover by later containers of the same pod (3.32 to 3.34)."""

    def __init__(self, *, keeps_sidecars: bool) -> None:
        self._keeps_sidecars = keeps_sidecars  # before 1.29 later containers took over a sidecar's devices too
        self._pod_uid = ""
        self._devices: dict[str, set[str]] = {}

    def of(self, pod_uid: str, resource: str) -> frozenset[str]:
        self._select_pod(pod_uid)
        return frozenset(self._devices.get(resource, ()))

    def update(self, pod_uid: str, kind: ContainerKind, held: dict[str, Collection[str]]) -> None:
        """Adds the devices of an init container; removes those of a long-running container."""
        self._select_pod(pod_uid)
        keeps_running = kind is ContainerKind.MAIN or (kind is ContainerKind.SIDECAR and self._keeps_sidecars)
        for resource, device_ids in held.items():
            devices = self._devices.setdefault(resource, set())
            if keeps_running:
                devices.difference_update(device_ids)
            else:
                devices.update(device_ids)

    def _select_pod(self, pod_uid: str) -> None:
        # The set is kept for the pod in admission; another pod discards it (3.32).
        if self._pod_uid != pod_uid:
            self._pod_uid, self._devices = pod_uid, {}
