"""Lists devices and Allocate responses as the daemon would on this machine, without a kubelet: `plugwright run --once`.

Discovery and Allocate are the daemon's own. Nothing is registered and no socket is created. Files that plugins write
go below a directory of the caller, whose paths are removed from the answers: a running container can have the real
files mounted. A family without a way to do so (`DeviceFamily.redirected`) is not called to allocate.

It runs in a thread with its own event loop, so that plugin code that hangs or blocks loses only its own answer.
"""

import asyncio
import threading
from collections.abc import Iterator, Mapping
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
from msgspec.structs import replace

from plugwright.config.schema import Config
from plugwright.config.template_names import TemplateNames
from plugwright.errors import HardwareMissing, PluginError, PluginTimeout, PlugwrightError
from plugwright.model import Allocation, Device, Mount
from plugwright.sdk.inventory import Inventory
from plugwright.sdk.plugin import Plugin
from plugwright.sdk.plugin_calls import PluginCalls, StallDetector
from plugwright.sdk.service import PluginService
from plugwright.sdk.settings import Limits, Settings
from plugwright.system.latest import Signal
from plugwright.text import clean

__all__ = ["DryDevice", "DryReport", "DryResource", "dry_run"]

_NOT_ASKED = "its device family does not declare where it writes files, so it was not called"
_LEAVING = 1.0  # seconds for plugins to end when all is known


@dataclass(frozen=True, slots=True)
class DryDevice:
    """A device and the response to an Allocate of this device only; `error` is why there is none."""

    device: Device
    allocation: Allocation | None = None
    error: str = ""


@dataclass(slots=True)
class DryResource:
    """`error` is why the resource would not be served or is not fully known; `idle` is why it would be idle.

    `empty` is why its list has no device, if the plugin knows.
    """

    name: str
    error: str = ""
    idle: str = ""
    empty: str = ""
    devices: list[DryDevice] = field(default_factory=list)

    @property
    def succeeded(self) -> bool:
        """An Unhealthy device is not a failure: it would be listed as Unhealthy."""
        return not self.error and not any(device.error for device in self.devices if device.device.healthy)


@dataclass(frozen=True, slots=True)
class DryReport:
    """All resources, sorted, and the names of templates that cannot be served, with the reasons."""

    resources: list[DryResource]
    refused_names: Mapping[str, str]

    @property
    def succeeded(self) -> bool:
        return not self.refused_names and all(resource.succeeded for resource in self.resources)


def dry_run(config: Config, directory: Path, limit: float) -> DryReport:
    """`limit` is in seconds, for each plugin. Files are written below `directory` alone."""
    run = _DryRun(config, directory, limit)
    thread = threading.Thread(target=run.work, name="dry run", daemon=True)
    thread.start()
    patience = limit * (2 if any(entry.is_template for entry in config.file.resources) else 1)
    if run.known.wait(patience + _LEAVING):
        thread.join(_LEAVING)
    if run.error is not None:
        raise run.error
    return DryReport(sorted(run.results(), key=lambda resource: resource.name), run.refused_names)


class _DryRun:
    """`known` is set once every resource has a result; a resource that hangs has none until then."""

    def __init__(self, config: Config, directory: Path, limit: float) -> None:
        self.known = threading.Event()
        self.error: BaseException | None = None
        self._directory, self._limit = directory, limit
        self.refused_names: Mapping[str, str] = {}
        self._config, self._redirected = _redirected(config, directory)
        self._stalls = StallDetector()
        self._resources: dict[str, DryResource] = {}
        self._pending: set[str] = {entry.name for entry in config.file.resources}

    def work(self) -> None:
        try:
            asyncio.run(self._run())
        except BaseException as error:  # noqa: BLE001  raised again in the caller's thread
            self.error = error
        finally:
            self._stalls.close()
            self.known.set()

    def results(self) -> Iterator[DryResource]:
        blocked = f": {self._stalls.stalled} blocks the event loop" if self._stalls.stalled else ""
        for name in self._pending.copy():
            resource = self._resources.setdefault(name, DryResource(name))
            resource.error = f"did not end within {self._limit:g} s{blocked}"
        for resource in self._resources.copy().values():
            yield resource

    async def _run(self) -> None:
        async with AsyncExitStack() as stack:
            names = await self._expanded_names(stack)
            plugins = names.current.config.plugins()
            names.join(plugins)
            self.refused_names = names.current.refused
            for template, (_, members) in names.current.members.items():
                self._redirected |= members.keys() if template in self._redirected else set()
            self._pending = {plugin.resource for plugin in plugins}
            tasks = [asyncio.create_task(self._try_plugin(plugin)) for plugin in plugins]
            if tasks:
                # Not asyncio.timeout: that would wait for plugin code that ignores its cancellation.
                await asyncio.wait(tasks, timeout=self._limit)
            self.known.set()
            for task in tasks:
                task.cancel()

    async def _expanded_names(self, stack: AsyncExitStack) -> TemplateNames:
        """The configuration with this machine's names, as soon as each template has matched one."""
        templates = [entry for entry in self._config.file.resources if entry.is_template]
        names, changed = TemplateNames(self._config), Signal()

        def is_complete() -> bool:
            names.current = names.expand(self._config)
            return all(names.current.members[entry.name][1] for entry in templates)

        await names.follow(stack, changed.notify)
        waiting = asyncio.create_task(changed.until(is_complete))
        await asyncio.wait([waiting], timeout=self._limit)
        waiting.cancel()
        for entry in templates:
            if not names.current.members[entry.name][1]:
                error = f"no device to make a name of was found within {self._limit:g} s"
                self._resources[entry.name] = DryResource(entry.name, error)
        return names

    async def _try_plugin(self, plugin: Plugin) -> None:
        result = self._resources[plugin.resource] = DryResource(plugin.resource)
        try:
            await self._list_and_allocate(plugin, result)
        except HardwareMissing as error:
            result.idle = self._cleaned(str(error))
        except PlugwrightError as error:
            result.error = self._cleaned(str(error))
        except Exception as error:  # noqa: BLE001  a supervision boundary: shown with its resource
            result.error = self._cleaned(f"{type(error).__name__}: {error}")
        self._pending.discard(plugin.resource)

    async def _list_and_allocate(self, plugin: Plugin, result: DryResource) -> None:
        inventory, calls = Inventory(plugin.resource), PluginCalls(plugin.resource, self._stalls)
        settings = Settings(limits=Limits(allocate=self._limit))
        service = PluginService(plugin, inventory, calls, settings)
        # discover() stays open meanwhile, as it does in the daemon.
        async with aclosing(calls.device_lists(plugin)) as lists:
            async for devices in lists:
                inventory.update(devices)
                break
            if inventory.latest.value is None:
                raise PluginError(f"discover() of {plugin.resource} ended without a list")
            listed = list(inventory.latest.value.devices.values())
            result.empty = "" if listed else clean(plugin.empty_reason)
            result.devices = [DryDevice(device, error="not asked") for device in listed]
            for index, device in enumerate(listed):
                result.devices[index] = await self._try_device(service, device)

    async def _try_device(self, service: PluginService, device: Device) -> DryDevice:
        if service.plugin.resource not in self._redirected:
            return DryDevice(device, error=_NOT_ASKED)
        try:
            [allocation] = await service.allocations([[device.id]])
        except PluginTimeout:
            raise  # the next device would hang too
        except PlugwrightError as error:
            return DryDevice(device, error=self._cleaned(str(error)))
        return DryDevice(device, self._without_directory(allocation))

    def _without_directory(self, allocation: Allocation) -> Allocation:
        cleaned = self._cleaned
        return Allocation(
            env={name: cleaned(value) for name, value in allocation.env.items()},
            mounts=[
                Mount(cleaned(mount.host_path), cleaned(mount.container_path), mount.read_only)
                for mount in allocation.mounts
            ],
            nodes=allocation.nodes,
            annotations={name: cleaned(value) for name, value in allocation.annotations.items()},
            cdi=allocation.cdi,
        )

    def _cleaned(self, text: str) -> str:
        return text.replace(str(self._directory), "")


def _redirected(config: Config, directory: Path) -> tuple[Config, set[str]]:
    """The file with all paths that plugins write to moved below `directory`; the resources whose families can."""
    host = config.file.host
    host = msgspec.structs.replace(host, cdi=f"{directory}{host.cdi}", device_info=f"{directory}{host.device_info}")
    entries, names = [], set()
    for entry in config.file.resources:
        redirected = entry.family.redirected(entry, directory)
        entries.append(redirected or entry)
        names |= {entry.name} if redirected is not None else set()
    return replace(config, file=replace(config.file, resources=entries, host=host)), names
