"""The embedded cluster: store, scheduler, nodes and the ASGI application, wired together in one event loop.

    async with EmbeddedCluster(ClusterOptions(nodes=3)) as cluster:
        serve(cluster.application)          # any ASGI server; clients send `Bearer cluster.token`
        await cluster.stop_node("node-2")   # goes NotReady after `silence` seconds
        await cluster.start_node("node-2")

Who listens, with which certificate, and who writes the kubeconfig is the caller's; flags and files are `cli`'s.
"""

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path

from plugwright.cluster import clock
from plugwright.cluster.api import app
from plugwright.cluster.api.errors import StatusError, bad_request
from plugwright.cluster.api.kinds import NAMESPACES, NODES, PODS
from plugwright.cluster.api.registry import ResourcePath, Writer
from plugwright.cluster.clock import Clock
from plugwright.cluster.database import Database
from plugwright.cluster.events import Access
from plugwright.cluster.node import EmulatedNode, NodeSettings
from plugwright.cluster.node_lifecycle import Monitor, MonitorSettings
from plugwright.cluster.node_pods import Runtime
from plugwright.cluster.node_status import Identity, Machine, Shape
from plugwright.cluster.scheduler import Scheduler
from plugwright.cluster.store import Change, Expired, Object, ObjectKey, Store
from plugwright.errors import ConfigError
from plugwright.kubelet import KubeletSettings
from plugwright.plugins.mock import Mock, MockOptions
from plugwright.sdk.daemon import Daemon
from plugwright.sdk.plugin import Plugin
from plugwright.sdk.run import serving
from plugwright.sdk.settings import Settings
from plugwright.system import directories, sockets

__all__ = ["ClusterOptions", "EmbeddedCluster", "mock_gpus"]

_NAMESPACES = ("default", "kube-node-lease", "kube-public", "kube-system")
_LONGEST_SOCKET = 72  # from a node's directory on: device-plugins/ and the name of a plugin's socket


def mock_gpus(node: str) -> list[Plugin]:
    """What a node offers unless it is told otherwise: ten GPUs that do not exist, with ids of their own."""
    options = MockOptions(count=10, model="Mock-A100", memory=40 * 2**30, numa=2, seed=node)
    return [Mock("mock/gpu", options)]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterOptions:
    """What can be set about an embedded cluster; every default is that of a real one where there is such a thing.

    `plugins` makes the plugins of the node of that name, served in this process; they may be none, and plugins of other
    programs may register in the node's directory (`EmbeddedCluster.directory`). With `state`, objects and checkpoints
    are kept in that directory and found again at the next start; without, everything goes with the cluster.
    """

    nodes: int = 1
    plugins: Callable[[str], Iterable[Plugin]] = mock_gpus
    state: Path | None = None
    shape: Shape = field(default_factory=Shape)
    kubelet: KubeletSettings = field(default_factory=lambda: KubeletSettings(numa=2))
    processes: bool = False  # containers run, once each, as processes of this machine; else they show what they got
    heartbeat: float = 10.0  # seconds between a node's rounds: also when capacity set by hand becomes allocatable
    silence: float = 50.0  # seconds until a node that is not heard of is NotReady
    retry: float = 10.0  # seconds until a container that could not start is tried again
    release: str = "1.36.4"
    token: str = field(default="", repr=False)  # made up if it is empty
    now: Clock = clock.now

    def __post_init__(self) -> None:
        if self.nodes < 1:
            raise ConfigError(f"a cluster has at least one node, not {self.nodes}")


class EmbeddedCluster:
    """`async with EmbeddedCluster(options) as cluster:`; inside, every node is registered and Ready.

    `store` and `writer` are the objects and the way to write them; `application` is what an ASGI server serves;
    `nodes` are the agents by name, `node-1` to `node-N`. Their plugins register a moment later: `until` waits for it.
    """

    def __init__(self, options: ClusterOptions | None = None) -> None:
        self.options = options or ClusterOptions()
        self.token = self.options.token or secrets.token_urlsafe(32)
        self.nodes: dict[str, EmulatedNode] = {}
        self._plugins: dict[str, Daemon] = {}
        self._stack = AsyncExitStack()
        self._seen = 0

    async def __aenter__(self) -> "EmbeddedCluster":
        async with AsyncExitStack() as stack:
            home = self._open(stack)
            access = Access(self.store, self.writer, self.options.now)
            self._make_namespaces()
            for index in range(self.options.nodes):
                await self._add_node(index, access, home, stack)
            self._seen = self.store.revision
            tasks = await stack.enter_async_context(asyncio.TaskGroup())
            self._monitor = Monitor(access, MonitorSettings(self.options.silence))
            works = (Scheduler(self.store, self.writer, self.options.now).run(), self._monitor.run(), self._dispatch())
            stack.callback(_cancel, [tasks.create_task(work) for work in works])
            self._stack = stack.pop_all()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._stack.aclose()

    @property
    def application(self) -> Callable[..., Awaitable[None]]:
        """The API server; each call makes another one, over the same objects."""
        return app.application(app.Server(self.store, self, self.token, self.options.release, self.options.now))

    def directory(self, node: str) -> Path:
        """The kubelet directory of a node: its `device-plugins` is where plugins of other programs register."""
        return self._agent(node).kubelet.paths.root

    def daemon(self, node: str) -> Daemon:
        """Who serves the node's plugins; `resources[name].command("fail", {"id": …})` reaches a mock plugin."""
        self._agent(node)
        return self._plugins[node]

    async def serve(self, node: str, plugins: Iterable[Plugin]) -> None:
        """Makes `plugins` what is served on a node: those that are not among them end, as a plugin does that stops."""
        await self.daemon(node).apply(plugins)

    async def stop_node(self, node: str) -> None:
        """Its kubelet ends as if killed; the plugins stay and wait for it."""
        await self._agent(node).stop()

    async def start_node(self, node: str) -> None:
        await self._agent(node).start()

    async def until(self, fact: Callable[[], bool], timeout: float = 30.0) -> None:
        """Waits until `fact` holds, looking whenever an object has changed; raises TimeoutError."""
        async with asyncio.timeout(timeout):
            while not fact():
                with suppress(Expired):
                    await self.store.changes(self.store.revision)

    def log(self, namespace: str, pod: str, container: str) -> str:
        """What a container has written: for the API server."""
        stored = self.store.require(ObjectKey(PODS.qualified, namespace, pod))
        agent = self.nodes.get(str(stored["spec"].get("nodeName")))
        if agent is None:
            raise bad_request(f"pod {pod} does not have a host assigned")
        if not agent.is_running:
            host = f"{agent.identity.address}:10250"
            url = f"https://{host}/containerLogs/{namespace}/{pod}/{container}"
            text = f'Get "{url}": dial tcp {host}: connect: connection refused'
            raise StatusError(500, "InternalError", text)
        if waiting := _waiting(stored, container):
            raise bad_request(f'container "{container}" in pod "{pod}" is waiting to start: {waiting}')
        return agent.log(stored, container)

    def _open(self, stack: AsyncExitStack) -> Path:
        """The store, and where the nodes have their directories."""
        state = self.options.state
        database = Database(state / "objects.db") if state else None
        if database:
            stack.callback(database.close)
        self.store = Store(database)
        self.writer = Writer(self.store, self.options.now)
        if state is None:
            return stack.enter_context(directories.directory(directories.place()))
        nodes = state.absolute() / "nodes"
        try:
            nodes.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"cannot use {state}: {error.strerror}") from error
        return (
            nodes
            if _has_room(nodes)
            else _linked(nodes, stack.enter_context(directories.directory(directories.place())))
        )

    def _make_namespaces(self) -> None:
        for name in _NAMESPACES:
            place = ResourcePath(NAMESPACES, "", name)
            if self.store.get(place.key) is None:
                labels = {"kubernetes.io/metadata.name": name}
                self.writer.create(place, {"metadata": {"name": name, "labels": labels}}, "kube-apiserver")

    async def _add_node(self, index: int, access: Access, home: Path, stack: AsyncExitStack) -> None:
        options = self.options
        name = f"node-{index + 1}"
        identity = Identity(name, index, options.shape, Machine.here(), options.release)
        settings = NodeSettings(options.kubelet, Runtime(options.processes, options.retry), options.heartbeat)
        agent = await stack.enter_async_context(EmulatedNode(access, identity, home / name, settings))
        paths = agent.kubelet.paths
        places = Settings(kubelet_dir=paths.root, device_plugins_dir=paths.device_plugins)
        self._plugins[name] = await stack.enter_async_context(serving(*options.plugins(name), settings=places))
        self.nodes[name] = agent

    async def _dispatch(self) -> None:
        """Tells each node of its pods: one reader of the store for all of them."""
        while True:
            try:
                changes = await self.store.changes(self._seen)
            except Expired:
                changes = []
                self._seen = self.store.revision
                for agent in self.nodes.values():
                    agent.sync()
            for change in changes:
                self._tell(change)
                self._seen = change.revision

    def _tell(self, change: Change) -> None:
        if change.key.kind == NODES.qualified and change.type != "DELETED":
            self._monitor.see(change.object)
        if change.key.kind != PODS.qualified:
            return
        agent = self.nodes.get(str(change.object["spec"].get("nodeName")))
        if agent is None:
            return
        if change.type == "DELETED":
            agent.gone(change.object["metadata"]["uid"])
        else:
            agent.see(change.object)

    def _agent(self, node: str) -> EmulatedNode:
        if node not in self.nodes:
            raise ConfigError(f"there is no node {node!r}, only {', '.join(self.nodes)}")
        return self.nodes[node]


def _cancel(tasks: Iterable[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()


def _has_room(directory: Path) -> bool:
    """Whether the paths of sockets in it are short enough."""
    return sockets.fits(directory, len("node-1000/") + _LONGEST_SOCKET)


def _linked(directory: Path, short: Path) -> Path:
    link = short / "nodes"
    link.symlink_to(directory, target_is_directory=True)
    return link


def _waiting(pod: Mapping[str, object], container: str) -> str:
    """Why it has written nothing yet; empty if it has started."""
    status = pod.get("status")
    assert isinstance(status, dict)
    known: list[Object] = [*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())]
    found = next((each for each in known if each["name"] == container), None)
    if found is None:
        return "" if status.get("phase") == "Failed" else "ContainerCreating"
    return str(((found["state"] or {}).get("waiting") or {}).get("reason") or "")
