"""Changes to a node's resources: what is asked for, what came of it, and what it takes to make them.

`addition` and `removal` decide and act; speaking with the API server is `node`'s work.

JSON pointers and the patches of a node's status.

Every patch names the version of the node that it was made from: if anything has changed since, the API server answers
with a conflict instead of doing it.

Offering extended resources on a node by hand.

Only capacity is set; the kubelet makes allocatable of it. What a plugin serves is refused: the kubelet would set it
back at once.
"""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import Protocol, TypedDict, TypeVar

from plugwright.errors import ConfigError, PeerGone, PeerRefused
from plugwright.extended_resources.backing import row
from plugwright.extended_resources.resources import Backing, Key, Node, Pod, Row, World

__all__ = [
    "CONFLICT",
    "Clock",
    "NodeApi",
    "Operation",
    "Outcome",
    "Plan",
    "Result",
    "Site",
    "Target",
    "add",
    "adding",
    "as_text",
    "over_conflicts",
    "pointer",
    "removing",
    "why_not",
]


class Operation(TypedDict, total=False):
    op: str
    path: str
    value: object


def pointer(*steps: str) -> str:
    return "".join("/" + step.replace("~", "~0").replace("/", "~1") for step in steps)


def adding(node: Node, counts: Mapping[str, int]) -> list[Operation]:
    """Sets capacity alone: the kubelet makes allocatable of it at its next status round."""
    operations = [_made_from(node)]
    if node.bare:
        operations.append({"op": "add", "path": pointer("status", "capacity"), "value": {}})
    for resource, count in counts.items():
        operations.append({"op": "add", "path": pointer("status", "capacity", resource), "value": str(count)})
    return operations


def removing(node: Node, resource: str) -> list[Operation]:
    operations = [_made_from(node)]
    for part, counts in (("capacity", node.capacity), ("allocatable", node.allocatable)):
        if resource in counts:
            operations.append({"op": "remove", "path": pointer("status", part, resource)})
    return operations


def _made_from(node: Node) -> Operation:
    return {"op": "replace", "path": pointer("metadata", "resourceVersion"), "value": node.version}


def as_text(operations: Sequence[Operation]) -> str:
    """For people: what would be sent, without the version."""
    return ", ".join(" ".join(str(part) for part in operation.values()) for operation in operations[1:])


CONFLICT = "Conflict"
_TRIES = 5
_JITTER = 1.05  # the kubelet's rounds are up to 4 % longer than set
_T = TypeVar("_T")


class NodeApi(Protocol):
    """What is needed of the API server. A node that is not there is None."""

    def find_node(self, name: str) -> Node | None: ...

    def pods(self, node: str | None = None) -> Sequence[Pod]: ...

    def patch_status(self, node: str, operations: Sequence[Operation]) -> None: ...


@dataclass(frozen=True, slots=True)
class Clock:
    now: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep


@dataclass(frozen=True, slots=True, order=True)
class Target:
    node: str
    resource: str

    def __str__(self) -> str:
        return f"{self.node} {self.resource}"


class Result(StrEnum):
    ADDED = "added"
    REMOVED = "removed"
    ABSENT = "absent"
    LEFT = "left"
    REFUSED = "refused"
    TIMED_OUT = "timed out"
    WOULD_ADD = "would add"
    WOULD_REMOVE = "would remove"

    @property
    def bad(self) -> bool:
        return self in (Result.REFUSED, Result.TIMED_OUT)


@dataclass(frozen=True, slots=True)
class Outcome:
    target: Target
    result: Result
    detail: str


@dataclass(frozen=True, slots=True)
class Plan:
    """`round`: seconds between the kubelet's status rounds (its nodeStatusUpdateFrequency). For `removal`: `stale`,
    only what nobody serves any more, where `force` means what pods hold alone; `named`, the resources are named, so
    that live plugins of them are expected to go."""

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
    def pause(self) -> float:
        """Between two looks."""
        return min(5.0, self.round / 2)


def _nothing(target: Target, progress: str) -> None:
    pass


@dataclass(frozen=True, slots=True)
class Site:
    """Where changes are made; `say` hears how each one stands, again and again."""

    api: NodeApi
    world: Callable[[], World] = World
    clock: Clock = Clock()
    say: Callable[[Target, str], None] = _nothing

    def look(self, target: Target, node: Node, pods: Iterable[Pod] = ()) -> Row:
        return row(node, target.resource, pods, self.world())


def over_conflicts(what: str, act: Callable[[], _T]) -> _T:
    """`act` reads, decides and writes; where somebody else wrote in between, it does so again."""
    for _ in range(_TRIES):
        try:
            return act()
        except PeerRefused as error:
            if error.code != CONFLICT:
                raise
    raise PeerRefused(CONFLICT, f"{what} was changed by others {_TRIES} times while we looked; nothing was done to it")


def why_not(row: Row, count: int) -> str:
    """Why `count` cannot be set, or "" where it can."""
    backing, key, evidence = row.verdict
    if key in (Key.SERVED, Key.FADING):
        return f"the kubelet would set it back: {evidence}"
    if backing is Backing.DRA:
        return f"pods here would not get their devices through DRA any more: {evidence}"
    if key is Key.UNCLEAR:
        return evidence
    if row.requested > count:
        return f"pods ask for {row.requested} already: {row.held_by}"
    return ""


def add(site: Site, node: str, counts: Mapping[str, int], plan: Plan) -> list[Outcome]:
    """All of `counts` or nothing; with `plan.wait` only when the kubelet offers them."""
    targets = {Target(node, resource): count for resource, count in counts.items()}
    outcomes = over_conflicts(f"node {node}", partial(_set, site, node, targets, plan))
    if not plan.wait or any(outcome.result is not Result.ADDED for outcome in outcomes):
        return outcomes
    return _offered(site, targets, plan)


def _set(site: Site, name: str, targets: Mapping[Target, int], plan: Plan) -> list[Outcome]:
    node = site.api.find_node(name)
    if node is None:
        raise ConfigError(f"there is no node {name}")
    pods = () if plan.force else site.api.pods(name)
    rows = {target: site.look(target, node, pods) for target in targets}
    reasons = {target: why_not(rows[target], count) for target, count in targets.items()}
    if any(reasons.values()) and not plan.force:
        return [_refused(target, reason) for target, reason in reasons.items()]
    operations = adding(node, {target.resource: count for target, count in targets.items()})
    if plan.dry_run:
        return [Outcome(target, Result.WOULD_ADD, as_text(operations)) for target in targets]
    site.api.patch_status(name, operations)
    return [Outcome(target, Result.ADDED, reasons[target] or _afterwards(node, row)) for target, row in rows.items()]


def _refused(target: Target, reason: str) -> Outcome:
    why = f"{reason}; --force sets it all the same" if reason else "not set, because another one is refused"
    return Outcome(target, Result.REFUSED, why)


def _afterwards(node: Node, row: Row) -> str:
    if node.silence:
        return f"the kubelet offers it when it reports again: {node.silence}"
    if row.verdict.backing is Backing.STALE:
        return "the kubelet offers it, or sets it back if its plugin went less than five minutes ago: --wait tells"
    return "the kubelet offers it from its next status round on"


def _offered(site: Site, targets: Mapping[Target, int], plan: Plan) -> list[Outcome]:
    deadline = site.clock.now() + plan.timeout
    while True:
        outcomes = [_stands(site, target, count) for target, count in targets.items()]
        if not any(outcome.result is Result.TIMED_OUT for outcome in outcomes) or site.clock.now() >= deadline:
            return outcomes
        _report(site, outcomes)
        site.clock.sleep(plan.pause)


def _stands(site: Site, target: Target, count: int) -> Outcome:
    """`TIMED_OUT` is what it would be if nothing more happened."""
    try:
        node = site.api.find_node(target.node)
    except PeerGone as error:
        return Outcome(target, Result.TIMED_OUT, str(error))
    if node is None:
        return Outcome(target, Result.REFUSED, "the node is gone")
    capacity, allocatable = node.capacity.get(target.resource), node.allocatable.get(target.resource)
    if capacity != count:
        return Outcome(target, Result.REFUSED, f"somebody has set capacity to {capacity}: {_setter(site, target)}")
    if allocatable != count:
        return Outcome(target, Result.TIMED_OUT, node.silence or f"capacity {capacity}, allocatable {allocatable}")
    return Outcome(target, Result.ADDED, f"the kubelet offers {count}")


def _setter(site: Site, target: Target) -> str:
    node = site.api.find_node(target.node)
    setter = node.setters.get(target.resource) if node else None
    return setter.manager if setter else "unknown"


def _report(site: Site, outcomes: Sequence[Outcome]) -> None:
    for outcome in outcomes:
        if outcome.result is Result.TIMED_OUT:
            site.say(outcome.target, f"waiting for the kubelet: {outcome.detail}")
