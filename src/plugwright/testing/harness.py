"""A plugin of the SDK with an emulated kubelet around it, both in the test's own event loop.

Waiting for a kubelet to hear of plugins, for as long as there is hope.

Where an emulated kubelet of a test has its files.

A socket's path may have 107 bytes, and pytest's directories are named after the test: the files stay in the directory
of the test, and where that is too deep, the sockets are reached through a short link to it.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Collection, Iterator, Sequence
from contextlib import aclosing, asynccontextmanager, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from plugwright.errors import PluginError
from plugwright.kubelet import Kubelet, KubeletSettings
from plugwright.kubelet.events import Event, StateChange
from plugwright.sdk.daemon import Daemon, ResourceRuntime
from plugwright.sdk.plugin import Plugin
from plugwright.sdk.run import serving
from plugwright.sdk.settings import Settings
from plugwright.system import directories
from plugwright.system.concurrency import first

__all__ = ["kubelet_root", "running", "until_listed"]

T = TypeVar("T")


async def until_listed(events: AsyncGenerator[Event, None], resources: Collection[str], seen: set[str]) -> None:
    """Returns when each of `resources` was listed, or any where none are named; `seen` grows with each list."""
    async for event in events:
        if isinstance(event, StateChange) and event.kind == "list":
            seen.add(event.about)
            if seen.issuperset(resources):
                return


_LONGEST_SOCKET = len("device-plugins/") + 56  # the SDK's socket names have up to 56 bytes


@contextmanager
def kubelet_root(directory: Path) -> Iterator[Path]:
    """The root for a kubelet: `kubelet` in `directory`, or a link to it where sockets' paths would be too long."""
    with directories.linked_directory(Path(directory).absolute() / "kubelet", _LONGEST_SOCKET) as root:
        yield root


_SECOND_CHANCE = 1.0  # seconds for a discover() that has failed: it is tried three or four times in them


@asynccontextmanager
async def running(
    plugins: Plugin | Sequence[Plugin],
    tmp_path: Path,
    settings: KubeletSettings | None = None,
    served: Settings | None = None,
) -> AsyncIterator[Kubelet]:
    """Serves the plugin, or several, while inside; yields the kubelet once it has a device list of each.

    The kubelet's files are in `tmp_path/kubelet`. `settings` are the kubelet's, `served` those of the plugins: but for
    the directories, which are the kubelet's. Raises `PluginError` with the reason where a list does not come.
    """
    __tracebackhide__ = True
    plugins = [plugins] if isinstance(plugins, Plugin) else list(plugins)
    with kubelet_root(tmp_path) as root:
        async with Kubelet(root, settings) as kubelet:
            paths = kubelet.paths
            places = replace(served or Settings(), kubelet_dir=paths.root, device_plugins_dir=paths.device_plugins)
            async with aclosing(kubelet.events(new=True)) as events, serving(*plugins, settings=places) as daemon:
                seen: set[str] = set()
                listed = until_listed(events, [plugin.resource for plugin in plugins], seen)
                with suppress(TimeoutError):
                    async with asyncio.timeout(kubelet.settings.timeout):
                        await first(listed, _hopeless(daemon))
                _check(daemon, seen, kubelet.settings.timeout)
                yield kubelet


async def _hopeless(daemon: Daemon) -> None:
    """Returns when a plugin cannot even say what it has."""
    while True:
        await daemon.changed.until(lambda _: any(map(_fails, daemon.resources.values())))
        await asyncio.sleep(_SECOND_CHANCE)
        if any(map(_fails, daemon.resources.values())):
            return


def _fails(runtime: ResourceRuntime) -> bool:
    return runtime.inventory.newest.value is None and bool(runtime.discovery.failing.value)


def _check(daemon: Daemon, seen: set[str], patience: float) -> None:
    __tracebackhide__ = True
    missing = [runtime for resource, runtime in sorted(daemon.resources.items()) if resource not in seen]
    if missing:
        raise PluginError("; ".join(_why(runtime, patience) for runtime in missing))


def _why(runtime: ResourceRuntime, patience: float) -> str:
    if runtime.discovery.failing.value:
        return runtime.discovery.failing.value
    if runtime.inventory.newest.value is None:
        return f"discover() of {runtime.resource} yielded no list within {patience:g} s"
    standing = runtime.lifecycle.standing.value
    return f"{runtime.resource} was not listed within {patience:g} s: {standing.reason or standing.state.value}"
