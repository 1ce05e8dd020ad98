"""Changes to a node's extended resources: options, outcomes and patches, and adding a resource by hand.

Adding sets capacity alone, because the kubelet copies it to allocatable at its next status update. A resource that a
plugin serves is refused: the kubelet would set it back. Removing is `removal`; talking to the API server is `client`.
"""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import Protocol, TypedDict, TypeVar

from plugwright.errors import ConfigError, PeerGone, PeerRefused
from plugwright.extended_resources.backing import assess
from plugwright.extended_resources.resources import (
    GRACE_MINUTES,
    Backing,
    BoundPod,
    ClusterContext,
    KeyState,
    NodeResource,
    NodeSnapshot,
)

__all__ = [
    "CONFLICT",
    "ChangeContext",
    "ChangeOptions",
    "ChangeOutcome",
    "ChangeResult",
    "ChangeTarget",
    "Clock",
    "NodesClient",
    "PatchOperation",
    "add",
    "addition_patch",
    "describe_patch",
    "json_pointer",
    "refusal_reason",
    "removal_patch",
    "retry_conflicts",
]

CONFLICT = "Conflict"
_TRIES = 5
_JITTER = 1.05  # The kubelet's status updates come up to 4 % later than configured (7.12).
_T = TypeVar("_T")


class PatchOperation(TypedDict, total=False):
    """One operation of a JSON patch."""

    op: str
    path: str
    value: object


class NodesClient(Protocol):
    """A cluster's nodes and their pods; `find_node` returns None for a node that does not exist."""

    def nodes(self) -> Sequence[NodeSnapshot]: ...

    def device_classes(self) -> dict[str, tuple[str, ...]]: ...

    def find_node(self, name: str) -> NodeSnapshot | None: ...

    def pods(self, node: str | None = None) -> Sequence[BoundPod]: ...

    def patch_status(self, node: str, operations: Sequence[PatchOperation]) -> None: ...


@dataclass(frozen=True, slots=True)
class Clock:
    now: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep


@dataclass(frozen=True, slots=True, order=True)
class ChangeTarget:
    node: str
    resource: str

    def __str__(self) -> str:
        return f"{self.node} {self.resource}"


class ChangeResult(StrEnum):
    ADDED = "added"
    REMOVED = "removed"
    ABSENT = "absent"
    LEFT = "left"
    REFUSED = "refused"
    TIMED_OUT = "timed out"
    WOULD_ADD = "would add"
    WOULD_REMOVE = "would remove"

    @property
    def failed(self) -> bool:
        return self in (ChangeResult.REFUSED, ChangeResult.TIMED_OUT)


@dataclass(frozen=True, slots=True)
class ChangeOutcome:
    target: ChangeTarget
    result: ChangeResult
    detail: str


@dataclass(frozen=True, slots=True)
class ChangeOptions:
    """Options of `add` and `removal.remove`; `round` is the kubelet's nodeStatusUpdateFrequency in seconds.

    For removal: `stale` restricts it to resources that no component serves, and `force` then overrides pods alone;
    `named` means that the resources are named, so that their live plugins are expected to stop.
    """

    wait: bool = False
    force: bool = False
    dry_run: bool = False
    stale: bool = False
    named: bool = True
    timeout: float = 600.0
    round: float = 10.0

    @property
    def two_rounds(self) -> float:
        return 2 * _JITTER * self.round + 1

    @property
    def poll_interval(self) -> float:
        return min(5.0, self.round / 2)


def _no_progress(target: ChangeTarget, progress: str) -> None:
    pass


@dataclass(frozen=True, slots=True)
class ChangeContext:
    """The cluster that is changed; `report_progress` is called for each target after every poll."""

    api: NodesClient
    cluster_context: Callable[[], ClusterContext] = ClusterContext
    clock: Clock = Clock()
    report_progress: Callable[[ChangeTarget, str], None] = _no_progress

    def assess(self, target: ChangeTarget, node: NodeSnapshot, pods: Iterable[BoundPod] = ()) -> NodeResource:
        return assess(node, target.resource, pods, self.cluster_context())


def add(context: ChangeContext, node: str, counts: Mapping[str, int], options: ChangeOptions) -> list[ChangeOutcome]:
    """Sets all of `counts` or none; with `options.wait` returns when the kubelet offers them."""
    targets = {ChangeTarget(node, resource): count for resource, count in counts.items()}
    outcomes = retry_conflicts(f"node {node}", partial(_set_capacity, context, node, targets, options))
    if not options.wait or any(outcome.result is not ChangeResult.ADDED for outcome in outcomes):
        return outcomes
    return _until_allocatable(context, targets, options)


def refusal_reason(resource: NodeResource, count: int) -> str:
    """Why capacity cannot be set to `count`; empty if it can."""
    backing, key, evidence = resource.assessment
    if key in (KeyState.SERVED, KeyState.GRACE_PERIOD):
        return f"the kubelet would set it back: {evidence}"
    if backing is Backing.DRA:
        return f"pods on this node would no longer get their devices through DRA: {evidence}"
    if key is KeyState.UNCLEAR:
        return evidence
    if resource.requested > count:
        return f"pods request {resource.requested} already: {resource.held_by}"
    return ""


def retry_conflicts(subject: str, act: Callable[[], _T]) -> _T:
    """Calls `act`, which reads, decides and writes, and repeats it if another client wrote in between."""
    for _ in range(_TRIES):
        try:
            return act()
        except PeerRefused as error:
            if error.code != CONFLICT:
                raise
    raise PeerRefused(CONFLICT, f"{subject} was changed by others {_TRIES} times in between; nothing was done to it")


def addition_patch(node: NodeSnapshot, counts: Mapping[str, int]) -> list[PatchOperation]:
    operations = [_same_version(node)]
    if node.without_capacity:
        operations.append({"op": "add", "path": json_pointer("status", "capacity"), "value": {}})
    for resource, count in counts.items():
        operations.append({"op": "add", "path": json_pointer("status", "capacity", resource), "value": str(count)})
    return operations


def removal_patch(node: NodeSnapshot, resource: str) -> list[PatchOperation]:
    operations = [_same_version(node)]
    for part, counts in (("capacity", node.capacity), ("allocatable", node.allocatable)):
        if resource in counts:
            operations.append({"op": "remove", "path": json_pointer("status", part, resource)})
    return operations


def describe_patch(operations: Sequence[PatchOperation]) -> str:
    """The operations as text, without the first, which tests the resource version."""
    return ", ".join(" ".join(str(part) for part in operation.values()) for operation in operations[1:])


def json_pointer(*steps: str) -> str:
    return "".join("/" + step.replace("~", "~0").replace("/", "~1") for step in steps)


def _same_version(node: NodeSnapshot) -> PatchOperation:
    """The API server answers with a conflict if the node has changed since this version."""
    return {"op": "replace", "path": json_pointer("metadata", "resourceVersion"), "value": node.resource_version}


def _set_capacity(
    context: ChangeContext, name: str, targets: Mapping[ChangeTarget, int], options: ChangeOptions
) -> list[ChangeOutcome]:
    node = context.api.find_node(name)
    if node is None:
        raise ConfigError(f"there is no node {name}")
    pods = () if options.force else context.api.pods(name)
    resources = {target: context.assess(target, node, pods) for target in targets}
    reasons = {target: refusal_reason(resources[target], count) for target, count in targets.items()}
    if any(reasons.values()) and not options.force:
        return [_refused(target, reason) for target, reason in reasons.items()]
    operations = addition_patch(node, {target.resource: count for target, count in targets.items()})
    if options.dry_run:
        return [ChangeOutcome(target, ChangeResult.WOULD_ADD, describe_patch(operations)) for target in targets]
    context.api.patch_status(name, operations)
    return [
        ChangeOutcome(target, ChangeResult.ADDED, reasons[target] or _next_update(node, resource))
        for target, resource in resources.items()
    ]


def _refused(target: ChangeTarget, reason: str) -> ChangeOutcome:
    detail = f"{reason}; --force sets it anyway" if reason else "not set, because another resource is refused"
    return ChangeOutcome(target, ChangeResult.REFUSED, detail)


def _next_update(node: NodeSnapshot, resource: NodeResource) -> str:
    if node.silence:
        return f"the kubelet offers it when it reports again: {node.silence}"
    assessment = resource.assessment
    if assessment.key is KeyState.FREE and assessment.backing in (Backing.STALE, Backing.UNKNOWN):
        return f"the kubelet offers it, or sets it back if its plugin stopped less than {GRACE_MINUTES} ago; use --wait"
    return "the kubelet offers it from its next status update on"


def _until_allocatable(
    context: ChangeContext, targets: Mapping[ChangeTarget, int], options: ChangeOptions
) -> list[ChangeOutcome]:
    deadline = context.clock.now() + options.timeout
    while True:
        outcomes = [_current_outcome(context, target, count) for target, count in targets.items()]
        waiting = [outcome for outcome in outcomes if outcome.result is ChangeResult.TIMED_OUT]
        if not waiting or context.clock.now() >= deadline:
            return outcomes
        for outcome in waiting:
            context.report_progress(outcome.target, f"waiting for the kubelet: {outcome.detail}")
        context.clock.sleep(options.poll_interval)


def _current_outcome(context: ChangeContext, target: ChangeTarget, count: int) -> ChangeOutcome:
    """The outcome if nothing more happened: `TIMED_OUT` while the kubelet does not offer it."""
    try:
        node = context.api.find_node(target.node)
    except PeerGone as error:
        return ChangeOutcome(target, ChangeResult.TIMED_OUT, str(error))
    if node is None:
        return ChangeOutcome(target, ChangeResult.REFUSED, "the node was deleted")
    capacity, allocatable = node.capacity.get(target.resource), node.allocatable.get(target.resource)
    if capacity != count:
        owner = node.owners.get(target.resource)
        manager = owner.manager if owner else "an unknown manager"
        return ChangeOutcome(target, ChangeResult.REFUSED, f"capacity was set to {capacity} by {manager}")
    if allocatable != count:
        detail = node.silence or f"capacity {capacity}, allocatable {allocatable}"
        return ChangeOutcome(target, ChangeResult.TIMED_OUT, detail)
    return ChangeOutcome(target, ChangeResult.ADDED, f"the kubelet offers {count}")
