"""The resources of a file by their names: as they are written, or found out by `families`, where a file has any."""

from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from typing import Protocol

from plugwright.config import nvidia
from plugwright.config.schema import Config
from plugwright.sdk.plugin import Plugin

__all__ = ["Names", "Written", "names_for"]


class Names(Protocol):
    def expanded(self, config: Config) -> Config:
        """The same with an entry for every name that there is."""
        ...

    def adopt(self, plugins: Sequence[Plugin]) -> list[Plugin]:
        """The plugins of these entries, ready to be served."""
        ...

    async def follow(self, stack: AsyncExitStack, wish: Callable[[], None]) -> None:
        """Wishes when there is another name, until `stack` ends."""
        ...


class Written:
    """Names as they are written."""

    def expanded(self, config: Config) -> Config:
        return config

    def adopt(self, plugins: Sequence[Plugin]) -> list[Plugin]:
        return list(plugins)

    async def follow(self, stack: AsyncExitStack, wish: Callable[[], None]) -> None:
        """They never change by themselves."""


def names_for(config: Config, known: Names) -> Names:
    """What `known` is, unless the file is the first one that has names to be found out."""
    if not isinstance(known, Written) or not any(nvidia.is_family(each.name) for each in config.file.resources):
        return known
    from plugwright.config.name_templates import Families  # a node without GPUs does not pay for it

    return Families()
