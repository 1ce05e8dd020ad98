"""Which devices a container gets, step by step as a kubelet decides.

Pure: `choose` is a generator that yields a question where a kubelet asks the plugin for its preference, and is sent
the wish; its result is the devices. Where a kubelet takes devices in no particular order, natural order is
taken here, so that the same question has the same answer.
"""

from collections.abc import Collection, Generator, Sequence
from dataclasses import dataclass, field

from plugwright.errors import AllocationFailed
from plugwright.kubelet.stock import Shelf
from plugwright.model import PreferenceRequest

__all__ = ["Claim", "Question", "choose", "refuse_early"]


@dataclass(frozen=True, slots=True)
class Claim:
    """What a container wants of a resource, and what it can be given from."""

    resource: str
    required: int
    held: frozenset[str]
    reusable: frozenset[str]
    available: frozenset[str]  # healthy and in nobody's use
    mask: frozenset[int] | None  # the NUMA nodes the topology manager decided on
    shelf: Shelf

    @property
    def needed(self) -> int:
        return self.required - len(self.held)


@dataclass(frozen=True, slots=True)
class Question:
    """Which of `among` would the plugin choose beside what is `taken`? Asked only where the plugin can answer."""

    claim: Claim
    among: frozenset[str]
    taken: frozenset[str]

    @property
    def request(self) -> PreferenceRequest:
        shelf, everything = self.claim.shelf, self.among | self.taken
        available = tuple(shelf.first(len(everything), everything))
        return PreferenceRequest(available, tuple(shelf.first(len(self.taken), self.taken)), self.claim.required)


Choosing = Generator[Question, Sequence[str], frozenset[str]]


@dataclass(frozen=True, slots=True)
class _Alignment:
    aligned: frozenset[str]
    unaligned: frozenset[str] = frozenset()
    anywhere: frozenset[str] = frozenset()


@dataclass(slots=True)
class _Taken:
    """What has been taken so far, and how many are still missing."""

    wanted: int
    shelf: Shelf
    ids: set[str] = field(default_factory=set)

    @property
    def missing(self) -> int:
        return self.wanted - len(self.ids)

    def take(self, offered: Collection[str]) -> None:
        fresh = set(offered) - self.ids if self.ids else offered
        self.ids.update(self.shelf.first(self.missing, fresh))


def refuse_early(claim: Claim, *, in_stock: bool, refuses_unhealthy: bool) -> None:
    """What is refused before anything is chosen, whatever the number (3.15 to 3.17)."""
    if not in_stock:
        raise AllocationFailed(f"cannot allocate unregistered device {claim.resource}")
    if not refuses_unhealthy:
        return
    if not claim.shelf.healthy:
        raise AllocationFailed(f"no healthy devices present; cannot allocate unhealthy devices {claim.resource}")
    if not claim.held <= claim.shelf.healthy:
        raise AllocationFailed(
            f"previously allocated devices are no longer healthy; cannot allocate unhealthy devices {claim.resource}"
        )


def choose(claim: Claim) -> Choosing:
    taken = _Taken(claim.needed, claim.shelf)
    taken.take(claim.reusable)  # 3.19: whatever their health, and without asking
    if not taken.missing:
        return frozenset(taken.ids)
    if len(claim.available) < taken.missing:
        raise AllocationFailed(
            f"requested number of devices unavailable for {claim.resource}. "
            f"Requested: {taken.missing}, Available: {len(claim.available)}"
        )
    yield from _choose(claim, taken)
    if taken.missing:
        raise AllocationFailed(
            "unexpectedly allocated less resources than required. "
            f"Requested: {claim.required}, Got: {claim.required - taken.missing}"
        )
    return frozenset(taken.ids)


def _choose(claim: Claim, taken: _Taken) -> Generator[Question, Sequence[str], None]:
    split = _align(claim)
    if taken.missing < len(split.aligned):  # 3.23
        wish = yield Question(claim, split.aligned, frozenset(taken.ids))
        taken.take(_first(wish, split.aligned, taken))
        taken.take(split.aligned)
        return
    taken.take(split.aligned)  # 3.24
    if not taken.missing:
        return
    wish = yield Question(claim, claim.available, frozenset(taken.ids))
    taken.take(_first(wish, claim.available, taken))
    taken.take(split.unaligned)
    taken.take(split.anywhere)


def _first(wish: Sequence[str], allowed: frozenset[str], taken: _Taken) -> list[str]:
    """The plugin's wish, cut to what is allowed and to the number wanted, in the plugin's own order (3.29)."""
    wished = dict.fromkeys(each for each in wish if each in allowed and each not in taken.ids)
    return list(wished)[: taken.missing]


def _align(claim: Claim) -> _Alignment:
    if claim.mask is None or not claim.shelf.has_topology:  # 3.21
        return _Alignment(frozenset(), frozenset(), claim.available)
    nodes = {device_id: claim.shelf.nodes(device_id) for device_id in claim.available}
    aligned = frozenset(device_id for device_id, near in nodes.items() if claim.mask.intersection(near))
    anywhere = frozenset(device_id for device_id, near in nodes.items() if not near)
    return _Alignment(aligned, claim.available - aligned - anywhere, anywhere)
