"""One emulated node: a kubelet, its Node object, its lease, and the pods bound to it.

The node registers when it starts; its status is written after changes, or every five minutes, and its lease is renewed
with every heartbeat. When stopped, it stops reporting like a node whose kubelet was killed, which `node_lifecycle`
notices. `node_status` composes the status, `node_pods` runs pods.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from pathlib import Path

from plugwright.apiserver import clock
from plugwright.apiserver.kinds import LEASES, NODES
from plugwright.apiserver.log_options import LogOptions
from plugwright.apiserver.one_node import NodeResources
from plugwright.apiserver.registry import ResourcePath
from plugwright.apiserver.remote_commands import CommandOptions, CommandStreams
from plugwright.apiserver.store import Object
from plugwright.cluster import container_logs
from plugwright.cluster.cdi_devices import with_node_cdi_devices
from plugwright.cluster.container_logs import ContainerLogs, LogName
from plugwright.cluster.events import EventRecord, EventRecorder, EventSource, NodeClient
from plugwright.cluster.nodes import node_status
from plugwright.cluster.nodes.container_commands import attach_to, run_command
from plugwright.cluster.nodes.node_context import NodeContext, NodeSources, RuntimeSettings
from plugwright.cluster.nodes.node_pods import NodePods
from plugwright.cluster.nodes.node_status import NodeIdentity, PluginResources
from plugwright.errors import ClusterError, KubeletError, PeerGone, StatusError
from plugwright.kubelet import Kubelet, KubeletSettings, pods
from plugwright.kubelet.events import StateChange
from plugwright.kubelet.topology_manager import TopologyPolicy

__all__ = ["EmulatedNode", "NodeSettings"]

logger = logging.getLogger(__name__)

_MANAGER = "kubelet"
_LEASES_NAMESPACE = "kube-node-lease"
_A_DAY = 86400.0  # seconds
_DEVICE_COUNT_EVENTS = ("list", "stopped", "removed")  # of the kubelet, after which the node's capacity can differ


@dataclass(frozen=True, slots=True)
class NodeSettings:
    """Seconds: `heartbeat` between status rounds, `report` between writes of an unchanged status."""

    kubelet: KubeletSettings = field(default_factory=KubeletSettings)
    runtime: RuntimeSettings = field(default_factory=RuntimeSettings)
    heartbeat: float = 10.0
    report: float = 300.0
    lease: int = 40


class EmulatedNode:
    """`async with` runs the node; inside, it can be stopped and restarted."""

    def __init__(
        self,
        client: NodeClient,
        identity: NodeIdentity,
        root: Path,
        settings: NodeSettings,
        sources: NodeSources | None = None,
    ) -> None:
        """Without `sources`, claims, ConfigMaps and Secrets are those of the client's store."""
        self.identity = identity
        self.settings = settings
        self._client = client
        running = [pods.read(pod) for pod in self._bound_pods() if _is_running(pod)]
        self._config = sources.config if sources else None
        resource_api = sources.resource_api if sources else NodeResources(client.store, client.writer, identity.name)
        self.kubelet = Kubelet(root, settings.kubelet, running, resource_api)
        self.logs = ContainerLogs(root / "logs")
        self._recorder = EventRecorder(client, EventSource(_MANAGER, identity.name))
        self._task: asyncio.Task[None] | None = None
        self._served: set[str] = set()
        self._cordoned = False
        self._reported_at = float("-inf")
        self._unchanged: tuple[str | None, PluginResources | None] = None, None  # the inputs of a round without changes
        self._pods: NodePods | None = None

    @property
    def name(self) -> str:
        return self.identity.name

    @property
    def is_running(self) -> bool:
        return self._task is not None

    async def __aenter__(self) -> "EmulatedNode":
        await self.kubelet.__aenter__()
        self._begin()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._stop_reporting()
        await self.kubelet.__aexit__(None, None, None)

    async def stop(self) -> None:
        """Ends the kubelet as if killed: containers keep running, and the node stops reporting."""
        if self.is_running:
            await self._stop_reporting()
            await self.kubelet.stop()

    async def start(self) -> None:
        if not self.is_running:
            await self.kubelet.start()
            self._begin()

    def _write_config(self) -> None:
        """Writes the part of the kubelet's configuration reported by daemons, at the path of a real kubelet's file."""
        settings = self.settings.kubelet
        if settings.policy is not TopologyPolicy.NONE:
            text = f"topologyManagerPolicy: {settings.policy}\ntopologyManagerScope: {settings.scope}\n"
            (self.kubelet.paths.root / "config.yaml").write_text(text)

    def pod_changed(self, pod: Object) -> None:
        """A pod of this node was added or changed."""
        if self._pods is not None:
            self._pods.changed(pod)

    def pod_deleted(self, uid: str) -> None:
        if self._pods is not None:
            self._pods.deleted(uid)

    def resync_pods(self) -> None:
        """Reads all pods of this node again, after changes were missed."""
        if self._pods is not None:
            self._pods.resync(self._bound_pods())

    async def execute(self, stored: Object, options: CommandOptions, streams: CommandStreams) -> int:
        """Runs a command in a running container; returns its exit code. Raises `StatusError`."""
        if self._pods is None:
            raise StatusError(400, "BadRequest", f"the kubelet of {self.name} is stopped")
        launch = await self._pods.command_launch(stored["metadata"]["uid"], options.container)
        return await run_command(launch, str(stored["metadata"]["name"]), options, streams)

    async def attach(self, stored: Object, options: CommandOptions, streams: CommandStreams) -> None:
        """Connects a client to a running container, from now until it ends."""
        output = self.read_log(stored, options.container, LogOptions(follow=True, tail=0))
        given = self._pods.container_input(stored["metadata"]["uid"], options.container) if self._pods else None
        await attach_to(output, given if options.stdin else None, streams)

    async def connect(self, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Connects to a port of the pods, which have the network of this machine."""
        if self._pods is None:
            raise StatusError(400, "BadRequest", f"the kubelet of {self.name} is stopped")
        return await asyncio.open_connection("localhost", port)

    def log(self, stored: Object, container: str) -> str:
        """The output of a container's process; for an unstarted container, its options."""
        attempt = container_logs.attempt_to_read(stored, container, previous=False)
        uid = stored["metadata"]["uid"]
        if self.settings.runtime.processes:
            return self.logs.text(LogName(uid, container, attempt))
        pod = next((pod for pod in self.kubelet.pods if pod.uid == uid), None)
        if pod is None or not pod.state(container).starts:
            return ""
        granted = with_node_cdi_devices(self.kubelet.granted(pod, container), self.kubelet.paths.root)
        return container_logs.options_text(granted)

    def read_log(self, stored: Object, container: str, options: LogOptions) -> AsyncIterator[bytes]:
        """Like `log`, in pieces; if followed, until the container ends."""
        attempt = container_logs.attempt_to_read(stored, container, previous=options.previous)
        uid = stored["metadata"]["uid"]
        if self.settings.runtime.processes:
            return self.logs.read(LogName(uid, container, attempt), options)
        began = clock.parse((stored.get("status") or {}).get("startTime") or self._client.stamp())

        async def ended() -> None:
            with suppress(PeerGone):
                await self.kubelet.until(lambda: uid not in {pod.uid for pod in self.kubelet.pods}, _A_DAY, "it runs")

        return container_logs.lines_of_text(self.log(stored, container), began, options, ended)

    def _begin(self) -> None:
        self._write_config()
        self._register()
        self._task = asyncio.create_task(self._run(), name=f"node {self.name}")
        self._task.add_done_callback(self._log_failure)

    def _log_failure(self, task: asyncio.Task[None]) -> None:
        """Logs a failure immediately, because the task is awaited only at the end of the cluster."""
        if not task.cancelled() and (error := task.exception()):
            logger.error("node failed", extra={"node": self.name}, exc_info=error)

    async def _stop_reporting(self) -> None:
        task, self._task, self._pods = self._task, None, None
        if task is not None:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

    async def _run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._follow_kubelet())
            tasks.create_task(self._send_heartbeats())
            parts = self._client, self.identity, self.logs, self._recorder, self.kubelet
            context = NodeContext(*parts, self.settings.runtime, self._config)
            self._pods = NodePods(context, tasks)
            self._pods.resume(self._bound_pods())
            self._pods.resync(self._bound_pods())

    async def _follow_kubelet(self) -> None:
        async with aclosing(self.kubelet.events(new=True)) as events:
            async for event in events:
                if not isinstance(event, StateChange):
                    continue
                if event.kind in _DEVICE_COUNT_EVENTS:
                    self._update_status()
                elif event.kind == "health" and self._pods is not None:
                    self._pods.refresh(event.about)

    async def _send_heartbeats(self) -> None:
        # Spread over the interval, so requests do not wait for simultaneous status rounds of all nodes.
        rounds = clock.Rounds(self.settings.heartbeat, self.settings.heartbeat * (self.identity.index % 64) / 64)
        while True:
            await rounds.next()
            self._renew_lease()
            self._update_status()

    def _register(self) -> None:
        path = self._path
        if self._client.store.get(path.key) is None:
            node = node_status.new_node(self.identity, self._plugin_resources(), self._client.stamp())
            self._client.writer.create(path, node, _MANAGER)
        self._renew_lease()
        self._reported_at = float("-inf")
        self._update_status()
        self._record("Starting", "Starting kubelet.")
        for reason in ("NodeHasSufficientMemory", "NodeHasNoDiskPressure", "NodeHasSufficientPID"):
            self._record(reason)
        self._record("NodeAllocatableEnforced", "Updated Node Allocatable limit across pods")
        self._record("NodeReady")

    def _record(self, reason: str, message: str = "") -> None:
        """Records an event about this node; without its uid, which real kubelets do not know either."""
        node = {"apiVersion": "v1", "kind": NODES.name, "metadata": {"name": self.name}}
        self._recorder.record(node, EventRecord(reason, message or f"Node {self.name} status is now: {reason}"))

    def _update_status(self) -> None:
        """One status round; does nothing while the Node object does not exist."""
        version = self._client.store.version(self._path.key)
        if version is None:
            return
        resources, now = self._plugin_resources(), asyncio.get_running_loop().time()
        is_due = now - self._reported_at >= self.settings.report
        if (version, resources) == self._unchanged and not is_due:
            return  # as in the last round, which had nothing to write
        node = self._client.store.require(self._path.key)
        self._record_cordon(bool(node["spec"].get("unschedulable")))
        before = node.get("status") or {}
        status = node_status.updated_status(before, self.identity, resources, self._client.stamp())
        self._served = set(resources.served)
        if node_status.differs_only_in_heartbeats(before, status) and not is_due:
            self._unchanged = version, resources
            return
        self._reported_at = now
        path = ResourcePath(NODES, "", self.name, "status")
        with suppress(ClusterError, StatusError):
            self._client.writer.change(path, lambda stored: {**stored, "status": status}, _MANAGER)

    def _record_cordon(self, cordoned: bool) -> None:
        if cordoned != self._cordoned:
            self._cordoned = cordoned
            self._record("NodeNotSchedulable" if cordoned else "NodeSchedulable")

    def _plugin_resources(self) -> PluginResources:
        try:
            counts = self.kubelet.node()
        except KubeletError:  # it is being stopped
            return PluginResources({})
        served = {resource: count for resource, count in counts.items() if self._is_served(resource)}
        return PluginResources(served, self._served - served.keys())

    def _is_served(self, resource: str) -> bool:
        """Whether there is an endpoint, which exists for five more minutes after the end of its plugin."""
        try:
            self.kubelet.endpoint(resource)
        except PeerGone:
            return False
        return True

    def _renew_lease(self) -> None:
        now = clock.micro_time(self._client.now())
        path = ResourcePath(LEASES, _LEASES_NAMESPACE, self.name)
        spec = {"holderIdentity": self.name, "leaseDurationSeconds": self.settings.lease, "renewTime": now}
        with suppress(ClusterError, StatusError):
            if self._client.store.get(path.key) is None:
                uid = self._client.store.require(self._path.key)["metadata"]["uid"]
                owner = {"apiVersion": "v1", "kind": NODES.name, "name": self.name, "uid": uid}
                metadata = {"name": self.name, "ownerReferences": [owner]}
                self._client.writer.create(path, {"metadata": metadata, "spec": spec}, _MANAGER)
            else:
                self._client.writer.change(path, lambda lease: {**lease, "spec": spec}, _MANAGER)

    def _bound_pods(self) -> Sequence[Object]:
        return self._client.store.bound_pods(self.name)

    @property
    def _path(self) -> ResourcePath:
        return ResourcePath(NODES, "", self.name)


def _is_running(pod: Object) -> bool:
    return (pod.get("status") or {}).get("phase") == "Running"
