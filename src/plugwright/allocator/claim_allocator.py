"""Allocates the claims of a pod on a node, as kube-scheduler does."""

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any

from plugwright.allocator.allocated_state import AllocatedState
from plugwright.allocator.allocation_attempt import AllocationAttempt
from plugwright.allocator.allocation_results import allocation_result
from plugwright.allocator.device_requests import ClaimRequests, read_claim
from plugwright.allocator.device_search import DeviceSearch
from plugwright.allocator.features import Features
from plugwright.allocator.published_slices import SliceIndex
from plugwright.allocator.reasons import Reason
from plugwright.allocator.slice_pools import NodeView, gather_pools, slices_for_node
from plugwright.errors import AllocationAborted

__all__ = ["AllocationOutcome", "ClaimAllocator", "PendingClaims"]

_Object = Mapping[str, Any]
# Candidates that one search tries. kube-scheduler gives up after 10 s per node; steps have the same result everywhere.
MAX_STEPS = 1_000_000


class AllocationOutcome:
    """The `status.allocation` of each claim, in their order; without a result, `reasons` explain why."""

    def __init__(self, results: Sequence[dict[str, Any]], search: DeviceSearch, pending: "PendingClaims") -> None:
        self.results, self._search, self._pending = list(results), search, pending

    @cached_property
    def reasons(self) -> tuple[Reason, ...]:
        """Computed on request; empty if the claims fit."""
        return () if self.results else tuple(self._pending.explain(self._search))


class ClaimAllocator:
    """Answers questions about one state of a cluster. All objects are plain dicts as in the API.

    `slices` are ResourceSlices, or a `SliceIndex` that the caller keeps up to date; `allocated` contains the devices of
    allocated claims, see `AllocatedState.of_claims`. Both can change between calls. Classes are DeviceClasses.
    """

    def __init__(
        self,
        features: Features,
        slices: SliceIndex | Iterable[_Object],
        classes: Iterable[_Object],
        allocated: AllocatedState | None = None,
        max_steps: int = MAX_STEPS,
    ) -> None:
        self.features, self.max_steps = features, max_steps
        self.slices = slices if isinstance(slices, SliceIndex) else SliceIndex(slices)
        self.classes = {(entry.get("metadata") or {}).get("name", ""): entry for entry in classes}
        self.allocated = AllocatedState() if allocated is None else allocated

    def pending(self, claims: Iterable[_Object]) -> "PendingClaims":
        """Reads the claims of one pod once, for any number of nodes.

        Raises `AllocationAborted` for a claim that no node can satisfy, and its subclass `FeatureUnsupported` for a
        claim with a field or feature that the allocator does not know.
        """
        return PendingClaims(self, tuple(read_claim(claim, self.classes, self.features) for claim in claims))

    def allocate(self, node: _Object, claims: Iterable[_Object]) -> AllocationOutcome:
        """`pending(claims).allocate(node)`."""
        return self.pending(claims).allocate(node)


class PendingClaims:
    """The unallocated claims of one pod. They are allocated together, or not at all."""

    def __init__(self, allocator: ClaimAllocator, claims: tuple[ClaimRequests, ...]) -> None:
        self._allocator, self._claims = allocator, claims

    def allocate(self, node: _Object) -> AllocationOutcome:
        """Searches devices that the node can use; changes nothing.

        Raises `AllocationAborted`: with `on_node` another node can fit, without it no node can.
        """
        features, view = self._allocator.features, NodeView(node)
        pools = gather_pools(self._allocator.slices, view, features)
        attempt = AllocationAttempt(self._claims, pools, self._allocator.allocated, features)
        search = DeviceSearch(self._claims, pools, view, features, attempt)
        self._node = view
        if not search.run(self._allocator.max_steps):
            if any(pool.invalid for pool in pools):
                reasons = tuple(self.explain(search))
                raise AllocationAborted("invalid resource pools were encountered", on_node=True, reasons=reasons)
            return AllocationOutcome((), search, self)
        results = []
        for number, claim in enumerate(self._claims):
            selected = {request: place for (owner, request), place in search.selected.items() if owner == number}
            results.append(allocation_result(claim, attempt.chosen[number], selected, view.name, features))
        return AllocationOutcome(results, search, self)

    def explain(self, search: DeviceSearch) -> Iterable[Reason]:
        """Why the search found no devices: requests first, then pools, then devices."""
        for (number, request), found in search.most_found.items():
            claim = self._claims[number]
            yield Reason("TooFewDevices", claim.name, request, message=_too_few(claim, request, found))
        for pool in search.pools:
            if pool.incomplete:
                yield Reason("PoolIncomplete", driver=pool.driver, pool=pool.name, message="slices are missing")
            elif pool.invalid:
                yield Reason("PoolInvalid", driver=pool.driver, pool=pool.name, message=pool.invalid)
        for (number, request, device), (kind, message) in search.shown_rejections():
            yield Reason(kind, self._claims[number].name, request, *device, message=message)
        yield from self._on_other_nodes()

    def _on_other_nodes(self) -> Iterable[Reason]:
        index, node = self._allocator.slices, self._node
        for slice_ in slices_for_node(index, node, self._allocator.features):
            if not node.reaches(slice_) and not slice_.has_counter_sets:
                text = f"slice {slice_.name} is not available on node {node.name}"
                yield Reason("NodeMismatch", driver=slice_.driver, pool=slice_.pool, message=text)
        others = sum(len(slices) for name, slices in index.on_node.items() if name != node.name)
        if others:
            yield Reason("NodeMismatch", message=f"{others} slices belong to other nodes than {node.name}")


def _too_few(claim: ClaimRequests, name: str, found: int) -> str:
    for request in claim.requests:
        for alternative in request.alternatives:
            if alternative.name == name and not alternative.takes_all:
                return f"{alternative.count} devices requested, at most {found} found together"
    return "all devices requested, none found"
