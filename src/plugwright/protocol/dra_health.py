"""The DRAResourceHealth service: served by drivers beside `dra`, watched by kubelets for the status of pods.

v1alpha1 and v1 have the same messages under two names; kubelets from 1.37 on call the newest that a driver announces.
"""

from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from enum import IntEnum
from types import ModuleType
from typing import Any, Protocol

from plugwright.protocol import transport
from plugwright.protocol.drahealth.v1 import drahealth_pb2 as v1
from plugwright.protocol.drahealth.v1alpha1 import drahealth_pb2 as v1alpha1
from plugwright.protocol.transport import Method, Streaming

__all__ = ["LEASE", "VERSIONS", "DRAHealthService", "HealthStatus", "ReportedHealth", "methods", "watch"]

LEASE = 30  # seconds that a kubelet believes a message which names no time of its own
_MESSAGES: dict[str, ModuleType] = {"v1.DRAResourceHealth": v1, "v1alpha1.DRAResourceHealth": v1alpha1}
VERSIONS = tuple(_MESSAGES)


class HealthStatus(IntEnum):
    UNKNOWN = 0
    HEALTHY = 1
    UNHEALTHY = 2


@dataclass(frozen=True, slots=True)
class ReportedHealth:
    """The health of one device since `updated` (seconds since 1970), believed for `timeout` seconds."""

    pool: str
    name: str
    health: HealthStatus
    message: str = ""
    updated: int = 0
    timeout: int = LEASE


class DRAHealthService(Protocol):
    def watch(self) -> AsyncGenerator[Sequence[ReportedHealth], None]:
        """All devices, at once and at every change, and again before their timeouts end."""
        ...


def methods(service: DRAHealthService, versions: Iterable[str] = VERSIONS) -> list[transport.Bound]:
    """The service's method in each version, to be served beside others on one socket."""
    return [_bound(service, version) for version in versions]


async def watch(connection: transport.Connection, version: str) -> AsyncGenerator[list[ReportedHealth], None]:
    """The driver's messages, as a kubelet reads them."""
    method = _method(version)
    async with aclosing(connection.stream(method, method.request())) as replies:
        async for reply in replies:
            yield [_health(entry) for entry in reply.devices]


def _bound(service: DRAHealthService, version: str) -> transport.Bound:
    pb: Any = _MESSAGES[version]

    async def messages() -> AsyncGenerator[bytes, None]:
        async with aclosing(service.watch()) as states:
            async for devices in states:
                yield pb.NodeWatchResourcesResponse(
                    devices=[
                        pb.DeviceHealth(
                            device=pb.DeviceIdentifier(pool_name=device.pool, device_name=device.name),
                            health=int(device.health),
                            last_updated_time=device.updated,
                            health_check_timeout_seconds=device.timeout,
                            message=device.message,
                        )
                        for device in devices
                    ]
                ).SerializeToString()

    return Streaming(_method(version), messages)


def _method(version: str) -> Method[Any, Any]:
    pb: Any = _MESSAGES[version]
    return Method(f"/{version}/NodeWatchResources", pb.NodeWatchResourcesRequest, pb.NodeWatchResourcesResponse)


def _health(message: Any) -> ReportedHealth:
    return ReportedHealth(
        message.device.pool_name,
        message.device.device_name,
        HealthStatus(message.health) if message.health in iter(HealthStatus) else HealthStatus.UNKNOWN,
        message.message,
        message.last_updated_time,
        message.health_check_timeout_seconds,
    )
