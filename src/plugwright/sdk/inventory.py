"""What this node has of one resource: the newest list, and why each device is as it is.

Several know something about a device: discovery found it, an operator cordoned it, the kubelet says that a pod still
holds it. `compose` makes one list of that; `Inventory` keeps the parts and publishes the list when it changes.

Forgets devices that are gone, when that is safe.

Kubelets from 1.34 on crash when a device that a pod holds disappears from the list. So a device that discovery no
longer finds stays listed as Unhealthy, and goes only when nobody can be holding it.

Which devices do pods hold? The kubelet's checkpoint and its pod-resources API are asked; both are only read.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from plugwright.errors import InvalidValue, PlugwrightError
from plugwright.model import Device, Health, natural_order
from plugwright.protocol import checkpoint, messages, pod_resources
from plugwright.protocol.paths import KubeletPaths
from plugwright.system.concurrency import Latest

__all__ = ["Inventory", "Knowledge", "Snapshot", "compose", "forget_departed", "held_by_checkpoint", "held_by_pods"]

_GONE = "gone: discovery no longer finds it"
_HELD = "gone: a pod holds it, discovery does not find it"


@dataclass(frozen=True, slots=True)
class Knowledge:
    """All that is known of the devices of one resource."""

    found: Mapping[str, Device] = field(default_factory=dict)
    departed: Mapping[str, Device] = field(default_factory=dict)  # no longer found; listed until nobody can hold them
    cordons: Mapping[str, str] = field(default_factory=dict)
    failure: str = ""  # why discovery cannot be trusted any more


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The list as the kubelet is told it, and since when each device has been as it is."""

    devices: Mapping[str, Device]
    since: Mapping[str, float]
    encoded: messages.DeviceList
    resent: int = 0  # how often the same list was to be sent once more


def compose(knowledge: Knowledge) -> dict[str, Device]:
    """One list, sorted: the operator's word first, then a failing discovery, then what the device itself says."""
    untrusted = knowledge.failure
    found = (each.unhealthy(untrusted) if untrusted and each.healthy else each for each in knowledge.found.values())
    composed = {}
    for device in sorted((*knowledge.departed.values(), *found), key=lambda each: natural_order(each.id)):
        reason = knowledge.cordons.get(device.id)
        composed[device.id] = device if reason is None else device.unhealthy(f"cordoned: {reason}")
    return composed


class Inventory:
    def __init__(
        self, resource: str, clock: Callable[[], float] = time.time, elapsed: Callable[[], float] = time.monotonic
    ) -> None:
        """`clock` is told to people, `elapsed` measures how long a device has been gone."""
        self.resource = resource
        self.refused = Latest("")  # why the last list was not taken
        self._clock, self._elapsed = clock, elapsed
        self._knowledge = Knowledge()
        self._departures: dict[str, float] = {}
        self.newest: Latest[Snapshot | None] = Latest(None)

    @property
    def departures(self) -> Mapping[str, float]:
        """The devices that discovery no longer finds, and since when, on a clock that nobody sets."""
        return self._departures

    def find(self, devices: object) -> None:
        """Takes a complete list of devices, or refuses it whole: the last good one then stays."""
        found = _by_id(self.resource, devices)
        known = self._knowledge
        missing = {each: device for each, device in {**known.departed, **known.found}.items() if each not in found}
        departed = {
            each: device if each in known.departed else device.unhealthy(_GONE) for each, device in missing.items()
        }
        self._take(replace(known, found=found, departed=departed, failure=""), publish=True)
        now = self._elapsed()
        self._departures = {each: self._departures.get(each, now) for each in departed}
        self.refused.publish_if_changed("")

    def hold(self, held: Mapping[str, tuple[int, ...]]) -> None:
        """Lists devices that pods hold, with their NUMA nodes, as departed unless they are found."""
        known = self._knowledge
        absent = {}
        for each, nodes in held.items():
            if each not in known.found and each not in known.departed:
                with suppress(InvalidValue):  # an id that another plugin made and we never could
                    absent[each] = Device(each, Health.UNHEALTHY, _HELD, nodes)
        self._take(replace(known, departed={**known.departed, **absent}))
        self._departures |= dict.fromkeys(absent, self._elapsed())

    def drop(self, device_ids: Iterable[str]) -> None:
        """Forgets departed devices; whoever calls knows that no pod holds them."""
        gone = set(device_ids)
        departed = {each: device for each, device in self._knowledge.departed.items() if each not in gone}
        self._take(replace(self._knowledge, departed=departed))
        self._departures = {each: since for each, since in self._departures.items() if each not in gone}

    def resend(self) -> None:
        """Has the list sent once more, though nothing in it has changed."""
        snapshot = self.newest.value
        if snapshot is not None:
            self.newest.publish(replace(snapshot, resent=snapshot.resent + 1))

    def fail(self, reason: str) -> None:
        """Discovery has failed for so long that its last list cannot be trusted."""
        self._take(replace(self._knowledge, failure=reason))

    def cordon(self, reasons: Mapping[str, str]) -> None:
        self._take(replace(self._knowledge, cordons=dict(reasons)))

    def settle(self) -> None:
        """Publishes what is known so far, if nothing has been published yet."""
        if self.newest.value is None:
            self._take(self._knowledge, publish=True)

    def _take(self, knowledge: Knowledge, publish: bool = False) -> None:
        before = self.newest.value
        if before is None and not publish:
            # Nothing is told before the first list: an empty one would be taken for the truth.
            self._knowledge = knowledge
            return
        devices = compose(knowledge)
        if before is None or devices != before.devices:
            encoded = messages.encode_devices(self.resource, list(devices.values()))
            resent = before.resent if before is not None else 0
            self.newest.publish(Snapshot(devices, self._since(devices), encoded, resent))
        self._knowledge = knowledge

    def _since(self, devices: Mapping[str, Device]) -> dict[str, float]:
        now, before = self._clock(), self.newest.value
        if before is None:
            return dict.fromkeys(devices, now)
        return {
            each: before.since[each] if _same_state(before.devices.get(each), device) else now
            for each, device in devices.items()
        }


def _same_state(before: Device | None, device: Device) -> bool:
    return before is not None and (before.health, before.reason) == (device.health, device.reason)


def _by_id(resource: str, devices: object) -> dict[str, Device]:
    if isinstance(devices, str) or not isinstance(devices, Iterable):
        raise InvalidValue(f"discover() of {resource} yields lists of devices, not {devices!r}")
    found: dict[str, Device] = {}
    for device in devices:
        if not isinstance(device, Device):
            raise InvalidValue(f"discover() of {resource} yields lists of devices, not of {device!r}")
        if device.id in found:
            raise InvalidValue(f"discover() of {resource} lists {device.id!r} twice")
        found[device.id] = device
    return found


logger = logging.getLogger(__name__)

_TIMEOUT = 5.0


def held_by_checkpoint(path: Path, resource: str) -> dict[str, tuple[int, ...]] | None:
    """The ids that containers were given of `resource`, with their NUMA nodes; None if that cannot be known."""
    try:
        return checkpoint.held(checkpoint.decode(path.read_bytes()), resource)
    except FileNotFoundError:
        return {} if path.parent.is_dir() else None  # a kubelet that has given out nothing yet has written nothing
    except (OSError, PlugwrightError) as error:
        logger.debug("checkpoint not readable", extra={"path": str(path), "error": str(error)})
        return None


async def held_by_pods(socket: Path, resource: str) -> set[str] | None:
    """The ids that containers of active pods hold of `resource`; None if that cannot be known.

    Asking has an effect: the kubelet frees what pods held that have ended.
    """
    try:
        async with pod_resources.connect(socket) as kubelet:
            holdings = await kubelet.holdings(timeout=_TIMEOUT)
    except (OSError, PlugwrightError) as error:
        logger.debug("pod-resources not readable", extra={"error": str(error)})
        return None
    return {holding.device_id for holding in holdings if holding.resource == resource}


_WRITING = 1.0  # seconds within which a kubelet has written its checkpoint after a list


async def forget_departed(inventory: Inventory, paths: KubeletPaths, patience: float) -> None:
    """Runs for ever; sleeps while no device is gone."""
    while True:
        await inventory.newest.until(lambda _: bool(inventory.departures))
        oldest = min(inventory.departures.values(), default=0.0)
        await asyncio.sleep(max(patience - (time.monotonic() - oldest), patience / 10))
        due = [each for each, since in inventory.departures.items() if time.monotonic() - since >= patience]
        if due and not await _forget(inventory, paths, due):
            await asyncio.sleep(patience)  # someone holds them, and nobody tells when that ends


async def _forget(inventory: Inventory, paths: KubeletPaths, due: list[str]) -> bool:
    """Whether all of `due` could be forgotten."""
    held = await _held(inventory, paths, due)
    if held is None:
        logger.debug("departed devices are kept: who holds them cannot be read", extra={"resource": inventory.resource})
        return False
    free = [each for each in due if each not in held and each in inventory.departures]
    if free:
        inventory.drop(free)
        logger.info("departed devices forgotten", extra={"resource": inventory.resource, "devices": free})
    return len(free) == len(due)


async def _held(inventory: Inventory, paths: KubeletPaths, due: list[str]) -> set[str] | None:
    """What pods hold, and what the kubelet's checkpoint says that they do."""
    active = await held_by_pods(paths.pod_resources_socket, inventory.resource)
    stored = held_by_checkpoint(paths.checkpoint, inventory.resource)
    if active is None or stored is None:
        return None
    if any(each in stored and each not in active for each in due):
        # The kubelet has freed them and does not write that down; it does when it is sent a list.
        inventory.resend()
        await asyncio.sleep(_WRITING)
        stored = held_by_checkpoint(paths.checkpoint, inventory.resource)
    return None if stored is None else active | set(stored)
