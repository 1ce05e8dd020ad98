"""One scenario with ResourceClaims, played to the emulated kubelet and to the real one, which must tell the same."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.kubelet.actors import quick_settings
from tests.kubelet.dra.driver import ScriptedDriver, registered
from tests.kubelet.dra.stored_claims import StoredClaims
from tests.kubernetes.claim_stages import CDI_KIND, ClaimStage, EmulatedClaims, RealClaims, generated
from tests.kubernetes.cluster import Cluster
from tests.kubernetes.kubectl import Object

from plugwright.kubelet import Kubelet
from plugwright.protocol import dra
from plugwright.protocol.dra import PreparedDevice

__all__ = ["BothKubelets", "called", "device", "eventually", "offered", "one_container"]

Scenario = Callable[[ClaimStage], Awaitable[list[object]]]


@dataclass
class BothKubelets:
    cluster: Cluster
    root: Path

    async def agree_on(self, scenario: Scenario) -> list[object]:
        api = StoredClaims()
        settings = quick_settings(version=self.cluster.version)
        async with Kubelet(self.root / "emulated", settings, resource_api=api) as kubelet:
            ours = await scenario(EmulatedClaims(kubelet, api))
        real = RealClaims(self.cluster)
        await real.listens()
        try:
            theirs = await scenario(real)
        finally:
            await asyncio.to_thread(real.end)
        for mine, real_one in zip(ours, theirs, strict=True):
            assert mine == real_one, f"emulated: {mine}\nreal: {real_one}"
        return ours


def device(number: int, *requests: str, share_id: str = "") -> PreparedDevice:
    return PreparedDevice("node", f"d{number}", requests, (f"{CDI_KIND}={number}",), share_id)


def one_container(*uses: Object) -> Mapping[str, Sequence[Object]]:
    return {"main": uses or ({"name": "dev"},)}


def called(calls: Sequence[Sequence[dra.Claim]]) -> list[list[str]]:
    return [sorted(generated(f"{claim.namespace}/{claim.name}") for claim in call) for call in calls]


@asynccontextmanager
async def offered(driver: ScriptedDriver, stage: ClaimStage) -> AsyncIterator[ScriptedDriver]:
    async with registered(driver, stage):
        await stage.offer(driver.name)
        yield driver


async def eventually(ask: Callable[[], Awaitable[object]], wanted: object, limit: float = 30) -> None:
    last: object = None
    try:
        async with asyncio.timeout(limit):
            while (last := await ask()) != wanted:
                await asyncio.sleep(0.2)
    except TimeoutError:
        assert last == wanted
