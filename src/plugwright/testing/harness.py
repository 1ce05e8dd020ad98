"""A plugin of the SDK with an emulated kubelet around it, both in the test's own event loop.

Waiting for a kubelet to hear of plugins, for as long as there is hope.

Where an emulated kubelet of a test has its files.

A socket's path may have 107 bytes, and pytest's directories are named after the test: the files stay in the directory
of the test, and where that is too deep, the sockets are reached through a short link to it.
"""

import asyncio
import os
from collections.abc import AsyncGenerator, AsyncIterator, Collection, Iterator, Sequence
from contextlib import aclosing, asynccontextmanager, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypeVar

from plugwright.errors import PluginError
from plugwright.kubelet import Kubelet, KubeletSettings
from plugwright.kubelet.events import Event, StateChange
from plugwright.protocol.paths import KubeletPaths
from plugwright.sdk.daemon import Daemon, ResourceRuntime
from plugwright.sdk.plugin import Plugin
from plugwright.sdk.run import serving
from plugwright.sdk.settings import Settings
from plugwright.system import sockets
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


_LONGEST_NAME = 56  # of a socket that the SDK makes; a plugin of one's own may take as much
_SHORT = "/tmp"


@contextmanager
def kubelet_root(directory: Path) -> Iterator[Path]:
    """The root for a kubelet: `kubelet` in `directory`, or a link to it for as long as it is used."""
    root = Path(directory).absolute() / "kubelet"
    if _has_room(root):
        yield root
        return
    root.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(prefix="pw-", dir=_SHORT if os.access(_SHORT, os.W_OK) else None) as short:
        link = Path(short, root.name)
        link.symlink_to(root, target_is_directory=True)
        yield link


def _has_room(root: Path) -> bool:
    directory = KubeletPaths.from_environment({}, root).device_plugins
    return sockets.fits(directory, _LONGEST_NAME)


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
    return runtime.inventory.latest.value is None and bool(runtime.discovery.failing.value)


def _check(daemon: Daemon, seen: set[str], patience: float) -> None:
    __tracebackhide__ = True
    missing = [runtime for resource, runtime in sorted(daemon.resources.items()) if resource not in seen]
    if missing:
        raise PluginError("; ".join(_why(runtime, patience) for runtime in missing))


def _why(runtime: ResourceRuntime, patience: float) -> str:
    if runtime.discovery.failing.value:
        return runtime.discovery.failing.value
    if runtime.inventory.latest.value is None:
        return f"discover() of {runtime.resource} yielded no list within {patience:g} s"
    standing = runtime.registration.status.value
    return f"{runtime.resource} was not listed within {patience:g} s: {standing.reason or standing.state.value}"
