"""Defects of NodePrepareResources."""

import asyncio
from collections.abc import Mapping, Sequence

from msgspec.structs import replace
from tests.conformance.driver import Document, Refused, SmallDriver
from tests.conformance.driver_mutants.driver_mutant import breaks

from plugwright.errors import PeerRefused
from plugwright.protocol.dra import Claim, PreparedDevice

Answer = Mapping[str, Sequence[PreparedDevice] | str]


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


@breaks("PRP-13")
class GivesLate(SmallDriver):
    async def prepare_claim(self, claim: Claim) -> Sequence[PreparedDevice]:
        try:
            return await super().prepare_claim(claim)
        except Refused:
            await asyncio.sleep(2)
            return [self.prepared(claim, result) for result in self.results(await self.read(claim))]


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


@breaks("PRP-22")
class OnePodAlone(SmallDriver):
    def check_claim(self, claim: Claim, document: Document) -> None:
        super().check_claim(claim, document)
        if len(document["status"]["reservedFor"]) != 1:
            raise Refused("it must be reserved for one pod")
