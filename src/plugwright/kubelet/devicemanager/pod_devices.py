"""Who holds which device, and with which answer of the plugin.

Pure: what is said here is what the checkpoint keeps. Which devices a container gets is `choice`'s decision.

Devices that a pod's later containers may take over from its init containers (3.32 to 3.34).

Kept for the pod that is being admitted and no other. Pure.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Set
from dataclasses import dataclass

from plugwright.kubelet.pods import ContainerKind
from plugwright.protocol.checkpoint import PodDevicesEntry

__all__ = ["NO_NUMA", "Ledger", "Place", "Reusable", "by_node"]

NO_NUMA = -1  # a device without topology is recorded under this node


@dataclass(frozen=True, slots=True, order=True)
class Place:
    """A container's claim on one resource."""

    pod_uid: str
    container: str
    resource: str


class Ledger:
    """The records by place, and which devices of each resource are in use."""

    def __init__(self, entries: Iterable[PodDevicesEntry] = ()) -> None:
        self._entries = {Place(each.pod_uid, each.container, each.resource): each for each in entries}
        self._pods: dict[str, list[Place]] = {}
        for place in self._entries:
            self._pods.setdefault(place.pod_uid, []).append(place)
        self._in_use: dict[str, set[str]] = {}
        self.rebuild()

    @property
    def entries(self) -> tuple[PodDevicesEntry, ...]:
        return tuple(self._entries.values())

    def holds(self, pod_uid: str) -> bool:
        return pod_uid in self._pods

    def knows(self, resource: str) -> bool:
        """Whether it is a device resource because somebody held, or tried to hold, one of it (3.10)."""
        return resource in self._in_use

    def in_use(self, resource: str) -> Collection[str]:
        return self._in_use.get(resource, ())

    def entry(self, place: Place) -> PodDevicesEntry | None:
        return self._entries.get(place)

    def held(self, place: Place) -> tuple[str, ...]:
        entry = self._entries.get(place)
        return tuple(sorted(_ids(entry))) if entry else ()

    def of_container(self, pod_uid: str, container: str) -> list[PodDevicesEntry]:
        """What a container holds, sorted by resource."""
        places = [place for place in self._pods.get(pod_uid, ()) if place.container == container]
        return [self._entries[place] for place in sorted(places)]

    def of_pod(self, pod_uid: str, resource: str) -> frozenset[str]:
        places = [place for place in self._pods.get(pod_uid, ()) if place.resource == resource]
        return frozenset().union(*(_ids(self._entries[place]) for place in places))

    def mark(self, resource: str, device_ids: Collection[str]) -> None:
        """In use from now on, before the plugin has answered (3.27)."""
        self._in_use.setdefault(resource, set()).update(device_ids)

    def record(self, place: Place, devices: Mapping[int, tuple[str, ...]], answer: bytes) -> None:
        if place not in self._entries:
            self._pods.setdefault(place.pod_uid, []).append(place)
        self._entries[place] = PodDevicesEntry(place.pod_uid, place.container, place.resource, devices, answer)
        self.mark(place.resource, _ids(self._entries[place]))

    def forget(self, active: Set[str]) -> list[str]:
        """Frees what pods hold that are not active; returns their uids (3.57)."""
        gone = sorted(self._pods.keys() - active)
        for uid in gone:
            for place in self._pods.pop(uid):
                del self._entries[place]
        if gone:
            self.rebuild()
        return gone

    def rebuild(self) -> None:
        """What is in use, from the records alone."""
        self._in_use = {}
        for place, entry in self._entries.items():
            self._in_use.setdefault(place.resource, set()).update(_ids(entry))

    def holders(self) -> dict[str, str]:
        """The uid of a pod for each device that is held, by the id alone, whatever the resource (7.8)."""
        return {device_id: place.pod_uid for place, entry in self._entries.items() for device_id in _ids(entry)}


def _ids(entry: PodDevicesEntry) -> frozenset[str]:
    return frozenset(device_id for ids in (entry.devices or {}).values() for device_id in ids or ())


def by_node(device_ids: Iterable[str], nodes: Mapping[str, tuple[int, ...]]) -> Mapping[int, tuple[str, ...]]:
    """As it is recorded: under each of a device's nodes, or under -1 (3.44)."""
    placed: dict[int, list[str]] = {}
    for device_id, node in _placed(device_ids, nodes):
        placed.setdefault(node, []).append(device_id)
    return {node: tuple(sorted(ids)) for node, ids in sorted(placed.items())}


def _placed(device_ids: Iterable[str], nodes: Mapping[str, tuple[int, ...]]) -> Iterator[tuple[str, int]]:
    for device_id in device_ids:
        for node in nodes.get(device_id) or (NO_NUMA,):
            yield device_id, node


class Reusable:
    def __init__(self, *, keeps_sidecars: bool) -> None:
        self._keeps_sidecars = keeps_sidecars  # before 1.29 a sidecar's devices were handed on like an init container's
        self._pod_uid = ""
        self._devices: dict[str, set[str]] = {}

    def of(self, pod_uid: str, resource: str) -> frozenset[str]:
        self._turn_to(pod_uid)
        return frozenset(self._devices.get(resource, ()))

    def pass_on(self, pod_uid: str, kind: ContainerKind, held: dict[str, Collection[str]]) -> None:
        """After a container got its devices: an init container's go on, those of one that stays do not."""
        self._turn_to(pod_uid)
        stays = kind is ContainerKind.MAIN or (kind is ContainerKind.SIDECAR and self._keeps_sidecars)
        for resource, device_ids in held.items():
            devices = self._devices.setdefault(resource, set())
            if stays:
                devices.difference_update(device_ids)
            else:
                devices.update(device_ids)

    def _turn_to(self, pod_uid: str) -> None:
        if self._pod_uid != pod_uid:
            self._pod_uid, self._devices = pod_uid, {}
