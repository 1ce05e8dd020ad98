"""Mutants of the small driver: each has one defect, and is named with the rule that must catch it.

What a defect breaks besides, further rules may say; the correct driver keeps them all.
"""

import asyncio
import os
import re
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from socket import socket

from tests.conformance.driver import SLICES, Document, Refused, SmallDriver

from plugwright.errors import PeerRefused
from plugwright.protocol import dra, dra_health, transport
from plugwright.protocol.dra import Claim, PreparedDevice
from plugwright.protocol.dra_health import HealthStatus, ReportedHealth
from plugwright.protocol.registration import PluginInfo
from plugwright.system import sockets

__all__ = ["MUTANTS", "DriverMutant"]

Answer = Mapping[str, Sequence[PreparedDevice] | str]
LONG = 1.5  # seconds; the kubelet waits for one


@dataclass(frozen=True, slots=True)
class DriverMutant:
    """`slow`: the rule waits for a start that never comes, so starts have a shorter limit."""

    rule: str
    driver: type[SmallDriver]
    slow: bool = False


MUTANTS: dict[str, DriverMutant] = {}


def breaks(rule: str, *, slow: bool = False) -> Callable[[type[SmallDriver]], type[SmallDriver]]:
    def add(driver: type[SmallDriver]) -> type[SmallDriver]:
        name = re.sub(r"(?<!^)(?=[A-Z])", "-", driver.__name__).lower()
        MUTANTS[name] = DriverMutant(rule, driver, slow)
        return driver

    return add


# registration


@breaks("DRG-01", slow=True)
class ForgetsRegistration(SmallDriver):
    async def serve(self, stack: AsyncExitStack) -> None:
        await stack.enter_async_context(transport.serve(self.socket_path(), self.methods(), listening_on=self.listen))


@breaks("DRG-02")
class NameInCapitals(SmallDriver):
    name = "Part.Example.com"


@breaks("DRG-03")
class AnnouncesFirst(SmallDriver):
    async def serve(self, stack: AsyncExitStack) -> None:
        path = self.registration_path()
        await stack.enter_async_context(transport.serve(path, self.registration_methods(), listening_on=self.listen))
        await asyncio.sleep(LONG)
        await stack.enter_async_context(transport.serve(self.socket_path(), self.methods(), listening_on=self.listen))


@breaks("DRG-04")
class OldVersionFirst(SmallDriver):
    services = tuple(reversed(dra.VERSIONS))


@breaks("DRG-05")
class ServesOneVersion(SmallDriver):
    def methods(self) -> list[transport.Bound]:
        return [*dra.methods(self, ["v1.DRAPlugin"]), *dra_health.methods(self)]


@breaks("DRG-06")
class SlowGetInfo(SmallDriver):
    slept = False

    async def announce(self) -> PluginInfo:
        if not self.slept:
            self.slept = True
            await asyncio.sleep(LONG)
        return await super().announce()


@breaks("DRG-07", slow=True)
class RefusesStatus(SmallDriver):
    async def notify(self, registered: bool, error: str) -> None:
        raise PeerRefused("UNIMPLEMENTED", "no such method")


@breaks("DRG-08")
class OpenSockets(SmallDriver):
    socket_mode = 0o666


@breaks("DRG-09")
class LongPath(SmallDriver):
    def socket_path(self) -> Path:
        room = sockets.PATH_LIMIT - len(str(self.directory)) - len("/.sock")
        return self.directory / f"{'d' * min(room, 75)}.sock"


@breaks("DRG-10")
class RegistersOnce(SmallDriver):
    announced = 0

    async def announce(self) -> PluginInfo:
        self.announced += 1
        if self.announced > 2:  # the kubelet's, and the verifier's
            raise PeerRefused("UNAVAILABLE", "registered already")
        return await super().announce()


@breaks("DRG-11")
class DiesOfClosedConnection(SmallDriver):
    async def unprepare(self, claims: Sequence[Claim]) -> Mapping[str, str]:
        if not claims:
            os._exit(3)
        return await super().unprepare(claims)


# slices


@breaks("SLC-01", slow=True)
class DevicesAndCounters(SmallDriver):
    def contents(self) -> list[Document]:
        return [{"devices": self.devices(), "sharedCounters": self.counter_sets()}]


@breaks("SLC-02", slow=True)
class NameWithUnderscore(SmallDriver):
    def devices(self) -> list[Document]:
        return [{"name": "part_0"}]


@breaks("SLC-03", slow=True)
class VersionWithLetter(SmallDriver):
    def devices(self) -> list[Document]:
        return [{"name": "part-0", "attributes": {"firmware": {"version": "v1.2"}}}]


@breaks("SLC-04", slow=True)
class TooManyDevices(SmallDriver):
    def devices(self) -> list[Document]:
        return [{"name": f"part-{number}"} for number in range(129)]


@breaks("SLC-05")
class CountsWrong(SmallDriver):
    def pool(self, number: int) -> Document:
        return {**super().pool(number), "resourceSliceCount": 3}


@breaks("SLC-06")
class LeavesOldGeneration(SmallDriver):
    def contents(self) -> list[Document]:
        return [*super().contents(), {"devices": []}]

    def pool(self, number: int) -> Document:
        return {"name": self.node, "generation": 1 if number == 2 else 2, "resourceSliceCount": 2}


@breaks("SLC-07")
class DeviceTwice(SmallDriver):
    def contents(self) -> list[Document]:
        return [*super().contents(), {"devices": self.devices()[:1]}]


@breaks("SLC-08")
class NoSuchCounter(SmallDriver):
    def counter_sets(self) -> list[Document]:
        return [{"name": "other-card", "counters": {"memory": {"value": "40Gi"}}}]


@breaks("SLC-09")
class SmallCounter(SmallDriver):
    def counter_sets(self) -> list[Document]:
        return [{"name": "card", "counters": {"memory": {"value": "10Gi"}}}]


@breaks("SLC-10")
class OnAllNodes(SmallDriver):
    def place(self) -> Document:
        return {"allNodes": True}

    def selector(self) -> dict[str, str]:
        return {"fieldSelector": f"spec.driver={self.name}"}


@breaks("SLC-11")
class WithoutOwner(SmallDriver):
    async def owners(self) -> list[Document]:
        return []


@breaks("SLC-12")
class PublishesOnce(SmallDriver):
    async def publish_once(self) -> None:
        await super().publish_once()
        await asyncio.Event().wait()

    def concerns(self, kind: str, document: Document) -> bool:
        return False


@breaks("SLC-13")
class PublishesWithRegistration(SmallDriver):
    def concerns(self, kind: str, document: Document) -> bool:
        return False

    async def notify(self, registered: bool, error: str) -> None:
        found, _ = await self.api.list(SLICES, **self.selector())
        await self.sync({document["metadata"]["name"]: document for document in found})


@breaks("SLC-14")
class IgnoresEdits(SmallDriver):
    def is_other(self, stored: Document, wanted: Document) -> bool:
        return False


@breaks("SLC-15")
class DeletesSlicesAtEnd(SmallDriver):
    async def ending(self) -> None:
        for number in range(len(self.contents())):
            await self.api.delete(f"{SLICES}/{self.slice_name(number)}")


@breaks("SLC-16")
class PublishesAnew(SmallDriver):
    def slice_name(self, number: int) -> str:
        return f"{super().slice_name(number)}-{os.getpid()}"


@breaks("SLC-17")
class WritesAllTheTime(SmallDriver):
    def is_other(self, stored: Document, wanted: Document) -> bool:
        wanted["pool"]["generation"] = stored["pool"]["generation"] + 1
        return True


# preparing


@breaks("PRP-01")
class RefusesAll(SmallDriver):
    async def answer(self, claim: Claim) -> str:
        return "this driver is not ready to prepare anything"


@breaks("PRP-02")
class AnswersFirstClaim(SmallDriver):
    async def prepare(self, claims: Sequence[Claim]) -> Answer:
        return await super().prepare(claims[:1])


@breaks("PRP-03")
class AnswersAllClaims(SmallDriver):
    async def prepare(self, claims: Sequence[Claim]) -> Answer:
        answer = dict(await super().prepare(claims))
        return {**dict.fromkeys(self.load(), ()), **answer}


@breaks("PRP-04")
class OwnRequestName(SmallDriver):
    def request_name(self, name: str) -> str:
        return "part"


@breaks("PRP-05")
class NamesSubrequest(SmallDriver):
    def request_name(self, name: str) -> str:
        return name


@breaks("PRP-06")
class ChoosesDevice(SmallDriver):
    def results(self, document: Document) -> list[Document]:
        return [{**result, "device": "part-0"} for result in super().results(document)]


@breaks("PRP-07")
class RefusesSecondCall(SmallDriver):
    def prepared_before(self, claim: Claim, results: Sequence[Document]) -> Sequence[PreparedDevice]:
        raise Refused("it is prepared already")


@breaks("PRP-08")
class TakesOthersResults(SmallDriver):
    def check_config(self, document: Document) -> None:
        if document["status"]["allocation"]["devices"].get("config"):
            raise Refused("this driver takes no parameters")


@breaks("PRP-09")
class PreparesMissingClaim(SmallDriver):
    async def answer(self, claim: Claim) -> Sequence[PreparedDevice] | str:
        try:
            return await self.prepare_claim(claim)
        except PeerRefused:
            return ()
        except Refused as error:
            return f"claim {claim.name}: {error}"


@breaks("PRP-10")
class IgnoresUid(SmallDriver):
    def check_claim(self, claim: Claim, document: Document) -> None:
        pass


@breaks("PRP-11")
class PreparesUnallocated(SmallDriver):
    def results(self, document: Document) -> list[Document]:
        return super().results(document) if (document.get("status") or {}).get("allocation") else []

    def check_config(self, document: Document) -> None:
        pass


@breaks("PRP-12")
class PreparesAnyDevice(SmallDriver):
    def check_known(self, result: Document) -> None:
        pass


@breaks("PRP-13")
class GivesTwice(SmallDriver):
    def check_free(self, uid: str, result: Document, claims: Mapping[str, Sequence[Document]]) -> None:
        pass


@breaks("PRP-14")
class NeverFrees(SmallDriver):
    async def give_back(self, claim: Claim) -> str:
        return ""


@breaks("PRP-15")
class RefusesAdmin(SmallDriver):
    def check_free(self, uid: str, result: Document, claims: Mapping[str, Sequence[Document]]) -> None:
        super().check_free(uid, {**result, "adminAccess": False}, claims)


@breaks("PRP-16")
class FailsWholeCall(SmallDriver):
    async def answer(self, claim: Claim) -> Sequence[PreparedDevice] | str:
        try:
            return await self.prepare_claim(claim)
        except Refused as error:
            raise PeerRefused("INTERNAL", str(error)) from None


@breaks("PRP-17")
class SaysNothing(SmallDriver):
    async def answer(self, claim: Claim) -> Sequence[PreparedDevice] | str:
        result = await super().answer(claim)
        return "error" if isinstance(result, str) else result


@breaks("PRP-18")
class TakesItsTime(SmallDriver):
    async def prepare_claim(self, claim: Claim) -> Sequence[PreparedDevice]:
        await asyncio.sleep(5)
        return await super().prepare_claim(claim)


@breaks("PRP-19")
class LosesUpdates(SmallDriver):
    async def prepare(self, claims: Sequence[Claim]) -> Answer:
        return {claim.uid: await self.answer(claim) for claim in claims}

    async def read(self, claim: Claim) -> Document:
        document = await super().read(claim)
        await asyncio.sleep(0.3)  # both have read the checkpoint before either writes it
        return document


@breaks("PRP-20")
class RefusesShares(SmallDriver):
    def check_free(self, uid: str, result: Document, claims: Mapping[str, Sequence[Document]]) -> None:
        super().check_free(uid, {**result, "shareID": ""}, claims)


@breaks("PRP-21")
class DropsShareId(SmallDriver):
    def prepared(self, claim: Claim, result: Document) -> PreparedDevice:
        return replace(super().prepared(claim, result), share_id="")


# unpreparing


@breaks("UNP-01")
class AnswersNothing(SmallDriver):
    async def unprepare(self, claims: Sequence[Claim]) -> Mapping[str, str]:
        await super().unprepare(claims)
        return {}


class KnowsWhatWasThere(SmallDriver):
    def __init__(self, root: Path, cdi: Path, node: str) -> None:
        super().__init__(root, cdi, node)
        self.known: set[str] = set()

    def save(self, claims: Mapping[str, Sequence[Document]]) -> None:
        self.known |= set(claims)
        super().save(claims)


@breaks("UNP-02")
class RefusesSecondEnd(KnowsWhatWasThere):
    async def give_back(self, claim: Claim) -> str:
        if claim.uid in self.known and claim.uid not in self.load():
            return "it was unprepared before"
        return await super().give_back(claim)


@breaks("UNP-03")
class RefusesUnknownEnd(KnowsWhatWasThere):
    async def give_back(self, claim: Claim) -> str:
        return await super().give_back(claim) if claim.uid in self.known else "it was never prepared"


@breaks("UNP-04")
class ReadsClaimAtEnd(SmallDriver):
    async def give_back(self, claim: Claim) -> str:
        try:
            await self.read(claim)
        except PeerRefused as error:
            return str(error) if claim.uid in self.load() else ""
        return await super().give_back(claim)


# CDI devices


@breaks("CDI-01")
class BareCdiName(SmallDriver):
    def cdi_name(self, claim: Claim, result: Document) -> str:
        return self.cdi_device(claim, result)


@breaks("CDI-02")
class WritesNoSpec(SmallDriver):
    def write_spec(self, claim: Claim, results: Sequence[Document]) -> None:
        pass


@breaks("CDI-03")
class EmptyEdits(SmallDriver):
    def edits(self, result: Document) -> Document:
        return {}


@breaks("CDI-04")
class MissingNode(SmallDriver):
    def edits(self, result: Document) -> Document:
        return {"deviceNodes": [{"path": "/dev/no-such-part"}]}


@breaks("CDI-05")
class LeavesSpec(SmallDriver):
    def remove_spec(self, claim: Claim) -> None:
        pass


@breaks("CDI-06")
class SameCdiName(SmallDriver):
    def cdi_device(self, claim: Claim, result: Document) -> str:
        return str(result["device"])


# restarts, reboots and damage


@breaks("DST-01")
class ForgetsClaims(SmallDriver):
    def begin(self) -> None:
        super().begin()
        self.save({})


@breaks("DST-02")
class CleansSpecs(SmallDriver):
    def begin(self) -> None:
        super().begin()
        for path in self.cdi.glob(f"{self.name}-*"):
            path.unlink()


@breaks("DST-03")
class TrustsCheckpoint(SmallDriver):
    def prepared_before(self, claim: Claim, results: Sequence[Document]) -> Sequence[PreparedDevice]:
        return [self.prepared(claim, result) for result in results]


@breaks("DST-04", slow=True)
class DiesOfDamage(SmallDriver):
    def begin(self) -> None:
        super().begin()
        if self.checkpoint.exists() and self.checkpoint.read_bytes():
            assert self.checkpoint.read_text().endswith("}")


@breaks("DST-05", slow=True)
class DiesOfEmptyFile(SmallDriver):
    def begin(self) -> None:
        super().begin()
        assert not self.checkpoint.exists() or self.checkpoint.read_bytes()


@breaks("DST-06")
class RemovesSuccessorsSockets(SmallDriver):
    async def ending(self) -> None:
        self.socket_path().unlink(missing_ok=True)
        self.registration_path().unlink(missing_ok=True)


# health


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


@breaks("DRH-05")
class UnhealthyWithoutTaint(SmallDriver):
    def reported(self) -> list[ReportedHealth]:
        first, *others = super().reported()
        return [replace(first, health=HealthStatus.UNHEALTHY), *others]


# rights


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


# the end


@breaks("DRE-01")
class IgnoresSigterm(SmallDriver):
    def on_signal(self) -> None:
        print("later", flush=True)


@breaks("DRE-02")
class LeavesSockets(SmallDriver):
    def on_signal(self) -> None:
        os._exit(0)


@breaks("DRE-03", slow=True)
class DiesOfLeftSocket(SmallDriver):
    def listen(self, path: Path) -> socket:
        return sockets.listen(path, mode=self.socket_mode)


@breaks("DRE-04")
class CleansDirectories(SmallDriver):
    def begin(self) -> None:
        super().begin()
        for path in self.registry.iterdir():
            path.unlink()
