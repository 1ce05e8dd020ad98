"""Defects of the ResourceSlices."""

import asyncio
import os

from tests.conformance.driver import SLICES, Document, SmallDriver
from tests.conformance.driver_mutants.driver_mutant import breaks


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
        return [*super().contents(), {"devices": [{"name": "gone-0", "attributes": {"model": {"string": "old"}}}]}]

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

    registrations = 0

    async def notify(self, registered: bool, error: str) -> None:
        await super().notify(registered, error)
        self.registrations += 1
        if self.registrations == 1:  # what was published at the start is there
            return
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
