"""The programs that serve a page: `plugwright page` until it is stopped, `up` and `join` with their nodes."""

import asyncio
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager, suppress
from pathlib import Path

from plugwright.cluster.joined.join_state import JoinInfo
from plugwright.cluster.up.state_directory import ClusterInfo
from plugwright.fleet.daemons import DaemonChoice, LocalDaemon, ReachableDaemon, cluster_access, find_all
from plugwright.kube.access import ClusterAccess
from plugwright.system import garbage
from plugwright.system.stop_signals import stop_on_signals
from plugwright.web.live_fleet import FleetSource
from plugwright.web.page_server import serving_page

__all__ = ["page_of_cluster", "page_of_nodes", "run"]


def run(
    choice: DaemonChoice,
    environment: Mapping[str, str],
    ready: Callable[[str, str], None],
    port: int = 0,
    timeout: float | None = None,
) -> None:
    """Serves the page; calls `ready` once, with the page's address and that of the API server."""
    access = cluster_access(choice, environment)
    source = FleetSource(access=access, find=lambda: find_all(choice, environment))
    asyncio.run(_serve(source, port, timeout, lambda address: ready(address, access.url)))


def page_of_cluster(info: ClusterInfo) -> AbstractAsyncContextManager[str]:
    """The page of a `plugwright up`, which reads its cluster from the first visit on."""
    access = ClusterAccess.of_kubeconfig(Path(info.kubeconfig))
    assert access is not None  # because the file was given
    return serving_page(FleetSource(access=access, find=lambda: _local(info.nodes)), 0, at_once=False)


def page_of_nodes(choice: DaemonChoice, info: JoinInfo) -> AbstractAsyncContextManager[str]:
    """The page of the cluster that nodes have joined, with their daemons and those of its other nodes."""
    access = ClusterAccess.choose(choice.kubeconfig, choice.context)

    def find() -> list[ReachableDaemon]:
        own = _local(info.nodes)
        return [*own, *(daemon for daemon in find_all(choice) if daemon.node not in info.nodes)]

    return serving_page(FleetSource(access=access, find=find), 0, at_once=False)


def _local(nodes: Mapping[str, Mapping[str, str]]) -> list[ReachableDaemon]:
    return [LocalDaemon(Path(node["control_socket"]), name) for name, node in nodes.items()]


async def _serve(source: FleetSource, port: int, timeout: float | None, ready: Callable[[str], None]) -> None:
    stop = asyncio.Event()
    with stop_on_signals(stop):
        async with serving_page(source, port, at_once=True) as address:
            with garbage.short_pauses():
                ready(address)
                with suppress(TimeoutError):
                    async with asyncio.timeout(timeout):
                        await stop.wait()
