"""Decides whether a node can run a pod in a situation: the scheduler's filters, counted devices, claims, NUMA nodes.

`cluster.scheduling` provides filters and the counts of extended resources, the allocator claims. Situations leave no
trace: their changes are applied only during one question.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace

from msgspec import Struct
from msgspec.structs import replace as replace_struct

from plugwright.allocator import (
    AllocatedState,
    ClaimAllocator,
    DeviceId,
    PendingClaims,
    Reason,
    SliceIndex,
    features_of,
    found_together,
)
from plugwright.allocator.node_selector import NodeSelectorTerm
from plugwright.cluster.scheduling import affinity, extended_claims, fit, pod_filters
from plugwright.cluster.scheduling.fit import NodeInfo
from plugwright.cluster.scheduling.pod_filters import NodeFilter, PlacedPod
from plugwright.cluster.scheduling.pod_request import PodRequest, amounts
from plugwright.errors import AllocationAborted, ConfigError, FeatureUnsupported
from plugwright.explain import numa
from plugwright.explain.counterfactual import Situation
from plugwright.explain.device_holders import Holders, counted_devices
from plugwright.explain.node_reports import unusable_devices, unusable_text
from plugwright.explain.quotas import QuotaShortage, shortages
from plugwright.explain.world import (
    ApiObject,
    ClaimOrigin,
    World,
    allocation_of,
    identity,
    is_device_resource,
    priority_of,
    unusable_claim,
    with_taint_rules,
)

__all__ = ["DeviceFailure", "NodeVerdict", "Oracle", "hard_taints", "taint_text"]

_NEEDED = {"classes": "DeviceClasses", "slices": "ResourceSlices"}  # required to allocate a claim
MAX_STEPS = 20_000  # of one search for devices, because an answer needs thousands of searches


class DeviceFailure(Struct, frozen=True):
    """Why a node has no devices for the pod. `kind` is `count`, `numa`, `claims`, `elsewhere` or `error`."""

    kind: str
    resource: str = ""
    wanted: int = 0
    free: int = 0
    allocatable: int = 0
    capacity: int = 0
    reasons: tuple[Reason, ...] = ()
    message: str = ""
    stops: bool = False  # an error, after which the scheduler tries no other node either

    @property
    def has_devices(self) -> bool:
        """Whether the node has any devices of the kind that the pod requests."""
        if self.kind in ("count", "numa"):
            return self.capacity > 0
        together = found_together(self.reasons)
        if together is not None and together[1]:
            return True
        return any(reason.device or reason.kind in ("PoolIncomplete", "PoolInvalid") for reason in self.reasons)


class NodeVerdict(Struct, frozen=True):
    """A node's answer. `filter` is the first failing filter that is not about devices, with `filter_text`."""

    node: str
    filter: str = ""
    filter_text: str = ""
    failure: DeviceFailure | None = None

    @property
    def fits(self) -> bool:
        return not self.filter and self.failure is None

    @property
    def stops(self) -> bool:
        """Whether the scheduler finds no node for the pod because of this one."""
        return not self.filter and self.failure is not None and self.failure.stops


class _Question:
    """A situation, evaluated once for all nodes."""

    def __init__(self, situation: Situation, request: PodRequest) -> None:
        self.situation, self.request = situation, request
        others = {name: amount for name, amount in request.requests.items() if not is_device_resource(name)}
        self.plain = replace(request, requests=others, volume_claims=(), not_emulated="")
        self.devices = {name: amount for name, amount in request.requests.items() if is_device_resource(name)}
        freed = {claim for entry in situation.assumed for claim in entry.freed}
        self.placed = [claim for claim in situation.claims if allocation_of(claim) and identity(claim) not in freed]
        self.unallocated = [claim for claim in situation.claims if claim not in self.placed]
        self.pending: PendingClaims | None = None
        self.problem: DeviceFailure | None = None
        self.pods: NodeFilter = lambda _node: None
        self.policies = {node: policy for entry in situation.assumed for node, policy in entry.policies}
        self.reports = {node: report for entry in situation.assumed for node, report in entry.reports}


class Oracle:
    """`verdicts` has no visible side effects; each call changes and restores the internal state."""

    def __init__(self, world: World) -> None:
        self.world, self.holders = world, Holders(world)
        self.slices: dict[str, ApiObject] = {
            identity(entry)[1]: entry for entry in with_taint_rules(world.slices, world.taint_rules)
        }
        self.nodes = {identity(node)[1]: node for node in world.nodes}
        self._infos = {name: NodeInfo.of(dict(node)) for name, node in self.nodes.items()}
        self._capacity = {name: amounts(_capacity(node)) for name, node in self.nodes.items()}
        self._namespaces = {identity(entry)[1]: (entry["metadata"].get("labels") or {}) for entry in world.namespaces}
        for node, request in self.holders.requests.values():
            if node in self._infos:
                self._infos[node].add_pod(request)
        allocated, slices = AllocatedState.of_claims(world.claims), SliceIndex(self.slices.values())
        self.counted = counted_devices(world.pool_counts or (), slices, allocated.devices)
        allocated.devices |= {device for devices in self.counted.values() for device in devices}
        features = features_of(_supported(world.version))
        self.allocator = ClaimAllocator(features, slices, world.classes, allocated, max_steps=MAX_STEPS)
        self.backed = extended_claims.classes_of_resources({identity(entry)[1]: entry for entry in world.classes})
        self.asked = 0

    def info(self, node: str) -> NodeInfo:
        return self._infos[node]

    def capacity(self, node: str, resource: str) -> int:
        return self._capacity[node].get(resource, 0)

    def verdicts(self, situation: Situation, nodes: Iterable[str]) -> Iterator[NodeVerdict]:
        with self._applied(situation):
            question = self._question(situation)
            for info in (self._infos[name] for name in nodes if name in self._infos):
                self.asked += 1
                yield self._verdict(question, info)

    def filters(self, situation: Situation) -> dict[str, tuple[str, str]]:
        """The first failing filter of each node except device filters, and its text; both empty if none fails."""
        question = self._question(situation)
        return {name: self._filter(question, info) for name, info in self._infos.items()}

    def _question(self, situation: Situation) -> _Question:
        question = _Question(situation, PodRequest.of(dict(situation.pod)))
        missing = next((source for source in situation.sources if source.claim is None), None)
        unusable = next(filter(None, (unusable_claim(situation.pod, source) for source in situation.sources)), "")
        if missing is not None:
            question.problem = DeviceFailure("error", message=self._missing(missing))
        elif unusable:
            question.problem = DeviceFailure("error", message=unusable)
        elif question.unallocated and (unread := [name for name in _NEEDED if name in self.world.hidden]):
            question.problem = DeviceFailure("error", message=f"cannot be judged: {_NEEDED[unread[0]]} cannot be read")
        elif short := self.quota_shortages(situation):
            question.problem = DeviceFailure("error", message=short[0].text)
        elif question.unallocated:
            try:
                question.pending = self.allocator.pending(question.unallocated)
            except AllocationAborted as error:
                question.problem = _aborted(error)
        ended = {pod for entry in situation.assumed for pod in entry.ended}
        own = identity(situation.pod)
        others = self.holders.requests.items()
        if question.request.pods.has_rules or any(request.pods.anti for _, (_, request) in others):
            placed = [PlacedPod(node, request) for pod, (node, request) in others if pod not in ended and pod != own]
            question.pods = pod_filters.pod_filter(
                question.request, self._infos, placed, lambda name: self._namespaces.get(name, {})
            )
        return question

    def _missing(self, source: ClaimOrigin) -> str:
        """The text for a named object that does not exist in the pod's namespace, or cannot be read."""
        kind = "claims" if source.kind == "ResourceClaim" else "templates"
        if ("own claims" if kind == "claims" else kind) in self.world.hidden:
            return f"{source.kind} {source.name} cannot be read: the account may not list it"
        found = (identity(entry) for entry in getattr(self.world, kind))
        others = sorted(namespace for namespace, name in found if name == source.name)
        text = f"{source.kind} {source.name} does not exist in namespace {source.namespace}"
        return f"{text}; the one in namespace {others[0]} is only for pods there" if others else text

    def quota_shortages(self, situation: Situation) -> list[QuotaShortage]:
        """Quota limits that reject the pod or its claims to be created."""
        if not self.world.quotas:
            return []
        lifted = {(quota, key) for entry in situation.assumed for quota, key, _ in entry.quotas}
        exists = identity(situation.pod) in self.holders.pods
        requests = {} if exists else PodRequest.of(dict(situation.pod)).requests
        found = shortages(self.world, identity(situation.pod)[0], requests, situation.sources)
        return [short for short in found if (short.quota, short.key) not in lifted]

    def _verdict(self, question: _Question, info: NodeInfo) -> NodeVerdict:
        kind, text = self._filter(question, info)
        return NodeVerdict(info.name, kind, text, self._devices(question, info))

    def _filter(self, question: _Question, info: NodeInfo) -> tuple[str, str]:
        failure = fit.filter_failure(question.plain, info) or question.pods(info)
        if failure is None:
            return "", ""
        text = ", ".join(failure.reasons)
        if "unschedulable" in text:
            return "cordoned", "is cordoned"
        if "taint" in text:
            taint = next(iter(hard_taints(question.plain, info)))
            kind = "not-ready" if taint["key"] in _NOT_READY else "taint"
            words = "is not ready" if kind == "not-ready" else f"has the taint {taint_text(taint)}"
            return kind, words
        if "node affinity" in text or "NodeAffinity" in text:
            return "node-selector", "is excluded by the pod's node selector or node affinity"
        if "Insufficient" in text or "Too many" in text:
            return "resources", f"has {text.replace('Insufficient', 'too little')}"
        return "other", _PLAIN.get(text, f"excludes the pod: {text}")

    def _devices(self, question: _Question, info: NodeInfo) -> DeviceFailure | None:
        if question.problem is not None:
            return question.problem
        backed = []
        for resource, wanted in question.devices.items():
            if resource not in self._capacity[info.name] and resource in self.backed:
                backed.append(resource)
                continue
            free = info.allocatable.get(resource, 0) - info.requested.get(resource, 0)
            facts = info.allocatable.get(resource, 0), self.capacity(info.name, resource)
            report = question.reports.get(info.name) or self.world.reports.get(info.name)
            if wanted > free:
                unusable = unusable_devices(report, resource)
                text = unusable_text(unusable) if len(unusable) == facts[1] - facts[0] else ""
                return DeviceFailure("count", resource, wanted, max(0, free), *facts, message=text)
            ended = {pod for entry in question.situation.assumed for pod in entry.ended}
            if problem := numa.refusal(report, resource, wanted, ended, question.policies.get(info.name)):
                return DeviceFailure("numa", resource, wanted, max(0, free), *facts, message=problem)
        return self._claims(question, info, [self._backed_claim(question.situation.pod, backed)] if backed else [])

    def _backed_claim(self, pod: ApiObject, resources: list[str]) -> ApiObject:
        """The claim that the scheduler creates for extended resources served by a DeviceClass."""
        namespace, name = identity(pod)
        found = extended_claims.requests_of(dict(pod), self.backed, resources)
        metadata = {"namespace": namespace, "name": f"{name}-extended-resources"}
        return {"metadata": metadata, "spec": {"devices": {"requests": list(found.requests)}}}

    def _claims(self, question: _Question, info: NodeInfo, extra: list[ApiObject]) -> DeviceFailure | None:
        for claim in question.placed:
            if not _reaches(claim, info):
                name = identity(claim)[1]
                return DeviceFailure("elsewhere", message=f"claim {name} is allocated on another node")
        node = {"metadata": {"name": info.name, "labels": info.labels}}
        try:
            pending = question.pending
            if extra:
                pending = self.allocator.pending([*question.unallocated, *extra])
            if pending is None:
                return None
            outcome = pending.allocate(node)
        except AllocationAborted as error:
            return _aborted(error)
        return None if outcome.results else DeviceFailure("claims", reasons=outcome.reasons)

    def place(self, situation: Situation, node: str, number: int) -> Situation:
        """Binds a pod to a fitting node, for questions about the next pod; returns the next situation."""
        question, info = self._question(situation), self._infos[node]
        missing = (name for name in question.devices if name not in self._capacity[node])
        backed = [name for name in missing if name in self.backed]
        extra = [self._backed_claim(situation.pod, backed)] if backed else []
        claims = [_numbered(claim, number) for claim in (*question.unallocated, *extra)]
        results: list[ApiObject] = []
        if claims:
            view = {"metadata": {"name": info.name, "labels": info.labels}}
            results = list(self.allocator.pending(claims).allocate(view).results)
        for result in results:
            self.allocator.allocated.add(result)
        namespace, name = identity(situation.pod)
        self.holders.requests[namespace, f"{name}#{number}"] = node, question.request
        info.add_pod(question.request)
        allocated = dict(zip((identity(claim) for claim in question.unallocated), results, strict=False))
        sources = tuple(
            replace_struct(source, claim={**source.claim, "status": {"allocation": allocated[identity(source.claim)]}})
            if source.claim is not None and source.kind == "ResourceClaim" and identity(source.claim) in allocated
            else source
            for source in situation.sources
        )
        return Situation(situation.pod, sources, situation.assumed)

    @contextmanager
    def _applied(self, situation: Situation) -> Iterator[None]:
        ended = {pod for entry in situation.assumed for pod in entry.ended}
        freed = {claim for entry in situation.assumed for claim in entry.freed}
        with ExitStack() as undo:
            # The scheduler keeps a node free for a nominated pod, except from pods of higher priority.
            own, priority = identity(situation.pod), priority_of(situation.pod)
            behind = {pod for pod, its in self.holders.nominated.items() if its < priority}
            for pod in {*ended, *behind, own} & self.holders.requests.keys():
                node, request = self.holders.requests[pod]
                if node in self._infos:
                    self._infos[node].remove_pod(request)
                    undo.callback(self._infos[node].add_pod, request)
            kept: dict[DeviceId, int] = {}
            for claim in freed & self.holders.allocations.keys():
                allocation = self.holders.allocations[claim]
                self.allocator.allocated.remove(allocation)
                undo.callback(self.allocator.allocated.add, allocation)
                kept |= dict.fromkeys(self.holders.devices_of(claim), 0)
            for device in kept:
                if self.holders.exclusive(device) - freed:
                    self.allocator.allocated.devices.add(device)
            for entry in situation.assumed:
                for published in entry.slices:
                    self.allocator.slices.put(published)
                    undo.callback(self.allocator.slices.put, self.slices[identity(published)[1]])
                for device_class in entry.classes:
                    name = identity(device_class)[1]
                    undo.callback(self.allocator.classes.__setitem__, name, self.allocator.classes[name])
                    self.allocator.classes[name] = device_class
                for node_object in entry.changed_nodes:
                    self._replace(node_object, undo)
            yield

    def _replace(self, node: ApiObject, undo: ExitStack) -> None:
        name = identity(node)[1]
        before, capacity = self._infos[name], self._capacity[name]
        after = NodeInfo.of(dict(node))
        after.take_pods_of(before)
        self._infos[name], self._capacity[name] = after, amounts(_capacity(node))

        def restore() -> None:
            before.take_pods_of(self._infos[name])
            self._infos[name], self._capacity[name] = before, capacity

        undo.callback(restore)


_PLAIN = {
    "node(s) didn't have free ports for the requested pod ports": "has no free port of those that the pod requests",
    "node(s) didn't match pod topology spread constraints": "does not match the pod's topology spread constraints",
    "node(s) didn't match pod topology spread constraints (missing required label)": (
        "lacks a label that the pod's topology spread constraints need"
    ),
    "node(s) didn't match pod affinity rules": "does not match the pod's affinity to other pods",
    "node(s) didn't match pod anti-affinity rules": "has pods that the pod's anti-affinity excludes",
    "node(s) didn't satisfy existing pods anti-affinity rules": "has pods whose anti-affinity excludes the pod",
}
_MISSING_CLASS = re.compile(r"^(claim .*?): could not retrieve device class (\S+):")
_NOT_READY = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")


def hard_taints(request: PodRequest, info: NodeInfo) -> Iterator[Mapping[str, str]]:
    """The taints of the node that keep the pod away."""
    for taint in info.taints:
        if taint["effect"] in ("NoSchedule", "NoExecute") and not affinity.tolerates(request.tolerations, taint):
            yield taint


def taint_text(taint: Mapping[str, object]) -> str:
    value = f"={taint['value']}" if taint.get("value") else ""
    return f"{taint.get('key')}{value}:{taint.get('effect')}"


def _aborted(error: AllocationAborted) -> DeviceFailure:
    message = f"cannot be judged: {error}" if isinstance(error, FeatureUnsupported) else str(error)
    if missing := _MISSING_CLASS.search(message):
        message = f"DeviceClass {missing[2]} does not exist ({missing[1]})"
    stops = not error.on_node and not isinstance(error, FeatureUnsupported)
    kind = "claims" if error.on_node else "error"
    return DeviceFailure(kind, reasons=tuple(error.reasons), message=message, stops=stops)


def _numbered(claim: ApiObject, number: int) -> ApiObject:
    """Claims made for several pods differ in their uids, and thus in the ids of their shares."""
    metadata = claim.get("metadata") or {}
    return {**claim, "metadata": {**metadata, "uid": f"{metadata.get('uid', '')}#{number}"}}


def _capacity(node: ApiObject) -> Mapping[str, object]:
    return (node.get("status") or {}).get("capacity") or {}


def _reaches(claim: ApiObject, info: NodeInfo) -> bool:
    selector = (allocation_of(claim) or {}).get("nodeSelector") or {}
    terms = [NodeSelectorTerm.of(term) for term in selector.get("nodeSelectorTerms") or ()]
    return not terms or any(term.matches(info.name, info.labels) for term in terms)


def _supported(version: str) -> str:
    """The supported allocator version nearest to the cluster's."""
    try:
        features_of(version)
    except ConfigError:
        minor = version.removeprefix("v").split(".")[1:2]
        return "1.36" if minor and minor[0].isdigit() and int(minor[0]) < 36 else "1.37"
    return version
