"""The program behind `plugwright up`: runs an embedded cluster in its state directory until it is stopped.

It loads the whole cluster, so commands do not import it for parsing flags. The requests of the control socket
are `status`, `stop-node`, `start-node` and `end`; `system.json_lines` implements their format and access control (mode
0600).
"""

import asyncio
import os
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, ExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Protocol

from plugwright import quantity
from plugwright.apiserver import RELEASES, tls
from plugwright.apiserver.kinds import NODES, PODS
from plugwright.apiserver.kubeconfig_file import Kubeconfig
from plugwright.apiserver.server import listen, serving
from plugwright.apiserver.store import Object, ObjectKey
from plugwright.cluster.controllers.waiting_pods import PodExplainer
from plugwright.cluster.embedded import ClusterOptions, EmbeddedCluster
from plugwright.cluster.nodes.api_access import ServiceAccountFiles
from plugwright.cluster.nodes.running_nodes import StartProgress
from plugwright.cluster.up.state_directory import ClusterInfo, StateDirectory, UpOptions
from plugwright.dra.driver import Driver
from plugwright.errors import ConfigError
from plugwright.kube.access import ClusterAccess
from plugwright.kube.api_client import ApiClient
from plugwright.kube.credentials import Credentials
from plugwright.kubelet import KubeletSettings, Timing
from plugwright.sdk.control import serve_control_socket
from plugwright.sdk.daemon import Daemon
from plugwright.sdk.plugin import Plugin
from plugwright.sdk.resource_runtime import ResourceRuntime
from plugwright.sdk.serve_settings import ResourceDriver
from plugwright.serve import needs_driver
from plugwright.system import garbage, json_lines
from plugwright.system.concurrency import single_error
from plugwright.system.json_lines import Request
from plugwright.system.open_files import ensure_open_files
from plugwright.system.stop_signals import stop_on_signals

__all__ = ["PluginSource", "UpCalls", "run"]

_SPARE_FILES = 200  # for the API server and its clients, and for nodes that start or respond
_LIST_LIMIT = 1.0  # seconds for the first device lists: a plugin that finds no devices does not delay the start

ClusterReady = Callable[[ClusterInfo], None]
PageOfCluster = Callable[[ClusterInfo], AbstractAsyncContextManager[str]]  # serves a page at this address


class PluginSource(Protocol):
    """The plugins of every node, which can change while the cluster runs."""

    @property
    def open_files(self) -> int:
        """Open files of one node: its kubelet's sockets, its control socket, a socket and a stream per resource."""
        ...

    def of(self, node: str) -> Iterable[Plugin]: ...

    async def follow(self, cluster: EmbeddedCluster) -> None:
        """Applies every change to all nodes, until cancelled."""
        ...


@dataclass(frozen=True, slots=True)
class UpCalls:
    """`ready` is called once, `explain` for waiting pods, `progress` while nodes start; `page` serves the page."""

    ready: ClusterReady
    explain: PodExplainer | None = None
    page: PageOfCluster | None = None
    progress: StartProgress | None = None


def run(
    options: UpOptions,
    directory: StateDirectory,
    plugins: PluginSource,
    calls: UpCalls,
) -> None:
    """Runs until a signal, `plugwright down` or the timeout; see `UpCalls`."""
    ensure_open_files(_SPARE_FILES + options.nodes * plugins.open_files, f"{options.nodes:,} nodes")
    with directory.locked():
        try:
            asyncio.run(_run(options, directory, plugins, calls))
        except BaseExceptionGroup as group:
            raise single_error(group) from None


@dataclass(frozen=True, slots=True)
class _ClusterController:
    """Handles the requests; `stop` is set when the cluster should end."""

    cluster: EmbeddedCluster
    stop: asyncio.Event

    async def handle(self, request: Request) -> object:
        node = str(request.get("node", ""))
        match request.get("do"):
            case "status":
                return self._status()
            case "stop-node":
                await self.cluster.stop_node(node)
            case "start-node":
                await self.cluster.start_node(node)
            case "end":
                self.stop.set()
            case other:
                raise ConfigError(f"unknown request: {other!r}")
        return "done"

    def _status(self) -> dict[str, object]:
        store = self.cluster.store
        pods = store.objects(PODS.qualified)
        phases = Counter(str((pod.get("status") or {}).get("phase") or "Pending") for pod in pods)
        nodes = {node["metadata"]["name"]: self._node_status(node) for node in store.objects(NODES.qualified)}
        return {"nodes": nodes, "pods": dict(sorted(phases.items()))}

    def _node_status(self, node: Object) -> dict[str, object]:
        name = node["metadata"]["name"]
        emulated = self.cluster.nodes.get(name)
        conditions = (node.get("status") or {}).get("conditions") or ()
        ready = {condition["type"]: condition["status"] for condition in conditions}.get("Ready")
        return {
            "name": name,
            "ready": ready == "True",
            "running": emulated is not None and emulated.is_running,
            "kubelet_dir": str(self.cluster.directory(name)) if emulated is not None else "",
            "allocatable": _extended_resources(node),
        }


async def _run(
    options: UpOptions,
    directory: StateDirectory,
    plugins: PluginSource,
    calls: UpCalls,
) -> None:
    stop = asyncio.Event()
    with stop_on_signals(stop), ExitStack() as pauses:
        async with (
            _cluster(options, directory, plugins, calls) as (cluster, kubeconfig),
            _reachable(options, directory, _ClusterController(cluster, stop), kubeconfig) as reached,
            AsyncExitStack() as stack,
            asyncio.TaskGroup() as tasks,
        ):
            page = await stack.enter_async_context(calls.page(reached)) if calls.page is not None else ""
            info = replace(reached, page=page)
            pauses.enter_context(garbage.short_pauses())
            following = tasks.create_task(plugins.follow(cluster))
            directory.publish(info)
            calls.ready(info)
            with suppress(TimeoutError):
                async with asyncio.timeout(options.timeout):
                    await stop.wait()
            following.cancel()


@asynccontextmanager
async def _cluster(
    options: UpOptions, directory: StateDirectory, plugins: PluginSource, calls: UpCalls
) -> AsyncIterator[tuple[EmbeddedCluster, Kubeconfig]]:
    """The cluster, served over TLS, and the access for clients."""
    token, last_port = directory.credentials()
    certificates = tls.obtain(directory.path)
    with listen(last_port if options.port is None else options.port) as listening:
        port = listening.getsockname()[1]
        directory.save_credentials(token, port)
        access = ClusterAccess(f"https://127.0.0.1:{port}", Credentials(token, certificates.authority))
        cluster_options = ClusterOptions(
            nodes=options.nodes,
            plugins=plugins.of,
            state=directory.path if directory.kept else None,
            kubelet=KubeletSettings(version=options.version, numa=2, timing=Timing(grace=options.plugin_grace)),
            processes=options.processes,
            heartbeat=options.heartbeat,
            silence=options.silence,
            token=token,
            drivers=partial(_driver, access),
            entrypoints=dict(options.entrypoints),
            api=ServiceAccountFiles(port, token, certificates.authority, _kubeconfig(options, directory)),
            release=RELEASES[options.version],
            explain=calls.explain,
            progress=calls.progress,
        )
        async with (
            EmbeddedCluster(cluster_options) as cluster,
            serving(cluster.application, [listening], certificates),
        ):
            await _until_listed(cluster)
            yield cluster, Kubeconfig(access.url, certificates.authority, token)


def _driver(access: ClusterAccess, runtime: ResourceRuntime) -> ResourceDriver | None:
    return Driver(runtime, connect=lambda _: ApiClient(access)) if needs_driver(runtime) else None


@asynccontextmanager
async def _reachable(
    options: UpOptions, directory: StateDirectory, controller: _ClusterController, kubeconfig: Kubeconfig
) -> AsyncIterator[ClusterInfo]:
    """Writes the kubeconfig and serves the control sockets while inside."""
    cluster = controller.cluster
    path = _kubeconfig(options, directory)
    async with AsyncExitStack() as stack:
        stack.enter_context(kubeconfig.written(path, kept=directory.kept))
        sockets = stack.enter_context(directory.sockets())
        nodes = {}
        for name in cluster.nodes:
            node_socket = sockets / f"{name}.sock"
            serving_node = serve_control_socket(cluster.daemon(name), node_socket, answers_blocked=False)
            await stack.enter_async_context(serving_node)
            nodes[name] = {"kubelet_dir": str(cluster.directory(name)), "control_socket": str(node_socket)}
        control_socket = sockets / "control.sock"
        listening_on = json_lines.listen(control_socket)
        await stack.enter_async_context(json_lines.serving(control_socket, listening_on, controller.handle))
        yield ClusterInfo(
            pid=os.getpid(),
            server=kubeconfig.server,
            kubeconfig=str(path),
            state=str(directory.path),
            kept=directory.kept,
            control=str(control_socket),
            nodes=nodes,
            resources=_allocatable(cluster, next(iter(cluster.nodes))),  # the nodes are equal at first
            log=str(directory.log) if options.detach else None,
        )


def _kubeconfig(options: UpOptions, directory: StateDirectory) -> Path:
    return (options.kubeconfig or directory.kubeconfig).absolute()


async def _until_listed(cluster: EmbeddedCluster) -> None:
    """Returns when the nodes show the devices of their plugins, or after a second."""
    waiting = list(cluster.nodes)  # a listed node is not checked again

    def are_listed() -> bool:
        while waiting and _healthy(cluster.daemon(waiting[-1])).items() <= _allocatable(cluster, waiting[-1]).items():
            waiting.pop()
        return not waiting

    with suppress(TimeoutError):
        await cluster.until(are_listed, _LIST_LIMIT)


def _allocatable(cluster: EmbeddedCluster, node: str) -> dict[str, int]:
    """A node's extended resources."""
    stored = cluster.store.get(ObjectKey(NODES.qualified, "", node))
    return _extended_resources(stored) if stored is not None else {}


def _extended_resources(node: Object) -> dict[str, int]:
    """The allocatable extended resources of a Node object."""
    allocatable = (node.get("status") or {}).get("allocatable") or {}
    # The API server stores 1000 as "1k".
    return {name: quantity.whole(quantity.parse(text)) for name, text in sorted(allocatable.items()) if "/" in name}


def _healthy(daemon: Daemon) -> dict[str, int]:
    """The number of healthy devices of every resource; -1 until its first list."""
    snapshots = {name: runtime.inventory.latest.value for name, runtime in daemon.resources.items()}
    return {
        name: -1 if snapshot is None else sum(device.healthy for device in snapshot.devices.values())
        for name, snapshot in snapshots.items()
    }
