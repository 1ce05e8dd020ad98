"""The device manager: the endpoints, their device lists, the pod devices and the checkpoint, wired together.

Decisions over values are made in `devices` and `pod_devices`; here they meet the plugins and the disk. A manager lives
from a kubelet's start to its stop; what must outlive it is in the checkpoint. The health of a pod's devices, as the pod
status shows it, is derived here too.
"""

import asyncio
from collections.abc import Mapping, Set
from dataclasses import dataclass

from plugwright.kubelet.devicemanager.checkpoint import CheckpointFile
from plugwright.kubelet.devicemanager.devices import (
    DeviceCount,
    DeviceStore,
    ResourceDevices,
    dropped_device_problems,
    list_problems,
)
from plugwright.kubelet.devicemanager.endpoints import Endpoint, Endpoints
from plugwright.kubelet.devicemanager.pod_devices import PodDevices
from plugwright.kubelet.events import StateChange
from plugwright.kubelet.metrics import KubeletMetrics
from plugwright.kubelet.pod_table import Pod
from plugwright.kubelet.pods import ContainerKind
from plugwright.kubelet.settings import KubeletContext
from plugwright.model import Health
from plugwright.protocol.checkpoint import Checkpoint
from plugwright.protocol.messages import ListedDevice
from plugwright.system.latest import Signal

__all__ = ["DeviceHealth", "DeviceManager", "devices_with_changed_health", "pod_device_health", "reported_health"]


class DeviceManager:
    def __init__(self, context: KubeletContext, tasks: asyncio.TaskGroup) -> None:
        self.context = context
        self.endpoints = Endpoints(context, tasks, self)
        self.devices = DeviceStore()
        self.pod_devices = PodDevices()
        self.metrics = KubeletMetrics()
        self.node_status = context.node_status
        self._stopped = Signal()  # a plugin has disconnected
        self.allocating: dict[str, frozenset[str]] = {}  # the devices of Allocate calls in progress, by resource
        self._checkpoint_file = CheckpointFile(context.paths.checkpoint, plain_lists=context.profile.reads_plain_lists)

    def read_checkpoint(self) -> None:
        """Restores the state of the kubelet before this one (1.20 to 1.24)."""
        loaded = self._checkpoint_file.load()
        if loaded.problem:
            self.context.record("checkpoint", str(self.context.paths.checkpoint), loaded.problem)
        registered = sorted(loaded.checkpoint.registered or {})
        self.pod_devices = PodDevices(loaded.checkpoint.entries or ())
        self.devices.restore(registered)
        self.endpoints.restore(registered)
        # A kubelet keeps the capacity of resources it does not know, and copies it to allocatable (10.11).
        self.node_status.update(
            {resource: DeviceCount(count.capacity, count.capacity) for resource, count in self.node_status.items()}
        )
        # A resource in the checkpoint counts 0 until its plugin has registered again (1.21).
        self.node_status.update({resource: DeviceCount(0, 0) for resource in registered})

    def write_checkpoint(self) -> None:
        """Returns when the current state is on disk; raises OSError."""
        registered = {resource: self.devices.of(resource).registered for resource in self.devices}
        # Not in a thread: the switch there and back takes longer than the disk.
        self._checkpoint_file.save(Checkpoint(self.pod_devices.entries or None, registered))

    async def list_received(self, endpoint: Endpoint, devices: list[ListedDevice]) -> None:
        resource = endpoint.resource
        before = self.devices.of(resource)
        dropped = self.devices.update(resource, devices)
        self._report_problems(resource, devices, dropped, before)
        count = self.devices.of(resource).count
        self.node_status[resource] = count
        text = f"{count.capacity} devices, {count.allocatable} healthy"
        self.context.event_log.add(StateChange("list", resource, text, tuple(devices)))
        self._update_pod_health(resource, before)
        self._try_write_checkpoint()

    def disconnected(self, endpoint: Endpoint, reason: str) -> None:
        """Marks the devices unhealthy; the plugin has five minutes to register again (2.15)."""
        self.devices.mark_unhealthy(endpoint.resource)
        self.node_status[endpoint.resource] = self.devices.of(endpoint.resource).count
        self.context.record("stopped", endpoint.resource, reason)
        self._stopped.notify()

    async def update_node_status(self) -> None:
        """Computes it every ten seconds, as the kubelet does (7.12), while a plugin is gone: else nothing changes."""
        while True:
            await self._stopped.until(lambda: any(endpoint.stopped_at is not None for endpoint in self.endpoints))
            await asyncio.sleep(self.context.settings.timing.node_status)
            self.get_capacity()

    def get_capacity(self) -> dict[str, DeviceCount]:
        """The node status; removes resources whose plugin has been gone for longer than the grace period (2.18)."""
        now, grace = self.context.settings.clock(), self.context.settings.timing.grace
        removed = [
            endpoint.resource
            for endpoint in self.endpoints
            if endpoint.stopped_at is not None and now - endpoint.stopped_at > grace
        ]
        for resource in removed:
            self.endpoints.remove(resource)
            self.devices.remove(resource)
            # A removed resource stays in the node status with the count 0 (2.19).
            self.node_status[resource] = DeviceCount(0, 0)
            self.context.record("removed", resource, f"its plugin was gone for more than {grace:g} s")
        if removed:
            self._try_write_checkpoint()
        return dict(sorted(self.node_status.items()))

    def update_allocated_devices(self, active: Set[str]) -> None:
        """Frees the devices of inactive pods; the checkpoint keeps them until its next write (3.57, 3.60)."""
        for uid in self.pod_devices.remove_inactive(active):
            self.context.record("freed", uid)

    def _try_write_checkpoint(self) -> None:
        # A failed write after a device list is only logged; the next change tries again (4.34).
        try:
            self.write_checkpoint()
        except OSError as error:
            path = str(self.context.paths.checkpoint)
            self.context.record("checkpoint", path, f"cannot be written: {error.strerror}")

    def _update_pod_health(self, resource: str, before: ResourceDevices) -> None:
        """Records the pods whose status changes; up to 1.36 a pod is found by the device id alone (7.7, 7.8)."""
        if not self.context.profile.reports_device_health:
            return
        after = self.devices.of(resource)
        holders = self.pod_devices.holders(resource if self.context.profile.health_by_resource else None)
        for device_id in devices_with_changed_health(before, after) if holders else ():
            if device_id in holders:
                health = reported_health(after, device_id)
                self.context.record("health", holders[device_id], f"{device_id} is {health}")

    def _report_problems(
        self, resource: str, devices: list[ListedDevice], dropped: list[str], before: ResourceDevices
    ) -> None:
        problems = list(list_problems(devices))
        if dropped and self.context.profile.crashes_on_dropped:
            allocating = self.allocating.get(resource, frozenset())
            problems += dropped_device_problems(dropped, before, self.pod_devices.in_use(resource), allocating)
        for fact, happened, really in problems:
            self.context.findings.report(fact, resource, happened, really)


@dataclass(frozen=True, slots=True, order=True)
class DeviceHealth:
    resource: str
    device_id: str
    health: Health


def pod_device_health(
    pod: Pod, devices: DeviceStore, pod_devices: PodDevices
) -> Mapping[str, tuple[DeviceHealth, ...]]:
    """The devices of each main container; init containers and sidecars are left out (7.3)."""
    return {
        container.name: tuple(
            DeviceHealth(entry.resource, device_id, reported_health(devices.of(entry.resource), device_id))
            for entry in pod_devices.of_container(pod.uid, container.name)
            for device_id in sorted({device_id for ids in (entry.devices or {}).values() for device_id in ids or ()})
        )
        for container in pod.spec.containers
        if container.kind is ContainerKind.MAIN
    }


def reported_health(devices: ResourceDevices, device_id: str) -> Health:
    """The health in the pod status; an unlisted device is reported healthy (7.4)."""
    device = devices.known.get(device_id)
    return Health.HEALTHY if device is None or device.health == Health.HEALTHY else Health.UNHEALTHY


def devices_with_changed_health(before: ResourceDevices, after: ResourceDevices) -> list[str]:
    """The devices with a status update: new in the list, or with another health than before (7.7)."""
    return sorted(
        device_id
        for device_id, device in after.known.items()
        if (known := before.known.get(device_id)) is None or known.health != device.health
    )
