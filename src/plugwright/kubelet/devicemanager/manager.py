"""The device manager: its plugins, their lists, the records and the checkpoint, wired together.

The decisions are `stock`'s, `ledger`'s and `quirks`'; here they meet the plugins and the disk. A manager lives from
a kubelet's start to its end: what must outlive it is in the checkpoint.

The health of a pod's devices, as its status shows it (section 7).
"""

import asyncio
from collections.abc import Mapping, Set
from dataclasses import dataclass

from plugwright.kubelet.devicemanager.checkpoint import Journal
from plugwright.kubelet.devicemanager.context import Context
from plugwright.kubelet.devicemanager.devices import DeviceCount, DeviceStore, ResourceDevices, of_dropped, of_list
from plugwright.kubelet.devicemanager.endpoints import Connections, Endpoint
from plugwright.kubelet.devicemanager.pod_devices import Ledger
from plugwright.kubelet.metrics import Metrics
from plugwright.kubelet.pod_table import Pod
from plugwright.kubelet.pods import ContainerKind
from plugwright.model import Health
from plugwright.protocol.checkpoint import Checkpoint
from plugwright.protocol.messages import ListedDevice

__all__ = ["DeviceHealth", "DeviceManager", "changed", "of_device", "of_pod"]


@dataclass(frozen=True, slots=True, order=True)
class DeviceHealth:
    resource: str
    device_id: str
    health: Health


def of_pod(pod: Pod, stock: DeviceStore, ledger: Ledger) -> Mapping[str, tuple[DeviceHealth, ...]]:
    """By container: none for init containers and sidecars (7.3)."""
    return {
        container.name: tuple(
            DeviceHealth(entry.resource, device_id, of_device(stock.shelf(entry.resource), device_id))
            for entry in ledger.of_container(pod.uid, container.name)
            for device_id in sorted({each for ids in (entry.devices or {}).values() for each in ids or ()})
        )
        for container in pod.spec.containers
        if container.kind is ContainerKind.MAIN
    }


def of_device(shelf: ResourceDevices, device_id: str) -> Health:
    """A device that nobody lists is called healthy (7.4)."""
    listed = shelf.known.get(device_id)
    return Health.HEALTHY if listed is None or listed.health == Health.HEALTHY else Health.UNHEALTHY


def changed(before: ResourceDevices, after: ResourceDevices) -> list[str]:
    """The devices whose pods are told: another health than in the last list, or new in this one (7.7)."""
    return sorted(
        device_id
        for device_id, listed in after.known.items()
        if (known := before.known.get(device_id)) is None or known.health != listed.health
    )


class DeviceManager:
    def __init__(self, context: Context, tasks: asyncio.TaskGroup) -> None:
        self.context = context
        self.connections = Connections(context, tasks, self)
        self.stock = DeviceStore()
        self.ledger = Ledger()
        self.metrics = Metrics()
        self.node = context.node
        self.asked: dict[str, frozenset[str]] = {}  # devices that Allocate is being asked for, by resource
        self._journal = Journal(context.paths.checkpoint, plain_lists=context.profile.reads_plain_lists)

    def load(self) -> None:
        """The state that the kubelet before this one left (1.20 to 1.24)."""
        loaded = self._journal.load()
        if loaded.problem:
            self.context.tell("checkpoint", str(self.context.paths.checkpoint), loaded.problem)
        registered = sorted(loaded.checkpoint.registered or {})
        self.ledger = Ledger(loaded.checkpoint.entries or ())
        self.stock.restore(registered)
        self.connections.restore(registered)
        # Of what it does not know itself a kubelet leaves the capacity, and allocatable follows that (10.11).
        self.node.update(
            {resource: DeviceCount(count.capacity, count.capacity) for resource, count in self.node.items()}
        )
        self.node.update({resource: DeviceCount(0, 0) for resource in registered})  # 1.21

    def save(self) -> None:
        """The state now, on disk before this returns; the newest is never overtaken by an older one."""
        registered = {resource: self.stock.shelf(resource).registered for resource in self.stock}
        # Not in a thread: handing it over and back takes longer than the disk does.
        self._journal.save(Checkpoint(self.ledger.entries or None, registered))

    async def listed(self, endpoint: Endpoint, devices: list[ListedDevice]) -> None:
        resource = endpoint.resource
        before = self.stock.shelf(resource)
        dropped = self.stock.take(resource, devices)
        self._report(resource, devices, dropped, before)
        count = self.stock.shelf(resource).count
        self.node[resource] = count
        self.context.tell("list", resource, f"{count.capacity} devices, {count.allocatable} healthy")
        self._tell_pods(before, self.stock.shelf(resource))
        self._save_or_tell()

    def ended(self, endpoint: Endpoint, reason: str) -> None:
        """The plugin is gone: nothing of it can be handed out, and it has five minutes to come back (2.15)."""
        self.stock.stop(endpoint.resource)
        self.node[endpoint.resource] = self.stock.shelf(endpoint.resource).count
        self.context.tell("stopped", endpoint.resource, reason)

    def survey(self) -> dict[str, DeviceCount]:
        """What the node's status says now; drops resources whose plugin was gone for too long (2.18)."""
        now, grace = self.context.settings.clock(), self.context.settings.timing.grace
        removed = [each.resource for each in self.connections if _is_over(each, now, grace)]
        for resource in removed:
            self.connections.drop(resource)
            self.stock.drop(resource)
            self.node[resource] = DeviceCount(0, 0)  # 2.19
            self.context.tell("removed", resource, f"its plugin was gone for more than {grace:g} s")
        if removed:
            self._save_or_tell()
        return dict(sorted(self.node.items()))

    def forget(self, active: Set[str]) -> None:
        """Frees the devices of pods that are not active; on disk they stay until the next write (3.57, 3.60)."""
        for uid in self.ledger.forget(active):
            self.context.tell("freed", uid)

    def _save_or_tell(self) -> None:
        try:
            self.save()
        except OSError as error:  # 4.34: it is tried again with the next change
            self.context.tell("checkpoint", str(self.context.paths.checkpoint), f"cannot be written: {error.strerror}")

    def _tell_pods(self, before: ResourceDevices, after: ResourceDevices) -> None:
        """A pod's status is made anew when a device it holds changed; it is found by the id alone (7.7, 7.8)."""
        if not self.context.profile.reports_device_health:
            return
        holders = self.ledger.holders()
        for device_id in changed(before, after) if holders else ():
            if device_id in holders:
                self.context.tell("health", holders[device_id], f"{device_id} is {of_device(after, device_id)}")

    def _report(self, resource: str, devices: list[ListedDevice], dropped: list[str], before: ResourceDevices) -> None:
        found = list(of_list(devices))
        if dropped and self.context.profile.crashes_on_dropped:
            asked = self.asked.get(resource, frozenset())
            found += of_dropped(dropped, before, self.ledger.in_use(resource), asked)
        for fact, happened, really in found:
            self.context.findings.report(fact, resource, happened, really)


def _is_over(endpoint: Endpoint, now: float, grace: float) -> bool:
    return endpoint.stopped_at is not None and now - endpoint.stopped_at > grace
