"""An embedded cluster as a program: made in its place, told of when it is ready, and ended by a signal or in time.

What is asked for on the command line is `Wish`; files of the place are `cluster_place`'s, the server is
`cluster_server`'s. This module loads all of it: those who only parse flags do not import it.
"""

import asyncio
import os
import signal
import socket
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from pathlib import Path

from plugwright.cli import cluster_server, cluster_status
from plugwright.cli.cluster_config import Resources
from plugwright.cli.cluster_control import Controller, controlled
from plugwright.cli.cluster_kubeconfig import Kubeconfig
from plugwright.cli.cluster_place import Facts, Place
from plugwright.cli.cluster_wish import Wish
from plugwright.cluster import certificates
from plugwright.cluster.api.kinds import NODES
from plugwright.cluster.embedded import ClusterOptions, EmbeddedCluster
from plugwright.kubelet import KubeletSettings, Timing
from plugwright.sdk.control import controlled as daemon_controlled
from plugwright.sdk.runtime import Daemon

__all__ = ["run"]

_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_PATIENCE = 1.0  # seconds for the first device lists: a plugin that finds nothing keeps nobody waiting

Ready = Callable[[Facts], None]


def run(wish: Wish, place: Place, ready: Ready) -> None:
    """Until a signal, `plugwright down` or the end of its time; `ready` is called once."""
    resources = Resources(wish.config, bare=wish.bare)
    with place.taken():
        try:
            asyncio.run(_live(wish, place, resources, ready))
        except BaseExceptionGroup as group:
            raise _first(group) from None


async def _live(wish: Wish, place: Place, resources: Resources, ready: Ready) -> None:
    stop = asyncio.Event()
    with _signals(stop):
        async with (
            _cluster(wish, place, resources) as (cluster, listening),
            _reached(wish, place, Controller(cluster, stop), listening) as facts,
            asyncio.TaskGroup() as tasks,
        ):
            following = tasks.create_task(resources.follow(cluster))
            place.publish(facts)
            ready(facts)
            with suppress(TimeoutError):
                async with asyncio.timeout(wish.timeout):
                    await stop.wait()
            following.cancel()


@asynccontextmanager
async def _cluster(
    wish: Wish, place: Place, resources: Resources
) -> AsyncIterator[tuple[EmbeddedCluster, socket.socket]]:
    """The cluster, served behind TLS."""
    access = place.access()
    port = access["port"] if wish.port is None else wish.port
    options = ClusterOptions(
        nodes=wish.nodes,
        plugins=resources.plugins,
        state=place.directory if place.kept else None,
        kubelet=KubeletSettings(numa=2, timing=Timing(grace=wish.plugin_grace)),
        processes=wish.starts,
        heartbeat=wish.heartbeat,
        silence=wish.silence,
        token=access["token"],
    )
    shown = certificates.obtain(place.directory)
    with cluster_server.listen(port) as listening:
        place.keep_access(access["token"], listening.getsockname()[1])
        async with (
            EmbeddedCluster(options) as cluster,
            cluster_server.serving(cluster.application, listening, shown),
        ):
            await _until_listed(cluster)
            yield cluster, listening


@asynccontextmanager
async def _reached(wish: Wish, place: Place, controller: Controller, listening: socket.socket) -> AsyncIterator[Facts]:
    """With all that others reach it by: the kubeconfig and the control sockets."""
    cluster = controller.cluster
    server = f"https://127.0.0.1:{listening.getsockname()[1]}"
    path = (wish.kubeconfig or place.kubeconfig).absolute()
    kubeconfig = Kubeconfig(server, certificates.obtain(place.directory).authority, cluster.token)
    async with AsyncExitStack() as stack:
        stack.enter_context(kubeconfig.at(path, kept=place.kept))
        sockets = stack.enter_context(place.sockets())
        for name in cluster.nodes:
            await stack.enter_async_context(daemon_controlled(cluster.daemon(name), sockets / f"{name}.sock"))
        await stack.enter_async_context(controlled(controller, sockets / "control.sock"))
        yield Facts(
            pid=os.getpid(),
            server=server,
            kubeconfig=str(path),
            state=str(place.directory),
            kept=place.kept,
            control=str(sockets / "control.sock"),
            nodes=_nodes(cluster, sockets),
            resources=_resources(cluster),
            log=str(place.log) if wish.detach else None,
        )


def _nodes(cluster: EmbeddedCluster, sockets: Path) -> dict[str, Mapping[str, str]]:
    return {
        name: {"kubelet_dir": str(cluster.directory(name)), "control_socket": str(sockets / f"{name}.sock")}
        for name in cluster.nodes
    }


def _resources(cluster: EmbeddedCluster) -> dict[str, int]:
    """Of one node; they are alike at first."""
    first = next(iter(cluster.nodes))
    found = next(each for each in cluster.store.every(NODES.qualified) if each["metadata"]["name"] == first)
    return cluster_status.offers(found)


async def _until_listed(cluster: EmbeddedCluster) -> None:
    """Whoever looks at a node first sees what its plugins have."""

    def are_listed() -> bool:
        shown = {each["metadata"]["name"]: cluster_status.offers(each) for each in cluster.store.every(NODES.qualified)}
        return all(_healthy(cluster.daemon(name)).items() <= shown.get(name, {}).items() for name in cluster.nodes)

    with suppress(TimeoutError):
        await cluster.until(are_listed, _PATIENCE)


def _healthy(daemon: Daemon) -> dict[str, int]:
    """How many devices of each resource its plugin offers; -1 while it has not found any."""
    newest = {name: runtime.inventory.newest.value for name, runtime in daemon.resources.items()}
    return {
        name: -1 if snapshot is None else sum(each.healthy for each in snapshot.devices.values())
        for name, snapshot in newest.items()
    }


@contextmanager
def _signals(stop: asyncio.Event) -> Iterator[None]:
    loop = asyncio.get_running_loop()
    heeded = [each for each in _ENDING if signal.getsignal(each) is not signal.SIG_IGN]  # nohup
    for number in heeded:
        loop.add_signal_handler(number, stop.set)
    try:
        yield
    finally:
        for number in heeded:
            loop.remove_signal_handler(number)


def _first(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """Tasks wrap what went wrong in them; it is one thing, said in one line."""
    error = group.exceptions[0]
    return _first(error) if isinstance(error, BaseExceptionGroup) else error
