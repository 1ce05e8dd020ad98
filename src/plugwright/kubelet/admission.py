"""Whether a pod is admitted: topology, devices, fit, in the real order (3.1 to 3.7, 3.62 to 3.67).

The first refusal wins. Containers are started elsewhere, in `starting`.
"""

import time
from collections.abc import Mapping

from plugwright.errors import AllocationFailed, PodRefused
from plugwright.kubelet import metrics, topology_manager
from plugwright.kubelet.devicemanager.allocation import Allocator, Mask
from plugwright.kubelet.devicemanager.manager import DeviceManager
from plugwright.kubelet.devicemanager.pod_devices import Place
from plugwright.kubelet.metrics import Name
from plugwright.kubelet.pod_table import Pod, PodTable
from plugwright.kubelet.pods import ContainerSpec, PodSpec
from plugwright.kubelet.topology_manager import Hint, Policy, Scope, Supply

__all__ = ["Admission"]

_Results = dict[str, tuple[Hint, ...] | None]


class Admission:
    def __init__(self, manager: DeviceManager, table: PodTable, allocator: Allocator) -> None:
        self._manager = manager
        self._table = table
        self._allocator = allocator
        self._settings = manager.context.settings

    async def admit(self, pod: Pod) -> None:
        """Raises `PodRefused`; devices that were recorded before the refusal are freed with the pod."""
        began = time.perf_counter()
        self._manager.metrics.count(Name.ADMISSIONS)
        try:
            await self._allocate(pod.spec)
        except PodRefused:
            if self._settings.policy is not Policy.NONE:
                self._manager.metrics.count(Name.ADMISSION_ERRORS)
            raise
        finally:
            milliseconds = int((time.perf_counter() - began) * 1000)
            self._manager.metrics.observe(Name.ADMISSION_MILLISECONDS, milliseconds)
        self._fit(pod)

    async def _allocate(self, pod: PodSpec) -> None:
        pod_mask = self._pod_mask(pod)
        for container in pod.containers:
            mask = self._container_mask(pod, container) if self._scope is Scope.CONTAINER else pod_mask
            try:
                await self._allocator.allocate(pod, container, mask)
            except AllocationFailed as error:
                message = f"Pod was rejected: Allocate failed due to {error}, which is unexpected"
                raise self._refused(pod, "UnexpectedAdmissionError", message) from error

    @property
    def _scope(self) -> Scope:
        return self._settings.scope

    def _pod_mask(self, pod: PodSpec) -> Mask:
        if self._settings.policy is Policy.NONE or self._scope is Scope.CONTAINER:
            return None
        self._allocator.collect()
        totals = {resource: pod.total(resource) for resource in pod.resources}
        results = {
            resource: self._hints(resource, wanted, self._manager.ledger.of_pod(pod.uid, resource), frozenset())
            for resource, wanted in totals.items()
            if self._allocator.is_device(resource)
        }
        return self._decide(pod, results)

    def _container_mask(self, pod: PodSpec, container: ContainerSpec) -> Mask:
        if self._settings.policy is Policy.NONE:
            return None
        self._allocator.collect()
        results: _Results = {}
        for resource in sorted(container.limits):
            if self._allocator.is_device(resource):
                held = frozenset(self._manager.ledger.held(Place(pod.uid, container.name, resource)))
                reusable = self._allocator.reusable(pod, resource)
                results[resource] = self._hints(resource, container.wanted(resource), held, reusable)
        return self._decide(pod, results)

    def _hints(
        self, resource: str, wanted: int, held: frozenset[str], reusable: frozenset[str]
    ) -> tuple[Hint, ...] | None:
        shelf = self._manager.stock.shelf(resource)
        known = {device_id: listed.nodes or () for device_id, listed in shelf.known.items()}
        if any(known.values()):
            self._report_vanished(resource, held - known.keys())
        supply = Supply(known, self._allocator.available(resource), reusable, held)
        narrows = self._manager.context.profile.narrows_masks
        return topology_manager.hints(supply, wanted, self._settings.machine, masks_of_devices_only=narrows)

    def _decide(self, pod: PodSpec, results: Mapping[str, tuple[Hint, ...] | None]) -> Mask:
        decision = topology_manager.best(self._settings.policy, results, self._settings.machine)
        self._count_alignment(decision.admitted)
        if not decision.admitted:
            message = "Pod was rejected: Resources cannot be allocated with Topology locality"
            raise self._refused(pod, "TopologyAffinityError", message)
        return decision.hint.nodes

    def _count_alignment(self, admitted: bool) -> None:
        if self._settings.policy is Policy.SINGLE_NUMA_NODE:
            name = Name.ALIGNED if admitted else Name.NOT_ALIGNED
            self._manager.metrics.count(name, scope=self._scope, boundary="numa_node")

    def _fit(self, pod: Pod) -> None:
        """What the node says it has, against what everybody asks for (3.62, 3.63)."""
        holds = self._manager.ledger.holds(pod.uid)
        for resource in pod.spec.resources:
            requested, count = pod.spec.total(resource), self._manager.node.get(resource)
            if not requested:  # who asks for none fits, whatever the others use (10.19)
                continue
            if count is None:
                self._report_unknown(pod.spec, resource)
                continue
            capacity = count.allocatable
            if holds:
                capacity = max(capacity, len(self._manager.ledger.in_use(resource)))
            used = self._table.used(resource, without=pod)
            if requested > capacity - used:
                message = (
                    f"Pod was rejected: Node didn't have enough resource: {resource}, "
                    f"requested: {requested}, used: {used}, capacity: {capacity}"
                )
                raise self._refused(pod.spec, f"OutOf{resource}", message)

    def _refused(self, pod: PodSpec, reason: str, message: str) -> PodRefused:
        self._manager.metrics.count(Name.REJECTIONS, reason=metrics.rejection_reason(reason))
        return PodRefused(pod.key, reason, message)

    def _report_vanished(self, resource: str, vanished: frozenset[str]) -> None:
        if vanished and self._manager.context.profile.crashes_on_dropped:
            self._manager.context.findings.report(
                "2.25",
                resource,
                f"hints for a container whose devices are no longer listed: {', '.join(sorted(vanished))}",
                "crashes if such a device had a NUMA node",
            )

    def _report_unknown(self, pod: PodSpec, resource: str) -> None:
        if "/" in resource:
            self._manager.context.findings.report(
                "3.63", pod.key, f"nobody here has {resource}", "starts the pod without any such device, as here"
            )
