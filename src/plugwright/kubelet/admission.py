"""Pod admission in the real kubelet's order: topology, devices, fit (3.1 to 3.7, 3.62 to 3.67).

The first refusal wins. Which hint wins is `topology_manager`, which devices a container gets is
`devicemanager.allocation`; containers are started by `devicemanager.container_start`.
"""

import time
from collections.abc import Callable

from plugwright.errors import AllocationFailed, PodRefused
from plugwright.kubelet import metrics, topology_manager
from plugwright.kubelet.devicemanager.allocation import Allocator, NumaMask
from plugwright.kubelet.devicemanager.manager import DeviceManager
from plugwright.kubelet.devicemanager.pod_devices import AllocationKey
from plugwright.kubelet.metrics import MetricName
from plugwright.kubelet.pod_table import Pod, PodTable
from plugwright.kubelet.pods import ContainerSpec, PodSpec
from plugwright.kubelet.topology_manager import ResourceTopology, TopologyHint, TopologyPolicy, TopologyScope

__all__ = ["Admission", "Predicates"]

Predicates = Callable[[], tuple[str, str] | None]  # the reason and the message of a rejection

_Hints = tuple[TopologyHint, ...] | None  # None: the resource has no preference


class Admission:
    def __init__(self, manager: DeviceManager, table: PodTable, allocator: Allocator) -> None:
        self._manager = manager
        self._table = table
        self._allocator = allocator
        self._settings = manager.context.settings

    async def admit(self, pod: Pod, predicates: Predicates | None = None) -> None:
        """Raises `PodRefused`; devices recorded before the refusal are freed with the pod."""
        began = time.perf_counter()
        self._manager.metrics.count(MetricName.ADMISSIONS)
        try:
            await self._allocate(pod.spec)
        except PodRefused:
            if self._settings.policy is not TopologyPolicy.NONE:
                self._manager.metrics.count(MetricName.ADMISSION_ERRORS)
            raise
        finally:
            milliseconds = int((time.perf_counter() - began) * 1000)
            self._manager.metrics.observe(MetricName.ADMISSION_MILLISECONDS, milliseconds)
        if predicates is not None and (rejection := predicates()):
            raise self._refused(pod.spec, *rejection)
        self._check_fit(pod)

    async def _allocate(self, pod: PodSpec) -> None:
        has_container_scope = self._settings.scope is TopologyScope.CONTAINER
        pod_mask = None if has_container_scope else self._pod_mask(pod)
        for container in pod.containers:
            mask = self._container_mask(pod, container) if has_container_scope else pod_mask
            try:
                await self._allocator.allocate(pod, container, mask)
            except AllocationFailed as error:
                message = f"Pod was rejected: Allocate failed due to {error}, which is unexpected"
                raise self._refused(pod, "UnexpectedAdmissionError", message) from error

    def _pod_mask(self, pod: PodSpec) -> NumaMask:
        if self._settings.policy is TopologyPolicy.NONE:
            return None
        self._allocator.update_allocated_devices()
        hints: dict[str, _Hints] = {}
        for resource in pod.resources:
            if self._allocator.is_device_plugin_resource(resource):
                held = self._manager.pod_devices.of_pod(pod.uid, resource)
                hints[resource] = self._hints(resource, pod.requested(resource), held, frozenset())
        return self._decide(pod, hints)

    def _container_mask(self, pod: PodSpec, container: ContainerSpec) -> NumaMask:
        if self._settings.policy is TopologyPolicy.NONE:
            return None
        self._allocator.update_allocated_devices()
        hints: dict[str, _Hints] = {}
        for resource in sorted(container.limits):
            if self._allocator.is_device_plugin_resource(resource):
                key = AllocationKey(pod.uid, container.name, resource)
                held = frozenset(self._manager.pod_devices.device_ids(key))
                reusable = self._allocator.reusable(pod, resource)
                hints[resource] = self._hints(resource, container.requested(resource), held, reusable)
        return self._decide(pod, hints)

    def _hints(self, resource: str, requested: int, held: frozenset[str], reusable: frozenset[str]) -> _Hints:
        devices = self._manager.devices.of(resource)
        known = {device_id: device.nodes or () for device_id, device in devices.known.items()}
        if any(known.values()):
            self._report_dropped(resource, held - known.keys())
        topology = ResourceTopology(known, self._allocator.available(resource), reusable, held)
        narrows = self._manager.context.profile.narrows_masks
        return topology_manager.topology_hints(
            topology, requested, self._settings.machine, masks_of_devices_only=narrows
        )

    def _decide(self, pod: PodSpec, hints: dict[str, _Hints]) -> NumaMask:
        policy = TopologyPolicy(self._settings.policy)
        decision = topology_manager.merge_hints(policy, hints, self._settings.machine)
        if policy is TopologyPolicy.SINGLE_NUMA_NODE:
            name = MetricName.ALIGNED if decision.admitted else MetricName.NOT_ALIGNED
            self._manager.metrics.count(name, scope=self._settings.scope, boundary="numa_node")
        if not decision.admitted:
            message = "Pod was rejected: Resources cannot be allocated with Topology locality"
            raise self._refused(pod, "TopologyAffinityError", message)
        return decision.hint.nodes

    def _check_fit(self, pod: Pod) -> None:
        """Compares the requests of all active pods with the node's allocatable.

        For a pod with devices, allocatable is at least the number in use, so it survives a plugin with an empty list;
        resources missing on the node are ignored (3.62, 3.63).
        """
        holds_devices = self._manager.pod_devices.has_pod(pod.uid)
        for resource in pod.spec.resources:
            requested, count = pod.spec.requested(resource), self._manager.node_status.get(resource)
            if not requested:  # A request of zero always fits, as for the scheduler (10.19).
                continue
            if count is None:
                self._report_unknown(pod.spec, resource)
                continue
            capacity = count.allocatable
            if holds_devices:
                capacity = max(capacity, len(self._manager.pod_devices.in_use(resource)))
            used = self._table.used(resource, without=pod)
            if requested > capacity - used:
                message = (
                    f"Pod was rejected: Node didn't have enough resource: {resource}, "
                    f"requested: {requested}, used: {used}, capacity: {capacity}"
                )
                raise self._refused(pod.spec, f"OutOf{resource}", message)

    def _refused(self, pod: PodSpec, reason: str, message: str) -> PodRefused:
        self._manager.metrics.count(MetricName.REJECTIONS, reason=metrics.rejection_reason(reason))
        return PodRefused(pod.key, reason, message)

    def _report_dropped(self, resource: str, dropped: frozenset[str]) -> None:
        if dropped and self._manager.context.profile.crashes_on_dropped:
            self._manager.context.findings.report(
                "2.25",
                resource,
                f"hints for a container whose devices are no longer listed: {', '.join(sorted(dropped))}",
                "crashes if such a device had a NUMA node",
            )

    def _report_unknown(self, pod: PodSpec, resource: str) -> None:
        if "/" in resource:
            self._manager.context.findings.report(
                "3.63", pod.key, f"no plugin ever listed {resource}", "starts the pod without any such device, as here"
            )
