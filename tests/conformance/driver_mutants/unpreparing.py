"""Defects of NodeUnprepareResources, and of CDI devices."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.conformance.driver import Document, SmallDriver
from tests.conformance.driver_mutants.driver_mutant import breaks

from plugwright.errors import PeerRefused
from plugwright.protocol.dra import Claim, PreparedDevice

Answer = Mapping[str, Sequence[PreparedDevice] | str]


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
