"""Defects of a driver that show when it idles, when devices fail, after a restart, and with two devices at once."""

import asyncio
import os
from collections.abc import AsyncGenerator, Mapping, Sequence

from tests.conformance.driver import Document, Refused, SmallDriver
from tests.conformance.driver_mutants.driver_mutant import breaks

from plugwright.protocol.dra import Claim
from plugwright.protocol.dra_health import HealthStatus, ReportedHealth


@breaks("DRR-04")
class NeverWaits(SmallDriver):
    async def run(self) -> int:
        looping = asyncio.create_task(self.loop())
        try:
            return await super().run()
        finally:
            looping.cancel()

    async def loop(self) -> None:
        while True:
            await asyncio.sleep(0)


@breaks("DRR-05")
class AsksForNode(SmallDriver):
    """It polls where it could watch."""

    async def run(self) -> int:
        asking = asyncio.create_task(self.ask())
        try:
            return await super().run()
        finally:
            asking.cancel()

    async def ask(self) -> None:
        while True:
            await asyncio.gather(*(self.api.get(f"/api/v1/nodes/{self.node}") for _ in range(5)))
            await asyncio.sleep(0.1)


@breaks("DRR-04")
class AsksInBusyLoop(NeverWaits, AsksForNode):
    """The select with a default case also polls."""


@breaks("DRR-06")
class StreamsLeakDescriptors(SmallDriver):
    async def watch(self) -> AsyncGenerator[Sequence[ReportedHealth], None]:
        os.open("/dev/null", os.O_RDONLY)
        async for reports in super().watch():
            yield reports


@breaks("SLC-18")
class PublishesNoFailure(SmallDriver):
    """It reports health alone, which no scheduler reads."""

    def taints(self, device: str) -> Document:
        return {}


@breaks("SLC-18")
class FailureEmptiesPool(SmallDriver):
    """One failed device, and the driver publishes none."""

    def taints(self, device: str) -> Document:
        failed = self.failed()
        return super().taints(next(iter(failed))) if failed else {}


@breaks("SLC-18")
class TaintsForEver(SmallDriver):
    tainted: frozenset[str] = frozenset()

    def failed(self) -> set[str]:
        self.tainted |= super().failed()
        return set(self.tainted)

    def health_of(self, device: str) -> HealthStatus:
        return HealthStatus.UNHEALTHY if device in super().failed() else HealthStatus.HEALTHY


@breaks("DRH-06")
class ReportsStateOfStart(SmallDriver):
    """Health is read once."""

    def health_of(self, device: str) -> HealthStatus:
        return HealthStatus.HEALTHY


class StateInMemory(SmallDriver):
    """Knows its claims by itself, and reads the checkpoint once."""

    state_in_memory: dict[str, list[Document]] | None = None

    def load(self) -> dict[str, list[Document]]:
        if self.state_in_memory is None:
            self.state_in_memory = super().load()
        return dict(self.state_in_memory)


@breaks("DST-09")
class ForgetsTheEnd(StateInMemory):
    """What is unprepared is forgotten in memory, and the checkpoint has it still."""

    def save(self, claims: Mapping[str, Sequence[Document]]) -> None:
        known = self.load()
        self.state_in_memory = {uid: list(held) for uid, held in claims.items()}
        if len(claims) >= len(known):
            super().save(claims)


@breaks("DST-09")
class SavesOneClaim(StateInMemory):
    """The checkpoint has the first of the claims."""

    def save(self, claims: Mapping[str, Sequence[Document]]) -> None:
        self.state_in_memory = {uid: list(held) for uid, held in claims.items()}
        if len(claims) < 2:
            super().save(claims)


@breaks("PRP-23")
class OnePathForAll(SmallDriver):
    """Each device has the same path in the container: the last one wins."""

    def edits(self, result: Document) -> Document:
        [node] = super().edits(result)["deviceNodes"]
        return {"deviceNodes": [{**node, "path": "/dev/part"}]}


@breaks("PRP-23")
class OneVariableForAll(SmallDriver):
    def edits(self, result: Document) -> Document:
        return {**super().edits(result), "env": [f"PART={result['device']}"]}


@breaks("CDI-04")
class MountsMissingFile(SmallDriver):
    def edits(self, result: Document) -> Document:
        mount = {"hostPath": str(self.root / "no-such-file"), "containerPath": f"/etc/{result['device']}"}
        return {**super().edits(result), "mounts": [mount]}


@breaks("CDI-07")
class SpecHasDeviceTwice(SmallDriver):
    def write_spec(self, claim: Claim, results: Sequence[Document]) -> None:
        super().write_spec(claim, [*results, *results])


@breaks("CDI-07")
class MountTypeInOldVersion(SmallDriver):
    """The type of a mount came with 0.4.0."""

    def edits(self, result: Document) -> Document:
        mount = {"hostPath": "/dev/null", "containerPath": f"/etc/{result['device']}", "type": "bind"}
        return {"mounts": [mount]}

    def write_spec(self, claim: Claim, results: Sequence[Document]) -> None:
        super().write_spec(claim, results)
        path = self.spec_path(claim)
        path.write_text(path.read_text().replace('"0.6.0"', '"0.3.0"'))


@breaks("PAR-01", parameters=True)
class TakesAnyVersion(SmallDriver):
    """It looks at the kind alone."""

    def check_parameters(self, parameters: Document) -> None:
        if parameters.get("kind") != "PartConfig":
            raise Refused("unknown parameters")


@breaks("PAR-02", parameters=True)
class DiesOfOwnKind(SmallDriver):
    """What is not of its own kind is refused before anything is done with it."""

    def check_parameters(self, parameters: Document) -> None:
        if parameters.get("kind") == "PartConfig" and parameters.get("mode", "fast") != "fast":
            os._exit(2)
        super().check_parameters({name: value for name, value in parameters.items() if name != "mode"})


@breaks("DRR-01")
class PreparesThirtyClaims(SmallDriver):
    """Each claim takes one of some places, and keeps it."""

    places = 30

    def write_spec(self, claim: Claim, results: Sequence[Document]) -> None:
        self.places -= 1
        if self.places < 0:
            raise Refused("no place is left")
        super().write_spec(claim, results)


@breaks("PRP-15")
class AdminTakesDevice(SmallDriver):
    """A claim with admin access holds its device, too."""

    def check_free(self, uid: str, result: Document, claims: Mapping[str, Sequence[Document]]) -> None:
        if result.get("adminAccess"):
            return
        ordinary = {
            other: [{**one, "adminAccess": False} for one in held] if not self.is_used(result, claims) else held
            for other, held in claims.items()
        }
        super().check_free(uid, result, ordinary)

    @staticmethod
    def is_used(result: Document, claims: Mapping[str, Sequence[Document]]) -> bool:
        held = [one for devices in claims.values() for one in devices if one["device"] == result["device"]]
        return any(not one.get("adminAccess") for one in held)


@breaks("UNP-07")
class EndsAllShares(SmallDriver):
    """A device is given back, and with it each claim that has a share of it."""

    async def give_back(self, claim: Claim) -> str:
        claims = self.load()
        own = {one["device"] for one in claims.get(claim.uid, ()) if one.get("shareID")}
        others = {uid for uid, held in claims.items() if own.intersection(one["device"] for one in held)}
        for uid in others:
            self.remove_spec(Claim("", "", uid))
        self.save({uid: held for uid, held in claims.items() if uid not in others})
        return await super().give_back(claim)


@breaks("DST-01")
class SavesWhenAlone(StateInMemory):
    """The checkpoint is written for the first claim, and at each end of one."""

    def save(self, claims: Mapping[str, Sequence[Document]]) -> None:
        known = self.load()
        self.state_in_memory = {uid: list(held) for uid, held in claims.items()}
        if len(claims) < 2 or len(claims) < len(known):
            super().save(claims)
