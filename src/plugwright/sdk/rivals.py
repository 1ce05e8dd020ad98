"""Detects third-party plugins for a resource of this daemon.

The kubelet accepts a second plugin for a resource: it calls the newer plugin, both streams stay open, and each list
replaces the other (2.22). No message reports this. The kubelet's checkpoint, written after every device list and
allocation (4.31), shows it by two signs: devices never listed by this daemon, and an allocation it never answered.

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


class RegisteredResource(msgspec.Struct, frozen=True):
    """This daemon's facts about a resource: the devices it lists, those it has allocated, its own socket."""

    listed: Collection[str]
    allocated: Collection[str]
    endpoint: str


class _Seen(msgspec.Struct):
    """Facts about one resource: possible devices of an earlier plugin, and the containers with known allocations."""

    earlier: set[str]
    containers: set[tuple[str, str]]
    listed: set[str]


class Rivals:
    """`found` contains the evidence of a rival by resource; `served` returns the resources whose lists the kubelet has.

    A comparison begins `settle` seconds after a change: while starting many pods, a kubelet writes its checkpoint for
    each. `may_overlap` returns whether another process of the release can be serving too.
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
        self._settle, self._may_overlap = settle, may_overlap
        self._seen: dict[str, _Seen] = {}

    async def run(self) -> None:
        """Runs forever; compares after each change of the kubelet's directory."""
        async with self._directory.watching():
            async for _ in self._directory.changed.notifications():
                await asyncio.sleep(self._settle)
                try:
                    await self.compare()
                except (OSError, PlugwrightError):
                    continue  # readers that need the checkpoint report it

    async def compare(self) -> None:
        content, served = await self._checkpoint.read(), self._served()
        found = {}
        for resource, own in served.items():
            stored = [entry for entry in content.entries if entry.resource == resource]
            text = self._compare(resource, own, set(content.registered.get(resource) or ()), stored)
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
        if seen is None:  # left by an earlier run, or by another plugin before this one
            self._seen[resource] = _Seen(registered - set(own.listed), set(containers), set(own.listed))
            return ""
        seen.listed |= set(own.listed)
        foreign = registered - seen.listed
        if not foreign:
            seen.earlier = set()  # the kubelet has our list: devices that return from now on are another plugin's
        new = {key: ids for key, ids in containers.items() if key not in seen.containers}
        answered = [ids for ids in new.values() if ids <= set(own.allocated)]
        seen.containers = set(containers)
        if unknown := foreign - seen.earlier:
            return f"the kubelet has devices that are not listed here: {some(sorted(unknown))}"
        if len(answered) < len(new):
            return "the kubelet has allocated devices without asking this daemon"
        return "" if new or foreign or not self._was_allocation(resource) else self.found.value[resource]

    def _was_allocation(self, resource: str) -> bool:
        """Whether a rival's allocation was reported, which stays until the kubelet calls this daemon again."""
        return "without asking" in self.found.value.get(resource, "")


def _device_ids(entry: PodDevicesEntry) -> set[str]:
    return {clean(device_id) for device_ids in (entry.devices or {}).values() for device_id in device_ids or ()}
