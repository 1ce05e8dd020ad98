"""The counterfactual search: relaxations that let a pod run, single ones first, then pairs, within a time budget."""

import time
from collections.abc import Callable, Iterator, Sequence
from itertools import combinations
from typing import TypeVar

from msgspec import Struct

from plugwright.explain import relaxations
from plugwright.explain.counterfactual import Relaxation, Situation, relaxed
from plugwright.explain.device_relaxations import taints_removed
from plugwright.explain.node_classes import node_classes
from plugwright.explain.oracle import NodeVerdict, Oracle
from plugwright.explain.wording import missing
from plugwright.explain.world import identity

__all__ = ["Cure", "Search"]

T = TypeVar("T")

PAIRS_BUDGET = 5.0  # seconds
_PAIR_CANDIDATES = 24  # relaxations per node
_ENDINGS = ("holder-ends", "finished-pod")
_TAINTED = ("uncordon-device", "taint-removed", "taint-rule")
_MONOTONE = ("count", "capacity")  # the cheapest that helps is enough


class Cure(Struct, frozen=True):
    """Relaxations after which the pod runs, confirmed on `nodes`; `like` counts nodes that cannot differ from them."""

    relaxations: tuple[Relaxation, ...]
    nodes: tuple[str, ...]
    like: int

    @property
    def cost(self) -> float:
        return sum(entry.cost for entry in self.relaxations) + len(self.relaxations) - 1


class Search:
    """Queries the oracle about one pod, which has confirmed every cure on each of its `nodes`."""

    def __init__(self, oracle: Oracle, situation: Situation, clock: Callable[[], float] = time.monotonic) -> None:
        self.oracle, self.situation, self._clock = oracle, situation, clock
        self.classes = node_classes(oracle, situation)
        self._first = {names[0]: names for names in self.classes}
        self.base = {verdict.node: verdict for verdict in oracle.verdicts(situation, self._first)}
        self.rejected: list[Relaxation] = []
        self.is_complete = True  # every pair was tried
        self._of_node: dict[str, list[Relaxation]] = {}

    def verdicts(self) -> Iterator[tuple[NodeVerdict, tuple[str, ...]]]:
        """One verdict for each class, with its nodes."""
        for name, verdict in self.base.items():
            yield verdict, self._first[name]

    @property
    def stopping(self) -> list[str]:
        """Nodes with an error after which the scheduler tries no other node either."""
        return [name for name, verdict in self.base.items() if verdict.stops]

    @property
    def fitting(self) -> list[str]:
        """The nodes that take the pod as it is."""
        return [] if self.stopping else [name for verdict, names in self.verdicts() if verdict.fits for name in names]

    def cures(self) -> list[Cure]:
        """Single changes, and groups of pods or devices if no single one suffices; otherwise pairs."""
        found = self.singles()
        kinds = {cure.relaxations[0].kind for cure in found}
        more = [] if kinds & {*_ENDINGS} else self.several_endings()
        more += [] if kinds & {*_TAINTED} else self.several_taints()
        return sorted([*found, *more], key=_order) or self.pairs()

    def singles(self) -> list[Cure]:
        """Every sufficient single relaxation, cheapest first."""
        representatives = list(self._first)
        cures: list[Cure] = []
        of_pod = sorted(relaxations.of_pod(self.oracle, self.situation, representatives), key=_by_cost)
        self._of_pod = of_pod
        cured: set[tuple[str, str]] = set()
        for relaxation in of_pod:
            if relaxation.kind in _MONOTONE and (relaxation.kind, relaxation.subject) in cured:
                continue
            if cure := self.confirm((relaxation,), representatives):
                cures.append(cure)
                cured.add((relaxation.kind, relaxation.subject))
            else:
                self.rejected.append(relaxation)
        for node in representatives:
            own = sorted(relaxations.of_node(self.oracle, self.situation, node), key=_by_cost)
            self._of_node[node] = own
            for relaxation in own:
                if cure := self.confirm((relaxation,), [node]):
                    cures.append(cure)
                else:
                    self.rejected.append(relaxation)
        # The end of a pod on one node, or the recovery of a shared device, can let the pod run on another node.
        made = {_change(cure.relaxations[0]) for cure in cures}
        self.rejected = sorted((entry for entry in self.rejected if _change(entry) not in made), key=_by_cost)
        return sorted(cures, key=_order)

    def several_endings(self) -> list[Cure]:
        """A minimal set of pods of one node that must end, for each class of nodes."""
        namespace = identity(self.situation.pod)[0]
        return self._several(
            lambda own: [pod for entry in own if entry.kind in _ENDINGS for pod in entry.ended],
            lambda pods, node: relaxations.ending(self.oracle, namespace, frozenset(pods), node),
        )

    def several_taints(self) -> list[Cure]:
        """A minimal set of devices of one node that must lose their taints, for each class of nodes."""
        return self._several(
            lambda own: [device for entry in own for device in entry.tainted],
            lambda devices, node: taints_removed(self.oracle, node, devices),
        )

    def _several(
        self, parts: Callable[[list[Relaxation]], list[T]], made: Callable[[list[T], str], Relaxation]
    ) -> list[Cure]:
        cures = []
        for node, own in self._of_node.items():
            kept = list(dict.fromkeys(parts(own)))
            cure = self.confirm((made(kept, node),), [node]) if len(kept) > 1 else None
            if cure is None:
                continue
            costly_first = sorted(kept, key=lambda part: made([part], node).cost, reverse=True)
            for part in costly_first:
                fewer = [other for other in kept if other != part]
                if found := self.confirm((made(fewer, node),), [node]):
                    kept, cure = fewer, found
            cures.append(cure)
        return sorted(cures, key=_order)

    def pairs(self, budget: float = PAIRS_BUDGET) -> list[Cure]:
        """Sufficient pairs of insufficient relaxations; stops after the first class that has some."""
        end = self._clock() + budget
        cures: list[Cure] = []
        alone = {id(entry) for entry in self.rejected}
        of_pod = [entry for entry in self._of_pod if id(entry) in alone]
        for node in sorted(self._first, key=self.nearness):
            candidates = [*of_pod, *(entry for entry in self._of_node[node] if id(entry) in alone)]
            candidates = sorted(candidates, key=_by_cost)[:_PAIR_CANDIDATES]
            both = sorted(combinations(candidates, 2), key=lambda pair: pair[0].cost + pair[1].cost)
            for pair in both:
                if self._clock() > end:
                    self.is_complete = False
                    return sorted(cures, key=_order)
                if _compatible(pair) and (cure := self.confirm(pair, [node])):
                    cures.append(cure)
                    if len(cures) == 3:
                        return sorted(cures, key=_order)
        return sorted(cures, key=_order)

    def confirm(self, chosen: Sequence[Relaxation], nodes: Sequence[str]) -> Cure | None:
        """The cure if the pod would run on any of the nodes."""
        situation = relaxed(self.situation, chosen)
        found = list(self.oracle.verdicts(situation, nodes))
        fitting = [verdict.node for verdict in found if verdict.fits]
        if not fitting or any(verdict.stops for verdict in found):
            return None
        others = self._first if any(entry.nodes is None for entry in chosen) else self.stopping
        left = [node for node in others if node not in nodes]
        if any(verdict.stops for verdict in self.oracle.verdicts(situation, left)):
            return None
        like = sum(len(self._first.get(node, (node,))) for node in fitting)
        return Cure(tuple(chosen), tuple(fitting), like)

    def nearness(self, node: str) -> tuple[bool, bool, int, int]:
        """Smaller for nodes that are nearer to running the pod; of equally near ones, for the larger class."""
        verdict = self.base[node]
        has_none = verdict.failure is not None and not verdict.failure.has_devices
        return (
            has_none,
            bool(verdict.filter) and verdict.failure is not None,
            -len(self._first[node]),
            missing(verdict.failure),
        )


def _change(relaxation: Relaxation) -> object:
    """Equal for relaxations that make the same change but name different nodes."""
    slices = tuple(identity(entry)[1] for entry in relaxation.slices)
    if not (relaxation.ended or relaxation.freed or slices):
        return id(relaxation)
    return relaxation.kind, relaxation.ended, relaxation.freed, slices, relaxation.subject if slices else ""


def _by_cost(relaxation: Relaxation) -> tuple[float, str, str]:
    return relaxation.cost, relaxation.kind, relaxation.text


def _order(cure: Cure) -> tuple[float, int, str]:
    return cure.cost, -cure.like, cure.relaxations[0].text


def _compatible(pair: tuple[Relaxation, Relaxation]) -> bool:
    """Whether two relaxations can form a pair: not if they change the same field."""
    one, other = pair
    paths = {(edit.claim, edit.path) for edit in one.edits if edit.path[-1] != -1}
    return not paths & {(edit.claim, edit.path) for edit in other.edits}
