"""Defects that look right in a review, and show on the second device, claim, call or stream."""

import asyncio
import json
import os
from collections.abc import AsyncGenerator, Mapping, Sequence
from pathlib import Path

from tests.conformance.driver import LEASE, Document, Refused, SmallDriver
from tests.conformance.driver_mutants.driver_mutant import breaks

from plugwright.errors import PeerGone
from plugwright.protocol.dra import Claim, PreparedDevice
from plugwright.protocol.dra_health import ReportedHealth

Answer = Mapping[str, Sequence[PreparedDevice] | str]


@breaks("PRP-16")
class UndoesWholeCall(SmallDriver):
    """A claim that fails takes back what the call has prepared before it; the answer does not say so."""

    async def prepare(self, claims: Sequence[Claim]) -> Answer:
        answer = await super().prepare(claims)
        if any(isinstance(result, str) for result in answer.values()):
            for claim in claims:
                await self.give_back(claim)
        return answer


@breaks("UNP-05")
class LeavesSecondSpec(SmallDriver):
    """A spec for each device, and the first one is removed."""

    def write_spec(self, claim: Claim, results: Sequence[Document]) -> None:
        for number, result in enumerate(results):
            super().write_spec(claim, [result])
            if number:
                path = self.spec_path(claim)
                path.rename(path.with_name(f"{path.stem}-{number}.json"))
        super().write_spec(claim, results[:1])


@breaks("API-07")
class RemembersFailure(SmallDriver):
    """The answer to a claim is computed once, a failure too."""

    failures: dict[str, str]

    async def answer(self, claim: Claim) -> Sequence[PreparedDevice] | str:
        self.failures = getattr(self, "failures", {})
        if claim.uid in self.failures:
            return self.failures[claim.uid]
        result = await super().answer(claim)
        if isinstance(result, str):
            self.failures[claim.uid] = result
        return result


@breaks("PRP-26")
class RemembersName(SmallDriver):
    """Claims are read once, and known by their names."""

    documents: dict[str, Document]

    async def read(self, claim: Claim) -> Document:
        self.documents = getattr(self, "documents", {})
        name = f"{claim.namespace}/{claim.name}"
        if name not in self.documents:
            self.documents[name] = await super().read(claim)
        return self.documents[name]


@breaks("DRR-01")
class RefusalsLeakDescriptors(SmallDriver):
    async def prepare_claim(self, claim: Claim) -> Sequence[PreparedDevice]:
        opened = os.open(self.directory, os.O_RDONLY)
        devices = await super().prepare_claim(claim)
        os.close(opened)
        return devices


class Extra(SmallDriver):
    def devices(self) -> list[Document]:
        return [*super().devices(), *({"name": f"extra-{number}"} for number in range(20))]


@breaks("CDI-04")
class LacksTwentiethNode(Extra):
    def edits(self, result: Document) -> Document:
        if result["device"] == "extra-19":
            return {"deviceNodes": [{"path": "/dev/extra-19", "hostPath": "/dev/no-such-extra-19"}]}
        return super().edits(result)


@breaks("UNP-07")
class FreesAllClaims(SmallDriver):
    async def give_back(self, claim: Claim) -> str:
        if claim.uid not in self.load():
            return ""
        self.remove_spec(claim)
        self.save({})
        return ""


@breaks("UNP-07")
class RemovesAllSpecs(SmallDriver):
    def remove_spec(self, claim: Claim) -> None:
        for path in self.cdi.glob(f"{self.name}-*.json"):
            path.unlink()


@breaks("CDI-08")
class OneSpecFile(SmallDriver):
    """The file has the claim that was prepared last."""

    def spec_path(self, claim: Claim) -> Path:
        return self.cdi / f"{self.name}-claims.json"

    def remove_spec(self, claim: Claim) -> None:
        if self.spec_path(claim).exists() and claim.uid in self.spec_path(claim).read_text():
            self.spec_path(claim).unlink()


@breaks("SLC-13")
class PublishesTwice(SmallDriver):
    """What it puts back has a new name, and the other slices are put back as well."""

    published = 0

    def slice_name(self, number: int) -> str:
        return f"{number}-{self.published}-{self.name}-{self.node}"

    async def sync(self, existing: Mapping[str, Document]) -> None:
        if len(existing) < len(self.specs()) or not self.published:
            self.published += 1
            for number, spec in enumerate(self.specs()):
                await self.create(self.slice_name(number), spec)


def changed_spec(driver: SmallDriver, claim: Claim, **changes: object) -> None:
    path = driver.spec_path(claim)
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


@breaks("CDI-07")
class OwnCdiVersion(SmallDriver):
    def write_spec(self, claim: Claim, results: Sequence[Document]) -> None:
        super().write_spec(claim, results)
        changed_spec(self, claim, cdiVersion="1.4.2")


@breaks("CDI-07")
class VariableWithoutValue(SmallDriver):
    def edits(self, result: Document) -> Document:
        return {**super().edits(result), "env": ["PART_EXCLUSIVE"]}


@breaks("CDI-07")
class OtherPermissions(SmallDriver):
    def edits(self, result: Document) -> Document:
        [node] = super().edits(result)["deviceNodes"]
        return {"deviceNodes": [{**node, "permissions": "rwx"}]}


@breaks("API-08")
class CutCallStaysBusy(SmallDriver):
    """A claim is under preparation until it is prepared; the end of the kubelet's connection ends the call."""

    busy: set[str]

    async def answer(self, claim: Claim) -> Sequence[PreparedDevice] | str:
        self.busy = getattr(self, "busy", set())
        if claim.uid in self.busy:
            return f"claim {claim.name} is being prepared"
        self.busy.add(claim.uid)
        result = await super().answer(claim)
        self.busy.discard(claim.uid)
        return result


@breaks("PRP-15")
class AdminFreesDevice(SmallDriver):
    """The end of a monitoring claim frees the device for the next."""

    async def give_back(self, claim: Claim) -> str:
        claims = self.load()
        gone = {one["device"] for one in claims.get(claim.uid, [])}
        self.remove_spec(claim)
        kept = {uid: [one for one in held if one["device"] not in gone] for uid, held in claims.items()}
        kept.pop(claim.uid, None)
        self.save(kept)
        return ""


@breaks("PAR-05", parameters=True)
class IgnoresUnknownFields(SmallDriver):
    def check_parameters(self, parameters: Document) -> None:
        super().check_parameters({name: value for name, value in parameters.items() if name in ("apiVersion", "kind")})


@breaks("PAR-04", parameters=True)
class RefusesClassParameters(SmallDriver):
    def check_config(self, document: Document) -> None:
        config = document["status"]["allocation"]["devices"].get("config") or ()
        if any(one["source"] == "FromClass" and one["opaque"]["driver"] == self.name for one in config):
            raise Refused("parameters are only taken from the claim")
        super().check_config(document)


@breaks("DRH-02")
class HealthToFirstStream(SmallDriver):
    opened = 0

    async def watch(self) -> AsyncGenerator[Sequence[ReportedHealth], None]:
        self.opened += 1
        if self.opened > 1:
            await asyncio.Event().wait()
        while True:
            yield self.reported()
            await asyncio.sleep(LEASE / 4)


@breaks("PRP-23")
class SecondNamesFirst(SmallDriver):
    """All devices of a claim have the CDI name of the first one."""

    async def prepare_claim(self, claim: Claim) -> Sequence[PreparedDevice]:
        devices = await super().prepare_claim(claim)
        return [
            PreparedDevice(one.pool, one.name, one.requests, devices[0].cdi_devices, one.share_id) for one in devices
        ]


class KeepsStateInMemory(SmallDriver):
    """The state is read once, and not written."""

    state: dict[str, list[Document]]

    def load(self) -> dict[str, list[Document]]:
        self.state = self.state if hasattr(self, "state") else super().load()
        return dict(self.state)

    def save(self, claims: Mapping[str, Sequence[Document]]) -> None:
        self.state = {uid: list(held) for uid, held in claims.items()}


@breaks("DST-01")
class SavesAtEnd(KeepsStateInMemory):
    """The state is written when the program is told to end."""

    async def ending(self) -> None:
        SmallDriver.save(self, self.state if hasattr(self, "state") else {})


@breaks("SLC-05")
class GenerationOfSecondSlice(SmallDriver):
    """The slices of one pool have generations of their own."""

    def pool(self, number: int) -> Document:
        return {**super().pool(number), "generation": number + 1}


@breaks("PRP-23")
class MountsOfFirstDevice(SmallDriver):
    """The spec has a mount and a variable for each device, and those of the first one for all."""

    def write_spec(self, claim: Claim, results: Sequence[Document]) -> None:
        devices = [{"name": self.cdi_device(claim, one), "containerEdits": self.edits(results[0])} for one in results]
        super().write_spec(claim, results)
        changed_spec(self, claim, devices=devices)

    def edits(self, result: Document) -> Document:
        settings = self.root / f"{result['device']}.conf"
        settings.touch()
        mount = {"hostPath": str(settings), "containerPath": f"/etc/{settings.name}", "options": ["ro"]}
        return {"mounts": [mount], "env": [f"{result['device'].upper().replace('-', '_')}=1"]}


@breaks("UNP-06")
class StopsAtUnknownClaim(SmallDriver):
    """A claim that was never prepared ends the loop."""

    async def unprepare(self, claims: Sequence[Claim]) -> Mapping[str, str]:
        known = self.load()
        before = [number for number, claim in enumerate(claims) if claim.uid not in known]
        await super().unprepare(claims[: before[0]] if before else claims)
        return {claim.uid: "" for claim in claims}


@breaks("UNP-08")
class ExpectsSpecAtEnd(SmallDriver):
    def remove_spec(self, claim: Claim) -> None:
        if claim.uid in self.load() and not self.spec_path(claim).exists():
            raise Refused(f"remove {self.spec_path(claim).name}: no such file or directory")
        super().remove_spec(claim)

    async def give_back(self, claim: Claim) -> str:
        try:
            return await super().give_back(claim)
        except Refused as error:
            return str(error)


@breaks("DST-08")
class StaysBegun(SmallDriver):
    """A claim is in the checkpoint as begun before it is read from the API."""

    async def prepare_claim(self, claim: Claim) -> Sequence[PreparedDevice]:
        begun = self.checkpoint.with_name(f"{claim.uid}.begun")
        if begun.exists():
            raise Refused("its preparation was begun and has not ended")
        begun.touch()
        try:
            return await super().prepare_claim(claim)
        finally:
            begun.unlink()


@breaks("DST-01")
class SavesFirstDevice(KeepsStateInMemory):
    """The other devices of a claim are only in memory."""

    def save(self, claims: Mapping[str, Sequence[Document]]) -> None:
        super().save(claims)
        SmallDriver.save(self, {uid: held[:1] for uid, held in self.state.items()})


@breaks("PRP-26")
class SpecOfName(SmallDriver):
    """Claims of one name in two namespaces have one spec file."""

    def spec_path(self, claim: Claim) -> Path:
        return self.cdi / f"{self.name}-{claim.name}.json"

    def cdi_device(self, claim: Claim, result: Document) -> str:
        return f"{claim.name}-{result['device']}"


@breaks("API-04")
class EndsWithWatch(SmallDriver):
    """A watch whose time is over is the end of publishing."""

    async def publish_once(self) -> None:
        try:
            await super().publish_once()
        except PeerGone as error:
            if "ended the watch" in str(error):
                await asyncio.Event().wait()
            raise


@breaks("CDI-01")
class PathInSecondName(SmallDriver):
    def cdi_device(self, claim: Claim, result: Document) -> str:
        name = super().cdi_device(claim, result)
        return name if result["device"].endswith("0") else name.replace("-part", "/part")
