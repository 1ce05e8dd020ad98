"""Defects that show in production: several devices, parameters, an API server's bad days, leaks, locks and updates."""

import asyncio
import json
import os
import threading
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing, suppress
from pathlib import Path

from tests.conformance.driver import LEASE, SLICES, Document, Refused, SmallDriver
from tests.conformance.driver_mutants.driver_mutant import breaks

from plugwright.errors import PeerGone, PeerRefused, PlugwrightError
from plugwright.protocol.dra import Claim, PreparedDevice
from plugwright.protocol.dra_health import ReportedHealth
from plugwright.protocol.registration import PluginInfo

Answer = Mapping[str, Sequence[PreparedDevice] | str]


@breaks("PRP-01")
class RefusesTwentiethDevice(SmallDriver):
    def devices(self) -> list[Document]:
        return [*super().devices(), *({"name": f"extra-{number}"} for number in range(20))]

    def check_known(self, result: Document) -> None:
        super().check_known(result)
        if result["device"] == "extra-19":
            raise Refused("open /dev/extra-19: no such file or directory")


@breaks("PRP-02")
class MixesClaims(SmallDriver):
    async def prepare(self, claims: Sequence[Claim]) -> Answer:
        answer = dict(await super().prepare(claims))
        return dict.fromkeys(answer, answer[claims[0].uid])


@breaks("PRP-23")
class FirstResultOnly(SmallDriver):
    def results(self, document: Document) -> list[Document]:
        return super().results(document)[:1]


@breaks("PRP-23")
class SpecOfFirstDevice(SmallDriver):
    def write_spec(self, claim: Claim, results: Sequence[Document]) -> None:
        super().write_spec(claim, results[:1])


@breaks("PRP-23")
class SameRequestForAll(SmallDriver):
    def results(self, document: Document) -> list[Document]:
        results = super().results(document)
        return [{**result, "request": results[0]["request"]} for result in results]


@breaks("PRP-23")
class SameNodeForAll(SmallDriver):
    def write_spec(self, claim: Claim, results: Sequence[Document]) -> None:
        self.shown = results[-1]
        super().write_spec(claim, results)

    def edits(self, result: Document) -> Document:
        return super().edits(self.shown)


@breaks("PRP-24")
class HoldsHalfOfClaim(SmallDriver):
    async def prepare_claim(self, claim: Claim) -> Sequence[PreparedDevice]:
        claims = self.load()
        if claim.uid not in claims:
            taken: list[Document] = []
            for result in self.results(await self.read(claim)):
                self.check_known(result)
                self.check_free(claim.uid, result, claims)
                taken.append(result)
                self.save({**claims, f"{claim.uid}": taken})
            self.save(claims)
        return await super().prepare_claim(claim)


@breaks("PRP-24")
class LeavesSpecOfFailure(SmallDriver):
    async def prepare_claim(self, claim: Claim) -> Sequence[PreparedDevice]:
        known = {device["name"] for device in self.devices()}
        results = self.results(await self.read(claim))
        self.write_spec(claim, [result for result in results if result["device"] in known])
        return await super().prepare_claim(claim)


@breaks("PRP-25")
class PreparesBehindLock(SmallDriver):
    async def answer(self, claim: Claim) -> Sequence[PreparedDevice] | str:
        await asyncio.sleep(4)
        return await super().answer(claim)


@breaks("UNP-05")
class FreesFirstDevice(SmallDriver):
    async def give_back(self, claim: Claim) -> str:
        claims = self.load()
        rest = claims.get(claim.uid, [])[1:]
        answer = await super().give_back(claim)
        if rest:
            self.save({**self.load(), claim.uid: rest})
        return answer


@breaks("UNP-06")
class UnpreparesFirstClaim(SmallDriver):
    async def unprepare(self, claims: Sequence[Claim]) -> Mapping[str, str]:
        done = await super().unprepare(claims[:1])
        return {claim.uid: "" for claim in claims} | dict(done)


@breaks("UNP-06")
class AnswersFirstUnprepared(SmallDriver):
    async def unprepare(self, claims: Sequence[Claim]) -> Mapping[str, str]:
        return await super().unprepare(claims[:1])


def parameters(document: Document) -> list[Document]:
    config = document["status"]["allocation"]["devices"].get("config") or ()
    return [one["opaque"]["parameters"] for one in config if one["opaque"]["driver"] == SmallDriver.name]


@breaks("PAR-01")
class TakesUnknownKind(SmallDriver):
    """It knows the fields of its own kind, and takes every kind for it."""

    def check_config(self, document: Document) -> None:
        for one in parameters(document):
            if set(one) - {"apiVersion", "kind", "mode"} or not isinstance(one.get("kind"), str):
                raise Refused(f"parameters with unknown fields: {one}")


@breaks("PAR-02")
class DiesOfParameters(SmallDriver):
    def check_config(self, document: Document) -> None:
        for one in parameters(document):
            if not isinstance(one.get("apiVersion"), str):
                os._exit(2)
        super().check_config(document)


@breaks("PAR-02")
class HoldsRefusedClaim(SmallDriver):
    def check_config(self, document: Document) -> None:
        self.save({**self.load(), str(document["metadata"]["uid"]): self.results(document)})
        super().check_config(document)

    async def give_back(self, claim: Claim) -> str:
        return await super().give_back(claim) if self.spec_path(claim).exists() else ""


@breaks("PAR-03")
class IgnoresParameters(SmallDriver):
    def check_config(self, document: Document) -> None:
        pass


@breaks("API-01")
class EndsWithoutApiServer(SmallDriver):
    async def publish_once(self) -> None:
        try:
            await super().publish_once()
        except PeerGone:
            os._exit(1)


@breaks("API-01")
class GivesUpPublishing(SmallDriver):
    failures = 0

    async def publish_once(self) -> None:
        try:
            await super().publish_once()
        except PeerGone:
            self.failures += 1
            if self.failures > 2:
                await asyncio.Event().wait()
            raise


@breaks("API-02")
class ReadsClaimToUnprepare(SmallDriver):
    async def give_back(self, claim: Claim) -> str:
        try:
            await self.read(claim)
        except PeerRefused:
            pass  # it is gone
        except PlugwrightError as error:
            return str(error)
        return await super().give_back(claim)


@breaks("API-03", slow=True)
class PublishesAtStartOnly(SmallDriver):
    async def publish(self) -> None:
        try:
            await self.api.get(f"/api/v1/nodes/{self.node}")
        except PlugwrightError:
            await asyncio.Event().wait()
        await super().publish()


@breaks("API-04")
class WatchesOnce(SmallDriver):
    """Takes the end of a watch for the end of all changes."""

    async def publish_once(self) -> None:
        found, version = await self.api.list(SLICES, **self.selector())
        await self.sync({document["metadata"]["name"]: document for document in found})
        with suppress(PeerGone, PeerRefused):
            async with aclosing(self.api.watch(SLICES, version, **self.selector())) as changes:
                async for _ in changes:
                    return
        await asyncio.Event().wait()


@breaks("API-05")
class GivesUpWhenRefused(SmallDriver):
    async def publish_once(self) -> None:
        try:
            await super().publish_once()
        except (PeerGone, PeerRefused):
            await asyncio.Event().wait()


@breaks("API-05")
class RetriesWithoutPause(SmallDriver):
    async def publish(self) -> None:
        while True:
            try:
                await self.publish_once()
            except (PeerGone, PeerRefused):
                await asyncio.sleep(0)


@breaks("API-06")
class ImpatientReader(SmallDriver):
    async def read(self, claim: Claim) -> Document:
        try:
            async with asyncio.timeout(1):
                return await super().read(claim)
        except TimeoutError:
            raise Refused("the API server did not answer within a second") from None


@breaks("API-06")
class AnnouncesBehindLock(SmallDriver):
    async def announce(self) -> PluginInfo:
        async with self.lock:
            return await super().announce()


@breaks("DRG-12")
class EndsWithoutKubelet(SmallDriver):
    async def run(self) -> int:
        async def watch() -> None:
            await self.connected.until(bool)
            while True:
                try:
                    async with asyncio.timeout(2):
                        await self.connected.until(bool)
                    await self.connected.until(lambda count: not count)
                except TimeoutError:
                    os._exit(0)

        watching = asyncio.create_task(watch())
        try:
            return await super().run()
        finally:
            watching.cancel()


@breaks("DST-07")
class RemovesStateAtEnd(SmallDriver):
    async def ending(self) -> None:
        self.checkpoint.unlink(missing_ok=True)


@breaks("DST-07")
class RemovesSpecsAtEnd(SmallDriver):
    async def ending(self) -> None:
        for path in self.cdi.glob(f"{self.name}-*"):
            path.unlink()


@breaks("DST-07")
class StateOfPod(SmallDriver):
    @property
    def checkpoint(self) -> Path:
        return self.directory / f"checkpoint-{os.environ['POD_UID']}.json"


@breaks("DST-07")
class WaitsForClaimsAtEnd(SmallDriver):
    async def ending(self) -> None:
        while self.load():
            await asyncio.sleep(0.1)


@breaks("DRH-04")
class RepeatsHealthOnce(SmallDriver):
    async def watch(self) -> AsyncGenerator[Sequence[ReportedHealth], None]:
        yield self.reported()
        await asyncio.sleep(LEASE / 4)
        yield self.reported()
        await asyncio.Event().wait()


@breaks("DRH-04")
class RepeatsFirstDevice(SmallDriver):
    async def watch(self) -> AsyncGenerator[Sequence[ReportedHealth], None]:
        yield self.reported()
        while True:
            await asyncio.sleep(LEASE / 4)
            yield self.reported()[:1]


@breaks("DRR-01")
class ClaimsLeakDescriptors(SmallDriver):
    def write_spec(self, claim: Claim, results: Sequence[Document]) -> None:
        os.open(self.cdi, os.O_RDONLY)
        super().write_spec(claim, results)


@breaks("DRR-02")
class ClaimsLeakThreads(SmallDriver):
    async def answer(self, claim: Claim) -> Sequence[PreparedDevice] | str:
        threading.Thread(target=threading.Event().wait, daemon=True).start()
        return await super().answer(claim)


@breaks("DRR-03")
class ClaimsLeakMemory(SmallDriver):
    async def give_back(self, claim: Claim) -> str:
        kept.append(json.dumps({claim.uid: os.urandom(16 << 10).hex()}))
        return await super().give_back(claim)


kept: list[str] = []
