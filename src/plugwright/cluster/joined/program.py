"""The program behind `plugwright join`: joins the nodes, serves their kubelet API, and runs until it is stopped.

It loads the whole cluster, so commands do not import it for parsing flags. The requests of the control socket
are `stop-node`, `start-node` and `end`; `system.json_lines` implements their format and access control (mode 0600).
"""

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from contextlib import (
    AbstractAsyncContextManager,
    AsyncExitStack,
    ExitStack,
    asynccontextmanager,
    contextmanager,
    suppress,
)
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TypeVar

from plugwright.apiserver import tls
from plugwright.apiserver.server import listen, serving
from plugwright.apiserver.store import Object
from plugwright.cluster.joined import rights
from plugwright.cluster.joined.join_state import JoinFlags, JoinInfo, JoinState
from plugwright.cluster.joined.joined_nodes import JoinedNodes, JoinOptions, NodePlan, NodePlans
from plugwright.cluster.joined.kubelet_access import KubeletAccess, client_authority
from plugwright.cluster.joined.kubelet_server import KubeletServer
from plugwright.cluster.joined.node_registration import OWNER_LABEL, NodeRegistration
from plugwright.cluster.joined.pods_for_nodes import PodsExplainer, RemoteWaitingPods
from plugwright.cluster.joined.slice_watches import DriverClient, SliceWatches
from plugwright.cluster.nodes.running_nodes import StartProgress
from plugwright.dra.driver import Driver
from plugwright.errors import ClusterError, ConfigError, PeerRefused
from plugwright.kube.access import ClusterAccess
from plugwright.kube.api_client import ApiClient
from plugwright.sdk.control import serve_control_socket
from plugwright.sdk.resource_runtime import ResourceRuntime
from plugwright.sdk.serve_settings import ResourceDriver
from plugwright.serve import needs_driver
from plugwright.system import directories, garbage, json_lines
from plugwright.system.concurrency import cancel, keep_threads, single_error
from plugwright.system.json_lines import Request
from plugwright.system.open_files import ensure_open_files
from plugwright.system.stop_signals import stop_on_signals

__all__ = ["JoinCalls", "leave", "rbac", "run"]

_AT_ONCE = 8  # requests
_NODE_FILES, _SPARE_FILES = 10, 200  # open simultaneously
_READY_LIMIT = 10.0  # seconds for the first statuses: missing devices do not delay the start

T = TypeVar("T")


PageOfNodes = Callable[[JoinInfo], AbstractAsyncContextManager[str]]  # serves a page; its value is the page's address


@dataclass(frozen=True, slots=True)
class JoinCalls:
    """`ready` is called once, `explain` for waiting pods, `progress` while nodes start; `page` serves the page."""

    ready: Callable[[JoinInfo], None]
    explain: PodsExplainer | None = None
    page: PageOfNodes | None = None
    progress: StartProgress | None = None


def run(flags: JoinFlags, nodes: NodePlans, calls: JoinCalls) -> None:
    """Runs until a signal, a request or the timeout; see `JoinCalls`."""
    access, state, count = _access(flags), JoinState(flags.state), len(nodes.plans)
    ensure_open_files(_SPARE_FILES + count * _NODE_FILES, f"{count:,} nodes")
    with state.locked() as owner:
        _run_loop(_Program(flags, state, owner, access, nodes, calls).run())


def leave(flags: JoinFlags) -> list[str]:
    """Deletes the nodes of a state directory from the cluster; returns their names."""
    access, state = _access(flags), JoinState(flags.state)
    with state.locked() as owner:
        gone = _run_loop(_leave(access, owner))
        state.forget()
    return gone


def rbac(nodes: NodePlans, subject: Object, *, processes: bool) -> list[Object]:
    """The manifests with the subject's permissions to join these nodes."""
    names = [plan.name for plan in nodes.plans]
    return rights.manifests(rights.needed(names, drivers=nodes.serves_claims, processes=processes), subject)


def _access(flags: JoinFlags) -> ClusterAccess:
    access = ClusterAccess.of_kubeconfig(flags.kubeconfig, flags.context)
    if access is None:
        raise ConfigError("there is no kubeconfig: name one with --kubeconfig")
    return access


def _run_loop(work: Coroutine[object, object, T]) -> T:
    try:
        return asyncio.run(work)
    except BaseExceptionGroup as group:
        raise single_error(group) from None


async def _leave(access: ClusterAccess, owner: str) -> list[str]:
    api = ApiClient(access)
    registration = NodeRegistration(api, owner)
    try:
        nodes = await registration.existing()
        left = await registration.leave(nodes, await registration.pods(nodes))
    finally:
        api.close()
    if left:
        raise _left_error(left, owner)
    return sorted(node["metadata"]["name"] for node in nodes)


@dataclass(frozen=True, slots=True)
class _Program:
    flags: JoinFlags
    state: JoinState
    owner: str
    access: ClusterAccess
    nodes: NodePlans
    calls: JoinCalls

    async def run(self) -> None:
        stop, api = asyncio.Event(), ApiClient(self.access, at_once=_AT_ONCE)
        keep_threads(_AT_ONCE)
        with stop_on_signals(stop), ExitStack() as pauses:
            async with AsyncExitStack() as stack:
                stack.callback(api.close)
                watches = await stack.enter_async_context(SliceWatches(api))
                with _listeners(self.nodes.plans, self.flags.kubelet_address) as listeners:
                    joined = JoinedNodes(api, self._options(api, watches, listeners), self.nodes.plans)
                    async with joined, self._reachable(api, joined, listeners, stop) as reached:
                        with suppress(TimeoutError):
                            async with asyncio.timeout(_READY_LIMIT):
                                await joined.outbox.until_sent()
                        page = self.calls.page
                        address = await stack.enter_async_context(page(reached)) if page is not None else ""
                        info = replace(reached, page=address)
                        pauses.enter_context(garbage.short_pauses())
                        self.state.publish(info)
                        self.calls.ready(info)
                        with suppress(TimeoutError):
                            async with asyncio.timeout(self.flags.timeout):
                                await stop.wait()
        if joined.left:
            raise _left_error(joined.left, self.owner)

    def _options(self, api: ApiClient, watches: SliceWatches, listeners: dict[str, socket.socket]) -> JoinOptions:
        return JoinOptions(
            owner=self.owner,
            state=self.flags.state,
            processes=self.flags.processes,
            heartbeat=self.flags.heartbeat,
            address=self.flags.kubelet_address,
            ports={name: listening.getsockname()[1] for name, listening in listeners.items()},
            drivers=partial(_driver, api, watches) if self.nodes.serves_claims else None,
            progress=self.calls.progress,
        )

    @asynccontextmanager
    async def _reachable(
        self, api: ApiClient, joined: JoinedNodes, listeners: dict[str, socket.socket], stop: asyncio.Event
    ) -> AsyncIterator[JoinInfo]:
        """Serves the kubelet API and the control sockets while inside."""
        async with AsyncExitStack() as stack:
            directory = stack.enter_context(directories.short_directory())
            await stack.enter_async_context(_kubelet_server(api, joined, listeners, directory))
            nodes = {}
            for number, name in enumerate(joined.nodes, 1):
                control = directory / f"node-{number}.sock"
                serving_node = serve_control_socket(joined.daemons[name], control, answers_blocked=False)
                await stack.enter_async_context(serving_node)
                port = listeners[name].getsockname()[1]
                nodes[name] = {
                    "kubelet_dir": str(joined.directory(name)),
                    "control_socket": str(control),
                    "kubelet": f"https://{self.flags.kubelet_address}:{port}",
                }
            if self.calls.explain is not None:
                taints = [plan.shape.taints for plan in self.nodes.plans]
                waiting = RemoteWaitingPods(api, joined.client, taints, self.calls.explain)
                stack.push_async_callback(cancel, asyncio.create_task(waiting.run()))
            socket_path = directory / "control.sock"
            handle = _JoinController(joined, stop).handle
            await stack.enter_async_context(json_lines.serving(socket_path, json_lines.listen(socket_path), handle))
            yield JoinInfo(os.getpid(), api.url, joined.version, self.owner, str(socket_path), nodes)


@dataclass(frozen=True, slots=True)
class _JoinController:
    joined: JoinedNodes
    stop: asyncio.Event

    async def handle(self, request: Request) -> object:
        node = str(request.get("node", ""))
        match request.get("do"):
            case "stop-node":
                await self.joined.stop_node(node)
            case "start-node":
                await self.joined.start_node(node)
            case "end":
                self.stop.set()
            case other:
                raise ConfigError(f"unknown request: {other!r}")
        return "done"


@asynccontextmanager
async def _kubelet_server(
    api: ApiClient, joined: JoinedNodes, listeners: dict[str, socket.socket], directory: Path
) -> AsyncIterator[None]:
    try:
        authority = await client_authority(api)
    except PeerRefused as error:
        raise ClusterError(f"cannot read the authority for clients of the cluster: {error}") from error
    certificates = tls.make(directory, (joined.options.address,))
    # Without an authority, certificates are not accepted, and clients need a token.
    clients = directory / "clients.crt"
    clients.write_text(authority or certificates.authority.read_text())
    nodes = {listening.getsockname()[1]: joined.nodes[name] for name, listening in listeners.items()}
    application = KubeletServer(KubeletAccess(api), joined.mirror, nodes).application
    async with serving(application, list(listeners.values()), certificates, clients):
        yield


@contextmanager
def _listeners(plans: Sequence[NodePlan], address: str) -> Iterator[dict[str, socket.socket]]:
    with ExitStack() as stack:
        yield {plan.name: stack.enter_context(listen(0, address)) for plan in plans}


def _driver(api: ApiClient, watches: SliceWatches, runtime: ResourceRuntime) -> ResourceDriver | None:
    if not needs_driver(runtime):
        return None
    return Driver(runtime, connect=lambda settings: DriverClient(api, watches, settings.node_name))


def _left_error(nodes: list[str], owner: str) -> ClusterError:
    return ClusterError(
        f"{len(nodes)} nodes are left in the cluster ({', '.join(nodes[:5])}): "
        f"`kubectl delete nodes -l {OWNER_LABEL}={owner}` removes them"
    )
