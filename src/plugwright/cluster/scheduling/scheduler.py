"""The scheduler: follows the store, counts the requests of every node's pods, and binds pods one by one.

`fit` and `pod_filters` decide which node can run a pod; `scheduling_queue` returns the next pod. An unschedulable pod
waits until a change of a node or a pod could make it fit. The counts are updated with every change, never recomputed
from all pods.
"""

import asyncio
import logging
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial

from plugwright.apiserver import KUBERNETES_VERSION, pod_fields
from plugwright.apiserver.kinds import (
    DEVICE_CLASSES,
    DEVICE_TAINT_RULES,
    NAMESPACES,
    NODES,
    PODS,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
)
from plugwright.apiserver.registry import ResourcePath
from plugwright.apiserver.store import Change, Object, ObjectKey
from plugwright.cluster.events import MALFORMED, ClusterClient, EventRecord, EventRecorder, EventSource
from plugwright.cluster.scheduling import claim_explanation, fit, pod_filters
from plugwright.cluster.scheduling.claim_filter import ClaimsOfPod, ClaimsRejected, DynamicResources
from plugwright.cluster.scheduling.fit import FilterFailure, NodeInfo
from plugwright.cluster.scheduling.node_ranking import NodeRankings
from plugwright.cluster.scheduling.pod_filters import NodeFilter, PlacedPod
from plugwright.cluster.scheduling.pod_request import PodRequest
from plugwright.cluster.scheduling.scheduling_queue import SchedulingQueue
from plugwright.errors import ClusterError, Expired, StatusError

__all__ = ["Scheduler"]

logger = logging.getLogger(__name__)

_NAME = "default-scheduler"
_MANAGER = "kube-scheduler"
_UNSCHEDULABLE = "Unschedulable"
_FINISHED = ("Succeeded", "Failed")
_CLAIM_KINDS = frozenset(
    kind.qualified for kind in (DEVICE_CLASSES, DEVICE_TAINT_RULES, RESOURCE_CLAIMS, RESOURCE_SLICES)
)
_CHANGED_BY_ANOTHER = (404, 409)
_EXPLAINED_NODES = 5  # in the event of a claim that no node can satisfy


class Scheduler:
    def __init__(
        self, client: ClusterClient, queue: SchedulingQueue | None = None, release: str = KUBERNETES_VERSION
    ) -> None:
        self._client = client
        self._recorder = EventRecorder(client, EventSource(_NAME, series=True, manager=_MANAGER))
        self._claims = DynamicResources(client, release)
        self._queue = queue or SchedulingQueue()
        self._nodes: dict[str, NodeInfo] = {}
        self._rankings = NodeRankings()
        self._bound: dict[ObjectKey, PlacedPod] = {}
        self._anti_affine: dict[ObjectKey, PlacedPod] = {}  # those of them that exclude others
        self._revision = 0

    async def run(self) -> None:
        """Runs until cancelled; other tasks run between two pods."""
        now = asyncio.get_running_loop().time
        self._list()
        while True:
            wait = self._queue.wait(now())
            if self._client.store.revision > self._revision or wait != 0:
                await self._catch_up(wait)
            if following := self._queue.pop(now()):
                self._schedule(*following, now())
            await asyncio.sleep(0)

    def _list(self) -> None:
        """Forgets everything and reads all nodes and pods."""
        store = self._client.store
        self._revision = store.revision
        for known in (self._nodes, self._rankings, self._bound, self._anti_affine, self._queue):
            known.clear()
        self._claims.list()
        for node in store.objects(NODES.qualified):
            self._update_node(node["metadata"]["name"], node)
        for pod in sorted(store.objects(PODS.qualified), key=_creation_order):
            self._update_pod(_key(pod), pod)

    async def _catch_up(self, timeout: float | None) -> None:
        try:
            changes = await self._client.store.changes(self._revision, timeout)
        except Expired:
            self._list()
            return
        for change in changes:
            self._apply(change)
            self._revision = change.revision

    def _apply(self, change: Change) -> None:
        deleted = change.type == "DELETED"
        if change.key.kind == NODES.qualified:
            self._update_node(change.key.name, None if deleted else change.object)
        elif change.key.kind == PODS.qualified:
            if deleted:
                self._remove_pod(change.key)
            else:
                self._update_pod(change.key, change.object)
                if change.key in self._queue.unschedulable and _has_new_claims(change):
                    self._queue.retry([change.key])
        elif change.key.kind in _CLAIM_KINDS:
            self._update_claims(change)

    def _update_claims(self, change: Change) -> None:
        """Retries the pods of a changed claim; after a deallocation or another change, all pods with claims."""
        try:
            self._claims.apply(change)
        except MALFORMED as error:
            logger.warning("object is malformed", extra={"object": change.key.name, "error": repr(error)})
        if change.key.kind == RESOURCE_CLAIMS.qualified and not _is_deallocated(change):
            self._queue.retry(list(self._users_of(change)))
        else:
            is_class = change.key.kind == DEVICE_CLASSES.qualified
            waiting = self._queue.unschedulable.items()
            self._queue.retry(
                [key for key, one in waiting if one.uses_claims or (is_class and one.has_extended_resources)]
            )

    def _users_of(self, change: Change) -> Iterator[ObjectKey]:
        """The unschedulable pods of a claim: its owner, or those naming it."""
        waiting, namespace = self._queue.unschedulable, change.key.namespace
        owners = change.object["metadata"].get("ownerReferences") or ()
        pods = [ObjectKey(PODS.qualified, namespace, owner["name"]) for owner in owners if owner["kind"] == "Pod"]
        if pods:
            yield from (key for key in pods if key in waiting)
            return
        for key, request in waiting.items():
            if key.namespace == namespace and change.key.name in request.claims:
                yield key

    def _update_node(self, name: str, node: Object | None) -> None:
        before = self._nodes.pop(name, None)
        self._rankings.node_changed(name)
        if node is None:
            self._queue.retry(list(self._queue.unschedulable))  # the number of nodes is a part of their messages
            return
        try:
            info = NodeInfo.of(node)
        except MALFORMED:
            logger.warning("node object is malformed, no pods are scheduled to it", extra={"node": name})
            return
        if before is not None:
            info.take_pods_of(before)
        else:
            for bound in self._bound.values():
                if bound.node == name:
                    info.add_pod(bound.request)
        self._nodes[name] = info
        if before is None or (before.labels, before.taints) != (info.labels, info.taints):
            self._queue.retry(list(self._queue.unschedulable))  # they could now be unschedulable for another reason
        elif before.allocatable != info.allocatable:
            self._queue.retry(self._fitting(info))

    def _update_pod(self, key: ObjectKey, pod: Object) -> None:
        try:
            if pod.get("status", {}).get("phase") in _FINISHED:
                self._remove_pod(key)
            elif node := pod["spec"].get("nodeName"):
                self._queue.remove(key)
                self._update_bound(key, node, pod)
            elif pod["metadata"].get("deletionTimestamp"):
                self._queue.remove(key)
            elif key not in self._queue and _is_ours(pod):
                self._queue.add(key, PodRequest.of(pod))
        except MALFORMED:
            _log_malformed(key)

    def _update_bound(self, key: ObjectKey, node: str, pod: Object) -> None:
        """Updates a bound pod: its labels can change, and it no longer counts in a spread when it is being deleted."""
        bound = self._bound.get(key)
        labels, is_terminating = pod["metadata"].get("labels") or {}, bool(pod["metadata"].get("deletionTimestamp"))
        if bound is None:
            self._add_bound(key, node, PodRequest.of(pod))
        elif (bound.request.pods.labels, bound.request.pods.is_terminating) != (labels, is_terminating):
            self._forget(key)
            self._add_bound(key, node, PodRequest.of(pod))

    def _remove_pod(self, key: ObjectKey) -> None:
        self._queue.remove(key)
        bound = self._forget(key)
        if bound is None:
            return
        node = self._nodes.get(bound.node)
        if bound.request.pods.anti:
            self._queue.retry(list(self._queue.unschedulable))
        elif node is not None:
            self._queue.retry({*self._fitting(node), *self._queue.dependent})

    def _forget(self, key: ObjectKey) -> PlacedPod | None:
        bound = self._bound.pop(key, None)
        self._anti_affine.pop(key, None)
        if bound and bound.node in self._nodes:
            self._nodes[bound.node].remove_pod(bound.request)
            self._rankings.node_changed(bound.node)
        return bound

    def _add_bound(self, key: ObjectKey, node: str, request: PodRequest) -> None:
        bound = self._bound[key] = PlacedPod(node, request)
        if request.pods.anti:
            self._anti_affine[key] = bound
        if node in self._nodes:
            self._nodes[node].add_pod(request)
            self._rankings.node_changed(node)
        self._queue.retry(list(self._queue.dependent))

    def _fitting(self, node: NodeInfo) -> list[ObjectKey]:
        """The unschedulable pods now fitting this node."""
        unschedulable = self._queue.unschedulable
        return [key for key, request in unschedulable.items() if fit.filter_failure(request, node) is None]

    def _schedule(self, key: ObjectKey, request: PodRequest, now: float) -> None:
        pod = self._client.store.get(key)
        if pod is None or pod["spec"].get("nodeName"):
            return
        try:
            self._place(key, pod, request)
        except ClusterError as error:
            self._queue.remove(key)
            if not _is_changed_by_another(error):
                logger.warning("pod is not scheduled, it is tried again", extra={"pod": key.name, "error": str(error)})
                self._queue.back_off(key, request, now)
        except MALFORMED:
            _log_malformed(key)

    def _place(self, key: ObjectKey, pod: Object, request: PodRequest) -> None:
        """Binds the pod, or reports why it has to wait."""
        if request.has_extended_resources:
            request = replace(request, by_claims=self._claims.served_resources(request))
        asks_claims = request.uses_claims and not request.not_emulated
        try:
            claims = self._claims.pre_filter(pod, request) if asks_claims else ClaimsOfPod()
            node, message = self._placement(pod, request, claims)
        except ClaimsRejected as rejected:
            self._queue.add_unschedulable(key, request)
            if rejected.message:  # otherwise the pod waits for the generation of its claims
                text = (
                    rejected.message if rejected.is_error else fit.rejected_message(rejected.message, len(self._nodes))
                )
                self._report_unschedulable(key, pod, text, "SchedulerError" if rejected.is_error else _UNSCHEDULABLE)
            return
        if node is None:
            self._queue.add_unschedulable(key, request)
            self._report_unschedulable(key, pod, message)
            self._explain(claims)
        else:
            self._bind(key, pod, node, claims)
            self._add_bound(key, node.name, request)

    def _placement(self, pod: Object, request: PodRequest, claims: ClaimsOfPod) -> tuple[NodeInfo | None, str]:
        """The node for a pod, or why there is none."""
        if request.not_emulated:
            return None, request.not_emulated
        if request.volume_claims:  # none exists, because no volumes are served
            return None, fit.missing_volume_claim_message(request.volume_claims[0], len(self._nodes))
        further = self._further_filter(request, claims)
        if self._is_ranked(request, claims) and (best := self._rankings.best(request, self._nodes, further.accepts)):
            return best, ""
        score = (lambda node: claims.score(node.name)) if claims.has_alternatives else None
        node, failures = fit.select_node(request, self._nodes.values(), further, score)
        if node is None and self._would_preempt(request, failures):
            return None, f"plugwright does not emulate preemption; {pod_fields.ADVICE}"
        deallocated = self._claims.post_filter(claims, pod) if node is None and request.uses_claims else ""
        return node, fit.failed_scheduling_message(failures.values(), deallocated)

    def _is_ranked(self, request: PodRequest, claims: ClaimsOfPod) -> bool:
        """Whether nodes can be tried in the order of their scores, as the real scheduler does not test all of many."""
        if request.pods.has_rules or self._anti_affine:
            return False
        return not request.uses_claims or (len(self._nodes) > fit.ALL_ASKED and not claims.has_alternatives)

    def _further_filter(self, request: PodRequest, claims: ClaimsOfPod) -> "_FurtherFilter":
        placed = self._bound if request.pods.has_rules else self._anti_affine
        of_pods = pod_filters.pod_filter(request, self._nodes, placed.values(), self._namespace_labels)
        return _FurtherFilter(of_pods, partial(self._claims.filter, claims) if request.uses_claims else None)

    def _explain(self, claims: ClaimsOfPod) -> None:
        """Records on each unallocated claim why the tested nodes have no devices for it."""
        nodes = sorted(claims.refusals)[:_EXPLAINED_NODES]
        reasons = [(node, claims.reasons(node)) for node in nodes]
        for claim in claims.unallocated if nodes else ():
            name = f"{claim['metadata']['namespace']}/{claim['metadata']['name']}"
            text = claim_explanation.explanation(name, reasons, len(claims.refusals))
            self._recorder.record(claim, EventRecord("FailedAllocation", text[:1024], "Warning", action="Allocating"))

    def _would_preempt(self, request: PodRequest, failures: Mapping[str, FilterFailure]) -> bool:
        """Whether a node with pods of a lower priority could run the pod without them."""
        nodes = {name for name, failure in failures.items() if not failure.unresolvable}
        return (
            request.preempts
            and bool(nodes)
            and any(bound.node in nodes and bound.request.priority < request.priority for bound in self._bound.values())
        )

    def _namespace_labels(self, name: str) -> Mapping[str, str]:
        namespace = self._client.store.get(ObjectKey(NAMESPACES.qualified, "", name))
        return ((namespace or {}).get("metadata") or {}).get("labels") or {}

    def _bind(self, key: ObjectKey, pod: Object, node: NodeInfo, claims: ClaimsOfPod) -> None:
        self._claims.bind(claims, pod, node)
        self._client.writer.bind(ResourcePath(PODS, key.namespace, key.name), node.name)
        text = f"Successfully assigned {key.namespace}/{key.name} to {node.name}"
        self._recorder.record(pod, EventRecord("Scheduled", text, action="Binding"))

    def _report_unschedulable(self, key: ObjectKey, pod: Object, message: str, reason: str = _UNSCHEDULABLE) -> None:
        self._recorder.record(pod, EventRecord("FailedScheduling", message, "Warning", action="Scheduling"))
        known = (pod.get("status") or {}).get("conditions") or ()
        conditions = {condition["type"]: condition for condition in known}
        before = conditions.get("PodScheduled") or {}
        if before.get("status") == "False" and before.get("message") == message:
            return
        since = (before.get("status") == "False" and before.get("lastTransitionTime")) or self._client.stamp()
        conditions["PodScheduled"] = {
            "type": "PodScheduled",
            "observedGeneration": pod["metadata"].get("generation", 1),
            "status": "False",
            "lastProbeTime": None,
            "lastTransitionTime": since,
            "reason": reason,
            "message": message,
        }

        def with_conditions(stored: Object) -> Object:
            return {**stored, "status": {**(stored.get("status") or {}), "conditions": list(conditions.values())}}

        self._client.writer.change(ResourcePath(PODS, key.namespace, key.name, "status"), with_conditions, _MANAGER)


class _FurtherFilter:
    """The rules about other pods and claims for one pod; each node is tested once."""

    def __init__(self, of_pods: NodeFilter, of_claims: NodeFilter | None) -> None:
        self._of_pods, self._of_claims = of_pods, of_claims
        self._known: dict[str, FilterFailure | None] = {}

    def __call__(self, node: NodeInfo) -> FilterFailure | None:
        if node.name not in self._known:
            self._known[node.name] = self._of_pods(node) or (self._of_claims(node) if self._of_claims else None)
        return self._known[node.name]

    def accepts(self, node: NodeInfo) -> bool:
        return self(node) is None


def _key(pod: Object) -> ObjectKey:
    return ObjectKey(PODS.qualified, pod["metadata"]["namespace"], pod["metadata"]["name"])


def _creation_order(pod: Object) -> tuple[str, str, str]:
    metadata = pod["metadata"]
    return metadata.get("creationTimestamp", ""), metadata["namespace"], metadata["name"]


def _is_ours(pod: Object) -> bool:
    return pod["spec"].get("schedulerName", _NAME) == _NAME and not pod["spec"].get("schedulingGates")


def _has_new_claims(change: Change) -> bool:
    before, now = (change.before or {}).get("status") or {}, change.object.get("status") or {}
    return before.get("resourceClaimStatuses") != now.get("resourceClaimStatuses")


def _is_deallocated(change: Change) -> bool:
    """Whether the change of a claim frees devices."""
    before, now = (change.before or {}).get("status") or {}, change.object.get("status") or {}
    if change.type == "DELETED":
        return bool(now.get("allocation"))
    return bool(before.get("allocation")) and before.get("allocation") != now.get("allocation")


def _is_changed_by_another(error: ClusterError) -> bool:
    """Whether another change caused it, which comes next; other failures, as of a full disk, can be temporary."""
    return isinstance(error, StatusError) and error.code in _CHANGED_BY_ANOTHER


def _log_malformed(key: ObjectKey) -> None:
    logger.warning("pod object is malformed, it is not scheduled", extra={"pod": f"{key.namespace}/{key.name}"})
