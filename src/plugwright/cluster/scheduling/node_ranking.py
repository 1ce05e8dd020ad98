"""The nodes for pods of one shape, best first: the same result as `fit.select_node`, which tests every node.

Pods often come in large equal groups, as those of a Deployment, and binding a pod changes one node. So the nodes are
tested once for a shape, and later only changed nodes.
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
        self._ranks: list[_Rank] = []  # a heap, including outdated ranks
        self._current: dict[str, int] = {}  # number of each node's current rank
        self._number = 0
        self._preferred: set[str] = set()  # nodes whose score depends on the others

    def is_for(self, request: PodRequest) -> bool:
        own = self.request
        return (own.requests, own.scored, own.affinity, own.tolerations, own.ports, own.by_claims) == (
            *(request.requests, request.scored, request.affinity),
            *(request.tolerations, request.ports, request.by_claims),
        )

    def best(self, nodes: Mapping[str, NodeInfo], accepts: Callable[[NodeInfo], bool]) -> NodeInfo | None:
        """The first accepted node in order.

        Also None if scores depend on each other: then every node must be tested.
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
    """The rankings of the latest shapes; call `node_changed` for every change of a node."""

    def __init__(self) -> None:
        self._rankings: list[NodeRanking] = []

    def best(
        self,
        request: PodRequest,
        nodes: Mapping[str, NodeInfo],
        accepts: Callable[[NodeInfo], bool] = lambda _node: True,
    ) -> NodeInfo | None:
        """The best accepted node, as `fit.select_node` would choose; None if that must determine why there is none."""
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
