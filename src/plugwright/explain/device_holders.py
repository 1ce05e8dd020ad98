"""Holders: pods with counted resources, claims with devices, and the claims freed when a pod ends."""

from collections.abc import Collection, Iterable, Mapping, Sequence

from plugwright.allocator import DeviceId, SliceIndex
from plugwright.allocator.published_slices import SliceDevice
from plugwright.cluster.events import MALFORMED
from plugwright.cluster.scheduling.pod_request import PodRequest
from plugwright.explain.pool_counts import PoolCount
from plugwright.explain.world import ApiObject, ObjectId, World, allocation_of, identity, is_finished, priority_of

__all__ = ["Holders", "counted_devices"]


class Holders:
    """An index over the bound pods and allocated claims of a world."""

    def __init__(self, world: World) -> None:
        self.pods: dict[ObjectId, ApiObject] = {identity(pod): pod for pod in world.pods}
        self.requests: dict[ObjectId, tuple[str, PodRequest]] = {}  # of bound and nominated pods that have not ended
        self.nominated: dict[ObjectId, int] = {}  # unbound pods that the scheduler keeps a node free for; priority
        self.on_node: dict[str, list[ObjectId]] = {}
        for key, pod in self.pods.items():
            node = (pod.get("spec") or {}).get("nodeName")
            if not node and (node := (pod.get("status") or {}).get("nominatedNodeName")) and not is_finished(pod):
                self.nominated[key] = priority_of(pod)
            if not node or is_finished(pod):
                continue
            try:
                self.requests[key] = node, PodRequest.of(dict(pod))
            except MALFORMED:
                continue  # the scheduler does not count it either
            self.on_node.setdefault(node, []).append(key)
        self.allocations: dict[ObjectId, ApiObject] = {}
        self.claims: dict[ObjectId, ApiObject] = {identity(claim): claim for claim in world.claims}
        self.users: dict[ObjectId, tuple[ObjectId, ...]] = {}  # pods, by claim
        self.of_pod: dict[ObjectId, list[ObjectId]] = {}  # claims, by pod
        self._by_device: dict[DeviceId, list[ObjectId]] = {}
        for key, claim in self.claims.items():
            self._add(key, claim)

    def _add(self, key: ObjectId, claim: ApiObject) -> None:
        allocation = allocation_of(claim)
        if allocation is None:
            return
        self.allocations[key] = allocation
        consumers = (claim.get("status") or {}).get("reservedFor") or ()
        users = tuple((key[0], str(user.get("name"))) for user in consumers if user.get("resource") == "pods")
        self.users[key] = users
        for user in users:
            self.of_pod.setdefault(user, []).append(key)
        for device in self.devices_of(key):
            self._by_device.setdefault(device, []).append(key)

    def devices_of(self, claim: ObjectId) -> list[DeviceId]:
        results = (self.allocations[claim].get("devices") or {}).get("results") or ()
        return [(entry["driver"], entry["pool"], entry["device"]) for entry in results if not entry.get("adminAccess")]

    def of_device(self, device: DeviceId) -> list[ObjectId]:
        """The claims that have the device or a share of it."""
        return self._by_device.get(device, [])

    def exclusive(self, device: DeviceId) -> set[ObjectId]:
        """The claims that have the whole device."""
        return {claim for claim in self.of_device(device) if _has_whole(self.allocations[claim], device)}

    def freed_by(self, pods: frozenset[ObjectId]) -> frozenset[ObjectId]:
        """The claims that no pod uses once these have ended, which the claim controller then deallocates."""
        claims = {claim for pod in pods for claim in self.of_pod.get(pod, ())}
        return frozenset(claim for claim in claims if set(self.users[claim]) <= pods and self._only_pods(claim))

    def is_live(self, pod: ObjectId) -> bool:
        return pod in self.pods and not is_finished(self.pods[pod])

    def is_terminating(self, pod: ObjectId) -> bool:
        return bool((self.pods[pod].get("metadata") or {}).get("deletionTimestamp"))

    def _only_pods(self, claim: ObjectId) -> bool:
        consumers = (self.claims[claim].get("status") or {}).get("reservedFor") or ()
        return all(user.get("resource") == "pods" for user in consumers)


def _has_whole(allocation: Mapping[str, object], device: DeviceId) -> bool:
    results = (allocation.get("devices") or {}).get("results") or ()  # type: ignore[attr-defined]
    for entry in results:
        if (entry["driver"], entry["pool"], entry["device"]) == device and not entry.get("shareID"):
            return True
    return False


def counted_devices(
    counts: Iterable[PoolCount], slices: SliceIndex, known: Collection[DeviceId]
) -> Mapping[PoolCount, Sequence[DeviceId]]:
    """For each usable count, the devices that unreadable claims are assumed to hold. `known` are those of the others.

    A count is usable if the pool has not changed since. Pools with shared or partitioned devices have none: an
    allocated device of theirs can have room for others, and an available one can have none. If fewer than all devices
    are held, the last of the pool count as held, because the counts do not name them.
    """
    found: dict[PoolCount, Sequence[DeviceId]] = {}
    for count in counts:
        devices = _current(count, slices)
        if len(devices) != count.total or any(device.allows_multiple or device.counters for device in devices):
            continue
        others = [device for device in devices if device.id not in known]
        hidden = count.allocated - (len(devices) - len(others))
        untainted_last = sorted(others, key=lambda device: not device.taints)
        found[count] = [device.id for device in untainted_last[max(0, len(others) - hidden) :]] if hidden > 0 else ()
    return found


def _current(count: PoolCount, slices: SliceIndex) -> list[SliceDevice]:
    """The devices of the pool; none if its slices are older or newer than the count, or incomplete."""
    published = slices.by_pool.get((count.driver, count.pool), ())
    newest = max((entry.generation for entry in published), default=-1)
    current = [entry for entry in published if entry.generation == newest]
    if newest != count.generation or any(entry.count > len(current) for entry in current):
        return []
    return [device for entry in current for device in entry.devices]
