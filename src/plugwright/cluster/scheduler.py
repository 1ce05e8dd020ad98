"""The scheduler: follows the store, counts what every node's pods request, and binds one pod after the other.

`fit` decides which node takes a pod. A pod that fits nowhere waits until a node changes so that it fits. The counts are
kept up change by change, never computed from all pods again.
"""

import asyncio
import logging
from collections.abc import Iterable
from dataclasses import dataclass

from plugwright.cluster import fit
from plugwright.cluster.api.errors import StatusError
from plugwright.cluster.api.kinds import NODES, PODS, RESOURCE_CLAIM_TEMPLATES, RESOURCE_CLAIMS
from plugwright.cluster.api.registry import ResourcePath
from plugwright.cluster.events import MALFORMED, ClusterClient, EventRecord, EventRecorder, EventSource
from plugwright.cluster.fit import NodeInfo, PodRequest
from plugwright.cluster.resource_claims import ClaimController, ClaimPlacement
from plugwright.cluster.store import Change, Expired, Object, ObjectKey
from plugwright.errors import ClusterError

__all__ = ["Scheduler"]

logger = logging.getLogger(__name__)

_NAME = "default-scheduler"
_MANAGER = "kube-scheduler"
_FINISHED = ("Succeeded", "Failed")
_CLAIM_KINDS = (RESOURCE_CLAIMS.qualified, RESOURCE_CLAIM_TEMPLATES.qualified)


@dataclass(frozen=True, slots=True)
class _BoundPod:
    node: str
    request: PodRequest


class Scheduler:
    def __init__(self, client: ClusterClient) -> None:
        self._client = client
        self._recorder = EventRecorder(client, EventSource(_NAME, series=True, manager=_MANAGER))
        self._claims = ClaimController(client)
        self._nodes: dict[str, NodeInfo] = {}
        self._bound: dict[ObjectKey, _BoundPod] = {}
        self._pending: dict[ObjectKey, PodRequest] = {}  # in the order they were created
        self._unschedulable: dict[ObjectKey, PodRequest] = {}  # fit no node at present
        self._revision = 0

    async def run(self) -> None:
        """Runs until cancelled; other tasks run between two pods."""
        self._list()
        while True:
            if self._client.store.revision > self._revision or not self._pending:
                await self._catch_up()
            if self._pending:
                key = next(iter(self._pending))
                self._schedule(key, self._pending.pop(key))
            await asyncio.sleep(0)

    def _list(self) -> None:
        """Forgets everything and reads all nodes and pods."""
        store = self._client.store
        self._revision = store.revision
        for known in (self._nodes, self._bound, self._pending, self._unschedulable):
            known.clear()
        for node in store.objects(NODES.qualified):
            self._update_node(node["metadata"]["name"], node)
        for pod in sorted(store.objects(PODS.qualified), key=_creation_order):
            self._update_pod(_key(pod), pod)

    async def _catch_up(self) -> None:
        try:
            changes = await self._client.store.changes(self._revision)
        except Expired:
            self._list()
            return
        for change in changes:
            self._apply(change)
        self._revision = changes[-1].revision

    def _apply(self, change: Change) -> None:
        deleted = change.type == "DELETED"
        if change.key.kind == NODES.qualified:
            self._update_node(change.key.name, None if deleted else change.object)
        elif change.key.kind == PODS.qualified:
            if deleted:
                self._remove_pod(change.key)
                self._claims.release(change.object)
            else:
                self._update_pod(change.key, change.object)
        elif change.key.kind in _CLAIM_KINDS:
            self._retry([key for key, request in self._unschedulable.items() if request.has_claims])

    def _update_node(self, name: str, node: Object | None) -> None:
        before = self._nodes.pop(name, None)
        if node is None:
            self._retry(list(self._unschedulable))  # the number of nodes is part of their messages
            return
        try:
            info = NodeInfo.of(node)
        except MALFORMED:
            logger.warning("node object is malformed, no pods are scheduled to it", extra={"node": name})
            return
        if before is not None:
            info.requested, info.pods, info.scored = before.requested, before.pods, before.scored
        else:
            for bound in self._bound.values():
                if bound.node == name:
                    info.add_pod(bound.request)
        self._nodes[name] = info
        if before is None or (before.labels, before.taints) != (info.labels, info.taints):
            self._retry(list(self._unschedulable))  # they may be unschedulable for another reason now
        elif before.allocatable != info.allocatable:
            self._retry(self._fitting(info))

    def _update_pod(self, key: ObjectKey, pod: Object) -> None:
        try:
            if pod.get("status", {}).get("phase") in _FINISHED:
                self._remove_pod(key)
                self._claims.release(pod)
            elif node := pod["spec"].get("nodeName"):
                self._pending.pop(key, None)
                self._unschedulable.pop(key, None)
                if key not in self._bound:
                    self._add_bound(key, node, PodRequest.of(pod))
            elif key not in self._pending and key not in self._unschedulable and _is_ours(pod):
                self._pending[key] = PodRequest.of(pod)
        except MALFORMED:
            _log_malformed(key)

    def _remove_pod(self, key: ObjectKey) -> None:
        self._pending.pop(key, None)
        self._unschedulable.pop(key, None)
        bound = self._bound.pop(key, None)
        node = self._nodes.get(bound.node) if bound else None
        if bound and node:
            node.remove_pod(bound.request)
            self._retry(self._fitting(node))

    def _fitting(self, node: NodeInfo) -> list[ObjectKey]:
        """The unschedulable pods that this node would take now."""
        return [key for key, request in self._unschedulable.items() if fit.filter_failure(request, node) is None]

    def _retry(self, keys: Iterable[ObjectKey]) -> None:
        for key in keys:
            self._pending[key] = self._unschedulable.pop(key)

    def _add_bound(self, key: ObjectKey, node: str, request: PodRequest) -> None:
        self._bound[key] = _BoundPod(node, request)
        if node in self._nodes:
            self._nodes[node].add_pod(request)

    def _schedule(self, key: ObjectKey, request: PodRequest) -> None:
        pod = self._client.store.get(key)
        if pod is None or pod["spec"].get("nodeName"):
            return
        try:
            claims = self._claims.placement(pod) if request.has_claims else ClaimPlacement()
            node, failures = fit.select_node(request, self._nodes.values(), claims.allows)
            if claims.problem or node is None:
                self._unschedulable[key] = request
                self._report_unschedulable(key, pod, claims.problem or fit.failed_scheduling_message(failures))
            else:
                if request.has_claims:
                    self._claims.reserve(pod)
                self._client.writer.bind(ResourcePath(PODS, key.namespace, key.name), node.name)
                self._add_bound(key, node.name, request)
                text = f"Successfully assigned {key.namespace}/{key.name} to {node.name}"
                self._recorder.record(pod, EventRecord("Scheduled", text, action="Binding"))
        except (ClusterError, StatusError):  # the pod was changed by another client: the next change says how
            self._unschedulable.pop(key, None)
        except MALFORMED:
            _log_malformed(key)

    def _report_unschedulable(self, key: ObjectKey, pod: Object, message: str) -> None:
        self._recorder.record(pod, EventRecord("FailedScheduling", message, "Warning", action="Scheduling"))
        known = (pod.get("status") or {}).get("conditions") or ()
        conditions = {condition["type"]: condition for condition in known}
        before = conditions.get("PodScheduled") or {}
        if before.get("status") == "False" and before.get("message") == message:
            return
        since = before["lastTransitionTime"] if before.get("status") == "False" else self._client.stamp()
        conditions["PodScheduled"] = {
            "type": "PodScheduled",
            "observedGeneration": 1,
            "status": "False",
            "lastProbeTime": None,
            "lastTransitionTime": since,
            "reason": "Unschedulable",
            "message": message,
        }

        def with_conditions(stored: Object) -> Object:
            return {**stored, "status": {**(stored.get("status") or {}), "conditions": list(conditions.values())}}

        self._client.writer.change(ResourcePath(PODS, key.namespace, key.name, "status"), with_conditions, _MANAGER)


def _key(pod: Object) -> ObjectKey:
    return ObjectKey(PODS.qualified, pod["metadata"]["namespace"], pod["metadata"]["name"])


def _creation_order(pod: Object) -> tuple[str, str, str]:
    metadata = pod["metadata"]
    return metadata.get("creationTimestamp", ""), metadata["namespace"], metadata["name"]


def _is_ours(pod: Object) -> bool:
    spec = pod["spec"]
    deleted = pod["metadata"].get("deletionTimestamp")
    return spec.get("schedulerName", _NAME) == _NAME and not spec.get("schedulingGates") and not deleted


def _log_malformed(key: ObjectKey) -> None:
    logger.warning("pod object is malformed, it is not scheduled", extra={"pod": f"{key.namespace}/{key.name}"})
