"""The embedded cluster: connects store, API server, scheduler, controllers and nodes in one event loop.

    async with EmbeddedCluster(ClusterOptions(nodes=3)) as cluster:
        serve(cluster.application)          # any ASGI server; clients send `Bearer cluster.token`
        await cluster.stop_node("node-2")   # NotReady after `silence` seconds
        await cluster.start_node("node-2")

The caller provides the listener and certificates and writes the kubeconfig: for `plugwright up`, `cluster.up` does.
"""

import asyncio
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from plugwright.apiserver import KUBERNETES_VERSION, app, clock
from plugwright.apiserver.clock import Clock
from plugwright.apiserver.database import Database
from plugwright.apiserver.errors import bad_request
from plugwright.apiserver.kinds import (
    DEVICE_CLASSES,
    EVENTS,
    NAMESPACES,
    NODES,
    PODS,
    PRIORITY_CLASSES,
    SYSTEM_PRIORITY_CLASSES,
)
from plugwright.apiserver.log_options import LogOptions
from plugwright.apiserver.registry import ResourcePath, Writer
from plugwright.apiserver.remote_commands import NO_COMMANDS
from plugwright.apiserver.store import Change, Object, ObjectKey, Store
from plugwright.cluster.controllers.controller_manager import ControllerManager
from plugwright.cluster.controllers.event_expiry import EventExpiry
from plugwright.cluster.controllers.node_lifecycle import NodeLifecycleController, NodeLifecycleSettings
from plugwright.cluster.controllers.waiting_pods import PodExplainer, WaitingPods
from plugwright.cluster.events import ClusterClient
from plugwright.cluster.nodes.api_access import ServiceAccountFiles
from plugwright.cluster.nodes.node import EmulatedNode, NodeSettings
from plugwright.cluster.nodes.node_pods import RuntimeSettings
from plugwright.cluster.nodes.node_status import HostInfo, NodeIdentity, NodeShape
from plugwright.cluster.nodes.running_nodes import RunningNodes, StartProgress, node_directories, on_node
from plugwright.cluster.pod_commands import PodCommands
from plugwright.cluster.scheduling.scheduler import Scheduler
from plugwright.errors import ConfigError, Expired, StatusError
from plugwright.kubelet import KubeletSettings
from plugwright.plugins.mock import Mock, MockOptions
from plugwright.sdk.daemon import Daemon
from plugwright.sdk.plugin import Plugin
from plugwright.sdk.resource_runtime import DriverFactory, ResourceRuntime
from plugwright.sdk.serve_settings import ResourceDriver
from plugwright.system.concurrency import single_error

__all__ = ["ClusterOptions", "EmbeddedCluster", "mock_gpus"]

_NAMESPACES = ("default", "kube-node-lease", "kube-public", "kube-system")


def mock_gpus(node: str) -> list[Plugin]:
    """The default plugins of a node: ten mock GPUs, with ids different from other nodes'."""
    options = MockOptions(count=10, model="Mock-A100", memory=40 * 2**30, numa=2, seed=node)
    return [Mock("mock/gpu", options)]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterOptions:
    """The options of an embedded cluster; defaults are those of a real cluster if it has the option.

    `plugins` makes the plugins of a node by its name, which are served in this process; it can return none, and plugins
    of other programs can register in the node's directory (`EmbeddedCluster.directory`). `drivers` serves those with
    claims; their CDI specs are in the same directory. With `state`, objects and checkpoints are kept there for the next
    start; otherwise they are removed with the cluster.
    """

    nodes: int = 1
    plugins: Callable[[str], Iterable[Plugin]] = mock_gpus
    state: Path | None = None
    shape: NodeShape = field(default_factory=NodeShape)
    kubelet: KubeletSettings = field(default_factory=lambda: KubeletSettings(numa=2))
    processes: bool = False  # containers run as processes of this machine; otherwise they log their options
    heartbeat: float = 10.0  # seconds between a node's status rounds, and until capacity set by hand is allocatable
    silence: float = 50.0  # seconds until a node without reports is NotReady
    retry: float = 10.0  # seconds until a container that could not start is retried
    back_off: float = 10.0  # seconds until a container that ended twice is restarted; doubles up to 30 times it
    release: str = KUBERNETES_VERSION
    token: str = field(default="", repr=False)  # random if empty
    drivers: DriverFactory | None = None  # for plugins served by claims
    entrypoints: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # of images, in addition to plugwright's
    api: ServiceAccountFiles | None = None  # access of container processes to the API server
    now: Clock = clock.now
    explain: PodExplainer | None = None  # its answer is an event of each waiting pod
    progress: StartProgress | None = None  # of the nodes' start

    def __post_init__(self) -> None:
        if self.nodes < 1:
            raise ConfigError(f"a cluster needs at least one node, got {self.nodes}")


class EmbeddedCluster:
    """`async with EmbeddedCluster(options) as cluster:`; inside, every node is registered and Ready.

    `store` contains the objects and `writer` changes them; `application` is for an ASGI server; `nodes` are by name,
    `node-1` to `node-N`. Their plugins register a moment later: `until` waits for that.
    """

    def __init__(self, options: ClusterOptions | None = None) -> None:
        self.options = options or ClusterOptions()
        self.token = self.options.token or secrets.token_urlsafe(32)
        self.nodes: dict[str, EmulatedNode] = {}
        self._running = RunningNodes(self._driver if self.options.drivers else None, self.options.progress)
        self._stack = AsyncExitStack()
        self._revision = 0

    async def __aenter__(self) -> "EmbeddedCluster":
        try:
            async with AsyncExitStack() as stack:
                root = self._open_state(stack)
                client = ClusterClient(self.store, self.writer, self.options.now)
                self._create_initial_objects()
                await self._start_nodes(client, root, stack)
                self._revision = self.store.revision
                tasks = await stack.enter_async_context(asyncio.TaskGroup())
                self._node_lifecycle = NodeLifecycleController(client, NodeLifecycleSettings(self.options.silence))
                self._event_expiry = EventExpiry(self.store, self.options.now)
                scheduler = Scheduler(client, release=self.options.release)
                controllers = scheduler, ControllerManager(client), self._node_lifecycle, self._event_expiry
                works = [controller.run() for controller in controllers]
                if self.options.explain is not None:
                    works.append(WaitingPods(client, self.options.explain).run())
                for work in (*works, self._dispatch()):
                    stack.callback(tasks.create_task(work).cancel)
                self._stack = stack.pop_all()
        except BaseExceptionGroup as group:  # of a node that could not start
            raise single_error(group) from None
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._stack.aclose()

    @property
    def application(self) -> Callable[..., Awaitable[None]]:
        """A new ASGI application of the API server, over the same objects."""
        commands = PodCommands(self.store, self.nodes) if self.options.processes else NO_COMMANDS
        options = self.options
        return app.application(app.Server(self.store, self, self.token, options.release, options.now, commands))

    def directory(self, node: str) -> Path:
        """The kubelet directory of a node: plugins of other programs register in its `device-plugins`."""
        return self._node(node).kubelet.paths.root

    def daemon(self, node: str) -> Daemon:
        """The daemon of a node's plugins; `resources[name].command("fail", {"id": …})` reaches a mock plugin."""
        self._node(node)
        return self._running.daemons[node]

    async def serve(self, node: str, plugins: Iterable[Plugin]) -> None:
        """Replaces the plugins of a node: those missing in `plugins` end as a stopped plugin does."""
        await self.daemon(node).apply(on_node(plugins, self.directory(node)))

    async def stop_node(self, node: str) -> None:
        """Ends a node's kubelet as if killed; its plugins keep running and wait for it."""
        await self._node(node).stop()

    async def start_node(self, node: str) -> None:
        await self._node(node).start()

    async def until(self, fact: Callable[[], bool], timeout: float = 30.0) -> None:
        """Returns when `fact` holds, checked after every change of an object; raises TimeoutError."""
        async with asyncio.timeout(timeout):
            while not fact():
                with suppress(Expired):
                    await self.store.changes(self.store.revision)

    def log(self, namespace: str, pod: str, container: str) -> str:
        """A container's log; raises the API server's error."""
        node, stored = self._logging_node(namespace, pod, container)
        return node.log(stored, container)

    def read_log(self, namespace: str, pod: str, container: str, options: LogOptions) -> AsyncIterator[bytes]:
        """Like `log`, in pieces."""
        node, stored = self._logging_node(namespace, pod, container)
        return node.read_log(stored, container, options)

    def _logging_node(self, namespace: str, pod: str, container: str) -> tuple[EmulatedNode, Object]:
        stored = self.store.require(ObjectKey(PODS.qualified, namespace, pod))
        node = self.nodes.get(str(stored["spec"].get("nodeName")))
        if node is None:
            raise bad_request(f"pod {pod} does not have a host assigned")
        if not node.is_running:
            host = f"{node.identity.address}:10250"
            url = f"https://{host}/containerLogs/{namespace}/{pod}/{container}"
            text = f'Get "{url}": dial tcp {host}: connect: connection refused'
            raise StatusError(500, "InternalError", text)
        return node, stored

    def _open_state(self, stack: AsyncExitStack) -> Path:
        """Opens the store; returns the parent of the nodes' directories."""
        state = self.options.state
        database = Database(state / "objects.db") if state else None
        if database:
            stack.callback(database.close)
        self.store = Store(database)
        self.writer = Writer(self.store, self.options.now)
        return node_directories(state, stack)

    def _create_initial_objects(self) -> None:
        """Creates the initial objects of an API server."""
        namespaces = [(NAMESPACES, {"metadata": {"name": name}}) for name in _NAMESPACES]
        for kind, content in (*namespaces, *((PRIORITY_CLASSES, one) for one in SYSTEM_PRIORITY_CLASSES)):
            path = ResourcePath(kind, "", content["metadata"]["name"])
            if self.store.get(path.key) is None:
                self.writer.create(path, content, "kube-apiserver")

    async def _start_nodes(self, client: ClusterClient, root: Path, stack: AsyncExitStack) -> None:
        """Starts the nodes; returns when all are running."""
        options = self.options
        runtime = RuntimeSettings(options.processes, options.retry, options.back_off, 30 * options.back_off)
        runtime = replace(runtime, entrypoints={**runtime.entrypoints, **options.entrypoints}, api=options.api)
        host = HostInfo.here()
        settings = NodeSettings(options.kubelet, runtime, options.heartbeat)
        for index in range(options.nodes):
            identity = NodeIdentity(f"node-{index + 1}", index, options.shape, host, options.release)
            self.nodes[identity.name] = EmulatedNode(client, identity, root / identity.name, settings)
        await self._running.start(self.nodes, options.plugins, stack)

    def _driver(self, runtime: ResourceRuntime) -> ResourceDriver | None:
        """The driver of a resource, and the DeviceClass of its devices unless it exists."""
        driver = self.options.drivers(runtime) if self.options.drivers else None
        if driver is not None:
            path = ResourcePath(DEVICE_CLASSES, "", driver.name)
            selector = {"cel": {"expression": f'device.driver == "{driver.name}"'}}
            spec = {"selectors": [selector], "extendedResourceName": runtime.resource}
            if self.store.get(path.key) is None:
                self.writer.create(path, {"metadata": {"name": driver.name}, "spec": spec}, "plugwright")
        return driver

    async def _dispatch(self) -> None:
        """Passes changes to the nodes and controllers, with one reader of the store for all of them."""
        while True:
            try:
                changes = await self.store.changes(self._revision)
            except Expired:
                changes = []
                self._revision = self.store.revision
                self._event_expiry.resync()
                for node in self.nodes.values():
                    node.resync_pods()
            for change in changes:
                self._dispatch_change(change)
                self._revision = change.revision

    def _dispatch_change(self, change: Change) -> None:
        if change.key.kind == EVENTS.qualified:
            self._event_expiry.changed(change)
        if change.key.kind == NODES.qualified and change.type != "DELETED":
            self._node_lifecycle.node_changed(change.object)
        if change.key.kind != PODS.qualified:
            return
        pod = change.object
        node = self.nodes.get(str(pod["spec"].get("nodeName")))
        if node is None:
            return
        if change.type == "DELETED":
            node.pod_deleted(pod["metadata"]["uid"])
        else:
            node.pod_changed(pod)

    def _node(self, name: str) -> EmulatedNode:
        if name not in self.nodes:
            raise ConfigError(f"there is no node {name!r}, only {', '.join(self.nodes)}")
        return self.nodes[name]
