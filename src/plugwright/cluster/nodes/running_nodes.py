"""Emulated nodes running together with their plugins in this process.

Several start in parallel, because a start mostly waits for sockets and files.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path

from msgspec.structs import replace

from plugwright.cluster.nodes.node import EmulatedNode
from plugwright.errors import ConfigError
from plugwright.sdk.daemon import Daemon
from plugwright.sdk.plugin import Plugin
from plugwright.sdk.registration import LONGEST_SOCKET_NAME
from plugwright.sdk.resource_runtime import DriverFactory
from plugwright.sdk.run import serving
from plugwright.sdk.settings import Limits, Settings
from plugwright.sdk.shared_parts import SharedParts
from plugwright.system import directories
from plugwright.system.latest import Signal

__all__ = ["RunningNodes", "StartProgress", "node_directories", "on_node"]

_LONGEST_SOCKET = len("node-10000/device-plugins/") + LONGEST_SOCKET_NAME
_HISTORY = "plugwright"  # directory below that of the node's kubelet
_AT_ONCE = 16  # nodes that start or end in parallel

StartProgress = Callable[[int, int], None]


class RunningNodes:
    """`daemons` serve the nodes' plugins, by the name of the node; `drivers` serves those with claims.

    `progress` is called with the number of started nodes, and of all nodes.
    """

    def __init__(self, drivers: DriverFactory | None = None, progress: StartProgress | None = None) -> None:
        self.daemons: dict[str, Daemon] = {}
        self._drivers, self._progress = drivers, progress
        self._started = Signal()
        self._ending = asyncio.Event()

    async def start(
        self, nodes: Mapping[str, EmulatedNode], plugins: Callable[[str], Iterable[Plugin]], stack: AsyncExitStack
    ) -> None:
        """Returns when all have started; they run until the stack is closed."""
        shared, turns = SharedParts(Limits().loop_step), asyncio.Semaphore(_AT_ONCE)
        stack.callback(shared.close)
        tasks = await stack.enter_async_context(asyncio.TaskGroup())
        stack.callback(self._ending.set)
        if self._progress is not None:
            stack.callback(self._started.subscribe(partial(self._report, self._progress, len(nodes))))
        for node in nodes.values():
            tasks.create_task(self._run(node, plugins(node.name), shared, turns))
        await self._started.until(lambda: self._started.count == len(nodes))

    def _report(self, progress: StartProgress, total: int) -> None:
        progress(self._started.count, total)

    async def _run(
        self, node: EmulatedNode, plugins: Iterable[Plugin], shared: SharedParts, turns: asyncio.Semaphore
    ) -> None:
        paths = node.kubelet.paths
        served = Settings(kubelet_dir=paths.root, device_plugins_dir=paths.device_plugins, node_name=node.name)
        async with AsyncExitStack() as stack:
            async with turns:
                await stack.enter_async_context(node)
                own = on_node(plugins, paths.root)
                serve = serving(
                    *own, settings=served, drivers=self._drivers, shared=shared, history_dir=paths.root / _HISTORY
                )
                self.daemons[node.name] = await stack.enter_async_context(serve)
            self._started.notify()
            await self._ending.wait()
            async with turns:
                await stack.aclose()


def on_node(plugins: Iterable[Plugin], directory: Path) -> list[Plugin]:
    """The plugins with their files in the node's directory: an emulated node has none elsewhere on this machine."""
    plugins = list(plugins)
    for plugin in plugins:
        plugin.serve = replace(plugin.serve, cdi=str(directory / "cdi"), host_root=None)
    return plugins


def node_directories(state: Path | None, stack: AsyncExitStack) -> Path:
    """The parent of the nodes' directories, below `state` or until the stack is closed; its path is short enough."""
    if state is None:
        return stack.enter_context(directories.short_directory())
    nodes = state.absolute() / "nodes"
    try:
        nodes.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"cannot use {state}: {error.strerror}") from error
    return stack.enter_context(directories.linked_directory(nodes, _LONGEST_SOCKET))
