"""The health of a resource's devices, for the kubelet: it shows it in the status of pods that have claimed them."""

import asyncio
from collections.abc import AsyncGenerator, Sequence

from plugwright.model import Device
from plugwright.protocol.dra_health import HealthStatus, ReportedHealth
from plugwright.sdk.driver_names import device_name
from plugwright.sdk.inventory import Inventory, Snapshot

__all__ = ["HealthService", "reported"]

_REPEAT = 10.0  # seconds; the kubelet believes a message for 30
_MESSAGE_LIMIT = 1024  # bytes that the kubelet shows


def reported(pool: str, snapshot: Snapshot) -> list[ReportedHealth]:
    return [
        _reported(pool, device, snapshot.cordoned.get(key), int(snapshot.since[key]))
        for key, device in snapshot.devices.items()
    ]


class HealthService:
    """Implements `protocol.dra_health.DRAHealthService`; `pool` is that of the resource's slices."""

    def __init__(self, inventory: Inventory, pool: str, repeat: float = _REPEAT) -> None:
        self._inventory, self._pool, self._repeat = inventory, pool, repeat

    async def watch(self) -> AsyncGenerator[Sequence[ReportedHealth], None]:
        """Nothing before discovery's first list: an empty message would say that there are no devices."""
        latest = self._inventory.latest
        while True:
            snapshot = latest.value
            if snapshot is not None:
                yield reported(self._pool, snapshot)
            try:
                async with asyncio.timeout(self._repeat if snapshot is not None else None):
                    await latest.until(lambda value: value is not snapshot)  # noqa: B023  awaited here
            except TimeoutError:
                continue


def _reported(pool: str, device: Device, cordoned: Device | None, since: int) -> ReportedHealth:
    """A cordon keeps new pods away; the status of those that have the device says whether it works, and the cordon."""
    actual = cordoned or device
    texts = [f"{actual.reason} ({actual.code})"] if not actual.healthy else []
    if cordoned is not None:
        texts.append(device.reason)
    message = "; ".join(texts).encode()[:_MESSAGE_LIMIT].decode(errors="ignore")
    health = HealthStatus.HEALTHY if actual.healthy else HealthStatus.UNHEALTHY
    return ReportedHealth(pool, device_name(device.id), health, message, since)
