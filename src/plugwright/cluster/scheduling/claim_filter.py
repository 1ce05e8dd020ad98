"""The scheduler's plugin for ResourceClaims: allocates, reserves and deallocates them like kube-scheduler.

For each pod `pre_filter` reads the claims, `filter` searches devices on one node, `bind` writes the allocation of the
chosen node and the reservation, and `post_filter` frees an unused claim allocated on the wrong node. A pod with
extended resources served by a DeviceClass has one more claim, created by `bind`. Rules and messages are those of
kube-scheduler's plugin DynamicResources.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial

from plugwright.allocator import AllocationOutcome, PendingClaims, Reason
from plugwright.allocator.node_selector import NodeSelectorTerm
from plugwright.apiserver import pod_fields
from plugwright.apiserver.kinds import PODS, RESOURCE_CLAIMS
from plugwright.apiserver.registry import DeleteOptions, ResourcePath
from plugwright.apiserver.store import Change, Object, ObjectKey
from plugwright.cluster.events import MALFORMED, ClusterClient
from plugwright.cluster.scheduling.allocated_devices import AllocatedDevices, claim_names, is_reserved_for
from plugwright.cluster.scheduling.extended_claims import ExtendedRequests, new_claim, requests_of
from plugwright.cluster.scheduling.fit import FilterFailure, NodeInfo
from plugwright.cluster.scheduling.pod_request import PodRequest
from plugwright.errors import AllocationAborted, FeatureUnsupported

__all__ = ["FINALIZER", "ClaimsOfPod", "ClaimsRejected", "DynamicResources"]

FINALIZER = "resource.kubernetes.io/delete-protection"

_MANAGER = "kube-scheduler"
_MOST_CONSUMERS = 256
_CANNOT_ALLOCATE = FilterFailure(("cannot allocate all claims",))
_NOT_AVAILABLE = FilterFailure(("resourceclaim not available on the node",))
_STALE = FilterFailure(("cannot schedule extended resource claim",))
_MOST_FIRST_AVAILABLE = 8


class ClaimsRejected(Exception):
    """A pod's claims exclude every node; `message` is empty while claims have yet to be generated."""

    def __init__(self, message: str, is_error: bool = False) -> None:
        super().__init__(message)
        self.message, self.is_error = message, is_error


@dataclass(slots=True)
class ClaimsOfPod:
    """The claims of a pod in one scheduling cycle."""

    allocated: list[tuple[Object, tuple[NodeSelectorTerm, ...]]] = field(default_factory=list)
    unallocated: list[Object] = field(default_factory=list)
    extended: "ExtendedClaims | None" = None
    stale: Object | None = None  # claim of extended resources left by a failed attempt to bind
    pending: dict[frozenset[str], PendingClaims] = field(default_factory=dict)  # by extended resources
    results: dict[str, list[Object]] = field(default_factory=dict)  # by node
    refusals: dict[str, AllocationOutcome | AllocationAborted] = field(default_factory=dict)  # by node
    unavailable: dict[str, Object] = field(default_factory=dict)  # allocated claims that another node cannot use

    @property
    def has_alternatives(self) -> bool:
        """Whether nodes can differ in how well they satisfy a request."""
        return any(request.get("firstAvailable") for claim in self.unallocated for request in _requests(claim))

    def score(self, node: str) -> int:
        """A score, higher for earlier alternatives of `firstAvailable`."""
        score = 0
        for claim, allocation in zip(self.unallocated, self.results.get(node, ()), strict=False):
            chosen = {result["request"] for result in allocation["devices"].get("results") or ()}
            for request in _requests(claim):
                names = [f"{request['name']}/{entry['name']}" for entry in request.get("firstAvailable") or ()]
                place = next((place for place, name in enumerate(names) if name in chosen), None)
                score += 0 if place is None else _MOST_FIRST_AVAILABLE - place
        return score

    def reasons(self, node: str) -> tuple[Reason, ...]:
        """Why the node has no devices for the claims."""
        return self.refusals[node].reasons


class ExtendedClaims:
    """The claim for a pod's extended resources, which depends on the node's own offers."""

    def __init__(self, pod: Object, classes: Mapping[str, str], resources: frozenset[str]) -> None:
        self._pod, self._classes, self._resources = pod, classes, resources
        self._requests: dict[frozenset[str], ExtendedRequests] = {}

    def missing(self, node: NodeInfo) -> frozenset[str]:
        """The resources not offered by the node."""
        return frozenset(resource for resource in self._resources if not node.allocatable.get(resource))

    def requests(self, resources: frozenset[str]) -> ExtendedRequests:
        if resources not in self._requests:
            self._requests[resources] = requests_of(self._pod, self._classes, resources)
        return self._requests[resources]

    def claim(self, resources: frozenset[str]) -> Object:
        """The claim, with kube-scheduler's name for it until it exists."""
        requests = [*self.requests(resources).requests]
        return {**new_claim(self._pod), "spec": {"devices": {"requests": requests}}}


class DynamicResources:
    """`list` and `apply` follow the store."""

    def __init__(self, client: ClusterClient, release: str) -> None:
        self._client = client
        self._devices = AllocatedDevices(release)

    def list(self) -> None:
        self._devices.list(self._client.store)

    def apply(self, change: Change) -> None:
        self._devices.apply(change)

    def served_resources(self, request: PodRequest) -> frozenset[str]:
        """The pod's extended resources served by a DeviceClass."""
        return frozenset(resource for resource in request.requests if resource in self._devices.resources)

    def pre_filter(self, pod: Object, request: PodRequest) -> ClaimsOfPod:
        """Reads the claims of the pod. Raises `ClaimsRejected`."""
        claims = ClaimsOfPod()
        if request.by_claims:
            claims.extended = ExtendedClaims(pod, self._devices.resources, request.by_claims)
            stale = self._devices.extended_claims.get(pod["metadata"]["uid"])
            claims.stale = self._client.store.get(stale) if stale else None
        for claim in self._claims_of(pod):
            status = claim.get("status") or {}
            if not status.get("allocation"):
                self._check_classes(claim)
                claims.unallocated.append(claim)
                continue
            if not is_reserved_for(claim, pod) and len(status.get("reservedFor") or ()) >= _MOST_CONSUMERS:
                raise ClaimsRejected("resourceclaim in use")
            selector = status["allocation"].get("nodeSelector") or {}
            terms = tuple(map(NodeSelectorTerm.of, selector.get("nodeSelectorTerms") or ()))
            claims.allocated.append((claim, terms))
        if claims.unallocated and not claims.extended:
            self._pending(claims, frozenset())  # a claim that no node can satisfy is rejected before any node is tested
        return claims

    def filter(self, claims: ClaimsOfPod, node: NodeInfo) -> FilterFailure | None:
        """Tests whether the node can satisfy the claims, and keeps its devices for them. Raises `ClaimsRejected`."""
        unavailable = {
            claim["metadata"]["name"]: claim
            for claim, terms in claims.allocated
            if terms and not any(term.matches(node.name, node.labels) for term in terms)
        }
        claims.unavailable |= unavailable
        if claims.stale is not None:
            return _STALE
        extended = claims.extended.missing(node) if claims.extended else frozenset()
        if (claims.unallocated or extended) and (failure := self._allocate(claims, extended, node)):
            return failure
        return _NOT_AVAILABLE if unavailable else None

    def post_filter(self, claims: ClaimsOfPod, pod: Object) -> str:
        """Deallocates a claim of this pod alone, for the next attempt; returns the message for the event."""
        for claim in claims.unavailable.values():
            consumers = (claim.get("status") or {}).get("reservedFor") or ()
            if all(consumer["uid"] == pod["metadata"]["uid"] for consumer in consumers):
                self._change_status(claim, lambda status: {**status, "allocation": None, "reservedFor": None})
                return "deallocation of ResourceClaim completed"
        if claims.stale is not None:
            self._delete(claims.stale)
            return "deletion of ResourceClaim completed"
        return "still not schedulable"

    def bind(self, claims: ClaimsOfPod, pod: Object, node: NodeInfo) -> None:
        """Writes the allocations of the node and the reservation of the pod."""
        metadata = pod["metadata"]
        extended = claims.extended.missing(node) if claims.extended else frozenset()
        created = [self._create(claims.extended.claim(extended))] if claims.extended and extended else []
        consumer = {"resource": "pods", "name": metadata["name"], "uid": metadata["uid"]}

        def reserved(status: Object) -> Object:
            others = [other for other in status.get("reservedFor") or () if other["uid"] != consumer["uid"]]
            return {**status, "reservedFor": [*others, consumer]}

        unallocated = [*claims.unallocated, *created]
        for claim, allocation in zip(unallocated, claims.results.get(node.name, ()), strict=True):
            self._protect(claim)
            stamped = {"allocation": {**allocation, "allocationTimestamp": self._client.stamp()}}
            self._change_status(claim, partial(_updated, stamped, reserved))
        for claim, _ in claims.allocated:
            if not is_reserved_for(claim, pod):
                self._change_status(claim, reserved)
        if claims.extended and created:
            self._write_mappings(pod, created[0]["metadata"]["name"], claims.extended.requests(extended))

    def _create(self, claim: Object) -> Object:
        metadata = {name: value for name, value in claim["metadata"].items() if name != "name"}
        path = ResourcePath(RESOURCE_CLAIMS, metadata["namespace"])
        return self._client.writer.create(path, {**claim, "metadata": metadata}, _MANAGER)

    def _write_mappings(self, pod: Object, claim: str, requests: ExtendedRequests) -> None:
        """Writes to the pod's status, for the kubelet, which container gets the devices of which request."""
        written = {"requestMappings": list(requests.mappings), "resourceClaimName": claim}

        def with_claim(stored: Object) -> Object:
            return {**stored, "status": {**(stored.get("status") or {}), "extendedResourceClaimStatus": written}}

        path = ResourcePath(PODS, pod["metadata"]["namespace"], pod["metadata"]["name"], "status")
        self._client.writer.change(path, with_claim, _MANAGER)

    def _delete(self, claim: Object) -> None:
        metadata = claim["metadata"]
        path = ResourcePath(RESOURCE_CLAIMS, metadata["namespace"], metadata["name"])

        def unprotected(stored: Object) -> Object:
            left = [name for name in stored["metadata"].get("finalizers") or () if name != FINALIZER]
            return {**stored, "metadata": {**stored["metadata"], "finalizers": left}}

        self._client.writer.change(path, unprotected, _MANAGER)
        self._client.writer.delete(path, DeleteOptions())

    def _claims_of(self, pod: Object) -> Iterator[Object]:
        metadata = pod["metadata"]
        for entry, name in claim_names(pod):
            if not name:
                raise ClaimsRejected("")
            claim = self._client.store.get(ObjectKey(RESOURCE_CLAIMS.qualified, metadata["namespace"], name))
            if claim is None:
                raise ClaimsRejected(f'resourceclaim "{name}" not found')
            if claim["metadata"].get("deletionTimestamp"):
                raise ClaimsRejected(f'resourceclaim "{name}" is being deleted')
            owners = claim["metadata"].get("ownerReferences") or ()
            if entry.get("resourceClaimTemplateName") and all(owner["uid"] != metadata["uid"] for owner in owners):
                title, of_pod = f"{metadata['namespace']}/{name}", f"{metadata['namespace']}/{metadata['name']}"
                raise ClaimsRejected(f"ResourceClaim {title} was not created for pod {of_pod} (pod is not owner)")
            yield claim

    def _check_classes(self, claim: Object) -> None:
        for request in _requests(claim):
            for entry in [request["exactly"]] if request.get("exactly") else request.get("firstAvailable") or ():
                name = f"{request['name']}/{entry['name']}" if "name" in entry else request["name"]
                if entry["deviceClassName"] not in self._devices.allocator.classes:
                    raise ClaimsRejected(f"request {name}: device class {entry['deviceClassName']} does not exist")

    def _pending(self, claims: ClaimsOfPod, extended: frozenset[str]) -> PendingClaims:
        """The claims to allocate on a node without its own offer of these resources."""
        if extended not in claims.pending:
            of_pod = [claims.extended.claim(extended)] if claims.extended and extended else []
            with _as_rejection():
                claims.pending[extended] = self._devices.allocator.pending([*claims.unallocated, *of_pod])
        return claims.pending[extended]

    def _allocate(self, claims: ClaimsOfPod, extended: frozenset[str], node: NodeInfo) -> FilterFailure | None:
        pending = self._pending(claims, extended)
        with _as_rejection():
            try:
                outcome = pending.allocate({"metadata": {"name": node.name, "labels": node.labels}})
            except AllocationAborted as error:
                if not error.on_node:
                    raise
                claims.refusals[node.name] = error
                return FilterFailure((str(error),))
        if not outcome.results:
            claims.refusals[node.name] = outcome
            return _CANNOT_ALLOCATE
        claims.results[node.name] = outcome.results
        return None

    def _protect(self, claim: Object) -> None:
        """Keeps the claim after its deletion until it is deallocated."""
        metadata = claim["metadata"]

        def protected(stored: Object) -> Object:
            finalizers = [*(stored["metadata"].get("finalizers") or ()), FINALIZER]
            return {**stored, "metadata": {**stored["metadata"], "finalizers": finalizers}}

        if FINALIZER not in (metadata.get("finalizers") or ()):
            path = ResourcePath(RESOURCE_CLAIMS, metadata["namespace"], metadata["name"])
            self._client.writer.change(path, protected, _MANAGER)

    def _change_status(self, claim: Object, change: Callable[[Object], Object]) -> None:
        metadata = claim["metadata"]

        def changed(stored: Object) -> Object:
            status = change(stored.get("status") or {})
            return {**stored, "status": {key: value for key, value in status.items() if value}}

        path = ResourcePath(RESOURCE_CLAIMS, metadata["namespace"], metadata["name"], "status")
        self._client.writer.change(path, changed, _MANAGER)


class _as_rejection:  # noqa: N801 - reads as a statement
    """Converts errors of the allocator into `ClaimsRejected`, with kube-scheduler's messages."""

    def __enter__(self) -> None: ...

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if isinstance(error, FeatureUnsupported):
            raise ClaimsRejected(f"plugwright cannot allocate this claim: {error}; {pod_fields.ADVICE}", is_error=True)
        if isinstance(error, AllocationAborted):
            raise ClaimsRejected(f'running "DynamicResources" filter plugin: {error}', is_error=True)
        if isinstance(error, MALFORMED):
            raise ClaimsRejected(
                f"a ResourceClaim, DeviceClass or ResourceSlice is malformed: {error!r}", is_error=True
            )


def _updated(new: Object, reserved: Callable[[Object], Object], status: Object) -> Object:
    return reserved({**status, **new})


def _requests(claim: Object) -> list[Object]:
    return list(((claim.get("spec") or {}).get("devices") or {}).get("requests") or ())
