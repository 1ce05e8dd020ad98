"""Detects third-party plugins for a resource of this daemon.

The kubelet accepts a second plugin for a resource: it calls the newer plugin, both streams stay open, and each list
replaces the other (2.22). No message reports this. The kubelet's checkpoint, written after every device list and
allocation (4.31), shows it by two signs: devices never listed by this daemon, and an allocation it never answered.

The checkpoint can still contain the list of an earlier plugin, or of an earlier run. So foreign devices count in a
checkpoint that is later than our socket, and only if they are still there a while after the kubelet has our list.

A newer pod of the same release is not a rival: its socket is named after this resource, and its memory of offers is
locked. A plugwright daemon with another node directory is a rival too.
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path

import msgspec

from plugwright.errors import PlugwrightError
from plugwright.model import some
from plugwright.protocol.checkpoint import PodDevicesEntry
from plugwright.sdk.holdings.kubelet_checkpoint import KubeletCheckpoint
from plugwright.sdk.registration import other_sockets
from plugwright.system.inotify import Directory
from plugwright.system.latest import Latest, Signal
from plugwright.text import clean

__all__ = ["RegisteredResource", "Rivals"]

logger = logging.getLogger(__name__)

_SETTLE = 2.0  # seconds; a kubelet that starts many pods writes its checkpoint for each


class RegisteredResource(msgspec.Struct, frozen=True):
    """This daemon's facts about a resource: the devices it lists, those it has allocated, its own socket."""

    listed: Collection[str]
    allocated: Collection[str]
    endpoint: str


class _Seen(msgspec.Struct):
    """Facts about one resource: the containers with known allocations, and all devices that were ever listed."""

    containers: set[tuple[str, str]]
    listed: set[str]


class Rivals:
    """`found` contains the evidence of a rival by resource; `served` returns the resources whose lists the kubelet has.

    A comparison begins two seconds after a change, or `settle` seconds if that is less. `may_overlap` returns whether
    another process of the release can be serving too.
    """

    def __init__(
        self,
        checkpoint: KubeletCheckpoint,
        directory: Path,
        served: Callable[[], Mapping[str, RegisteredResource]],
        settle: float,
        may_overlap: Callable[[], bool],
    ) -> None:
        self.found: Latest[Mapping[str, str]] = Latest({})
        self.compared = Signal()
        self._checkpoint, self._directory, self._served = checkpoint, Directory(directory), served
        self._settle, self._may_overlap = min(settle, _SETTLE), may_overlap
        self._seen: dict[str, _Seen] = {}
        self._is_suspected = False  # the next comparison decides

    async def run(self) -> None:
        """Runs forever; compares after each change of the kubelet's directory."""
        changed, seen = self._directory.changed, -1
        async with self._directory.watching():
            while True:
                if not self._is_suspected:
                    await changed.wait(seen)
                await asyncio.sleep(self._settle)
                seen = changed.count  # the comparison covers the changes of those seconds
                try:
                    await self.compare()
                except (OSError, PlugwrightError):
                    continue  # readers that need the checkpoint report it

    async def compare(self) -> None:
        content, served = await self._checkpoint.read(), self._served()
        found, self._is_suspected = {}, False
        for resource, own in served.items():
            stored = [entry for entry in content.entries if entry.resource == resource]
            is_current = content.written > self._begun(own.endpoint)
            registered = set(content.registered.get(resource) or ()) if is_current else set[str]()
            text = self._compare(resource, own, registered, stored)
            is_ours = other_sockets(self._directory.path, resource, own.endpoint) and self._may_overlap()
            if text and not is_ours:
                found[resource] = text
        self._seen = {resource: seen for resource, seen in self._seen.items() if resource in served}
        for resource, text in found.items():
            if text != self.found.value.get(resource):
                logger.warning("another plugin serves the resource", extra={"resource": resource, "rival": text})
        self.found.publish_if_changed(found)
        if self._seen:
            self.compared.notify()

    def _compare(
        self, resource: str, own: RegisteredResource, registered: set[str], entries: Iterable[PodDevicesEntry]
    ) -> str:
        containers = {(entry.pod_uid, entry.container): _device_ids(entry) for entry in entries}
        seen = self._seen.get(resource)
        if seen is None:  # allocations by an earlier run, or by another plugin before this one
            self._seen[resource] = _Seen(set(containers), set(own.listed))
            self._is_suspected |= bool(registered - set(own.listed))
            return ""
        seen.listed |= set(own.listed)
        new = {key: ids for key, ids in containers.items() if key not in seen.containers}
        answered = [ids for ids in new.values() if ids <= set(own.allocated)]
        seen.containers = set(containers)
        if foreign := registered - seen.listed:
            return f"the kubelet has devices that are not listed here: {some(sorted(foreign))}"
        if len(answered) < len(new):
            return "the kubelet has allocated devices without asking this daemon"
        return "" if new or not self._was_allocation(resource) else self.found.value[resource]

    def _begun(self, endpoint: str) -> float:
        """When our present socket was made, before the kubelet got a list over it; 0 if it is in another directory."""
        try:
            return (self._directory.path / endpoint).stat().st_mtime
        except OSError:
            return 0.0

    def _was_allocation(self, resource: str) -> bool:
        """Whether a rival's allocation was reported, which stays until the kubelet calls this daemon again."""
        return "without asking" in self.found.value.get(resource, "")


def _device_ids(entry: PodDevicesEntry) -> set[str]:
    return {clean(device_id) for device_ids in (entry.devices or {}).values() for device_id in device_ids or ()}
