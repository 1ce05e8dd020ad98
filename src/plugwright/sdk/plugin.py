"""What a plugin author subclasses.

One method is required. Every method may be written with or without `async`; those without run in threads, so that
they may block. The kubelet is told of what is overridden, so the two cannot disagree.
"""

from collections.abc import AsyncIterable, Awaitable, Iterable, Mapping, Sequence

from plugwright.errors import PluginError
from plugwright.model import Allocation, Device, Options
from plugwright.sdk import preference

__all__ = ["Plugin", "announced"]


Devices = Iterable[Device]


class Plugin:
    """A kind of device that this node offers under one resource name."""

    resource: str

    def discover(self) -> "AsyncIterable[Devices] | Iterable[Devices] | Awaitable[Devices] | Devices":
        """Yields complete device lists, each one the whole truth, replacing the last.

        A generator goes on for as long as devices may change; when it ends, its last list stays. When it raises, the
        last list stays too, and it is called again after a while.
        """
        raise NotImplementedError(f"{type(self).__name__} has no discover()")

    def allocate(self, devices: Sequence[Device]) -> Allocation | Awaitable[Allocation]:
        """What a container gets together with `devices`. The same devices may be asked for again."""
        return Allocation()

    def prefer(
        self, available: Sequence[Device], required: Sequence[Device], size: int
    ) -> Sequence[Device] | Awaitable[Sequence[Device]]:
        """The best `size` of `available`, all of `required` among them: a wish that the kubelet may honour."""
        return preference.fewest_numa_nodes(available, required, size)

    def pre_start(self, devices: Sequence[Device]) -> Awaitable[None] | None:
        """Called before each start of a container that holds `devices`: to reset them, for one."""
        return None

    def command(self, name: str, arguments: Mapping[str, str]) -> str | Awaitable[str]:
        """An operator's own command to this plugin, through the daemon's control socket; returns a line to show."""
        raise PluginError(f"{self.resource} takes no command {name!r}")


def announced(plugin: Plugin) -> Options:
    """What the kubelet is told that the plugin supports."""
    # The default preference is worth the kubelet's call; a pre-start call is not free, and a plugin that is down would
    # block every container start.
    return Options(pre_start=type(plugin).pre_start is not Plugin.pre_start, preference=True)
