"""The resources of an embedded cluster's nodes: those of a file, which may change, ten mock GPUs, or none."""

import asyncio
import logging
from collections.abc import Iterable
from pathlib import Path

from plugwright.cli import config
from plugwright.cli.config import Config
from plugwright.cluster.embedded import EmbeddedCluster, mock_gpus
from plugwright.errors import ConfigError
from plugwright.sdk.directory import Directory
from plugwright.sdk.plugin import Plugin

__all__ = ["Resources"]

logger = logging.getLogger(__name__)

_SETTLE = 0.1  # an editor needs more than one step to write a file


class Resources:
    """`path` is the file, or None for what is offered without one: mock GPUs, or nothing where it is `bare`."""

    def __init__(self, path: Path | None, *, bare: bool = False) -> None:
        self._path, self._bare = path, bare
        self._loaded = config.load(path) if path is not None else None

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
            new = config.load(path)
        except ConfigError as error:
            logger.error("new configuration refused, the old one stays", extra={"error": str(error)})
            return loaded
        if new.file != loaded.file:
            for node in cluster.nodes:
                resources = cluster.daemon(node).resources
                serving = {name: runtime.service.plugin for name, runtime in resources.items()}
                await cluster.serve(node, new.plugins(loaded, serving))
        return new
