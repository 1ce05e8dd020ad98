"""The scheduler's plugin for ResourceClaims: allocates, reserves and deallocates them, as kube-scheduler does.

For each pod `pre_filter` reads the claims, `filter` looks for devices on one node, `bind` writes the allocation of the
chosen node and the reservation, and `post_filter` frees an unused claim that is allocated on the wrong node. Rules and
messages are those of kube-scheduler's plugin DynamicResources.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial

from plugwright.allocator import AllocationOutcome, PendingClaims, Reason
from plugwright.allocator.node_selector import NodeSelectorTerm
from plugwright.apiserver import pod_fields
from plugwright.apiserver.kinds import RESOURCE_CLAIMS
from plugwright.apiserver.registry import ResourcePath
from plugwright.apiserver.store import Change, Object, ObjectKey
from plugwright.cluster.events import MALFORMED, ClusterClient
from plugwright.cluster.scheduling.allocated_devices import AllocatedDevices, claim_names, is_reserved_for
from plugwright.cluster.scheduling.fit import FilterFailure, NodeInfo
from plugwright.errors import AllocationAborted, FeatureUnsupported

__all__ = ["FINALIZER", "ClaimsOfPod", "ClaimsRejected", "DynamicResources"]

FINALIZER = "resource.kubernetes.io/delete-protection"

_MANAGER = "kube-scheduler"
_MOST_CONSUMERS = 256
_CANNOT_ALLOCATE = FilterFailure(("cannot allocate all claims",))
_NOT_AVAILABLE = FilterFailure(("resourceclaim not available on the node",))
_MOST_FIRST_AVAILABLE = 8


class ClaimsRejected(Exception):
    """A pod whose claims keep it from every node; `message` is empty while claims are still to be generated."""

    def __init__(self, message: str, is_error: bool = False) -> None:
        super().__init__(message)
        self.message, self.is_error = message, is_error


@dataclass(slots=True)
class ClaimsOfPod:
    """The claims of a pod in one scheduling cycle."""

    allocated: list[tuple[Object, tuple[NodeSelectorTerm, ...]]] = field(default_factory=list)
    unallocated: list[Object] = field(default_factory=list)
    pending: PendingClaims | None = None
    results: dict[str, list[Object]] = field(default_factory=dict)  # by node
    refusals: dict[str, AllocationOutcome | AllocationAborted] = field(default_factory=dict)  # by node
    unavailable: dict[str, Object] = field(default_factory=dict)  # allocated claims that another node cannot use

    @property
    def has_alternatives(self) -> bool:
        """Whether nodes differ in how well they satisfy a request."""
        return any(request.get("firstAvailable") for claim in self.unallocated for request in _requests(claim))

    def score(self, node: str) -> int:
        """Higher for earlier alternatives of `firstAvailable`."""
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


class DynamicResources:
    """`list` and `apply` follow the store."""

    def __init__(self, client: ClusterClient, release: str) -> None:
        self._client = client
        self._devices = AllocatedDevices(release)

    def list(self) -> None:
        self._devices.list(self._client.store)

    def apply(self, change: Change) -> None:
        self._devices.apply(change)

    def pre_filter(self, pod: Object) -> ClaimsOfPod:
        """Reads the claims of the pod. Raises `ClaimsRejected`."""
        claims = ClaimsOfPod()
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
        if claims.unallocated:
            with _as_rejection():
                claims.pending = self._devices.allocator.pending(claims.unallocated)
        return claims

    def filter(self, claims: ClaimsOfPod, node: NodeInfo) -> FilterFailure | None:
        """Whether the node can use the claims; remembers the devices that it would give. Raises `ClaimsRejected`."""
        unavailable = {
            claim["metadata"]["name"]: claim
            for claim, terms in claims.allocated
            if terms and not any(term.matches(node.name, node.labels) for term in terms)
        }
        claims.unavailable |= unavailable
        if claims.pending is not None and (failure := self._allocate(claims, claims.pending, node)):
            return failure
        return _NOT_AVAILABLE if unavailable else None

    def post_filter(self, claims: ClaimsOfPod, pod: Object) -> str:
        """Deallocates a claim that only this pod could use, for the next attempt; the message for the event."""
        for claim in claims.unavailable.values():
            consumers = (claim.get("status") or {}).get("reservedFor") or ()
            if all(consumer["uid"] == pod["metadata"]["uid"] for consumer in consumers):
                self._change_status(claim, lambda status: {**status, "allocation": None, "reservedFor": None})
                return "deallocation of ResourceClaim completed"
        return "still not schedulable"

    def bind(self, claims: ClaimsOfPod, pod: Object, node: str) -> None:
        """Writes the allocations of the node and the reservation of the pod."""
        metadata = pod["metadata"]
        consumer = {"resource": "pods", "name": metadata["name"], "uid": metadata["uid"]}

        def reserved(status: Object) -> Object:
            others = [other for other in status.get("reservedFor") or () if other["uid"] != consumer["uid"]]
            return {**status, "reservedFor": [*others, consumer]}

        for claim, allocation in zip(claims.unallocated, claims.results.get(node, ()), strict=True):
            self._protect(claim)
            stamped = {"allocation": {**allocation, "allocationTimestamp": self._client.stamp()}}
            self._change_status(claim, partial(_updated, stamped, reserved))
        for claim, _ in claims.allocated:
            if not is_reserved_for(claim, pod):
                self._change_status(claim, reserved)

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

    def _allocate(self, claims: ClaimsOfPod, pending: PendingClaims, node: NodeInfo) -> FilterFailure | None:
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
        """The claim outlives its deletion until it is deallocated."""
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
    """Turns errors of the allocator into `ClaimsRejected`, in kube-scheduler's words."""

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
