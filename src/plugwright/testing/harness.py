"""The harness of plugin tests: serves plugins of the SDK beside an emulated kubelet, in the test's event loop.

A unix socket's path has at most 107 bytes, and pytest names directories after the test: the kubelet's files stay in the
test's directory, and if the path is too long, its sockets are reached through a short link.
"""

import asyncio
import os
from collections.abc import AsyncGenerator, AsyncIterator, Collection, Iterator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager, contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

import msgspec

from plugwright.apiserver.extra import check_installed
from plugwright.apiserver.one_node import OneNode
from plugwright.errors import PeerGone, PluginError, PodRefused
from plugwright.kubelet import Kubelet, KubeletSettings, Pod, PodSpec, Timing
from plugwright.kubelet.admission import Predicates
from plugwright.kubelet.events import Event, StateChange
from plugwright.kubelet.pod_table import RunContainerOptions
from plugwright.kubelet.pods import PodClaim
from plugwright.model import Device, Health
from plugwright.protocol.messages import DeviceSpec, MountSpec
from plugwright.sdk import cdi
from plugwright.sdk.cdi import resolution
from plugwright.sdk.daemon import Daemon
from plugwright.sdk.daemon_status import report
from plugwright.sdk.plugin import Plugin
from plugwright.sdk.plugin_checks import check_plugins
from plugwright.sdk.registration import LONGEST_SOCKET_NAME
from plugwright.sdk.resource_runtime import ResourceRuntime
from plugwright.sdk.run import serving
from plugwright.sdk.serve_settings import ResourceDriver, ServeMode, ServeSettings
from plugwright.sdk.settings import Settings
from plugwright.sdk.status import DaemonStatus
from plugwright.serve import needs_driver
from plugwright.system import directories
from plugwright.system.concurrency import first
from plugwright.testing import claim_allocation
from plugwright.testing.claim_requests import PodWithClaims, RequestedClaim, pod_claim_name

__all__ = ["PluginKubelet", "checked_findings", "kubelet_root", "running", "until_listed"]

_NODE = "node"
_QUICK = Timing(reconcile=0.05)  # a real plugin watcher can delay a driver for up to a second
_RETRY_TIME = 1.0  # seconds for a failing discover(), in which the SDK calls it three or four times


class PluginKubelet(Kubelet):
    """The kubelet of `running`, with a view of its plugins, because the wire carries no reasons."""

    daemon: Daemon
    api: OneNode  # the API server in memory, for claims
    cdi: Path  # directory of the claims' CDI specs

    async def admit(self, pod: PodSpec | Mapping[str, object], predicates: Predicates | None = None) -> Pod:
        """Like `Kubelet.admit`, but first allocates the pod's claims, as the scheduler does.

        Raises `PodRefused` if their devices do not become free within the kubelet's `timeout`: a real pod would wait.
        """
        if not isinstance(pod, PodWithClaims):
            return await super().admit(pod, predicates)
        spec = self._table.generate_name(pod).with_unused_uid(self._running.manager.pod_devices.has_pod)
        assert isinstance(spec, PodWithClaims)
        names = [claim.name or f"{spec.name}-{number}" for number, claim in enumerate(spec.wanted)]
        for name, claim in zip(names, spec.wanted, strict=True):
            await self._allocate(spec, name, claim)
            self.api.reserve(spec.namespace, name, (spec.name, spec.uid))
        claims = tuple(PodClaim(pod_claim_name(number), name) for number, name in enumerate(names))
        return await super().admit(replace(spec, claims=claims), predicates)

    def _delete(self, pod: Pod) -> None:
        super()._delete(pod)
        for claim in pod.spec.claims:
            claim_allocation.release(self.api, pod.spec.namespace, claim.claim_name, pod.uid)

    def container(self, pod: Pod, name: str = "main") -> RunContainerOptions:
        """The options of a container, with a runtime's expansion of its CDI names: the same for both APIs."""
        granted = pod.container(name)
        edits = resolution.edits_for(granted.cdi, [self.cdi]) if granted.cdi else []
        return replace(
            granted,
            env={**granted.env, **{key: value for edit in edits for key, value in edit.env.items()}},
            mounts=(*granted.mounts, *(_mount(mount) for edit in edits for mount in edit.mounts)),
            nodes=(*granted.nodes, *(_node(node) for edit in edits for node in edit.device_nodes)),
        )

    async def _allocate(self, pod: PodSpec, name: str, claim: RequestedClaim) -> None:
        drivers = {
            resource: runtime.driver.name
            for resource, runtime in self.daemon.resources.items()
            if runtime.driver is not None
        }
        problem = ""

        def is_allocated() -> bool:
            nonlocal problem
            problem = claim_allocation.allocate(self.api, (pod.namespace, name), claim, drivers)
            return not problem

        try:
            async with asyncio.timeout(limit := self.settings.timeout if drivers else 0):
                if not await self.api.until(is_allocated, limit):
                    raise TimeoutError
                # Before the driver has registered, a kubelet would retry after a minute.
                await self.daemon.changed.until(
                    lambda: not any(map(_has_waiting_driver, self.daemon.resources.values()))
                )
        except TimeoutError:
            problem = problem or "a driver is not registered"
            raise PodRefused(pod.key, "Unschedulable", f"cannot allocate all claims: {problem}") from None

    def status(self) -> DaemonStatus:
        """The status of the plugins as printed by `plugwright status -o json`."""
        return report(self.daemon)

    async def reason(self, resource: str, device_id: str, health: Health | str = Health.UNHEALTHY) -> str:
        """The plugin's reason for a device, once the device has this health; empty if it gave none."""
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


def _mount(mount: cdi.Mount) -> MountSpec:
    return MountSpec(mount.host_path, mount.container_path or mount.host_path, "ro" in mount.options)


def _node(node: cdi.DeviceNode) -> DeviceSpec:
    return DeviceSpec(node.host_path or node.path, node.path, node.permissions or "rwm")


def _health(devices: Mapping[str, Device], device_id: str) -> Health | None:
    return devices[device_id].health if device_id in devices else None


@asynccontextmanager
async def running(
    plugins: Plugin | Sequence[Plugin],
    tmp_path: Path,
    settings: KubeletSettings | None = None,
    served: Settings | None = None,
    serve: str | ServeSettings = "",
) -> AsyncIterator[PluginKubelet]:
    """Serves one or several plugins while inside; yields the kubelet once it has a device list of each.

    The kubelet's files are in `tmp_path/kubelet`. `settings` are the kubelet's; `served` are the plugins', to which the
    kubelet's directories are added. `serve` is `device-plugin`, `dra` or `both`, as for run(); the API server for DRA
    is in memory, `kubelet.api`. Raises `PluginError` with the reason if a list does not arrive, and at the end
    `KubeletFindings` for findings missing in `settings.allowed`.
    """
    __tracebackhide__ = True
    plugins = _checked_arguments(plugins, tmp_path)
    settings = settings or KubeletSettings(timing=_QUICK)
    api, cdi_directory = OneNode(_NODE), Path(tmp_path).absolute() / "cdi"
    for plugin in plugins:
        wanted = ServeSettings.of(serve) if serve else plugin.serve
        host_root = settings.host_root
        plugin.serve = msgspec.structs.replace(
            wanted, cdi=str(cdi_directory), host_root=str(host_root) if host_root else None
        )
    with kubelet_root(tmp_path) as root:
        async with PluginKubelet(root, settings, resource_api=api) as kubelet:
            paths = kubelet.paths
            served = msgspec.structs.replace(
                served or Settings(),
                kubelet_dir=paths.root,
                device_plugins_dir=paths.device_plugins,
                node_name=_NODE,
            )
            kubelet.api, kubelet.cdi = api, cdi_directory
            async with (
                aclosing(kubelet.events(new=True)) as events,
                serving(*plugins, settings=served, drivers=partial(_driver, api)) as daemon,
            ):
                listed: set[str] = set()
                by_list = [plugin.resource for plugin in plugins if plugin.serve.api is not ServeMode.DRA]
                with suppress(TimeoutError):
                    async with asyncio.timeout(kubelet.settings.timeout):
                        await first(_until_served(daemon, events, by_list, listed), _until_discovery_fails(daemon))
                _check_served(daemon, listed, kubelet.settings.timeout)
                kubelet.daemon = daemon
                with checked_findings(kubelet):
                    yield kubelet


def _driver(api: OneNode, runtime: ResourceRuntime) -> ResourceDriver | None:
    if not needs_driver(runtime):
        return None
    check_installed("running() with serve='dra' or 'both'", ("starlette",), "testing")
    from plugwright.apiserver.in_process_client import InProcessClient
    from plugwright.dra.driver import Driver  # a client of the API server, which most tests do not need

    return Driver(runtime, connect=lambda _: InProcessClient(api))


async def _until_served(
    daemon: Daemon, events: AsyncGenerator[Event, None], resources: Collection[str], listed: set[str]
) -> None:
    if resources:
        await until_listed(events, resources, listed)
    await daemon.changed.until(lambda: not any(map(_has_waiting_driver, daemon.resources.values())))


def _has_waiting_driver(runtime: ResourceRuntime) -> bool:
    return runtime.driver is not None and not runtime.driver.state.value.ready


@contextmanager
def checked_findings(kubelet: Kubelet) -> Iterator[None]:
    """Raises at the end for problems with a real kubelet; an error from inside gets them as a note."""
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
    """Returns when all `resources` are listed, or any resource if none is given; adds them to `listed`."""
    async for event in events:
        if isinstance(event, StateChange) and event.kind == "list":
            listed.add(event.about)
            if listed.issuperset(resources):
                return


@contextmanager
def kubelet_root(directory: Path) -> Iterator[Path]:
    """The root directory of a kubelet: `kubelet` in `directory`, or a short link to it if socket paths need one."""
    longest = len("device-plugins/") + LONGEST_SOCKET_NAME
    with directories.linked_directory(Path(directory).absolute() / "kubelet", longest) as root:
        yield root


async def _until_discovery_fails(daemon: Daemon) -> None:
    """Returns when discover() of a plugin has been failing for longer than the time for retries."""
    while True:
        await daemon.changed.until(lambda: any(map(_discovery_fails, daemon.resources.values())))
        await asyncio.sleep(_RETRY_TIME)
        if any(map(_discovery_fails, daemon.resources.values())):
            return


def _discovery_fails(runtime: ResourceRuntime) -> bool:
    return runtime.inventory.latest.value is None and bool(runtime.discovery.failing.value)


def _check_served(daemon: Daemon, listed: set[str], timeout: float) -> None:
    __tracebackhide__ = True
    missing = [
        runtime
        for resource, runtime in sorted(daemon.resources.items())
        if _has_waiting_driver(runtime) or (resource not in listed and runtime.serve.api is not ServeMode.DRA)
    ]
    if missing:
        raise PluginError("; ".join(_reason(runtime, timeout) for runtime in missing))


def _reason(runtime: ResourceRuntime, timeout: float) -> str:
    if runtime.discovery.failing.value:
        return runtime.discovery.failing.value
    if runtime.inventory.latest.value is None:
        return f"discover() of {runtime.resource} yielded no list within {timeout:g} s"
    if runtime.driver is not None and _has_waiting_driver(runtime):
        state = runtime.driver.state.value
        return (
            f"the devices of {runtime.resource} were not published within {timeout:g} s: {state.reason or state.state}"
        )
    status = runtime.registration.status.value
    return f"{runtime.resource} was not listed within {timeout:g} s: {status.reason or status.state.value}"
