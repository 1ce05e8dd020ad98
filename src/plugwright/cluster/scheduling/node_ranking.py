"""The nodes that take pods of one shape, best first: what `fit.select_node` finds by asking every node.

Pods mostly come in numbers that are alike, as those of a Deployment, and one that is bound changes one node. So the
nodes are asked once for a shape, and again only those that have changed since.
"""

import heapq
from collections.abc import Callable, Mapping

from plugwright.cluster.scheduling import fit
from plugwright.cluster.scheduling.fit import NodeInfo, PodRequest

__all__ = ["NodeRanking", "NodeRankings"]

_KEPT = 8  # shapes of pods
_Rank = tuple[float, tuple[tuple[int, int, str], ...], int, str]  # negative score, order of names, number, name


class NodeRanking:
    """The ranking for pods with the requirements of `request`."""

    def __init__(self, request: PodRequest, nodes: Mapping[str, NodeInfo]) -> None:
        self.request = request
        self.changed = set(nodes)
        self._ranks: list[_Rank] = []  # a heap, with outdated ones too
        self._current: dict[str, int] = {}  # the number of each node's rank that is not outdated
        self._number = 0
        self._preferred: set[str] = set()  # nodes whose score depends on the others

    def is_for(self, request: PodRequest) -> bool:
        own = self.request
        return (own.requests, own.scored, own.affinity, own.tolerations, own.ports, own.by_claims) == (
            *(request.requests, request.scored, request.affinity),
            *(request.tolerations, request.ports, request.by_claims),
        )

    def best(self, nodes: Mapping[str, NodeInfo], accepts: Callable[[NodeInfo], bool]) -> NodeInfo | None:
        """The first node in order that is accepted.

        None too if scores depend on each other: every node has to be asked then.
        """
        while self.changed:
            self._rank(self.changed.pop(), nodes)
        asked: list[_Rank] = []
        try:
            while self._ranks and not self._preferred:
                rank = heapq.heappop(self._ranks)
                _, _, number, name = rank
                if self._current.get(name) == number:
                    asked.append(rank)
                    if accepts(nodes[name]):
                        return nodes[name]
        finally:
            for rank in asked:
                heapq.heappush(self._ranks, rank)
        return None

    def _rank(self, name: str, nodes: Mapping[str, NodeInfo]) -> None:
        self._preferred.discard(name)
        self._current.pop(name, None)
        node = nodes.get(name)
        if node is None or fit.filter_failure(self.request, node) is not None:
            return
        if fit.has_preferences(self.request, node):
            self._preferred.add(name)
        self._number += 1
        self._current[name] = self._number
        heapq.heappush(self._ranks, (-fit.free_share(self.request, node), node.order, self._number, name))


class NodeRankings:
    """The rankings of the shapes that came last; `node_changed` has to be called for every change of a node."""

    def __init__(self) -> None:
        self._rankings: list[NodeRanking] = []

    def best(
        self,
        request: PodRequest,
        nodes: Mapping[str, NodeInfo],
        accepts: Callable[[NodeInfo], bool] = lambda _node: True,
    ) -> NodeInfo | None:
        """The best node that is accepted, as `fit.select_node` would choose; None if that has to say why none is."""
        ranking = next((ranking for ranking in self._rankings if ranking.is_for(request)), None)
        if ranking is None:
            ranking = NodeRanking(request, nodes)
        else:
            self._rankings.remove(ranking)
        self._rankings = [ranking, *self._rankings[: _KEPT - 1]]
        return ranking.best(nodes, accepts)

    def node_changed(self, name: str) -> None:
        for ranking in self._rankings:
            ranking.changed.add(name)

    def clear(self) -> None:
        self._rankings.clear()
