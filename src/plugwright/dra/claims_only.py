"""The placement of `serve: dra`: every device belongs to claims.

A node can switch to it from `serve: both` or from the device plugin API while pods hold devices through the latter. So
the kubelet's checkpoint is read when the driver starts, and a device in it is published after its pod has ended. While
the checkpoint cannot be read, no device is published. None of this is on the path of a claim.

The kubelet does not write its checkpoint when it frees a device (3.60), only after a device list or an Allocate (4.31).
Pod-resources cannot replace it, because `List` omits the devices of init containers (6.6). So while only the checkpoint
names the holder of a device, the resource is registered with the device plugin API as well, with all devices Unhealthy.

During a rolling update the previous daemon can still place devices. Until it ends, this one publishes the devices that
the other's split file assigns to claims; then the file is removed, because it would be outdated from then on.
"""

import asyncio
import logging
from collections.abc import Collection, Mapping
from contextlib import suppress

from plugwright.dra import driver_paths
from plugwright.dra.device_placement import MOVING, DeviceState, device_status, hardware_units
from plugwright.dra.driver_paths import DriverPaths, PlacementLock
from plugwright.dra.resource_claims.prepared_claims import PreparedClaims
from plugwright.errors import ConfigError, HoldersUnknown, PlugwrightError
from plugwright.model import Device, natural_order
from plugwright.sdk.driver_names import device_name
from plugwright.sdk.resource_runtime import ResourceRuntime
from plugwright.sdk.serve_settings import ServeMode
from plugwright.system import files
from plugwright.system.blocking import BlockingCalls
from plugwright.system.concurrency import Backoff, first
from plugwright.system.latest import Latest, Signal
from plugwright.system.log_once import LogOnce
from plugwright.text import clean

__all__ = ["ClaimsOnly"]

logger = logging.getLogger(__name__)

_DISK_LIMIT = 5.0  # seconds
_INTERVAL = 2.0  # seconds between two reads while a pod holds a device
_LONGEST_INTERVAL = 30.0  # seconds, while each read makes the kubelet write its checkpoint
_STORED = "a pod that the kubelet's checkpoint has"
_UNREAD = "it is not known yet which devices pods hold through the device plugin API"


class ClaimsOnly:
    """Implements `device_placement.DevicePlacement`; `problem` is why devices are not published, empty if they are."""

    def __init__(self, runtime: ResourceRuntime, prepared: PreparedClaims, paths: DriverPaths) -> None:
        self.changed = Signal()
        self.problem = _UNREAD
        self._runtime, self._prepared, self._split = runtime, prepared, paths.split
        self._lock = PlacementLock(paths.lock)
        self._disk = BlockingCalls(f"split of {runtime.resource}", _DISK_LIMIT)
        self._interval = min(_INTERVAL, runtime.settings.timeouts.holders)
        self._rewrites = Backoff(self._interval, _LONGEST_INTERVAL)
        self._is_unlisted = Latest(False)  # whether only the checkpoint names the holder of a device
        self._held: Mapping[str, str] | None = None  # the pod of each device; None while unknown
        self._followed: Mapping[str, DeviceState] = {}  # the placements of another process
        self._problems = LogOnce(logger)

    def in_slices(self, devices: Mapping[str, Device]) -> Collection[str] | None:
        if self._held is None:
            return [key for key, state in self._followed.items() if state.in_slice] if self._followed else None
        if not self._held:
            return devices
        units = hardware_units(devices.values())
        return [key for key in devices if self._held.keys().isdisjoint(units[key])]

    def taints(self) -> Mapping[str, Mapping[str, str]]:
        """The taints of another process."""
        return {key: MOVING for key, state in self._followed.items() if state is DeviceState.TAINTED}

    def confirm(self, published: Mapping[str, bool], *, taints_dropped: bool = False) -> None:
        """Does nothing: nothing waits for it."""

    async def arriving(self, names: Collection[str]) -> None:
        """Does nothing: no device has to move."""

    def refusal(self, device_id: str) -> str:
        if self._held is not None and not self._held:
            return ""
        state, _, waits = self._placed(device_id)
        if state.in_slice:
            return ""
        if waits.startswith("held by"):
            return f"{device_id} is {waits} through the device plugin API; the claim gets it when that pod ends"
        return f"{device_id} cannot be given to a claim yet: {waits}"

    def status(self) -> dict[str, object]:
        snapshot = self._runtime.inventory.latest.value
        claims = self._prepared.held()
        devices = {
            key: device_status(key, *self._placed(key), map(str, claims.get(device_name(key), ())))
            for key in sorted(snapshot.devices if snapshot is not None else (), key=natural_order)
        }
        return {"handover": "", "problem": self.problem, "devices": devices}

    async def command(self, name: str, arguments: Mapping[str, str]) -> str:
        text = f"{self._runtime.resource} is served by {ServeMode.DRA} alone"
        raise ConfigError(f"{text}: devices move if the operator's file has `serve: both`")

    async def run(self) -> None:
        """Runs forever; once no pod holds a device, it only keeps the lock."""
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._read_until_settled())
                group.create_task(self._register_while_unlisted())
        finally:
            self._lock.close()

    async def _read_until_settled(self) -> None:
        while True:
            if await self._is_settled():
                return
            await asyncio.sleep(self._rewrites.delay() if self._is_unlisted.value else self._interval)

    async def _register_while_unlisted(self) -> None:
        """Sends device lists to the kubelet, after which it writes its checkpoint."""
        while True:
            await self._is_unlisted.until(bool)
            await first(self._runtime.registration.run(), self._until_listed())

    async def _until_listed(self) -> None:
        await self._is_unlisted.until(lambda is_unlisted: not is_unlisted)

    async def _is_settled(self) -> bool:
        """Reads unknown holders and those that pods still have; returns whether nothing is left to wait for."""
        try:
            if not self._lock.is_held and not await self._disk.run(self._take_over):
                await self._follow()
                return False
            held = await self._read_held()
        except (OSError, PlugwrightError) as error:
            self._set_problem(f"devices stay where they are: {clean(error)}")
            return False
        self._set_problem("")
        if held != self._held:
            self._held, self._followed = held, {}
            self._rewrites.reset()
            self.changed.notify()
        return not held

    def _take_over(self) -> bool:
        """In a thread. Removes the split file of `serve: both`, which would be outdated from now on."""
        if not self._lock.take(shared=True):
            return False
        files.remove(self._split)
        return True

    async def _follow(self) -> None:
        recorded = await self._disk.run(lambda: driver_paths.recorded_states(self._split))
        if recorded is None:
            raise HoldersUnknown(f"{self._split} of another process cannot be read")
        states = {key: DeviceState(state) for key, state in recorded.items() if state in list(DeviceState)}
        self._set_problem("another process of the daemon decides until it ends")
        if states != self._followed:
            self._followed = states
            self.changed.notify()

    async def _read_held(self) -> dict[str, str]:
        """At first reads the checkpoint only, with names from pod-resources: a starting kubelet lists no pods."""
        holders = self._runtime.holdings
        stored = await holders.stored()
        if self._held is None:
            pods: dict[str, str] = {}
            with suppress(HoldersUnknown):
                pods = await holders.pods() if stored else {}
            return {key: pods.get(key, _STORED) for key in stored}
        pods = await holders.pods()
        self._is_unlisted.publish_if_changed(any(key in stored and key not in pods for key in self._held))
        if self._is_unlisted.value:
            await holders.rewritten()
            stored = await holders.stored()
            self._is_unlisted.publish_if_changed(any(key in stored and key not in pods for key in self._held))
        return {key: pods.get(key, _STORED) for key in self._held if key in pods or key in stored}

    def _placed(self, device_id: str) -> tuple[DeviceState, ServeMode, str]:
        """The state of the device, its target, and why it is not there; empty if it is."""
        if self._held is None:
            state = self._followed.get(device_id, DeviceState.WITHHELD)
            return state, ServeMode.DRA, "" if state is DeviceState.PUBLISHED else self.problem
        holder = self._holder(device_id)
        state = DeviceState.WITHHELD if holder else DeviceState.PUBLISHED
        return state, ServeMode.DRA, f"held by {holder}" if holder else ""

    def _holder(self, device_id: str) -> str:
        snapshot = self._runtime.inventory.latest.value
        if not self._held or snapshot is None:
            return ""
        unit = hardware_units(snapshot.devices.values()).get(device_id, (device_id,))
        return next((self._held[key] for key in unit if key in self._held), "")

    def _set_problem(self, problem: str) -> None:
        self.problem = problem
        if not problem:
            self._problems.recovered()
        else:
            facts = {"resource": self._runtime.resource, "error": problem}
            self._problems.warning("devices are not published", problem, extra=facts)
