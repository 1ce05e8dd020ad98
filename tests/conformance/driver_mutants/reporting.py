"""Defects of the health that is reported, and of what the API server is asked."""

import asyncio
from collections.abc import AsyncGenerator, Sequence

from msgspec.structs import replace
from tests.conformance.driver import LEASE, Document, SmallDriver
from tests.conformance.driver_mutants.driver_mutant import breaks

from plugwright.protocol import dra, dra_health, transport
from plugwright.protocol.dra_health import HealthStatus, ReportedHealth


@breaks("DRH-01")
class ServesOneHealth(SmallDriver):
    def methods(self) -> list[transport.Bound]:
        return [*dra.methods(self), *dra_health.methods(self, ["v1.DRAResourceHealth"])]


@breaks("DRH-02")
class WaitsForChange(SmallDriver):
    async def watch(self) -> AsyncGenerator[Sequence[ReportedHealth], None]:
        await asyncio.Event().wait()
        yield self.reported()


@breaks("DRH-03")
class ReportsOneDevice(SmallDriver):
    def reported(self) -> list[ReportedHealth]:
        return super().reported()[:1]


@breaks("DRH-04")
class ReportsOnce(SmallDriver):
    async def watch(self) -> AsyncGenerator[Sequence[ReportedHealth], None]:
        yield self.reported()
        await asyncio.Event().wait()


@breaks("DRH-04")
class RepeatsOneVersion(SmallDriver):
    """Both services have one `watch`, so the one that is asked second is the one that ends early."""

    streams = 0

    async def watch(self) -> AsyncGenerator[Sequence[ReportedHealth], None]:
        self.streams += 1
        yield self.reported()
        if self.streams % 2 == 0:
            await asyncio.Event().wait()
        await asyncio.sleep(LEASE / 4)
        yield self.reported()
        await asyncio.Event().wait()


@breaks("DRH-05")
class UnhealthyWithoutTaint(SmallDriver):
    def reported(self) -> list[ReportedHealth]:
        first, *others = super().reported()
        return [replace(first, health=HealthStatus.UNHEALTHY), *others]


@breaks("RGT-01")
class ListsPods(SmallDriver):
    async def owners(self) -> list[Document]:
        await self.api.list("/api/v1/pods")
        return await super().owners()


@breaks("RGT-02")
class ListsAllSlices(SmallDriver):
    def selector(self) -> dict[str, str]:
        return {}


@breaks("RGT-03")
class LabelsNode(SmallDriver):
    async def owners(self) -> list[Document]:
        labels = {"metadata": {"labels": {"parts": "3"}}}
        await self.api.patch(f"/api/v1/nodes/{self.node}", labels, "merge-patch")
        return await super().owners()


@breaks("RGT-04")
class ListsClaims(SmallDriver):
    async def owners(self) -> list[Document]:
        await self.api.list("/apis/resource.k8s.io/v1/resourceclaims")
        return await super().owners()
