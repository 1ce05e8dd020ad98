"""The health of a driver's devices as kubelets watch it."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from pathlib import Path

import pytest
from tests.proto import drahealth_v1_pb2 as pb

from plugwright.errors import PeerRefused
from plugwright.protocol import dra_health, transport
from plugwright.protocol.dra_health import HealthStatus, ReportedHealth

FINE = ReportedHealth("node", "gpu-0", HealthStatus.HEALTHY, updated=1)
LOST = ReportedHealth("node", "gpu-0", HealthStatus.UNHEALTHY, "fell off the bus", updated=2, timeout=60)
LOST_ON_THE_WIRE = b"\x0a\x27\x0a\x0d\x0a\x04node\x12\x05gpu-0\x10\x02\x18\x02\x20\x3c\x2a\x10fell off the bus"


class Driver:
    def __init__(self) -> None:
        self.states = asyncio.Queue[Sequence[ReportedHealth]]()

    async def watch(self) -> AsyncGenerator[Sequence[ReportedHealth], None]:
        while True:
            yield await self.states.get()


@pytest.mark.parametrize("version", dra_health.VERSIONS)
async def test_every_change_arrives_in_either_version(root: Path, version: str) -> None:
    driver = Driver()
    async with (
        transport.serve(root / "s", dra_health.methods(driver)),
        transport.connect(root / "s") as kubelet,
        aclosing(dra_health.watch(kubelet, version)) as messages,
    ):
        driver.states.put_nowait([FINE])
        assert await anext(messages) == [FINE]
        driver.states.put_nowait([LOST])
        assert await anext(messages) == [LOST]


async def test_a_driver_without_health_is_unimplemented(root: Path) -> None:
    async with transport.serve(root / "s", []), transport.connect(root / "s") as kubelet:
        with pytest.raises(PeerRefused) as refused:
            await anext(dra_health.watch(kubelet, "v1.DRAResourceHealth"))
    assert refused.value.code == "UNIMPLEMENTED"


async def test_the_bytes_are_the_kubelets(root: Path) -> None:
    driver = Driver()
    driver.states.put_nowait([LOST])
    async with (
        transport.serve(root / "s", dra_health.methods(driver)),
        transport.connect(root / "s") as kubelet,
        aclosing(kubelet.stream("/v1.DRAResourceHealth/NodeWatchResources", b"", bytes)) as messages,
    ):
        assert await anext(messages) == LOST_ON_THE_WIRE


def test_protobuf_reads_the_bytes_so_too() -> None:
    (device,) = pb.NodeWatchResourcesResponse.FromString(LOST_ON_THE_WIRE).devices
    assert (device.device.device_name, device.health, device.message) == ("gpu-0", pb.UNHEALTHY, "fell off the bus")
    assert (device.last_updated_time, device.health_check_timeout_seconds) == (2, 60)
