"""A node's kubelet for tests: capacity and allocatable as the device manager's specification says."""

from collections.abc import Mapping

from tests.extended_resources.imitation import Cluster, Json

__all__ = ["Kubelet"]

READY = 'k:{"type":"Ready"}'


class Kubelet:
    """The kubelet of one node, which updates the status every ten seconds."""

    ROUND, GRACE = 10.0, 300.0

    def __init__(self, cluster: Cluster, node: str, manager: str = "kubelet") -> None:
        self.cluster, self.node, self.manager = cluster, node, manager
        self._plugins: dict[str, tuple[int, int]] = {}
        self._stopped: dict[str, float] = {}
        self._last = cluster.time.now
        cluster.time.every_second.append(self._tick)

    def serve(self, resource: str, healthy: int, unhealthy: int = 0) -> None:
        self._plugins[resource] = (healthy + unhealthy, healthy)
        self._stopped.pop(resource, None)
        self.round()

    def stop(self, resource: str) -> None:
        """The plugin stops without deregistering its devices."""
        capacity, _ = self._plugins[resource]
        self._plugins[resource] = (capacity, 0)
        self._stopped[resource] = self.cluster.time.now
        self.round()

    def round(self) -> None:
        self._last = self.cluster.time.now
        status = self.cluster.nodes[self.node]["status"]
        capacity = {name: int(number) for name, number in status["capacity"].items() if "/" in name}
        dropped = [name for name, since in self._stopped.items() if self._last - since > self.GRACE]
        for name in dropped:
            del self._plugins[name], self._stopped[name]
        capacity |= dict.fromkeys(dropped, 0) | {name: counts[0] for name, counts in self._plugins.items()}
        allocatable = capacity | {name: counts[1] for name, counts in self._plugins.items()}
        self._write(status, capacity, allocatable)

    def _write(self, status: Json, capacity: Mapping[str, int], allocatable: Mapping[str, int]) -> None:
        gone = {name: None for name in status["allocatable"] if "/" in name and name not in capacity}
        changed = [
            {name: number for name, number in counts.items() if status[part].get(name) != str(number)}
            for part, counts in (("capacity", capacity), ("allocatable", allocatable))
        ]
        if changed[0] or changed[1] or gone:
            self.cluster.set(self.node, self.manager, changed[0], {**changed[1], **gone})
            self._heartbeat()

    def _heartbeat(self) -> None:
        for entry in self.cluster.nodes[self.node]["metadata"]["managedFields"]:
            if entry["manager"] == self.manager:
                entry["fieldsV1"]["f:status"]["f:conditions"] = {READY: {"f:lastHeartbeatTime": {}}}

    def _tick(self) -> None:
        if self.cluster.time.now - self._last >= self.ROUND and self.node in self.cluster.nodes:
            self.round()
