"""The emulated kubelet's way with ResourceClaims beside the original: one scenario, played to both.

Drivers have names of their own in each scenario: the slices of one that is gone are deleted after 30 seconds.
"""

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest
from tests.kubelet.actors import quick_settings
from tests.kubelet.dra.driver import Announcement, ScriptedDriver, registered, serving
from tests.kubernetes.claim_stages import (
    CDI_KIND,
    ClaimStage,
    EmulatedClaims,
    RealClaims,
    listed_claims,
    pod_with_claims,
    recorded_claims,
)
from tests.kubernetes.cluster import Cluster
from tests.kubernetes.kubectl import Object
from tests.kubernetes.pods import Pods

from plugwright.kubelet import Kubelet
from plugwright.kubelet.dra.resource_api import ClaimTable
from plugwright.protocol import dra, registration, transport
from plugwright.protocol.dra import PreparedDevice
from plugwright.protocol.dra_health import HealthStatus, ReportedHealth

V1, V1BETA1 = dra.VERSIONS
HEALTH, OLD_HEALTH = "v1.DRAResourceHealth", "v1alpha1.DRAResourceHealth"
slow = pytest.mark.skipif(
    os.environ.get("PLUGWRIGHT_KUBERNETES_LONG") != "1", reason="takes a minute: PLUGWRIGHT_KUBERNETES_LONG=1 plays it"
)
Scenario = Callable[[ClaimStage], Awaitable[list[object]]]


@dataclass
class BothKubelets:
    cluster: Cluster
    root: Path

    async def agree_on(self, scenario: Scenario) -> list[object]:
        api = ClaimTable()
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


@pytest.fixture
def both_kubelets(cluster: Cluster, pods: Pods, root: Path) -> BothKubelets:
    return BothKubelets(cluster, root)


def device(number: int, *requests: str, share_id: str = "") -> PreparedDevice:
    return PreparedDevice("node", f"d{number}", requests, (f"{CDI_KIND}={number}",), share_id)


def one_container(*uses: Object) -> Mapping[str, Sequence[Object]]:
    return {"main": uses or ({"name": "dev"},)}


def called(calls: Sequence[Sequence[dra.Claim]]) -> list[list[str]]:
    return [sorted(f"{claim.namespace}/{claim.name}" for claim in call) for call in calls]


@asynccontextmanager
async def offered(driver: ScriptedDriver, stage: ClaimStage) -> AsyncIterator[ScriptedDriver]:
    async with registered(driver, stage):
        await stage.offer(driver.name)
        yield driver


async def _eventually(ask: Callable[[], Awaitable[object]], wanted: object, limit: float = 30) -> None:
    last: object = None
    try:
        async with asyncio.timeout(limit):
            while (last := await ask()) != wanted:
                await asyncio.sleep(0.2)
    except TimeoutError:
        assert last == wanted


@pytest.mark.essential
async def test_a_claim_from_its_preparation_to_its_end(both_kubelets: BothKubelets) -> None:
    """Calls, CDI names in the container, `dra_manager_state` and pod-resources."""

    async def scenario(stage: ClaimStage) -> list[object]:
        driver = ScriptedDriver([device(0, "gpu", share_id="s-1"), device(1)], name="one.example.com")
        async with offered(driver, stage):
            await stage.claim("one", driver.name)
            uses = {"main": [{"name": "dev", "request": "gpu"}], "whole": [{"name": "dev"}], "none": []}
            await stage.admit(pod_with_claims("holds", {"dev": "one"}, uses))
            told: list[object] = [
                await stage.failures("holds"),
                await stage.cdi_devices("holds"),
                recorded_claims(stage.paths, "one"),
                await listed_claims(stage.paths, "holds"),
            ]
            await stage.remove("holds")
            told += [recorded_claims(stage.paths, "one"), called(driver.prepared), called(driver.unprepared)]
        return told

    told = await both_kubelets.agree_on(scenario)
    assert told[1] == {
        "main": [f"{CDI_KIND}=0", f"{CDI_KIND}=1"],
        "whole": [f"{CDI_KIND}=0", f"{CDI_KIND}=1"],
        "none": [],
    }


@pytest.mark.essential
async def test_words_of_the_registration_of_drivers(both_kubelets: BothKubelets) -> None:
    async def scenario(stage: ClaimStage) -> list[object]:
        told: list[object] = []
        for services in (("v1.dra",), (), (V1BETA1,), ("v9.DRAPlugin", V1)):
            driver = ScriptedDriver(name="words.example.com", services=services)
            async with serving(driver, stage):
                async with asyncio.timeout(20):
                    said = await driver.registered.until(lambda one: one is not None)
                assert said is not None
                told.append((said[0], said[1].replace(str(stage.paths.root), "")))
        return told

    await both_kubelets.agree_on(scenario)


@pytest.mark.essential
async def test_an_endpoint_that_is_registered_already(both_kubelets: BothKubelets) -> None:
    async def scenario(stage: ClaimStage) -> list[object]:
        async with registered(ScriptedDriver(name="twice.example.com"), stage) as driver:
            second = ScriptedDriver(name=driver.name)
            endpoint = stage.paths.root / "plugins" / driver.name / "dra.sock"
            announcement = registration.announcement_methods(Announcement(second, endpoint))
            async with transport.serve(stage.paths.plugins_registry / "twice.sock", announcement):
                async with asyncio.timeout(20):
                    said = await second.registered.until(lambda one: one is not None)
        assert said is not None
        return [said[0], said[1].replace(str(stage.paths.root), "")]

    await both_kubelets.agree_on(scenario)


async def test_the_first_version_that_is_known_is_called(both_kubelets: BothKubelets) -> None:
    """v1beta1 has no share id, so the record tells which was called."""

    async def scenario(stage: ClaimStage) -> list[object]:
        told: list[object] = []
        for number, services in enumerate(((V1BETA1, V1), (V1, V1BETA1))):
            driver = ScriptedDriver([device(0, share_id="s-1")], name=f"order-{number}.example.com", services=services)
            async with offered(driver, stage):
                await stage.claim(f"order-{number}", driver.name)
                await stage.admit(pod_with_claims(f"order-{number}", {"dev": f"order-{number}"}, one_container()))
                told.append(recorded_claims(stage.paths, f"order-{number}"))
                await stage.remove(f"order-{number}")
        return told

    told = await both_kubelets.agree_on(scenario)
    assert ["s-1" in str(record) for record in told] == [False, True]


@pytest.mark.essential
@pytest.mark.parametrize("kind", ["error", "refusal", "missing", "extra"])
async def test_words_where_a_claim_is_not_prepared(both_kubelets: BothKubelets, kind: str) -> None:
    """The text in the event; and the claim is unprepared in the end, though it never was prepared."""

    async def scenario(stage: ClaimStage) -> list[object]:
        name, claim = f"{kind}.example.com", f"not-{kind}"
        driver = ScriptedDriver(
            "no power" if kind == "error" else [device(0)],
            refusal="broken" if kind == "refusal" else "",
            extra={"00000000-0000-4000-8000-00000000000f": ()} if kind == "extra" else {},
            name=name,
        )
        if kind == "missing":
            driver.answers_none = True
        async with offered(driver, stage):
            await stage.claim(claim, name)
            await stage.admit(pod_with_claims(claim, {"dev": claim}, one_container()))
            told: list[object] = [
                await stage.failures(claim),
                await listed_claims(stage.paths, claim),
                recorded_claims(stage.paths, claim),
            ]
            driver.answers_none = False
            await stage.remove(claim)
            told += [called(driver.prepared), called(driver.unprepared), recorded_claims(stage.paths, claim)]
        return told

    await both_kubelets.agree_on(scenario)


async def test_a_driver_that_is_not_registered_leaves_no_trace(both_kubelets: BothKubelets) -> None:
    async def scenario(stage: ClaimStage) -> list[object]:
        await stage.offer("nobody.example.com")
        await stage.claim("nobody", "nobody.example.com")
        await stage.admit(pod_with_claims("nobody", {"dev": "nobody"}, one_container()))
        told: list[object] = [
            await stage.failures("nobody"),
            recorded_claims(stage.paths, "nobody"),
            await listed_claims(stage.paths, "nobody"),
        ]
        await stage.remove("nobody")
        return told

    await both_kubelets.agree_on(scenario)


@pytest.mark.essential
async def test_two_claims_in_one_call_and_a_second_pod_on_one_claim(both_kubelets: BothKubelets) -> None:
    async def scenario(stage: ClaimStage) -> list[object]:
        driver = ScriptedDriver([device(0, "gpu")], name="two.example.com")
        async with offered(driver, stage):
            for name in ("first", "second"):
                await stage.claim(name, driver.name)
            claims = {"a": "first", "b": "second"}
            await stage.admit(pod_with_claims("two", claims, one_container({"name": "a"}, {"name": "b"})))
            told: list[object] = [called(driver.prepared), await listed_claims(stage.paths, "two")]
            await stage.admit(pod_with_claims("shares", {"dev": "first"}, one_container()))
            told += [called(driver.prepared), await stage.cdi_devices("shares")]
            await stage.remove("two")
            told += [called(driver.unprepared), recorded_claims(stage.paths, "first", "second")]
            await stage.remove("shares")
            told.append(called(driver.unprepared))
        return told

    told = await both_kubelets.agree_on(scenario)
    assert told[-1] == [["default/second"], ["default/first"]]


async def test_a_claim_of_two_drivers_where_one_fails(both_kubelets: BothKubelets) -> None:
    """What the other has prepared stays so; both are unprepared in the end."""

    async def scenario(stage: ClaimStage) -> list[object]:
        good = ScriptedDriver([device(0, "gpu")], name="a-good.example.com")
        bad = ScriptedDriver("no power", name="b-bad.example.com")
        async with offered(good, stage), offered(bad, stage):
            await stage.claim("half", good.name, bad.name)
            await stage.admit(pod_with_claims("half", {"dev": "half"}, one_container()))
            told: list[object] = [await stage.failures("half"), called(good.unprepared)]
            await stage.remove("half")
            told += [called(good.unprepared), called(bad.unprepared)]
        return told

    await both_kubelets.agree_on(scenario)


@pytest.mark.parametrize("request_name", ["gpu", "gpu/big"])
async def test_a_subrequest_that_is_stripped_and_one_that_is_not(
    both_kubelets: BothKubelets, request_name: str
) -> None:
    """The allocation says `gpu/big`; a driver that answers so leaves the container without its device."""

    async def scenario(stage: ClaimStage) -> list[object]:
        name = f"sub-{request_name.replace('/', '-')}"
        driver = ScriptedDriver([device(0, request_name)], name=f"{name}.example.com")
        async with offered(driver, stage):
            await stage.claim(name, driver.name, first_available=True)
            uses = {"main": [{"name": "dev", "request": "gpu"}], "whole": [{"name": "dev"}]}
            await stage.admit(pod_with_claims(name, {"dev": name}, uses))
            told: list[object] = [await stage.cdi_devices(name), await listed_claims(stage.paths, name)]
            await stage.remove(name)
        return told

    told = await both_kubelets.agree_on(scenario)
    assert told[0] == {"main": [] if "/" in request_name else [f"{CDI_KIND}=0"], "whole": [f"{CDI_KIND}=0"]}


@pytest.mark.essential
async def test_the_health_of_claims_in_a_pods_status(both_kubelets: BothKubelets) -> None:
    async def scenario(stage: ClaimStage) -> list[object]:
        bare = PreparedDevice("node", "d1", ("gpu",))
        driver = ScriptedDriver([device(0, "gpu"), bare], name="health.example.com", services=(V1, HEALTH, OLD_HEALTH))
        told: list[object] = []
        async with offered(driver, stage):
            await stage.claim("ill", driver.name)
            uses = {"main": [{"name": "dev", "request": "gpu"}], "whole": [{"name": "dev"}], "none": []}
            await stage.admit(pod_with_claims("ill", {"dev": "ill"}, uses))
            for states in (
                (ReportedHealth("node", "d0", HealthStatus.UNHEALTHY, "too hot"),),
                (
                    ReportedHealth("node", "d0", HealthStatus.HEALTHY),
                    ReportedHealth("node", "d1", HealthStatus.HEALTHY),
                ),
                (ReportedHealth("node", "d1", HealthStatus.UNHEALTHY, "x" * 1100),),
            ):
                driver.health.publish(states)
                await _eventually(partial(_shows, stage, states[-1]), True)
                told.append(await stage.health("ill"))
            await stage.remove("ill")
        return told

    await both_kubelets.agree_on(scenario)


async def _shows(stage: ClaimStage, said: ReportedHealth) -> bool:
    ids = (f"{CDI_KIND}={said.name[1:]}", f"health.example.com/node/{said.name}")
    return any(
        one["health"] == said.health.name.capitalize() and one["resourceID"] in ids
        for devices in (await stage.health("ill")).values()
        for one in devices
    )


async def test_after_a_restart_slices_are_wiped_and_running_pods_left_alone(both_kubelets: BothKubelets) -> None:
    async def scenario(stage: ClaimStage) -> list[object]:
        driver = ScriptedDriver([device(0, "gpu")], name="again.example.com")
        async with offered(driver, stage):
            await stage.claim("again", driver.name)
            await stage.admit(pod_with_claims("again", {"dev": "again"}, one_container()))
            written = recorded_claims(stage.paths, "again")
            driver.registered.publish(None)
            await stage.restart()
            await driver.until_registered()
            await stage.wiped(driver.name)
            told: list[object] = [called(driver.prepared), recorded_claims(stage.paths, "again") == written]
            told.append(await listed_claims(stage.paths, "again"))
            await stage.remove("again")
            told += [called(driver.prepared), called(driver.unprepared)]
        return told

    await both_kubelets.agree_on(scenario)


async def test_the_newest_plugin_of_a_driver_is_called_and_the_other_takes_over(both_kubelets: BothKubelets) -> None:
    async def scenario(stage: ClaimStage) -> list[object]:
        old, new = (ScriptedDriver([device(0, "gpu")], name="pair.example.com") for _ in range(2))
        async with offered(old, stage):
            async with registered(new, stage, "-new"):
                await stage.claim("pair", old.name)
                await stage.admit(pod_with_claims("pair", {"dev": "pair"}, one_container()))
                told: list[object] = [called(old.prepared), called(new.prepared)]
            await stage.remove("pair")
            told += [called(old.unprepared), called(new.unprepared)]
        return told

    await both_kubelets.agree_on(scenario)


async def test_a_claim_in_use_and_a_pod_that_never_had_it(both_kubelets: BothKubelets, cluster: Cluster) -> None:
    """Up to 1.36 the claim is unprepared under the pod that uses it; 1.37 leaves it alone."""

    async def scenario(stage: ClaimStage) -> list[object]:
        driver = ScriptedDriver([device(0, "gpu")], name="shared.example.com")
        async with offered(driver, stage):
            await stage.offer("absent.example.com")
            await stage.claim("shared", driver.name)
            await stage.claim("absent", "absent.example.com")
            await stage.admit(pod_with_claims("uses", {"dev": "shared"}, one_container()))
            claims = {"a": "shared", "b": "absent"}
            await stage.admit(pod_with_claims("fails", claims, one_container({"name": "a"}, {"name": "b"})))
            told: list[object] = [await stage.failures("fails"), called(driver.prepared)]
            await stage.remove("fails")
            told += [called(driver.unprepared), recorded_claims(stage.paths, "shared")]
            await stage.remove("uses")
            told.append(called(driver.unprepared))
        return told

    told = await both_kubelets.agree_on(scenario)
    assert (told[2] == []) == (cluster.version >= "1.37")


async def test_a_claim_that_cannot_be_unprepared_keeps_its_pod(both_kubelets: BothKubelets) -> None:
    async def scenario(stage: ClaimStage) -> list[object]:
        driver = ScriptedDriver([device(0, "gpu")], name="stuck.example.com", unprepare_error="still open")
        async with offered(driver, stage):
            await stage.claim("stuck", driver.name)
            await stage.admit(pod_with_claims("stuck", {"dev": "stuck"}, one_container()))
            await stage.delete("stuck")
            await _eventually(lambda: _count(driver), True)
            told: list[object] = [await stage.gone("stuck"), await stage.failures("stuck")]
            driver.unprepare_error = ""
            await _eventually(lambda: stage.gone("stuck"), True)
            told.append(recorded_claims(stage.paths, "stuck"))
        return told

    told = await both_kubelets.agree_on(scenario)
    assert told[0] is False


async def _count(driver: ScriptedDriver) -> bool:
    return len(driver.unprepared) >= 2


@slow
async def test_a_killed_driver_stays_registered_and_loses_its_slices_after_30_seconds(
    both_kubelets: BothKubelets,
) -> None:
    async def scenario(stage: ClaimStage) -> list[object]:
        driver = ScriptedDriver([device(0, "gpu")], name="killed.example.com")
        async with registered(driver, stage, kept=True):
            await stage.offer(driver.name)
            await stage.claim("killed", driver.name)
            await stage.claim("later", driver.name)
            await stage.admit(pod_with_claims("killed", {"dev": "killed"}, one_container()))
        await stage.admit(pod_with_claims("later", {"dev": "later"}, one_container()))
        # How far a connection gets before it is refused is up to chance.
        told: list[object] = [{text.partition(" desc = ")[0] for text in await stage.failures("later")}]
        began = asyncio.get_running_loop().time()
        await stage.wiped(driver.name)
        assert 20 < asyncio.get_running_loop().time() - began < 40
        driver.registered.publish(None)
        async with registered(driver, stage):
            await stage.runs("later")
            for name in ("later", "killed"):
                await stage.remove(name)
            told += [called(driver.prepared), called(driver.unprepared)]
        return told

    await both_kubelets.agree_on(scenario)


@slow
async def test_a_call_that_takes_too_long(both_kubelets: BothKubelets) -> None:
    """45 seconds, and the call is made again later, while the first may still run."""

    async def scenario(stage: ClaimStage) -> list[object]:
        driver = ScriptedDriver([device(0, "gpu")], name="hangs.example.com", held=asyncio.Event())
        async with offered(driver, stage):
            await stage.claim("hangs", driver.name)
            began = asyncio.get_running_loop().time()
            await stage.admit(pod_with_claims("hangs", {"dev": "hangs"}, one_container()))
            assert 44 < asyncio.get_running_loop().time() - began < 60
            told: list[object] = [await stage.failures("hangs")]
            assert driver.held is not None
            driver.held.set()
            await stage.runs("hangs")
            told.append(len(driver.prepared))
            await stage.remove("hangs")
        return told

    await both_kubelets.agree_on(scenario)
