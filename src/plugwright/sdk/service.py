"""The device plugin service of one resource: answers from the inventory and from the plugin's methods."""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Sequence
from functools import partial
from typing import Any, TypeVar

import msgspec

from plugwright.errors import (
    InvalidValue,
    PluginError,
    PlugwrightError,
    ProtocolError,
    RepeatedDevice,
    UnhealthyDevice,
    UnknownDevice,
)
from plugwright.model import Allocation, Device, Options, PreferenceRequest, natural_order
from plugwright.protocol import messages
from plugwright.sdk.inventory import Inventory
from plugwright.sdk.metrics import ResourceMetrics
from plugwright.sdk.plugin import Plugin, answers_now, fewest_numa_nodes, supported_options, valid_preference
from plugwright.sdk.plugin_calls import PluginCalls
from plugwright.sdk.plugin_checks import preference_problem
from plugwright.sdk.settings import Settings
from plugwright.system.idle_calls import IdleCalls
from plugwright.system.latest import Latest
from plugwright.system.log_once import LogOnce
from plugwright.text import clean

__all__ = ["PluginService", "StreamCounts"]

logger = logging.getLogger(__name__)

T = TypeVar("T")
_STORING = 0.05  # seconds after an answer to Allocate by which the kubelet has certainly stored it
_KEPT = 4096  # encoded allocations


class StreamCounts(msgspec.Struct, frozen=True):
    """ListAndWatch streams: open now, and opened so far."""

    open: int
    opened: int


class PluginService:
    """Implements `protocol.device_plugin.DevicePluginService`. `plugin` can be replaced while serving."""

    def __init__(self, plugin: Plugin, inventory: Inventory, calls: PluginCalls, settings: Settings) -> None:
        self.plugin = plugin
        self.metrics = ResourceMetrics()
        self.streams = Latest(StreamCounts(0, 0))
        self.before_allocate: Callable[[Sequence[str]], Awaitable[None]] | None = None
        self.on_allocated: Callable[[str, list[str]], None] = lambda resource, device_ids: None
        self._last_stream = time.monotonic()  # when the last stream ended, or when serving began
        self._inventory, self._calls = inventory, calls
        self._problems = LogOnce(logger)
        self._after = IdleCalls()  # the kubelet admits one pod at a time, and waits for the next answer
        self._stored_at: float | None = None  # when the kubelet has stored the last answer
        self._kept: dict[int, tuple[Allocation, bytes]] = {}  # by the identity of allocations that plugins keep
        self._limits, self._burst = settings.limits, settings.timeouts.burst

    @property
    def seconds_without_stream(self) -> float:
        """Seconds since the kubelet last had a stream open; 0 while a stream is open."""
        return 0.0 if self.streams.value.open else time.monotonic() - self._last_stream

    async def options(self) -> Options:
        return await self._counted("GetDevicePluginOptions", self._options())

    async def list_and_watch(self) -> AsyncGenerator[bytes, None]:
        """Yields the latest list immediately, and again whenever the kubelet's view of it has changed."""
        counts = self.streams.value
        self.streams.publish(StreamCounts(counts.open + 1, counts.opened + 1))
        try:
            sent: tuple[bytes, int] | None = None
            async for snapshot in self._inventory.latest.changes():
                if snapshot is None or (snapshot.encoded, snapshot.resent) == sent:
                    continue
                started = time.monotonic()
                yield snapshot.encoded
                sent = snapshot.encoded, snapshot.resent
                await asyncio.sleep(max(0.0, self._burst - (time.monotonic() - started)))
        finally:
            self._last_stream = time.monotonic()
            counts = self.streams.value
            self.streams.publish(StreamCounts(counts.open - 1, counts.opened))

    async def allocate(self, containers: Sequence[Sequence[str]]) -> bytes:
        """The allocations, encoded."""
        return await self._counted("Allocate", self._answer(containers))

    def allocate_now(self, containers: Sequence[Sequence[str]]) -> bytes | None:
        """Like `allocate`, if the plugin already knows the answer; otherwise returns None and changes nothing.

        Refused requests get None here: `allocate` counts, logs and answers every refusal.
        """
        start, plugin, ledger = time.perf_counter(), self.plugin, self._inventory.ledger
        if not answers_now(plugin) or (ledger is not None and not ledger.memory.is_written.value):
            return None
        try:
            requests = self._requests(containers)
            device_ids = [device.id for devices in requests for device in devices]
            if ledger is not None and (
                ledger.refusals(self._inventory.resource, device_ids)
                or ledger.must_confirm(self._inventory.resource, device_ids)
            ):
                return None
            answer = self._answer_at_hand(plugin, requests)
        except PlugwrightError:
            return None
        if answer is None:
            return None
        if ledger is not None:  # the call ends before another begins, and its devices are held from now on
            ledger.begin_allocate(self._inventory.resource, device_ids)
            ledger.end_allocate(self._inventory.resource, device_ids, is_answered=True)
        self._inventory.note_allocated(device_ids)
        self._await_storing()
        self._after.add(partial(self._log_allocated, requests))
        self.metrics.count_call("Allocate", "ok", time.perf_counter() - start)
        return answer

    def flush(self) -> None:
        """Logs the lines waiting for an idle event loop."""
        self._after.flush()

    async def allocations(self, containers: Sequence[Sequence[str]]) -> list[Allocation]:
        """One allocation per container, in order; all requests are checked before the plugin is called."""
        return [await self._allocate(devices) for devices in self._requests(containers)]

    async def prefer(self, requests: Sequence[PreferenceRequest]) -> list[list[str]]:
        """Never fails: an error here would refuse the pod, although the kubelet can continue without a preference."""
        return await self._counted("GetPreferredAllocation", self._preferences(requests))

    async def pre_start(self, device_ids: Sequence[str]) -> None:
        await self._counted("PreStartContainer", self._prepare(device_ids))

    async def release(self, devices: Sequence[Device]) -> None:
        await self._calls.call("release", self.plugin.release, devices, limit=self._limits.allocate)

    async def _counted(self, method: str, answer: Coroutine[Any, Any, T]) -> T:
        """Counts one call of the kubelet; logs and converts foreign exceptions."""
        start, outcome = time.perf_counter(), "failed"
        try:
            result = await answer
        except PlugwrightError as error:
            if isinstance(error, ProtocolError):
                outcome = "refused"
            else:
                self.metrics.note_failure(method, clean(error))
            raise
        except (asyncio.CancelledError, GeneratorExit):
            outcome = "cancelled"
            raise
        except Exception as error:
            facts = {"resource": self._inventory.resource, "method": method, "error": clean(error)}
            logger.exception("call of the kubelet failed", extra=facts)
            text = f"{method} of {self._inventory.resource} failed: {type(error).__name__}: {clean(error)}"
            self.metrics.note_failure(method, text)
            raise PlugwrightError(text) from error
        else:
            outcome = "ok"
            return result
        finally:
            self.metrics.count_call(method, outcome, time.perf_counter() - start)

    async def _options(self) -> Options:
        return supported_options(self.plugin)

    async def _answer(self, containers: Sequence[Sequence[str]]) -> bytes:
        allocating = self._inventory.allocating
        allocating.begin()
        try:
            return await self._allocated(containers)
        finally:
            self._await_storing()
            allocating.end()

    def _await_storing(self) -> None:
        """Keeps an Allocate in progress until the kubelet has stored its answer; one timer serves many answers."""
        loop, is_awaited = asyncio.get_running_loop(), self._stored_at is not None
        self._stored_at = loop.time() + _STORING
        if not is_awaited:
            self._inventory.allocating.begin()
            loop.call_at(self._stored_at, self._end_storing)

    def _end_storing(self) -> None:
        loop, stored_at = asyncio.get_running_loop(), self._stored_at
        if stored_at is not None and loop.time() < stored_at:
            loop.call_at(stored_at, self._end_storing)
        else:
            self._stored_at = None
            self._inventory.allocating.end()

    def _answer_at_hand(self, plugin: Plugin, requests: list[list[Device]]) -> bytes | None:
        self._calls.stalls.begin(f"allocate_now() of {self._inventory.resource}")
        try:
            allocations = [plugin.allocate_now(devices) for devices in requests]
        except Exception as error:  # noqa: BLE001  plugin code: allocate() is called instead
            facts = {"resource": self._inventory.resource, "error": f"{type(error).__name__}: {clean(error)}"}
            self._problems.error("allocate_now() failed", facts["error"], key="allocate_now", extra=facts)
            return None
        finally:
            self._calls.stalls.end(plugin)
        found = [allocation for allocation in allocations if isinstance(allocation, Allocation)]
        if len(found) < len(allocations):
            return None
        return self._kept_encoding(found[0]) if len(found) == 1 else messages.encode_allocations(found)

    def _kept_encoding(self, allocation: Allocation) -> bytes:
        kept = self._kept.get(id(allocation))
        if kept is None:
            if len(self._kept) >= _KEPT:
                self._kept.clear()
            kept = self._kept[id(allocation)] = allocation, messages.encode_allocations([allocation])
        return kept[1]

    async def _allocated(self, containers: Sequence[Sequence[str]]) -> bytes:
        requests, ledger, is_answered = self._requests(containers), self._inventory.ledger, False
        device_ids = [device.id for devices in requests for device in devices]
        if ledger is None:
            return await self._encoded_answer(requests, device_ids)
        if refusals := ledger.refusals(self._inventory.resource, device_ids):
            raise UnhealthyDevice(self._inventory.resource, refusals)
        ledger.begin_allocate(self._inventory.resource, device_ids)
        try:
            if not ledger.memory.is_written.value:
                await ledger.memory.written()
            if ledger.must_confirm(self._inventory.resource, device_ids) and (
                refusals := await ledger.confirm(self._inventory.resource, device_ids)
            ):
                raise UnhealthyDevice(self._inventory.resource, refusals)
            answer = await self._encoded_answer(requests, device_ids)
            is_answered = True
            return answer
        finally:
            ledger.end_allocate(self._inventory.resource, device_ids, is_answered=is_answered)

    async def _encoded_answer(self, requests: list[list[Device]], device_ids: list[str]) -> bytes:
        if self.before_allocate is not None:
            await self.before_allocate(device_ids)
        self._inventory.note_allocated(device_ids)
        answer = self._encoded([await self._allocate(devices) for devices in requests])
        self._after.add(partial(self._log_allocated, requests))
        return answer

    async def _preferences(self, requests: Sequence[PreferenceRequest]) -> list[list[str]]:
        return [await self._prefer(request) for request in requests]

    async def _prepare(self, device_ids: Sequence[str]) -> None:
        devices = self._requested(device_ids)
        await self._call("pre_start", self.plugin.pre_start, devices, limit=self._limits.pre_start)

    def _requests(self, containers: Sequence[Sequence[str]]) -> list[list[Device]]:
        requests = []
        for device_ids in containers:
            devices = self._requested(device_ids)
            unhealthy = {device.id: device.reason for device in devices if not device.healthy}
            if unhealthy:
                raise UnhealthyDevice(self._inventory.resource, unhealthy)
            requests.append(devices)
        return requests

    def _encoded(self, allocations: list[Allocation]) -> bytes:
        try:
            return messages.encode_allocations(allocations)
        except PluginError as error:
            self._log_failure(error)
            raise

    def _requested(self, device_ids: Sequence[str]) -> list[Device]:
        """The devices of a request, in the order of `_listed`; every id must be known and named once."""
        resource, devices, named = self._inventory.resource, self._listed(device_ids), set(device_ids)
        if len(devices) < len(device_ids):
            raise UnknownDevice(resource, sorted(named - {device.id for device in devices}))
        if len(named) < len(devices):
            raise RepeatedDevice(resource, sorted(name for name, count in Counter(device_ids).items() if count > 1))
        return devices

    def _listed(self, device_ids: Sequence[str]) -> list[Device]:
        """The listed devices, sorted: the kubelet's order is random, and the same devices must get the same answer."""
        snapshot = self._inventory.latest.value
        found = map(snapshot.listed, device_ids) if snapshot else ()
        listed = [device for device in found if device is not None]
        if len(listed) > 1:
            listed.sort(key=lambda device: natural_order(device.id))
        return listed

    async def _allocate(self, devices: list[Device]) -> Allocation:
        allocation = await self._call("allocate", self.plugin.allocate, devices, limit=self._limits.allocate)
        if not isinstance(allocation, Allocation):
            resource = self._inventory.resource
            error = InvalidValue(f"allocate() of {resource} must return an Allocation, got {allocation!r}")
            self._log_failure(error)
            raise error
        return allocation

    async def _prefer(self, request: PreferenceRequest) -> list[str]:
        available, required = self._listed(request.available), self._listed(request.required)
        chosen: list[str] = []
        if type(self.plugin).prefer is not Plugin.prefer:
            preferred = await self._preferred_by_plugin(available, required, request.size)
            chosen = valid_preference(preferred, request)
            self._check_preference(preferred, request)
        if len(chosen) < request.size:
            default = [device.id for device in fewest_numa_nodes(available, required, request.size)]
            chosen = valid_preference([*chosen, *default], request)
        return chosen

    async def _preferred_by_plugin(self, *arguments: object) -> list[str]:
        """The ids returned by prefer(); empty if it fails."""
        try:
            preferred: object = await self._call("prefer", self.plugin.prefer, *arguments, limit=self._limits.prefer)
        except PluginError:
            return []
        if isinstance(preferred, Sequence) and not isinstance(preferred, str):
            ids = (device.id if isinstance(device, Device) else device for device in preferred)
            return [device_id for device_id in ids if isinstance(device_id, str)]
        resource = self._inventory.resource
        error = f"prefer() of {resource} must return a list of devices, got {preferred!r}"
        logger.error("prefer() returned no list", extra={"resource": resource, "error": error})
        return []

    def _check_preference(self, preferred: Sequence[str], request: PreferenceRequest) -> None:
        problem = preference_problem(self._inventory.resource, preferred, request)
        if problem:
            facts = {"resource": self._inventory.resource, "error": problem}
            # The same mistake for every pod, although each text names other devices.
            self._problems.warning("preference corrected", "corrected", extra=facts)

    async def _call(
        self, name: str, method: Callable[..., object | Awaitable[object]], *arguments: object, limit: float
    ) -> object:
        try:
            return await self._calls.call(name, method, *arguments, limit=limit)
        except PluginError as error:
            self._log_failure(error)
            raise

    def _log_allocated(self, requests: list[list[Device]]) -> None:
        for devices in requests:
            ids = [device.id for device in devices]
            logger.info("allocated", extra={"resource": self._inventory.resource, "devices": ids})
            self.on_allocated(self._inventory.resource, ids)

    def _log_failure(self, error: PluginError) -> None:
        logger.error("plugin method failed", extra={"resource": self._inventory.resource, "error": str(error)})
        logger.debug("plugin method failed here", exc_info=error)
