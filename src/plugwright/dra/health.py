"""The health of a resource's devices for the kubelet, which shows it in the status of pods with claims."""

from collections.abc import AsyncGenerator, Sequence

from plugwright.model import Device
from plugwright.protocol.dra_health import HealthStatus, ReportedHealth
from plugwright.sdk.driver_names import device_name
from plugwright.sdk.inventory import Inventory, Snapshot
from plugwright.system.latest import Signal

__all__ = ["HealthService", "reported"]

_REPEAT = 10.0  # seconds; the kubelet considers a message valid for 30
_MESSAGE_LIMIT = 1024  # bytes shown by the kubelet


def reported(pool: str, snapshot: Snapshot, unconfirmed: str = "") -> list[ReportedHealth]:
    return [
        _reported(pool, device, snapshot.cordoned.get(key), int(snapshot.since[key]), unconfirmed)
        for key, device in snapshot.devices.items()
    ]


class HealthService:
    """Implements `protocol.dra_health.DRAHealthService`; `pool` is that of the resource's slices."""

    def __init__(self, inventory: Inventory, pool: str, repeat: float = _REPEAT) -> None:
        self._inventory, self._pool, self._repeat = inventory, pool, repeat

    async def watch(self) -> AsyncGenerator[Sequence[ReportedHealth], None]:
        """Yields nothing before discovery's first list: an empty message would mean that there are no devices."""
        latest, unconfirmed, changed = self._inventory.latest, self._inventory.unconfirmed, Signal()
        ends = [latest.subscribe(changed.notify), unconfirmed.subscribe(changed.notify)]
        try:
            while True:
                seen, snapshot = changed.count, latest.value
                if snapshot is not None:
                    yield reported(self._pool, snapshot, unconfirmed.value)
                await changed.wait(seen, self._repeat if snapshot is not None else None)
        finally:
            for end in ends:
                end()


def _reported(pool: str, device: Device, cordoned: Device | None, since: int, unconfirmed: str) -> ReportedHealth:
    """The health of a device. A cordon only keeps new pods away: for holders, health and cordon are both reported.

    An unconfirmed device is not known to be healthy; a failed one stays Unhealthy.
    """
    actual = cordoned or device
    texts = [f"{actual.reason} ({actual.code})" if not actual.healthy else unconfirmed]
    if cordoned is not None:
        texts.append(device.reason)
    message = "; ".join(filter(None, texts)).encode()[:_MESSAGE_LIMIT].decode(errors="ignore")
    health = HealthStatus.HEALTHY if actual.healthy else HealthStatus.UNHEALTHY
    if unconfirmed and actual.healthy:
        health = HealthStatus.UNKNOWN
    return ReportedHealth(pool, device_name(device.id), health, message, since)
