"""The emulated kubelet's way with ResourceClaims beside the original: one scenario, played to both.

What happens after a loss or a restart is in `test_dra_kubelet_again`. Drivers have names of their own in each scenario:
the slices of one that is gone are deleted after 30 seconds.
"""

import asyncio
from functools import partial

import pytest
from tests.kubelet.dra.driver import Announcement, ScriptedDriver, registered, serving
from tests.kubernetes.claim_stages import CDI_KIND, ClaimStage, listed_claims, pod_with_claims, recorded_claims
from tests.kubernetes.comparing_claims import BothKubelets, called, device, eventually, offered, one_container

from plugwright.protocol import dra, registration, transport
from plugwright.protocol.dra import PreparedDevice
from plugwright.protocol.dra_health import HealthStatus, ReportedHealth

V1, V1BETA1 = dra.VERSIONS
HEALTH, OLD_HEALTH = "v1.DRAResourceHealth", "v1alpha1.DRAResourceHealth"


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
async def test_a_claim_from_a_template_and_one_for_an_extended_resource(both_kubelets: BothKubelets) -> None:
    async def scenario(stage: ClaimStage) -> list[object]:
        driver = ScriptedDriver([device(0, "gpu", "container-0-request-0")], name="made.example.com")
        told: list[object] = []
        async with registered(driver, stage):
            await stage.offer(driver.name, "made.example.com/gpu")
            await stage.template("made", driver.name)
            by_template = pod_with_claims("by-template", {}, one_container())
            by_template["spec"]["resourceClaims"] = [{"name": "dev", "resourceClaimTemplateName": "made"}]
            by_resource = pod_with_claims("by-resource", {}, {"main": [], "none": []})
            by_resource["spec"]["containers"][0]["resources"] = {"limits": {"made.example.com/gpu": "1"}}
            for name, pod, claim in (
                ("by-template", by_template, "by-template-dev-<random>"),
                ("by-resource", by_resource, "by-resource-extended-resources-<random>"),
            ):
                await stage.admit(pod)
                told += [await stage.failures(name), await stage.cdi_devices(name), recorded_claims(stage.paths, claim)]
                told += [await listed_claims(stage.paths, name), await stage.health(name)]
                await stage.remove(name)
        return [*told, called(driver.prepared), called(driver.unprepared)]

    told = await both_kubelets.agree_on(scenario)
    assert told[-1] == [["default/by-template-dev-<random>"], ["default/by-resource-extended-resources-<random>"]]


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
        if kind in ("missing", "extra"):  # of two entries a real kubelet reads either first
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
                await eventually(partial(_shows, stage, states[-1]), True)
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
