"""An embedded cluster as a program: made in its place, told of when it is ready, and ended by a signal or in time.

What is asked for on the command line is `Wish`; files of the place are `cluster_place`'s, the server is
`cluster_server`'s. This module loads all of it: those who only parse flags do not import it.

The resources of an embedded cluster's nodes: those of a file, which may change, ten mock GPUs, or none.

What was asked for on the command line of `plugwright up`.
"""

import asyncio
import logging
import os
import signal
import socket
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from pathlib import Path

from plugwright.cli.up import control
from plugwright.cli.up.control import Controller, controlled
from plugwright.cli.up.directory import Facts, Kubeconfig, Place
from plugwright.cli.up.options import Wish
from plugwright.cli.up.server import listen, serving
from plugwright.cluster import tls
from plugwright.cluster.api.kinds import NODES
from plugwright.cluster.embedded import ClusterOptions, EmbeddedCluster, mock_gpus
from plugwright.config import schema
from plugwright.config.schema import Config
from plugwright.errors import ConfigError
from plugwright.kubelet import KubeletSettings, Timing
from plugwright.sdk.control import serve_control_socket
from plugwright.sdk.daemon import Daemon
from plugwright.sdk.plugin import Plugin
from plugwright.system.concurrency import single_error
from plugwright.system.inotify import Directory

__all__ = ["Resources", "run"]

logger = logging.getLogger(__name__)

_SETTLE = 0.1  # an editor needs more than one step to write a file


class Resources:
    """`path` is the file, or None for what is offered without one: mock GPUs, or nothing where it is `bare`."""

    def __init__(self, path: Path | None, *, bare: bool = False) -> None:
        self._path, self._bare = path, bare
        self._loaded = schema.load(path) if path is not None else None

    def plugins(self, node: str) -> Iterable[Plugin]:
        """For one node: each has plugins of its own."""
        if self._loaded is not None:
            return self._loaded.plugins()
        return [] if self._bare else mock_gpus(node)

    async def follow(self, cluster: EmbeddedCluster) -> None:
        """For ever: a file that changed is taken over by every node, if it is good."""
        if self._path is None or self._loaded is None:
            return
        directory = Directory(self._path.absolute().parent, writes=True)
        async with directory.watching():
            async for _ in directory.ticks.changes():
                await asyncio.sleep(_SETTLE)
                self._loaded = await self._taken_over(self._path, self._loaded, cluster)

    @staticmethod
    async def _taken_over(path: Path, loaded: Config, cluster: EmbeddedCluster) -> Config:
        try:
            new = schema.load(path)
        except ConfigError as error:
            logger.error("new configuration refused, the old one stays", extra={"error": str(error)})
            return loaded
        if new.file != loaded.file:
            for node in cluster.nodes:
                resources = cluster.daemon(node).resources
                serving = {name: runtime.service.plugin for name, runtime in resources.items()}
                await cluster.serve(node, new.plugins(loaded, serving))
        return new


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
            raise single_error(group) from None


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
    shown = tls.obtain(place.directory)
    with listen(port) as listening:
        place.keep_access(access["token"], listening.getsockname()[1])
        async with (
            EmbeddedCluster(options) as cluster,
            serving(cluster.application, listening, shown),
        ):
            await _until_listed(cluster)
            yield cluster, listening


@asynccontextmanager
async def _reached(wish: Wish, place: Place, controller: Controller, listening: socket.socket) -> AsyncIterator[Facts]:
    """With all that others reach it by: the kubeconfig and the control sockets."""
    cluster = controller.cluster
    server = f"https://127.0.0.1:{listening.getsockname()[1]}"
    path = (wish.kubeconfig or place.kubeconfig).absolute()
    kubeconfig = Kubeconfig(server, tls.obtain(place.directory).authority, cluster.token)
    async with AsyncExitStack() as stack:
        stack.enter_context(kubeconfig.at(path, kept=place.kept))
        sockets = stack.enter_context(place.sockets())
        for name in cluster.nodes:
            await stack.enter_async_context(serve_control_socket(cluster.daemon(name), sockets / f"{name}.sock"))
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
    return control.offers(found)


async def _until_listed(cluster: EmbeddedCluster) -> None:
    """Whoever looks at a node first sees what its plugins have."""

    def are_listed() -> bool:
        shown = {each["metadata"]["name"]: control.offers(each) for each in cluster.store.every(NODES.qualified)}
        return all(_healthy(cluster.daemon(name)).items() <= shown.get(name, {}).items() for name in cluster.nodes)

    with suppress(TimeoutError):
        await cluster.until(are_listed, _PATIENCE)


def _healthy(daemon: Daemon) -> dict[str, int]:
    """How many devices of each resource its plugin offers; -1 while it has not found any."""
    newest = {name: runtime.inventory.latest.value for name, runtime in daemon.resources.items()}
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
