"""A plugin of the SDK with an emulated kubelet around it, both in the test's own event loop."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace
from pathlib import Path

from plugwright.errors import PluginError
from plugwright.kubelet import Kubelet, KubeletSettings
from plugwright.sdk.plugin import Plugin
from plugwright.sdk.running import serving
from plugwright.sdk.runtime import Daemon, ResourceRuntime
from plugwright.sdk.settings import Settings
from plugwright.testing import waiting
from plugwright.testing.place import kubelet_root

__all__ = ["running"]

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
                listed = waiting.listed(events, [plugin.resource for plugin in plugins], seen)
                await waiting.first(listed, _hopeless(daemon), limit=kubelet.settings.patience)
                _check(daemon, seen, kubelet.settings.patience)
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
