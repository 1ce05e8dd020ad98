"""What the pod-resources service tells: the records and the newest lists, as values."""

from collections.abc import Iterable, Iterator

from plugwright.kubelet.allocation import Allocator
from plugwright.kubelet.ledger import NO_NUMA
from plugwright.kubelet.manager import DeviceManager
from plugwright.kubelet.podresources import ContainerView, PodView
from plugwright.kubelet.pods import ContainerSpec
from plugwright.kubelet.table import Pod, PodTable
from plugwright.protocol.pod_resources import AllocatableDevice, DeviceHolding

__all__ = ["Holdings"]


class Holdings:
    """`podresources.Node` over the device manager and its pods."""

    def __init__(self, manager: DeviceManager, table: PodTable, allocator: Allocator) -> None:
        self._manager, self._table, self._allocator = manager, table, allocator

    def collect(self) -> None:
        self._allocator.collect()

    def active(self) -> Iterable[PodView]:
        return [self._view(pod) for pod in self._table if pod.uid in self._table.active]

    def known(self) -> Iterable[PodView]:
        return [self._view(pod) for pod in self._table]

    def find(self, name: str, namespace: str) -> PodView | None:
        pod = self._table.find(name, namespace)
        return self._view(pod) if pod is not None and pod.uid in self._table.active else None

    def allocatable(self) -> Iterable[AllocatableDevice]:
        for resource in self._manager.stock:
            shelf = self._manager.stock.shelf(resource)
            for device_id in shelf.healthy:
                yield AllocatableDevice(resource, device_id, shelf.known[device_id].nodes)

    def _view(self, pod: Pod) -> PodView:
        containers = tuple(self._container(pod, each) for each in pod.spec.containers)
        return PodView(pod.spec.name, pod.spec.namespace, containers)

    def _container(self, pod: Pod, container: ContainerSpec) -> ContainerView:
        return ContainerView(container.name, container.kind, tuple(self._devices(pod, container)))

    def _devices(self, pod: Pod, container: ContainerSpec) -> Iterator[DeviceHolding]:
        """From the records, which survive the plugin and the kubelet (6.8)."""
        for entry in self._manager.ledger.of_container(pod.uid, container.name):
            for node, device_ids in (entry.devices or {}).items():
                for device_id in device_ids or ():
                    yield DeviceHolding(entry.resource, device_id, None if node == NO_NUMA else node)
