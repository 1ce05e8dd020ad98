"""Which devices a ResourceClaim gets, and why it gets none. Pure: no I/O, no cluster.

    allocator = ClaimAllocator(features_of("1.37"), slices, classes, AllocatedState.of_claims(claims))
    pending = allocator.pending([claim])
    for node in nodes:
        outcome = pending.allocate(node)
        if outcome.results:
            ...  # one status.allocation per claim; then allocator.allocated.add(result)
        else:
            ...  # outcome.reasons: one per request and device

`AllocationAborted` and `FeatureUnsupported` of `plugwright.errors` end the attempt. `python -m plugwright.allocator`
asks the same offline.
"""

from plugwright.allocator.allocated_state import AllocatedState
from plugwright.allocator.claim_allocator import AllocationOutcome, ClaimAllocator, PendingClaims
from plugwright.allocator.consumable_capacity import largest_request
from plugwright.allocator.features import Features, features_of
from plugwright.allocator.published_slices import DeviceId, SliceIndex, rule_selects, with_rule_taints
from plugwright.allocator.reasons import Reason, ReasonKind, found_together, summary

# fmt: off
__all__ = [
    "AllocatedState", "AllocationOutcome", "ClaimAllocator", "DeviceId", "Features", "PendingClaims", "Reason",
    "ReasonKind", "SliceIndex", "features_of", "found_together", "largest_request", "rule_selects", "summary",
    "with_rule_taints",
]
# fmt: on
