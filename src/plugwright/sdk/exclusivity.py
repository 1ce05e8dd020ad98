"""Hardware that a pod holds under a name that is no longer offered: until the pod ends, no other pod gets it.

A reload may split a GPU into shares that a pod still has whole, rename a resource, or move a device to another one. The
kubelet counts ids and knows nothing of the hardware behind them, so it would give that hardware out a second time. Here
the devices of all resources are compared by their `physical` names with what pods hold: by the kubelet's pod-resources
API and its checkpoint, in resources that are no longer served or never were ours too, and by the allocations since.

What is known to be held is never too little, so a device is listed as Unhealthy from its first list on. It may be too
much, as nothing reports the end of a pod: both are read again when a device is kept back, and as long as one is. The
checkpoint counts because a kubelet that has just started knows no pods yet; where one of them cannot be read, what it
said last stays.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Set
from contextlib import suppress
from pathlib import Path

import msgspec

from plugwright.errors import PlugwrightError
from plugwright.model import Device
from plugwright.protocol import messages, pod_resources
from plugwright.protocol.checkpoint import PodDevicesEntry
from plugwright.sdk.kubelet_checkpoint import KubeletCheckpoint
from plugwright.sdk.settings import Timeouts
from plugwright.system.concurrency import in_thread
from plugwright.system.latest import InProgress, Signal
from plugwright.system.log_once import LogOnce
from plugwright.text import clean

__all__ = ["Exclusivity"]

logger = logging.getLogger(__name__)

_SHARE = "::"  # what follows in an id is the number of a share
_PODS_TIMEOUT = 5.0
_LISTED_BY_THEN = 30.0  # seconds after an allocation within which the kubelet lists its pod
_MANY_NOTES = 10_000  # allocations that are kept in mind before pods are read, which takes their place

_Key = tuple[str, str]  # a resource and the id of a device


class _Hold(msgspec.Struct, frozen=True):
    """Hardware that a pod holds and that no resource offers under that id.

    `by_nodes`: known only by the device nodes that a container was given. It may have some of them beside its device,
    as one with a GPU may have those of network adapters, so they are no reason to keep back what several may have.
    """

    key: _Key
    physical: tuple[str, ...]
    sharing: str
    pod: str
    by_nodes: bool = False

    @property
    def reason(self) -> str:
        return f"held by {self.pod or 'a pod'} ({self.key[0]}) until it ends"

    def conflicts_with(self, device: Device) -> bool:
        if self.by_nodes:
            return not device.sharing
        return not self.sharing or self.sharing != device.sharing


class Exclusivity:
    """Of all resources of one daemon. `changed` goes up when other devices are to be kept back than before."""

    def __init__(
        self,
        pod_resources_socket: Path,
        checkpoint: KubeletCheckpoint,
        timeouts: Timeouts,
        resend: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`resend` sends the kubelet a device list once more."""
        self.changed = Signal()
        self.allocating = InProgress()  # calls of Allocate, of all resources, until the kubelet has stored the answer
        self._resend = resend
        self._socket, self._checkpoint = pod_resources_socket, checkpoint
        self._interval, self._clock = timeouts.holders, clock
        self._offered: dict[str, Mapping[str, Device]] = {}  # by resource
        self._closed: set[str] = set()  # resources whose next lists are not yet those of their present plugin
        self._withdrawn: dict[_Key, Device] = {}  # offered earlier, and perhaps held
        self._stored: dict[_Key, tuple[str, ...]] = {}  # by the checkpoint, with the device nodes of the container
        self._pods: dict[_Key, str] = {}  # by pod-resources
        self._held: dict[_Key, str] = {}  # by either of them; the pod, if it is known
        self._allocated: dict[_Key, float] = {}  # when, since pods were last read
        self._holds = _HoldsByName(())
        self._kept_back: dict[str, Collection[str]] = {}  # the devices of each resource
        self._to_read = Signal()
        self._problems = LogOnce(logger)

    def offer(self, resource: str, devices: Mapping[str, Device]) -> None:
        """Takes the new list of a resource; not between `withdraw` and `accept`, when it is an old plugin's."""
        if resource not in self._closed:
            before = self._offered.get(resource, {})
            self._offered[resource] = devices
            self._withdraw(resource, (device for key, device in before.items() if key not in devices))
            self._find_holds()

    def reasons(self, resource: str, devices: Mapping[str, Device]) -> dict[str, str]:
        """The devices of a resource that must not be given out, with the reasons."""
        reasons = self._holds.reasons(resource, devices)
        if reasons.keys() - self._kept_back.get(resource, ()):
            self._to_read.notify()
        self._kept_back[resource] = reasons.keys()
        return reasons

    def withdraw(self, resource: str) -> None:
        """The resource is not served any more, or by another plugin, whose first list is not known yet."""
        self._withdraw(resource, self._offered.pop(resource, {}).values())
        self._closed.add(resource)
        self._kept_back.pop(resource, None)
        self._find_holds()

    def accept(self, resource: str) -> None:
        """From now on the resource's lists are those of its present plugin."""
        self._closed.discard(resource)

    def note_allocated(self, resource: str, device_ids: Iterable[str]) -> None:
        now = self._clock()
        self._allocated |= {(resource, device_id): now for device_id in device_ids}
        if len(self._allocated) > _MANY_NOTES:
            self._to_read.notify()

    async def run(self) -> None:
        """Reads pods when a device is kept back, and again while one is; runs for ever."""
        read = self._to_read.count
        while True:
            read = await self._to_read.wait(read, self._interval if any(self._kept_back.values()) else None)
            try:
                await self.read()
            except Exception as error:  # one reading: the next one may succeed, and until then nothing changes
                logger.exception("cannot find out which devices pods hold", extra={"error": clean(error)})
                await asyncio.sleep(self._interval)

    async def read(self) -> None:
        """Reads what pods hold; where that is not possible, what is known stays."""
        started = self._clock()
        pods, stored = await self._held_by_pods(), await self._held_by_checkpoint()
        if pods is not None and stored is not None and self._keeps_back(stored.keys() - pods.keys()):
            await self._checkpoint.rewritten(self._resend)
            stored = await self._held_by_checkpoint()
        self._stored = self._stored if stored is None else stored
        if pods is not None:
            self._pods = pods
            self._allocated = {
                key: when
                for key, when in self._allocated.items()
                if when > started - _LISTED_BY_THEN and key not in pods
            }
        self._held = {**dict.fromkeys(self._stored, ""), **self._pods}
        self._withdrawn = {key: device for key, device in self._withdrawn.items() if self._is_held(key)}
        self._find_holds()

    async def _held_by_pods(self) -> dict[_Key, str] | None:
        """The pod of each device; None if that cannot be read."""
        try:
            async with asyncio.timeout(_PODS_TIMEOUT):  # its List takes what is being allocated for free (3.57, 3.58)
                await self.allocating.ended()
            devices = await pod_resources.held_devices(self._socket, _PODS_TIMEOUT)
        except (OSError, PlugwrightError) as error:
            self._warn("pod-resources", error)
            return None
        self._problems.recovered("pod-resources")
        return {(device.resource, device.device_id): f"{device.namespace}/{device.pod}" for device in devices}

    async def _held_by_checkpoint(self) -> dict[_Key, tuple[str, ...]] | None:
        """The device nodes that a container was given with each device; None if that cannot be read."""
        try:
            entries = await self._checkpoint.entries()
            stored = await in_thread("checkpoint of all resources", lambda: _stored_nodes(entries))
        except FileNotFoundError:
            stored = {}  # a kubelet makes the directory at its start
        except (OSError, RuntimeError, PlugwrightError) as error:
            self._warn("the checkpoint", error)
            return None
        self._problems.recovered("the checkpoint")
        return stored

    def _warn(self, source: str, error: Exception) -> None:
        """Only if it matters."""
        if any(self._kept_back.values()):
            reason = clean(f"{source} cannot be read: {error}")
            text = "devices stay Unhealthy: cannot read which pods hold their hardware"
            self._problems.warning(text, reason, key=source, extra={"error": reason})

    def _keeps_back(self, keys: Collection[_Key]) -> bool:
        """Whether one of these may be the reason for which a device is kept back."""
        return any(self._kept_back.values()) and not self._holds.keys.isdisjoint(keys)

    def _withdraw(self, resource: str, devices: Iterable[Device]) -> None:
        devices = (device for device in devices if device.physical and self._is_held((resource, device.id)))
        self._withdrawn |= {(resource, device.id): device for device in devices}

    def _is_held(self, key: _Key) -> bool:
        return key in self._held or key in self._allocated

    def _find_holds(self) -> None:
        nothing: Mapping[str, Device] = {}
        keys = {key for key in (*self._held, *self._allocated) if key[1] not in self._offered.get(key[0], nothing)}
        before, self._holds = self._holds, _HoldsByName(hold for key in sorted(keys) for hold in self._holds_of(key))
        if self._holds != before:
            # Not at once: this may be called while an inventory is being changed.
            asyncio.get_running_loop().call_soon(self.changed.notify)

    def _holds_of(self, key: _Key) -> Iterator[_Hold]:
        """A device that was never offered here has at least its id: that of a GPU is its UUID."""
        device, pod = self._withdrawn.get(key), self._held.get(key, "")
        if device is not None:
            yield _Hold(key, device.physical, device.sharing, pod)
        else:
            yield _Hold(key, (key[1].partition(_SHARE)[0],), "", pod)
            yield _Hold(key, self._stored.get(key, ()), "", pod, by_nodes=True)


class _HoldsByName:
    """`below`: under the name of each whole, the holds of its parts."""

    __slots__ = ("below", "exact", "keys")

    def __init__(self, holds: Iterable[_Hold]) -> None:
        keys: set[_Key] = set()
        exact: dict[str, tuple[_Hold, ...]] = {}
        below: dict[str, tuple[_Hold, ...]] = {}
        for hold in holds:
            keys.add(hold.key)
            for name in hold.physical:
                exact[name] = (*exact.get(name, ()), hold)
                for whole in _wholes(name):
                    below[whole] = (*below.get(whole, ()), hold)
        self.keys: Set[_Key] = keys
        self.exact: Mapping[str, tuple[_Hold, ...]] = exact
        self.below: Mapping[str, tuple[_Hold, ...]] = below

    def reasons(self, resource: str, devices: Mapping[str, Device]) -> dict[str, str]:
        if not self.exact:
            return {}
        found = {device_id: self._conflict(resource, device) for device_id, device in devices.items()}
        return {device_id: hold.reason for device_id, hold in found.items() if hold is not None}

    def _conflict(self, resource: str, device: Device) -> _Hold | None:
        for name in device.physical:
            for holds in (*map(self.exact.get, (name, *_wholes(name))), self.below.get(name)):
                for hold in holds or ():
                    if hold.conflicts_with(device) and hold.key != (resource, device.id):
                        return hold
        return None


def _wholes(name: str) -> Iterator[str]:
    """The names of what `name` is a part of, the nearest first."""
    while name := name.rpartition("/")[0]:
        yield name


def _stored_nodes(entries: Iterable[PodDevicesEntry]) -> dict[_Key, tuple[str, ...]]:
    """By the device that a container holds, the device nodes that the container was given."""
    stored: dict[_Key, tuple[str, ...]] = {}
    for entry in entries:
        nodes: tuple[str, ...] = ()
        with suppress(PlugwrightError):  # another plugin's answer that cannot be read
            nodes = tuple(node.host_path for node in messages.decode(entry.answer or b"").nodes)
        for device_ids in (entry.devices or {}).values():
            stored |= {(entry.resource, device_id): nodes for device_id in device_ids or ()}
    return stored
