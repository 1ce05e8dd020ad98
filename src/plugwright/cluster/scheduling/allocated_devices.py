"""The cluster's slices, classes and allocated claims, updated for the allocator with every change."""

from collections import Counter
from collections.abc import Iterator

from plugwright.allocator import AllocatedState, ClaimAllocator, DeviceId, features_of, with_rule_taints
from plugwright.apiserver.kinds import DEVICE_CLASSES, DEVICE_TAINT_RULES, RESOURCE_CLAIMS, RESOURCE_SLICES
from plugwright.apiserver.store import Change, Object, ObjectKey, ObjectReader
from plugwright.cluster.scheduling.extended_claims import CLAIM_ANNOTATION, classes_of_resources

__all__ = ["AllocatedDevices", "claim_names", "is_reserved_for"]


class AllocatedDevices:
    """Owns the allocator of a cluster; `list` reads everything, `apply` one change."""

    def __init__(self, release: str) -> None:
        self._features = features_of(release)
        self._allocations: dict[ObjectKey, Object] = {}
        self._holders: Counter[DeviceId] = Counter()  # claims with the whole device; more than one only by hand
        self._rules: dict[str, Object] = {}  # DeviceTaintRules
        self._slices: dict[str, Object] = {}  # as published by drivers
        self.allocator = ClaimAllocator(self._features, (), ())
        self.resources: dict[str, str] = {}  # the DeviceClass of each extended resource
        self.extended_claims: dict[str, ObjectKey] = {}  # by the uid of the pod that owns the claim

    def list(self, store: ObjectReader) -> None:
        self._rules = {rule["metadata"]["name"]: rule for rule in store.objects(DEVICE_TAINT_RULES.qualified)}
        self._slices = {one["metadata"]["name"]: one for one in store.objects(RESOURCE_SLICES.qualified)}
        slices = [with_rule_taints(published, self._rules.values()) for published in self._slices.values()]
        self.allocator = ClaimAllocator(self._features, slices, store.objects(DEVICE_CLASSES.qualified))
        self._allocations.clear()
        self._holders.clear()
        self.extended_claims.clear()
        self.resources = classes_of_resources(self.allocator.classes)
        for claim in store.objects(RESOURCE_CLAIMS.qualified):
            metadata = claim["metadata"]
            key = ObjectKey(RESOURCE_CLAIMS.qualified, metadata["namespace"], metadata["name"])
            self._set_allocation(key, _allocation(claim))
            self.extended_claims |= dict.fromkeys(_pods_of_extended_claim(claim), key)

    def apply(self, change: Change) -> None:
        name, content = change.key.name, None if change.type == "DELETED" else change.object
        if change.key.kind == RESOURCE_CLAIMS.qualified:
            self._set_allocation(change.key, _allocation(content))
            for pod in _pods_of_extended_claim(change.object):
                if content is None:
                    self.extended_claims.pop(pod, None)
                else:
                    self.extended_claims[pod] = change.key
        elif change.key.kind == RESOURCE_SLICES.qualified:
            self._slices.pop(name, None)
            if content is None:
                self.allocator.slices.remove(name)
            else:
                self._slices[name] = content
                self.allocator.slices.put(with_rule_taints(content, self._rules.values()))
        elif change.key.kind == DEVICE_TAINT_RULES.qualified:
            self._set_rule(name, content)
        elif change.key.kind == DEVICE_CLASSES.qualified:
            if content is None:
                self.allocator.classes.pop(name, None)
            else:
                self.allocator.classes[name] = content
            self.resources = classes_of_resources(self.allocator.classes)

    def _set_rule(self, name: str, rule: Object | None) -> None:
        """Changes a rule; all slices are read again, because such changes are rare."""
        self._rules.pop(name, None)
        if rule is not None:
            self._rules[name] = rule
        for published in self._slices.values():
            self.allocator.slices.put(with_rule_taints(published, self._rules.values()))

    def _set_allocation(self, key: ObjectKey, allocation: Object | None) -> None:
        before, allocated = self._allocations.pop(key, None), self.allocator.allocated
        if allocation:
            self._allocations[key] = allocation
        if before == allocation:
            return
        self._holders.subtract(_exclusive_devices(before))
        self._holders.update(_exclusive_devices(allocation))
        if any(self._holders[device] for device in _exclusive_devices(before)):
            allocated = self.allocator.allocated = AllocatedState()
            for kept in self._allocations.values():
                allocated.add(kept)
        else:
            allocated.remove(before)
            allocated.add(allocation)


def claim_names(pod: Object) -> Iterator[tuple[Object, str]]:
    """Each entry of the pod's `resourceClaims` with the claim's name, which is empty until it is generated."""
    generated = {
        entry["name"]: entry.get("resourceClaimName") or ""
        for entry in (pod.get("status") or {}).get("resourceClaimStatuses") or ()
    }
    for entry in pod["spec"].get("resourceClaims") or ():
        if entry.get("resourceClaimName"):
            yield entry, entry["resourceClaimName"]
        elif generated.get(entry["name"]) or entry["name"] not in generated:
            yield entry, generated.get(entry["name"], "")


def is_reserved_for(claim: Object, pod: Object) -> bool:
    consumers = (claim.get("status") or {}).get("reservedFor") or ()
    return any(consumer["uid"] == pod["metadata"]["uid"] for consumer in consumers)


def _pods_of_extended_claim(claim: Object) -> list[str]:
    metadata = claim["metadata"]
    if (metadata.get("annotations") or {}).get(CLAIM_ANNOTATION) != "true":
        return []
    return [owner["uid"] for owner in metadata.get("ownerReferences") or () if owner.get("controller")]


def _allocation(claim: Object | None) -> Object | None:
    return ((claim or {}).get("status") or {}).get("allocation") or None


def _exclusive_devices(allocation: Object | None) -> list[DeviceId]:
    results = ((allocation or {}).get("devices") or {}).get("results") or ()
    return [
        (result["driver"], result["pool"], result["device"])
        for result in results
        if not result.get("adminAccess") and not result.get("shareID")
    ]
