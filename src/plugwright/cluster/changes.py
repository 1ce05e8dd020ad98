"""Changes to a node's resources: what is asked for, what came of it, and what it takes to make them.

`addition` and `removal` decide and act; speaking with the API server is `node`'s work.
"""

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol, TypeVar

from plugwright.cluster.backing import row
from plugwright.cluster.patch import Operation
from plugwright.cluster.resources import Node, Pod, Row, World
from plugwright.errors import PeerRefused

__all__ = ["CONFLICT", "Clock", "NodeApi", "Outcome", "Plan", "Result", "Site", "Target", "over_conflicts"]

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
