"""Emulated nodes in another API server: registered there, run here, and removed at the end or found again.

    async with JoinedNodes(api, options, plans) as joined:
        joined.nodes["gpu-1"].kubelet...        # each is a whole emulated kubelet
        await joined.stop_node("gpu-1")         # as if killed: the server's controllers notice

Scheduling, controllers, quota and garbage collection are the server's. The caller provides listeners and ports for the
kubelet's API, for which `kubelet_server` answers.
"""

import asyncio
import hashlib
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field, replace
from ipaddress import IPv4Network
from pathlib import Path

from plugwright.apiserver import clock
from plugwright.apiserver.clock import Clock
from plugwright.apiserver.kinds import NODES, PODS
from plugwright.apiserver.store import Object, ObjectKey
from plugwright.cluster.joined import rights
from plugwright.cluster.joined.mirror import Mirror
from plugwright.cluster.joined.node_registration import OWNER_LABEL, NodeRegistration, server_version
from plugwright.cluster.joined.outbox import Outbox
from plugwright.cluster.joined.pod_limits import PodLimits
from plugwright.cluster.joined.remote_sources import RemoteConfigSource, RemoteKubeClient
from plugwright.cluster.joined.watches import ObjectWatch, WatchedObjects
from plugwright.cluster.nodes.node import EmulatedNode, NodeSettings
from plugwright.cluster.nodes.node_context import NodeSources, RuntimeSettings
from plugwright.cluster.nodes.node_status import HostInfo, NodeIdentity, NodeNetwork, NodeShape
from plugwright.cluster.nodes.running_nodes import RunningNodes, StartProgress, node_directories
from plugwright.errors import ConfigError
from plugwright.kube.api_client import ApiClient
from plugwright.kubelet import KubeletSettings
from plugwright.kubelet.versions import nearest
from plugwright.sdk.daemon import Daemon
from plugwright.sdk.plugin import Plugin
from plugwright.sdk.resource_runtime import DriverFactory
from plugwright.system.concurrency import single_error

__all__ = ["JoinOptions", "JoinedNodes", "NodePlan", "NodePlans", "RemoteClient"]

logger = logging.getLogger(__name__)

_LONGEST_NAME = len("node-1000")
_FLUSH_LIMIT = 5.0  # seconds for the last statuses
POD_NETWORK = IPv4Network("198.18.0.0/15")  # for benchmarks (RFC 2544): not used for pods of real clusters
_POD_PREFIX = 25  # 126 addresses for each node


@dataclass(frozen=True, slots=True, kw_only=True)
class NodePlan:
    """One node to join; without a `version` its kubelet has the server's."""

    name: str
    shape: NodeShape = field(default_factory=NodeShape)
    kubelet: KubeletSettings = field(default_factory=KubeletSettings)
    version: str = ""
    plugins: Callable[[str], Iterable[Plugin]] = lambda _: ()


@dataclass(frozen=True, slots=True)
class NodePlans:
    """The nodes to join; `serves_claims`: a resource of some node is served by claims."""

    plans: tuple[NodePlan, ...]
    serves_claims: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinOptions:
    """`owner` is the id in the nodes' label; with `state` they stay registered at the end, and their files are kept.

    `ports` contains the port of each node's kubelet API at `address`, where the API server reaches it.
    """

    owner: str
    state: Path | None = None
    processes: bool = False
    heartbeat: float = 10.0
    retry: float = 10.0
    address: str = "127.0.0.1"
    ports: Mapping[str, int] = field(default_factory=dict)
    pod_network: IPv4Network = POD_NETWORK
    drivers: DriverFactory | None = None  # for plugins served by claims
    progress: StartProgress | None = None  # of the nodes' start
    now: Clock = clock.now


@dataclass(frozen=True, slots=True)
class RemoteClient:
    """A joined node's access to the objects of its cluster."""

    store: Mirror
    writer: Outbox
    now: Clock = clock.now

    def stamp(self) -> str:
        return clock.timestamp(self.now())


class JoinedNodes:
    """Inside `async with`, every node is registered; `nodes` and `daemons` are by name."""

    def __init__(self, api: ApiClient, options: JoinOptions, plans: Sequence[NodePlan]) -> None:
        self.options, self._api, self._plans = options, api, plans
        self.nodes: dict[str, EmulatedNode] = {}
        self._running = RunningNodes(options.drivers, options.progress)
        self.mirror = Mirror()
        self.outbox = Outbox(api, self.mirror)
        self.client = RemoteClient(self.mirror, self.outbox, options.now)
        self._limits = PodLimits(self.client)
        self.left: list[str] = []  # nodes that could not be deleted at the end
        self.version = ""
        self._registration = NodeRegistration(api, options.owner)
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> "JoinedNodes":
        self._check_plans()
        self.version = await server_version(self._api)
        names = [plan.name for plan in self._plans]
        await rights.check(
            self._api, rights.needed(names, drivers=self.options.drivers is not None, processes=self.options.processes)
        )
        try:
            await self._join()
        except BaseExceptionGroup as group:  # of a node that could not start
            raise single_error(group) from None
        return self

    async def _join(self) -> None:
        async with AsyncExitStack() as stack:
            root = node_directories(self.options.state, stack)
            identities = [self._identity(index, plan) for index, plan in enumerate(self._plans)]
            registered = await self._registration.register(identities)
            if self.options.state is None:
                stack.push_async_callback(self._leave)
            for node in registered:
                self.mirror.received(ObjectKey(NODES.qualified, "", node["metadata"]["name"]), _typed(node))
            await self._follow_server(stack)
            for identity, plan in zip(identities, self._plans, strict=True):
                self.nodes[plan.name] = self._emulated(identity, plan, root)
            plugins = {plan.name: plan.plugins for plan in self._plans}
            await self._running.start(self.nodes, lambda name: plugins[name](name), stack)
            self._stack = stack.pop_all()

    async def __aexit__(self, *error: object) -> None:
        await self._stack.aclose()

    @property
    def daemons(self) -> Mapping[str, Daemon]:
        return self._running.daemons

    def directory(self, node: str) -> Path:
        """The kubelet directory of a node: plugins of other programs register in its `device-plugins`."""
        return self._node(node).kubelet.paths.root

    async def stop_node(self, node: str) -> None:
        """Ends a node's kubelet as if killed; its plugins keep running and wait for it."""
        await self._node(node).stop()

    async def start_node(self, node: str) -> None:
        """Starts a node again; a Node object deleted in the meantime is recreated, as by a kubelet."""
        found = self._node(node)
        [registered] = await self._registration.register([found.identity])
        self.mirror.received(ObjectKey(NODES.qualified, "", node), _typed(registered))
        await found.start()

    def _node(self, name: str) -> EmulatedNode:
        if name not in self.nodes:
            raise ConfigError(f"there is no node {name!r}, only {', '.join(self.nodes)}")
        return self.nodes[name]

    def _check_plans(self) -> None:
        room = self.options.pod_network.num_addresses >> (32 - _POD_PREFIX)
        if len(self._plans) > room:
            raise ConfigError(f"{self.options.pod_network} has addresses for {room} nodes, got {len(self._plans)}")

    def _identity(self, index: int, plan: NodePlan) -> NodeIdentity:
        options = self.options
        first = int(options.pod_network.network_address) + (index << (32 - _POD_PREFIX))
        pods = IPv4Network((first, _POD_PREFIX))
        network = NodeNetwork(options.address, pods, options.ports.get(plan.name, 10250))
        version = nearest(plan.version or self.version)
        version = version if version.count(".") == 2 else f"{version}.0"
        return NodeIdentity(plan.name, index, plan.shape, HostInfo.here(), version, network)

    async def _follow_server(self, stack: AsyncExitStack) -> None:
        label = f"{OWNER_LABEL}={self.options.owner}"
        names = {plan.name for plan in self._plans}
        nodes = WatchedObjects(NODES, lambda node: node["metadata"]["name"] in names, labels=label)
        # Without unscheduled pods, which are not a kubelet's concern.
        pods = WatchedObjects(PODS, lambda pod: pod["spec"].get("nodeName") in names, fields="spec.nodeName!=")
        watches = (
            ObjectWatch(self._api, self.mirror, nodes, lambda _: None, lambda _: None),
            ObjectWatch(self._api, self.mirror, pods, self._pod_changed, self._pod_deleted),
        )
        versions = [await watch.list() for watch in watches]
        tasks = await stack.enter_async_context(asyncio.TaskGroup())
        stack.callback(tasks.create_task(self.outbox.run()).cancel)
        for watch, version in zip(watches, versions, strict=True):
            stack.callback(tasks.create_task(watch.run(version)).cancel)
        stack.push_async_callback(self._flush)

    def _pod_changed(self, pod: Object) -> None:
        node = self.nodes.get(str(pod["spec"].get("nodeName")))
        if node is not None and pod["metadata"]["uid"] not in self.outbox.deleted:
            self._limits.examine(pod)
            node.pod_changed(pod)

    def _pod_deleted(self, pod: Object) -> None:
        uid = pod["metadata"]["uid"]
        self.outbox.deleted.discard(uid)
        self._limits.forget(uid)
        node = self.nodes.get(str(pod["spec"].get("nodeName")))
        if node is not None:
            node.pod_deleted(uid)

    def _emulated(self, identity: NodeIdentity, plan: NodePlan, root: Path) -> EmulatedNode:
        options = self.options
        kubelet = replace(plan.kubelet, version=nearest(plan.version or self.version))
        runtime = RuntimeSettings(options.processes, options.retry, references=options.processes)
        settings = NodeSettings(kubelet, runtime, options.heartbeat)
        sources = NodeSources(RemoteKubeClient(self._api, plan.name), RemoteConfigSource(self._api))
        return EmulatedNode(self.client, identity, root / _directory_name(plan.name), settings, sources)

    async def _flush(self) -> None:
        """Sends the last statuses and deletions; an unreachable server does not keep the program from ending."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_FLUSH_LIMIT):
                await self.outbox.until_sent()

    async def _leave(self) -> None:
        nodes, pods = self.mirror.objects(NODES.qualified), self.mirror.objects(PODS.qualified)
        self.left = await self._registration.leave(nodes, pods)


def _directory_name(node: str) -> str:
    """A name short enough for the sockets in it, and the same each time."""
    return node if len(node) <= _LONGEST_NAME else f"{node[:3]}{hashlib.sha256(node.encode()).hexdigest()[:6]}"


def _typed(node: Mapping[str, object]) -> Object:
    return {"apiVersion": NODES.api_version, "kind": NODES.name, **node}
