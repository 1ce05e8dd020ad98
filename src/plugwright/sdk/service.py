"""Answers the kubelet for one plugin: from the inventory, and by asking the plugin's own methods."""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass

from plugwright.errors import InvalidValue, PluginError, RepeatedDevice, UnhealthyDevice, UnknownDevice
from plugwright.model import Allocation, Device, Options, PreferenceRequest, natural_order
from plugwright.protocol.messages import DeviceList
from plugwright.sdk.inventory import Inventory
from plugwright.sdk.metrics import ResourceMetrics
from plugwright.sdk.plugin import Plugin, announced, completed, fewest_numa_nodes
from plugwright.sdk.plugin_calls import Caller
from plugwright.sdk.settings import Settings
from plugwright.system.concurrency import Latest

__all__ = ["PluginService", "Streams"]

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Streams:
    """How many device lists are being watched now, and how many were ever asked for."""

    open: int
    opened: int

    def one_more(self) -> "Streams":
        return Streams(self.open + 1, self.opened + 1)

    def one_less(self) -> "Streams":
        return Streams(self.open - 1, self.opened)


class PluginService:
    """Implements `protocol.device_plugin.DevicePluginService`. `plugin` may be exchanged while serving."""

    def __init__(self, plugin: Plugin, inventory: Inventory, caller: Caller, settings: Settings) -> None:
        self.plugin = plugin
        self.tally = ResourceMetrics()
        self.streams = Latest(Streams(0, 0))
        self.last_stream = time.time()  # when a list was last watched, or else when serving began
        self._inventory, self._caller = inventory, caller
        self._limits, self._burst = settings.limits, settings.timeouts.burst

    async def options(self) -> Options:
        with self.tally.call("GetDevicePluginOptions"):
            return announced(self.plugin)

    async def lists(self) -> AsyncGenerator[DeviceList, None]:
        """The newest list at once, and again whenever what the kubelet sees of it has changed."""
        self.streams.publish(self.streams.value.one_more())
        try:
            sent: tuple[DeviceList, int] | None = None
            async for snapshot in self._inventory.newest.changes():
                if snapshot is None or (snapshot.encoded, snapshot.resent) == sent:
                    continue
                started = time.monotonic()
                yield snapshot.encoded
                sent = snapshot.encoded, snapshot.resent
                await asyncio.sleep(max(0.0, self._burst - (time.monotonic() - started)))
        finally:
            self.last_stream = time.time()
            self.streams.publish(self.streams.value.one_less())

    async def allocate(self, containers: Sequence[Sequence[str]]) -> list[Allocation]:
        """One answer per container, in order; every request is checked before the plugin is asked for the first."""
        with self.tally.call("Allocate"):
            wanted = [self._healthy(device_ids) for device_ids in containers]
            return [await self._allocate(devices) for devices in wanted]

    async def prefer(self, requests: Sequence[PreferenceRequest]) -> list[list[str]]:
        """Never fails: an error here would refuse the pod, while the kubelet can do without an answer."""
        with self.tally.call("GetPreferredAllocation"):
            return [await self._prefer(request) for request in requests]

    async def pre_start(self, device_ids: Sequence[str]) -> None:
        with self.tally.call("PreStartContainer"):
            devices = self._known(device_ids)
            await self._ask("pre_start", devices, limit=self._limits.pre_start)

    async def _allocate(self, devices: list[Device]) -> Allocation:
        answer = await self._ask("allocate", devices, limit=self._limits.allocate)
        if not isinstance(answer, Allocation):
            error = InvalidValue(f"allocate() of {self._inventory.resource} returns an Allocation, not {answer!r}")
            self._log_failed(error)
            raise error
        # After the answer is on its way: the kubelet admits one pod at a time, and waits.
        asyncio.get_running_loop().call_soon(self._log_allocated, devices)
        return answer

    def _log_allocated(self, devices: list[Device]) -> None:
        logger.info("allocated", extra={"resource": self._inventory.resource, "devices": _ids(devices)})

    async def _ask(self, method: str, *arguments: object, limit: float) -> object:
        try:
            return await self._caller.call(method, getattr(self.plugin, method), *arguments, limit=limit)
        except PluginError as error:
            self._log_failed(error)
            raise

    def _log_failed(self, error: PluginError) -> None:
        logger.error("plugin method failed", extra={"resource": self._inventory.resource, "error": str(error)})
        logger.debug("plugin method failed here", exc_info=error)

    async def _prefer(self, request: PreferenceRequest) -> list[str]:
        available, required = self._listed(request.available), self._listed(request.required)
        chosen: list[str] = []
        if type(self.plugin).prefer is not Plugin.prefer:
            chosen = completed(await self._wish_of_plugin(available, required, request.size), request)
        if len(chosen) < request.size:
            default = fewest_numa_nodes(available, required, request.size)
            chosen = completed([*chosen, *_ids(default)], request)
        return chosen

    async def _wish_of_plugin(self, *arguments: object) -> list[str]:
        try:
            answer = await self._ask("prefer", *arguments, limit=self._limits.prefer)
        except PluginError:
            return []
        if isinstance(answer, Sequence) and not isinstance(answer, str):
            return [each.id if isinstance(each, Device) else each for each in answer if isinstance(each, Device | str)]
        logger.error("prefer() returned no list", extra={"resource": self._inventory.resource})
        return []

    def _listed(self, device_ids: Sequence[str]) -> list[Device]:
        """In order of their ids: the kubelet's own order is random, and the same devices deserve the same answer."""
        snapshot = self._inventory.newest.value
        devices = snapshot.devices if snapshot else {}
        return [devices[each] for each in sorted((each for each in device_ids if each in devices), key=natural_order)]

    def _known(self, device_ids: Sequence[str]) -> list[Device]:
        resource, devices = self._inventory.resource, self._listed(device_ids)
        known = {device.id for device in devices}
        unknown = sorted({each for each in device_ids if each not in known})
        if unknown:
            raise UnknownDevice(resource, unknown)
        if len(known) < len(devices):
            raise RepeatedDevice(resource, sorted(each for each, count in Counter(device_ids).items() if count > 1))
        return devices

    def _healthy(self, device_ids: Sequence[str]) -> list[Device]:
        devices = self._known(device_ids)
        unhealthy = {device.id: device.reason for device in devices if not device.healthy}
        if unhealthy:
            raise UnhealthyDevice(self._inventory.resource, unhealthy)
        return devices


def _ids(devices: Sequence[Device]) -> list[str]:
    return [device.id for device in devices]
