"""One emulated node: a kubelet, its Node object, its lease, and the pods that are bound to it.

The node is registered when it starts; its status is written when something of it changed, or every five minutes, and
its lease is renewed with every heartbeat. Stopped, it falls silent as a node does whose kubelet was killed: who
notices that is `monitor`.
"""

import asyncio
import logging
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from pathlib import Path

from plugwright.cluster import clock, container_logs, node_status
from plugwright.cluster.api.errors import StatusError
from plugwright.cluster.api.kinds import LEASES, NODES, PODS
from plugwright.cluster.api.registry import ResourcePath
from plugwright.cluster.container_logs import ContainerLogs
from plugwright.cluster.events import Access, Happening, Recorder, Teller
from plugwright.cluster.node_pods import NodePods, Quarters, Runtime
from plugwright.cluster.node_status import Identity, Supply
from plugwright.cluster.store import Object
from plugwright.errors import ClusterError, KubeletError, PeerGone
from plugwright.kubelet import Kubelet, KubeletSettings, pods
from plugwright.kubelet.events import StateChange

__all__ = ["EmulatedNode", "NodeSettings"]

logger = logging.getLogger(__name__)

_MANAGER = "kubelet"
_LEASES_NAMESPACE = "kube-node-lease"
_COUNTS = ("list", "stopped", "removed")  # what the kubelet tells when the node's counts may be others


@dataclass(frozen=True, slots=True)
class NodeSettings:
    """`heartbeat` and `report` are seconds: between rounds, and between reports where nothing has changed."""

    kubelet: KubeletSettings = field(default_factory=KubeletSettings)
    runtime: Runtime = field(default_factory=Runtime)
    heartbeat: float = 10.0
    report: float = 300.0
    lease: int = 40


class EmulatedNode:
    """`async with` is the whole life of the node; in it, it may be stopped and started again."""

    def __init__(self, access: Access, identity: Identity, root: Path, settings: NodeSettings) -> None:
        self.identity = identity
        self.settings = settings
        self._access = access
        running = [pods.read(each) for each in self._bound() if _runs(each)]
        self.kubelet = Kubelet(root, settings.kubelet, running)
        self.logs = ContainerLogs(root / "logs")
        self._recorder = Recorder(access.writer, Teller(_MANAGER, identity.name), access.now)
        self._life: asyncio.Task[None] | None = None
        self._served: set[str] = set()
        self._cordoned = False
        self._reported = float("-inf")
        self._pods: NodePods | None = None

    @property
    def name(self) -> str:
        return self.identity.name

    @property
    def is_running(self) -> bool:
        return self._life is not None

    async def __aenter__(self) -> "EmulatedNode":
        await self.kubelet.__aenter__()
        self._begin()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._silence()
        await self.kubelet.__aexit__(None, None, None)

    async def stop(self) -> None:
        """The kubelet ends as if killed: containers run on, and the node is heard of no more."""
        if self.is_running:
            await self._silence()
            await self.kubelet.stop()

    async def start(self) -> None:
        if not self.is_running:
            await self.kubelet.start()
            self._begin()

    def see(self, stored: Object) -> None:
        """A pod of this node was added or changed."""
        if self._pods is not None:
            self._pods.see(stored)

    def gone(self, uid: str) -> None:
        """A pod of this node was deleted."""
        if self._pods is not None:
            self._pods.gone(uid)

    def sync(self) -> None:
        """All pods of this node anew, after a time without news."""
        if self._pods is not None:
            self._pods.sync(self._bound())

    def log(self, stored: Object, container: str) -> str:
        """What a process has written; of a container that only shows what it got, that."""
        uid = stored["metadata"]["uid"]
        if self.settings.runtime.processes:
            return self.logs.read(uid, container)
        pod = next((each for each in self.kubelet.pods if each.uid == uid), None)
        if pod is None or not pod.state(container).starts:
            return ""
        return container_logs.granted_text(self.kubelet.granted(pod, container))

    def _begin(self) -> None:
        self._register()
        self._life = asyncio.create_task(self._live(), name=f"node {self.name}")
        self._life.add_done_callback(self._ended)

    def _ended(self, life: asyncio.Task[None]) -> None:
        """Nobody waits for a node until the cluster ends: what went wrong with it is said at once."""
        if not life.cancelled() and (error := life.exception()):
            logger.error("a node has ended by itself", extra={"node": self.name}, exc_info=error)

    async def _silence(self) -> None:
        life, self._life, self._pods = self._life, None, None
        if life is not None:
            life.cancel()
            with suppress(asyncio.CancelledError):
                await life

    async def _live(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._follow())
            tasks.create_task(self._beat())
            runtime = self.settings.runtime
            quarters = Quarters(self._access, self.identity, self.logs, self._recorder, self.kubelet, runtime)
            self._pods = NodePods(quarters, tasks)
            self._pods.resume(self._bound())
            self._pods.sync(self._bound())

    async def _follow(self) -> None:
        async with aclosing(self.kubelet.events(new=True)) as events:
            async for event in events:
                if not isinstance(event, StateChange):
                    continue
                if event.kind in _COUNTS:
                    self._round()
                elif event.kind == "health" and self._pods is not None:
                    self._pods.refresh(event.about)

    async def _beat(self) -> None:
        # Not all nodes at once: whoever waits for the store then waits for all of them.
        await asyncio.sleep(self.settings.heartbeat * (self.identity.index % 64) / 64)
        while True:
            self._renew()
            self._round()
            await asyncio.sleep(self.settings.heartbeat)

    def _register(self) -> None:
        now = self._access.stamp()
        if self._access.store.get(self._place.key) is None:
            self._access.writer.create(self._place, node_status.created(self.identity, self._supply(), now), _MANAGER)
        self._renew()
        self._reported = float("-inf")
        self._round()
        self._tell()

    def _tell(self) -> None:
        self._tell_of_node("Starting", "Starting kubelet.")
        for word in ("NodeHasSufficientMemory", "NodeHasNoDiskPressure", "NodeHasSufficientPID"):
            self._tell_of_node(word)
        self._tell_of_node("NodeAllocatableEnforced", "Updated Node Allocatable limit across pods")
        self._tell_of_node("NodeReady")

    def _tell_of_node(self, reason: str, message: str = "") -> None:
        """Without the node's uid, which real kubelets do not know either."""
        about = {"kind": NODES.name, "metadata": {"name": self.name}}
        self._recorder.tell(about, Happening(reason, message or f"Node {self.name} status is now: {reason}"))

    def _round(self) -> None:
        """One status round; the node is left alone if nobody registered it, or somebody removed it."""
        node = self._access.store.get(self._place.key)
        if node is None:
            return
        self._note_cordon(bool(node["spec"].get("unschedulable")))
        supply = self._supply()
        status = node_status.round_of(node.get("status") or {}, self.identity, supply, self._access.stamp())
        self._served = set(supply.served)
        now = asyncio.get_running_loop().time()
        if node_status.is_same(node.get("status") or {}, status) and now - self._reported < self.settings.report:
            return
        self._reported = now
        place = ResourcePath(NODES, "", self.name, "status")
        with suppress(ClusterError, StatusError):
            self._access.writer.change(place, lambda stored: {**stored, "status": status}, _MANAGER)

    def _note_cordon(self, cordoned: bool) -> None:
        if cordoned != self._cordoned:
            self._cordoned = cordoned
            self._tell_of_node("NodeNotSchedulable" if cordoned else "NodeSchedulable")

    def _supply(self) -> Supply:
        try:
            counts = self.kubelet.node()
        except KubeletError:  # it is being stopped
            return Supply({})
        served = {resource: count for resource, count in counts.items() if self._is_served(resource)}
        return Supply(served, self._served - served.keys())

    def _is_served(self, resource: str) -> bool:
        """Also by a plugin that went less than five minutes ago."""
        try:
            self.kubelet.endpoint(resource)
        except PeerGone:
            return False
        return True

    def _renew(self) -> None:
        now = clock.micro_time(self._access.now())
        place = ResourcePath(LEASES, _LEASES_NAMESPACE, self.name)
        spec = {"holderIdentity": self.name, "leaseDurationSeconds": self.settings.lease, "renewTime": now}
        with suppress(ClusterError, StatusError):
            if self._access.store.get(place.key) is None:
                uid = self._access.store.require(self._place.key)["metadata"]["uid"]
                owner = {"apiVersion": "v1", "kind": NODES.name, "name": self.name, "uid": uid}
                metadata = {"name": self.name, "ownerReferences": [owner]}
                self._access.writer.create(place, {"metadata": metadata, "spec": spec}, _MANAGER)
            else:
                self._access.writer.change(place, lambda lease: {**lease, "spec": spec}, _MANAGER)

    def _bound(self) -> list[Object]:
        return [
            each for each in self._access.store.objects(PODS.qualified) if each["spec"].get("nodeName") == self.name
        ]

    @property
    def _place(self) -> ResourcePath:
        return ResourcePath(NODES, "", self.name)


def _runs(pod: Object) -> bool:
    return (pod.get("status") or {}).get("phase") == "Running"
