"""The DRAResourceHealth service: served by drivers beside `dra`, watched by kubelets for the status of pods.

v1alpha1 and v1 have the same messages under two names; kubelets from 1.37 on call the newest version announced by a
driver.
"""

from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import aclosing
from enum import IntEnum
from typing import Protocol

import msgspec

from plugwright.protocol import transport, wire_format
from plugwright.protocol.transport import Streaming
from plugwright.protocol.wire_format import write, write_integer, write_text

__all__ = ["LEASE", "VERSIONS", "DRAHealthService", "HealthStatus", "ReportedHealth", "methods", "watch"]

LEASE = 30  # seconds for which a kubelet trusts a message without a timeout
VERSIONS = ("v1.DRAResourceHealth", "v1alpha1.DRAResourceHealth")


class HealthStatus(IntEnum):
    UNKNOWN = 0
    HEALTHY = 1
    UNHEALTHY = 2


class ReportedHealth(msgspec.Struct, frozen=True):
    """The health of one device since `updated` (seconds since 1970), believed for `timeout` seconds."""

    pool: str
    name: str
    health: HealthStatus
    message: str = ""
    updated: int = 0
    timeout: int = LEASE


class DRAHealthService(Protocol):
    def watch(self) -> AsyncGenerator[Sequence[ReportedHealth], None]:
        """All devices: immediately, at every change, and again before their timeouts expire."""
        ...


def methods(service: DRAHealthService, versions: Iterable[str] = VERSIONS) -> list[transport.Bound]:
    """The service's method in each version, to be served beside others on one socket."""

    async def messages(message: bytes) -> AsyncGenerator[bytes, None]:
        wire_format.read(message)
        async with aclosing(service.watch()) as states:
            async for devices in states:
                yield b"".join(write(1, _encode(device)) for device in devices)

    return [Streaming(_path(version), messages) for version in versions]


async def watch(connection: transport.Connection, version: str) -> AsyncGenerator[list[ReportedHealth], None]:
    """The driver's messages, as a kubelet reads them."""
    async with aclosing(connection.stream(_path(version), b"", _decode)) as states:
        async for devices in states:
            yield devices


def _path(version: str) -> str:
    return f"/{version}/NodeWatchResources"


def _encode(device: ReportedHealth) -> bytes:
    return b"".join(
        (
            write(1, write_text(1, device.pool) + write_text(2, device.name)),
            write_integer(2, device.health),
            write_integer(3, device.updated),
            write_integer(4, device.timeout),
            write_text(5, device.message),
        )
    )


def _decode(message: bytes) -> list[ReportedHealth]:
    devices = []
    for entry in wire_format.messages(wire_format.read(message), 1):
        device, health = wire_format.message(entry, 1) or {}, wire_format.integer(entry, 2)
        devices.append(
            ReportedHealth(
                wire_format.text(device, 1),
                wire_format.text(device, 2),
                HealthStatus(health) if health in HealthStatus.__members__.values() else HealthStatus.UNKNOWN,
                wire_format.text(entry, 5),
                wire_format.integer(entry, 3),
                wire_format.integer(entry, 4),
            )
        )
    return devices
