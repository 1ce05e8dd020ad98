"""The plugins on the nodes of an embedded cluster: those of the operator's file, mock GPUs, or none."""

from collections.abc import Iterable, Mapping
from contextlib import aclosing
from functools import partial
from pathlib import Path

from plugwright.cluster.embedded import EmbeddedCluster, mock_gpus
from plugwright.config import schema
from plugwright.config.reload import CurrentConfig
from plugwright.config.schema import Config
from plugwright.sdk.plugin import Plugin

__all__ = ["NodePlugins"]

_NODE_FILES, _RESOURCE_FILES = 3, 3


class NodePlugins:
    """The plugins of every node: those of the file at `path`; without one mock GPUs, or none if `bare`."""

    def __init__(self, path: Path | None, *, bare: bool = False) -> None:
        self._bare = bare
        self._current = CurrentConfig(path, schema.load(path)) if path is not None else None

    @property
    def open_files(self) -> int:
        """Of one node: sockets of its kubelet, its control socket, and for each resource a socket and a stream."""
        resources = len(self._current.value.file.resources) if self._current is not None else 1
        return _NODE_FILES + _RESOURCE_FILES * resources

    def of(self, node: str) -> Iterable[Plugin]:
        if self._current is not None:
            return self._current.value.plugins()
        return [] if self._bare else mock_gpus(node)

    async def follow(self, cluster: EmbeddedCluster) -> None:
        """Applies every change of the file to all nodes, until cancelled."""
        if self._current is None:
            return
        async with aclosing(self._current.changes()) as changes:
            async for _ in changes:
                await self._current.reload(partial(_serve, cluster, self._current.value))


async def _serve(cluster: EmbeddedCluster, before: Config, config: Config) -> Mapping[str, str]:
    """Serves a version of the file on all nodes."""
    for node in cluster.nodes:
        await cluster.serve(node, config.plugins(before, cluster.daemon(node).plugins))
    return {}
