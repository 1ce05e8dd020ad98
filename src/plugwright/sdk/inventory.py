"""The device list of one resource, and when a removed device may leave it.

Three sources know something about a device: discovery lists it, an operator has cordoned it, the kubelet says that a
pod holds it. `compose` makes one list of them; `Inventory` keeps them and publishes the list when it changes.

Kubelets from 1.34 on may crash when a device that a pod holds disappears from the list (2.25). So a device that
discovery no longer lists stays in it as Unhealthy until no pod can hold it. That is read from the kubelet's checkpoint
and its pod-resources API; neither is changed.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from plugwright.errors import InvalidValue, PlugwrightError
from plugwright.model import NUMA_NODES, Device, Health, natural_order
from plugwright.protocol import checkpoint, messages, pod_resources
from plugwright.protocol.paths import KubeletPaths
from plugwright.system.concurrency import Latest

__all__ = [
    "DeviceSources",
    "Inventory",
    "Snapshot",
    "compose",
    "forget_removed_devices",
    "held_by_checkpoint",
    "held_by_pods",
]

logger = logging.getLogger(__name__)

_GONE = "gone: discovery no longer finds it"
_HELD = "gone: a pod holds it, discovery does not find it"
_POD_RESOURCES_TIMEOUT = 5.0
_CHECKPOINT_DELAY = 1.0  # seconds within which a kubelet has written its checkpoint after a list


@dataclass(frozen=True, slots=True)
class DeviceSources:
    """All that is known about the devices of one resource."""

    discovered: Mapping[str, Device] = field(default_factory=dict)
    removed: Mapping[str, Device] = field(default_factory=dict)  # listed until no pod can hold them
    cordons: Mapping[str, str] = field(default_factory=dict)  # device id → the operator's reason
    failure: str = ""  # why the last list of discovery can no longer be trusted


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The list as the kubelet gets it, and since when each device has had its health and reason."""

    devices: Mapping[str, Device]
    since: Mapping[str, float]
    encoded: bytes
    resent: int = 0  # how often the same list was to be sent once more


def compose(sources: DeviceSources) -> dict[str, Device]:
    """One sorted list: an operator's cordon first, then a failing discovery, then the device's own health."""
    discovered = list(sources.discovered.values())
    if sources.failure:
        discovered = [device.unhealthy(sources.failure) if device.healthy else device for device in discovered]
    composed = {}
    for device in sorted((*sources.removed.values(), *discovered), key=lambda device: natural_order(device.id)):
        reason = sources.cordons.get(device.id)
        composed[device.id] = device if reason is None else device.unhealthy(f"cordoned: {reason}")
    return composed


class Inventory:
    """`clock` is for people, `elapsed` measures how long a device has been removed."""

    def __init__(
        self, resource: str, clock: Callable[[], float] = time.time, elapsed: Callable[[], float] = time.monotonic
    ) -> None:
        self.resource = resource
        self.latest: Latest[Snapshot | None] = Latest(None)
        self.refused = Latest("")  # why the last list was refused
        self._clock, self._elapsed = clock, elapsed
        self._sources = DeviceSources()
        self._removed_since: dict[str, float] = {}

    @property
    def removed_since(self) -> Mapping[str, float]:
        """The devices that discovery no longer lists, and since when by `elapsed`."""
        return self._removed_since

    def update(self, devices: object) -> None:
        """Takes a complete list of discovery, or refuses it whole: the last good one then stays."""
        discovered = _by_id(self.resource, devices)
        before = self._sources
        removed = {
            device_id: device if device_id in before.removed else device.unhealthy(_GONE)
            for device_id, device in {**before.removed, **before.discovered}.items()
            if device_id not in discovered
        }
        self._change(replace(before, discovered=discovered, removed=removed, failure=""), publish=True)
        now = self._elapsed()
        self._removed_since = {device_id: self._removed_since.get(device_id, now) for device_id in removed}
        self.refused.publish_if_changed("")

    def add_held(self, held: Mapping[str, tuple[int, ...]]) -> None:
        """Lists devices that pods hold, with their NUMA nodes, as removed unless they are discovered."""
        sources = self._sources
        added = {}
        for device_id, nodes in held.items():
            if device_id not in sources.discovered and device_id not in sources.removed:
                with suppress(InvalidValue):  # an id that another plugin made and this one never could
                    added[device_id] = Device(
                        device_id, Health.UNHEALTHY, _HELD, [node for node in nodes if node in NUMA_NODES]
                    )
        self._change(replace(sources, removed={**sources.removed, **added}))
        self._removed_since |= dict.fromkeys(added, self._elapsed())

    def forget(self, device_ids: Iterable[str]) -> None:
        """Takes removed devices off the list; the caller knows that no pod holds them."""
        forgotten = set(device_ids)
        removed = {key: device for key, device in self._sources.removed.items() if key not in forgotten}
        self._change(replace(self._sources, removed=removed))
        self._removed_since = {key: since for key, since in self._removed_since.items() if key not in forgotten}

    def resend(self) -> None:
        """Has the list sent once more, though nothing in it has changed."""
        snapshot = self.latest.value
        if snapshot is not None:
            self.latest.publish(replace(snapshot, resent=snapshot.resent + 1))

    def distrust(self, reason: str) -> None:
        """Turns every device Unhealthy, because discovery has failed for too long; the next good list ends it."""
        self._change(replace(self._sources, failure=reason))

    def cordon(self, reasons: Mapping[str, str]) -> None:
        """Replaces the cordons: device id → reason."""
        self._change(replace(self._sources, cordons=dict(reasons)))

    def publish_without_list(self) -> None:
        """Publishes what is known before discovery has listed anything."""
        if self.latest.value is None:
            self._change(self._sources, publish=True)

    def _change(self, sources: DeviceSources, publish: bool = False) -> None:
        before = self.latest.value
        # Nothing is published before the first list: the kubelet would take an empty one for the truth.
        if before is not None or publish:
            devices = compose(sources)
            if before is None or devices != before.devices:
                encoded = messages.encode_devices(self.resource, list(devices.values()))
                resent = before.resent if before is not None else 0
                self.latest.publish(Snapshot(devices, self._since(devices), encoded, resent))
        self._sources = sources

    def _since(self, devices: Mapping[str, Device]) -> dict[str, float]:
        now, before = self._clock(), self.latest.value
        since = dict.fromkeys(devices, now)
        for device_id, old in before.devices.items() if before is not None else ():
            device = devices.get(device_id)
            if before is not None and device and (old.health, old.reason) == (device.health, device.reason):
                since[device_id] = before.since[device_id]
        return since


def _by_id(resource: str, devices: object) -> dict[str, Device]:
    if isinstance(devices, Device):
        text = f"got the device {devices.id!r} alone: write `yield [device]`"
        raise InvalidValue(f"discover() of {resource} must yield lists of devices, {text}")
    if isinstance(devices, str) or not isinstance(devices, Iterable):
        raise InvalidValue(f"discover() of {resource} must yield lists of devices, got {devices!r}")
    by_id: dict[str, Device] = {}
    for device in devices:
        if not isinstance(device, Device):
            raise InvalidValue(f"discover() of {resource} must yield lists of devices, got {device!r} in a list")
        if device.id in by_id:
            raise InvalidValue(f"discover() of {resource} lists {device.id!r} twice")
        by_id[device.id] = device
    return by_id


async def forget_removed_devices(inventory: Inventory, paths: KubeletPaths, keep: float) -> None:
    """Takes devices off the list that were removed for `keep` seconds and that no pod holds; runs for ever."""
    while True:
        await inventory.latest.until(lambda _: bool(inventory.removed_since))
        oldest = min(inventory.removed_since.values(), default=0.0)
        await asyncio.sleep(max(keep - (time.monotonic() - oldest), keep / 10))
        due = [device_id for device_id, since in inventory.removed_since.items() if time.monotonic() - since >= keep]
        if due and not await _forget(inventory, paths, due):
            await asyncio.sleep(keep)  # a pod holds them, and nothing reports when that ends


async def _forget(inventory: Inventory, paths: KubeletPaths, due: list[str]) -> bool:
    """Whether all of `due` could be forgotten."""
    held = await _held(inventory, paths, due)
    if held is None:
        facts = {"resource": inventory.resource}
        logger.debug("removed devices stay listed: cannot read which devices pods hold", extra=facts)
        return False
    free = [device_id for device_id in due if device_id not in held and device_id in inventory.removed_since]
    if free:
        inventory.forget(free)
        logger.info("removed devices are no longer listed", extra={"resource": inventory.resource, "devices": free})
    return len(free) == len(due)


async def _held(inventory: Inventory, paths: KubeletPaths, due: list[str]) -> set[str] | None:
    """The devices that pods hold by the pod-resources API or by the checkpoint; None if either cannot be read."""
    active = await held_by_pods(paths.pod_resources_socket, inventory.resource)
    stored = held_by_checkpoint(paths.checkpoint, inventory.resource)
    if active is None or stored is None:
        return None
    if any(device_id in stored and device_id not in active for device_id in due):
        # The kubelet does not write its checkpoint when it frees a device (3.60), but after every device list (4.31).
        inventory.resend()
        await asyncio.sleep(_CHECKPOINT_DELAY)
        stored = held_by_checkpoint(paths.checkpoint, inventory.resource)
    return None if stored is None else active | set(stored)


def held_by_checkpoint(path: Path, resource: str) -> dict[str, tuple[int, ...]] | None:
    """The devices of `resource` that are allocated to containers, with their NUMA nodes; None if it cannot be read."""
    try:
        return checkpoint.held(checkpoint.decode(path.read_bytes()), resource)
    except FileNotFoundError:
        return {} if path.parent.is_dir() else None  # a kubelet writes none at its start (4.31)
    except (OSError, PlugwrightError) as error:
        logger.debug("checkpoint not readable", extra={"path": str(path), "error": str(error)})
        return None


async def held_by_pods(socket: Path, resource: str) -> set[str] | None:
    """The devices of `resource` that containers of active pods hold; None if the kubelet does not answer.

    The call has an effect: the kubelet frees what pods held that have ended.
    """
    try:
        async with pod_resources.connect(socket) as kubelet:
            held = await kubelet.held_devices(timeout=_POD_RESOURCES_TIMEOUT)
    except (OSError, PlugwrightError) as error:
        logger.debug("pod-resources not readable", extra={"error": str(error)})
        return None
    return {device.device_id for device in held if device.resource == resource}
