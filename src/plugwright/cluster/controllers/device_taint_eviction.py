"""The device taint eviction controller: deletes pods whose claims hold a device with a NoExecute taint.

Taints come from ResourceSlices and DeviceTaintRules. A toleration of the request delays the eviction by its
`tolerationSeconds`, counted from the taint's `timeAdded`, or prevents it. Claims of extended resources evict no pods,
as in Kubernetes 1.36 and 1.37.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta

from plugwright.allocator import DeviceId, rule_selects
from plugwright.apiserver import clock
from plugwright.apiserver.kinds import DEVICE_TAINT_RULES, PODS, RESOURCE_CLAIMS, RESOURCE_SLICES
from plugwright.apiserver.registry import DeleteOptions, ResourcePath
from plugwright.apiserver.store import Change, Object, ObjectKey
from plugwright.cluster.controllers import disruption
from plugwright.cluster.controllers.disruption import DisruptionReason
from plugwright.cluster.events import ClusterClient, EventRecord, EventRecorder, EventSource
from plugwright.cluster.scheduling import affinity

__all__ = ["DeviceTaintEvictionController"]

_MANAGER = "kube-controller-manager"
_REASON = DisruptionReason("DeletionByDeviceTaintManager", "Device Taint manager: deleting due to NoExecute taint")
_EVENT = "DeviceTaintManagerEviction"
_EXTENDED = "resource.kubernetes.io/extended-resource-claim"


@dataclass(frozen=True, slots=True)
class _TaintedSlice:
    """The NoExecute taints of a slice."""

    generation: int
    taints: dict[DeviceId, list[Object]]


class DeviceTaintEvictionController:
    def __init__(self, client: ClusterClient) -> None:
        self._client = client
        self._recorder = EventRecorder(client, EventSource("device-taint-eviction", manager=_MANAGER))
        self._slices: dict[str, _TaintedSlice] = {}  # those with NoExecute taints, by name
        self._rules: dict[str, Object] = {}  # those with the effect NoExecute, by name
        self._evictions: dict[ObjectKey, dict[str, datetime]] = {}  # by claim: the uids of its pods

    def resync(self) -> None:
        self._slices.clear()
        self._rules.clear()
        self._evictions.clear()
        for found in self._client.store.objects(RESOURCE_SLICES.qualified):
            self._update_slice(found["metadata"]["name"], found)
        for rule in self._client.store.objects(DEVICE_TAINT_RULES.qualified):
            self._update_rule(rule["metadata"]["name"], rule)
        self._sync_claims()

    def handle(self, change: Change) -> None:
        deleted = change.type == "DELETED"
        if change.key.kind == RESOURCE_SLICES.qualified:
            if self._update_slice(change.key.name, None if deleted else change.object):
                self._sync_claims()
        elif change.key.kind == DEVICE_TAINT_RULES.qualified:
            if self._update_rule(change.key.name, None if deleted else change.object):
                self._sync_claims()
        elif change.key.kind == RESOURCE_CLAIMS.qualified and (
            self._slices or self._rules or change.key in self._evictions
        ):
            self._sync_claim(change.key, {} if deleted else change.object)

    def next_due(self) -> datetime | None:
        return min((due for pods in self._evictions.values() for due in pods.values()), default=None)

    def run_due(self) -> None:
        """Evicts the pods whose toleration has ended."""
        now = self._client.now()
        for key, pods in list(self._evictions.items()):
            claim = self._client.store.get(key) or {}
            for consumer in (claim.get("status") or {}).get("reservedFor") or ():
                if (due := pods.get(consumer["uid"])) is not None and due <= now:
                    self._evict(key.namespace, consumer)
            left = {uid: due for uid, due in pods.items() if due > now}
            self._evictions.pop(key)
            if left:
                self._evictions[key] = left

    def _update_slice(self, name: str, found: Object | None) -> bool:
        """Updates a slice; returns whether taints have changed."""
        before = self._slices.pop(name, None)
        known = before.taints if before else {}
        taints = (
            {device: self._stamped(raw, known.get(device, [])) for device, raw in _no_execute(found)} if found else {}
        )
        if found and taints:
            self._slices[name] = _TaintedSlice(int(found["spec"]["pool"].get("generation") or 0), taints)
        return known != taints

    def _update_rule(self, name: str, rule: Object | None) -> bool:
        """Updates a rule; returns whether its evictions have changed."""
        before = self._rules.pop(name, None)
        if rule is not None and rule["spec"]["taint"].get("effect") == "NoExecute":
            self._rules[name] = rule
        return (before or {}).get("spec") != (self._rules.get(name) or {}).get("spec")

    def _stamped(self, taints: list[Object], known: list[Object]) -> list[Object]:
        """The taints with a time: their own, or the time at which they were first seen."""
        times = {(taint["key"], taint.get("value")): taint["timeAdded"] for taint in known}
        now = self._client.stamp()
        return [
            {**taint, "timeAdded": taint.get("timeAdded") or times.get((taint["key"], taint.get("value")), now)}
            for taint in taints
        ]

    def _sync_claims(self) -> None:
        for claim in self._client.store.objects(RESOURCE_CLAIMS.qualified):
            metadata = claim["metadata"]
            self._sync_claim(ObjectKey(RESOURCE_CLAIMS.qualified, metadata["namespace"], metadata["name"]), claim)

    def _sync_claim(self, key: ObjectKey, claim: Object) -> None:
        before, due = self._evictions.pop(key, {}), self._due(claim)
        consumers = (claim.get("status") or {}).get("reservedFor") or ()
        if due is None:
            for consumer in consumers:
                if consumer["uid"] in before:
                    self._record(key.namespace, consumer, "Cancelling deletion of Pod")
            return
        pods = {consumer["uid"]: due for consumer in consumers if consumer.get("resource") == "pods"}
        if due > self._client.now():
            self._evictions[key] = pods
            return
        for consumer in consumers:
            if consumer["uid"] in pods:
                self._evict(key.namespace, consumer)

    def _due(self, claim: Object) -> datetime | None:
        """When the pods of the claim are evicted; None if all taints of its devices are tolerated."""
        if not claim or _EXTENDED in (claim["metadata"].get("annotations") or {}):
            return None
        allocation = (claim.get("status") or {}).get("allocation") or {}
        moments = [
            moment
            for result in (allocation.get("devices") or {}).get("results") or ()
            for taint in self._taints((result["driver"], result["pool"], result["device"]))
            if (moment := _eviction_time(taint, result.get("tolerations") or ())) is not None
        ]
        return min(moments, default=None)

    def _taints(self, device: DeviceId) -> list[Object]:
        """The taints of the device in its newest slice, and of its rules."""
        found = [tainted for tainted in self._slices.values() if device in tainted.taints]
        published = max(found, key=lambda tainted: tainted.generation).taints[device] if found else []
        return [*published, *(rule["spec"]["taint"] for rule in self._rules.values() if rule_selects(rule, device))]

    def _evict(self, namespace: str, consumer: Object) -> None:
        key = ObjectKey(PODS.qualified, namespace, consumer["name"])
        pod = self._client.store.get(key)
        if pod is None or pod["metadata"]["uid"] != consumer["uid"] or pod["metadata"].get("deletionTimestamp"):
            return
        self._record(namespace, consumer, "Marking for deletion Pod")
        path = ResourcePath(PODS, namespace, key.name)
        disruption.add_condition(self._client, path, _REASON)
        self._client.writer.delete(path, DeleteOptions(uid=consumer["uid"]))

    def _record(self, namespace: str, consumer: Object, text: str) -> None:
        metadata = {"namespace": namespace, "name": consumer["name"], "uid": consumer["uid"]}
        regarding = {"apiVersion": "v1", "kind": PODS.name, "metadata": metadata}
        self._recorder.record(regarding, EventRecord(_EVENT, f"{text} {namespace}/{consumer['name']}"))


def _no_execute(found: Object) -> Iterator[tuple[DeviceId, list[Object]]]:
    spec = found["spec"]
    for device in spec.get("devices") or ():
        taints = [taint for taint in device.get("taints") or () if taint.get("effect") == "NoExecute"]
        if taints:
            yield (spec["driver"], spec["pool"]["name"], device["name"]), taints


def _eviction_time(taint: Object, tolerations: Iterable[Object]) -> datetime | None:
    added = clock.parse(taint["timeAdded"])
    matching = [toleration for toleration in tolerations if affinity.tolerates([toleration], taint)]
    if not matching:
        return added
    limits = [entry["tolerationSeconds"] for entry in matching if entry.get("tolerationSeconds") is not None]
    return added + timedelta(seconds=min(limits)) if limits else None
