"""The health of a pod's devices, as its status shows it (section 7)."""

from collections.abc import Mapping
from dataclasses import dataclass

from plugwright.kubelet.ledger import Ledger
from plugwright.kubelet.pods import ContainerKind
from plugwright.kubelet.stock import Shelf, Stock
from plugwright.kubelet.table import Pod
from plugwright.model import Health

__all__ = ["DeviceHealth", "changed", "of_device", "of_pod"]


@dataclass(frozen=True, slots=True, order=True)
class DeviceHealth:
    resource: str
    device_id: str
    health: Health


def of_pod(pod: Pod, stock: Stock, ledger: Ledger) -> Mapping[str, tuple[DeviceHealth, ...]]:
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


def of_device(shelf: Shelf, device_id: str) -> Health:
    """A device that nobody lists is called healthy (7.4)."""
    listed = shelf.known.get(device_id)
    return Health.HEALTHY if listed is None or listed.health == Health.HEALTHY else Health.UNHEALTHY


def changed(before: Shelf, after: Shelf) -> list[str]:
    """The devices whose pods are told: another health than in the last list, or new in this one (7.7)."""
    return sorted(
        device_id
        for device_id, listed in after.known.items()
        if (known := before.known.get(device_id)) is None or known.health != listed.health
    )
