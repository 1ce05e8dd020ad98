"""The harness of plugin tests: plugins of the SDK served beside an emulated kubelet, in the test's own event loop.

A unix socket's path has at most 107 bytes, and pytest names directories after the test: the kubelet's files stay in the
test's directory, and where that is too deep, its sockets are reached through a short link.
"""

import asyncio
import os
from collections.abc import AsyncGenerator, AsyncIterator, Collection, Iterator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager, contextmanager, suppress
from dataclasses import replace
from pathlib import Path

from plugwright.errors import PeerGone, PluginError
from plugwright.kubelet import Kubelet, KubeletSettings
from plugwright.kubelet.events import Event, StateChange
from plugwright.model import Device, Health
from plugwright.sdk.control import report
from plugwright.sdk.daemon import Daemon, ResourceRuntime
from plugwright.sdk.plugin import Plugin
from plugwright.sdk.plugin_checks import check_plugins
from plugwright.sdk.run import serving
from plugwright.sdk.settings import Settings
from plugwright.sdk.status import DaemonStatus
from plugwright.system import directories
from plugwright.system.concurrency import first

__all__ = ["PluginKubelet", "checked_findings", "kubelet_root", "running", "until_listed"]

_LONGEST_SOCKET = len("device-plugins/") + 56  # bytes; the SDK's socket names have up to 56
_RETRY_TIME = 1.0  # seconds for a discover() that failed: the SDK calls it three or four times in them


class PluginKubelet(Kubelet):
    """The kubelet of `running`, with a view of the plugins that it serves: the wire has no reasons."""

    daemon: Daemon

    def status(self) -> DaemonStatus:
        """What `plugwright status -o json` would show of the plugins."""
        return report(self.daemon)

    async def reason(self, resource: str, device_id: str, health: Health | str = Health.UNHEALTHY) -> str:
        """The reason that the plugin gave for a device, once it has this health; empty if it gave none."""
        __tracebackhide__ = True
        latest, health = self.daemon.resource(resource).inventory.latest, Health(health)
        try:
            async with asyncio.timeout(self.settings.timeout):
                snapshot = await latest.until(lambda now: now is not None and _health(now.devices, device_id) is health)
        except TimeoutError:
            actual = _health(latest.value.devices if latest.value else {}, device_id) or "not listed"
            text = f"{resource}: {device_id} {health} expected, {actual} after {self.settings.timeout:g} s"
            raise PeerGone(text) from None
        assert snapshot is not None
        return snapshot.devices[device_id].reason


def _health(devices: Mapping[str, Device], device_id: str) -> Health | None:
    return devices[device_id].health if device_id in devices else None


@asynccontextmanager
async def running(
    plugins: Plugin | Sequence[Plugin],
    tmp_path: Path,
    settings: KubeletSettings | None = None,
    served: Settings | None = None,
) -> AsyncIterator[PluginKubelet]:
    """Serves one plugin or several while inside; yields the kubelet once it has a device list of each.

    The kubelet's files are in `tmp_path/kubelet`. `settings` are the kubelet's; `served` are the plugins', with the
    kubelet's directories put in. Raises `PluginError` with the reason where a list does not come, and at the end
    `KubeletFindings` where there are findings that `settings.allowed` does not have.
    """
    __tracebackhide__ = True
    plugins = _checked_arguments(plugins, tmp_path)
    with kubelet_root(tmp_path) as root:
        async with PluginKubelet(root, settings) as kubelet:
            paths = kubelet.paths
            served = replace(served or Settings(), kubelet_dir=paths.root, device_plugins_dir=paths.device_plugins)
            async with aclosing(kubelet.events(new=True)) as events, serving(*plugins, settings=served) as daemon:
                listed: set[str] = set()
                all_listed = until_listed(events, [plugin.resource for plugin in plugins], listed)
                with suppress(TimeoutError):
                    async with asyncio.timeout(kubelet.settings.timeout):
                        await first(all_listed, _until_discovery_fails(daemon))
                _check_listed(daemon, listed, kubelet.settings.timeout)
                kubelet.daemon = daemon
                with checked_findings(kubelet):
                    yield kubelet


@contextmanager
def checked_findings(kubelet: Kubelet) -> Iterator[None]:
    """Raises at the end what a real kubelet would stumble over; an error from inside gets it as a note."""
    __tracebackhide__ = True
    try:
        yield
    except BaseException as error:
        for finding in kubelet.unexpected_findings:
            error.add_note(f"finding: {finding}")
        raise
    kubelet.check_findings()


def _checked_arguments(plugins: object, tmp_path: object) -> list[Plugin]:
    __tracebackhide__ = True
    if isinstance(plugins, str | os.PathLike) or not isinstance(tmp_path, str | os.PathLike):
        called = f"running({type(plugins).__name__}, {type(tmp_path).__name__})"
        raise TypeError(f"running() must be called as running(plugin, tmp_path), got {called}")
    return check_plugins(plugins if isinstance(plugins, list | tuple) else [plugins])


async def until_listed(events: AsyncGenerator[Event, None], resources: Collection[str], listed: set[str]) -> None:
    """Returns when all `resources` are listed, or any resource where none is named; adds them to `listed`."""
    async for event in events:
        if isinstance(event, StateChange) and event.kind == "list":
            listed.add(event.about)
            if listed.issuperset(resources):
                return


@contextmanager
def kubelet_root(directory: Path) -> Iterator[Path]:
    """The root directory of a kubelet: `kubelet` in `directory`, or a short link to it where socket paths need one."""
    with directories.linked_directory(Path(directory).absolute() / "kubelet", _LONGEST_SOCKET) as root:
        yield root


async def _until_discovery_fails(daemon: Daemon) -> None:
    """Returns when discover() of a plugin has failed for longer than the time for retries."""
    while True:
        await daemon.changed.until(lambda _: any(map(_discovery_fails, daemon.resources.values())))
        await asyncio.sleep(_RETRY_TIME)
        if any(map(_discovery_fails, daemon.resources.values())):
            return


def _discovery_fails(runtime: ResourceRuntime) -> bool:
    return runtime.inventory.latest.value is None and bool(runtime.discovery.failing.value)


def _check_listed(daemon: Daemon, listed: set[str], timeout: float) -> None:
    __tracebackhide__ = True
    missing = [runtime for resource, runtime in sorted(daemon.resources.items()) if resource not in listed]
    if missing:
        raise PluginError("; ".join(_reason(runtime, timeout) for runtime in missing))


def _reason(runtime: ResourceRuntime, timeout: float) -> str:
    if runtime.discovery.failing.value:
        return runtime.discovery.failing.value
    if runtime.inventory.latest.value is None:
        return f"discover() of {runtime.resource} yielded no list within {timeout:g} s"
    status = runtime.registration.status.value
    return f"{runtime.resource} was not listed within {timeout:g} s: {status.reason or status.state.value}"
