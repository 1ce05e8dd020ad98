"""Drivers that register, go and come back; numbers in comments are those of the facts."""

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest
from tests.kubelet.actors import LIMIT, Clock, quick_settings, until_state
from tests.kubelet.dra.driver import DRIVER, V1, V1BETA1, ScriptedDriver, registered, serving
from tests.kubelet.dra.stored_claims import StoredClaims
from tests.kubelet.dra.test_claims_of_pods import CLAIM, pod

from plugwright.kubelet import Kubelet
from plugwright.protocol.dra_health import HealthStatus, ReportedHealth

HEALTH, OLD_HEALTH = "v1.DRAResourceHealth", "v1alpha1.DRAResourceHealth"


async def refusal(driver: ScriptedDriver) -> str:
    async with asyncio.timeout(LIMIT):
        accepted, error = await driver.registered.until(lambda said: said is not None) or (True, "")
    assert not accepted
    return error


async def test_the_first_version_that_the_driver_lists_is_called(node: Kubelet, api: StoredClaims) -> None:  # 11.4
    api.add(CLAIM)
    async with registered(ScriptedDriver(services=("v9.DRAPlugin", V1BETA1, V1)), node) as driver:
        await node.admit(pod())
        assert node._running.claims.drivers.get(DRIVER).version == V1BETA1
        assert driver.prepared


async def test_a_driver_of_no_known_version_is_refused(node: Kubelet) -> None:  # 11.5
    async with serving(ScriptedDriver(services=("v1.dra",)), node) as driver:
        assert (await refusal(driver)).endswith(
            'none of services supported by the plugin (["v1.dra"]) are supported by the kubelet '
            '(["v1.DRAPlugin" "v1beta1.DRAPlugin"])'
        )


async def test_kubelets_before_claims_know_no_driver(root: Path, clock: Clock) -> None:  # 11.1
    async with (
        Kubelet(root, quick_settings(clock=clock, version="1.33")) as node,
        serving(ScriptedDriver(), node) as driver,
    ):
        assert "no handler registered for plugin type: DRAPlugin" in await refusal(driver)


async def test_every_slice_of_the_node_goes_when_the_kubelet_starts(node: Kubelet, api: StoredClaims) -> None:  # 11.8
    await until_state(node, "deleted", "ResourceSlices")
    assert api.wiped == [""]
    await node.restart()
    await node.until(lambda: api.wiped == ["", ""], LIMIT, "slices are still there")


async def test_the_slices_of_a_driver_that_stays_away_go(root: Path, api: StoredClaims) -> None:  # 11.9
    settings = quick_settings()
    settings = replace(settings, timing=replace(settings.timing, wipe=0.01))
    async with Kubelet(root, settings, resource_api=api) as node:
        async with registered(ScriptedDriver(), node):
            await until_state(node, "deleted", "ResourceSlices")
        await node.until(lambda: DRIVER in api.wiped, LIMIT, "its slices are still there")


async def test_the_newest_plugin_of_a_driver_is_called_and_another_takes_over(
    node: Kubelet, api: StoredClaims
) -> None:  # 11.7
    for name in ("a", "b"):
        api.add(replace(CLAIM, name=name, uid=f"u-{name}"))
    async with registered(ScriptedDriver(), node) as old:
        drivers = node._running.claims.drivers
        async with registered(ScriptedDriver(), node, "-new") as new:
            async with asyncio.timeout(LIMIT):
                while drivers.get(DRIVER).endpoint.name != "dra-new.sock":  # which counts once it is connected
                    await asyncio.sleep(0.001)
            await node.admit(pod("a", claim="a"))
            assert (len(old.prepared), len(new.prepared)) == (0, 1)
        await node.until(lambda: drivers.get(DRIVER).endpoint.name == "dra.sock", LIMIT, "the new one is still there")
        await node.admit(pod("b", claim="b"))
        assert len(old.prepared) == 1


@pytest.mark.parametrize(
    ("version", "services", "is_watched"),
    [
        ("1.36", (V1,), False),  # asked for, and not implemented
        ("1.36", (V1, OLD_HEALTH), True),
        ("1.36", (V1, HEALTH), False),
        ("1.37", (V1, HEALTH), True),
        ("1.37", (V1, OLD_HEALTH), True),
        ("1.37", (V1,), False),
    ],
)
async def test_health_is_watched_in_the_version_of_the_kubelet(
    root: Path, clock: Clock, api: StoredClaims, version: str, services: tuple[str, ...], is_watched: bool
) -> None:  # 11.23, 11.24
    async with (
        Kubelet(root, quick_settings(clock=clock, version=version), resource_api=api) as node,
        registered(ScriptedDriver(services=services), node) as driver,
    ):
        health = node._running.claims.health
        driver.health.publish([ReportedHealth("node", "gpu-0", HealthStatus.UNHEALTHY, "too hot")])
        if not is_watched:
            await asyncio.sleep(0.05)
            assert health.of(DRIVER, "node", "gpu-0") == (HealthStatus.UNKNOWN, "")
            return
        async with asyncio.timeout(LIMIT):
            while health.of(DRIVER, "node", "gpu-0") != (HealthStatus.UNHEALTHY, "too hot"):
                await asyncio.sleep(0.001)
        clock.advance(30.1)
        assert health.of(DRIVER, "node", "gpu-0") == (HealthStatus.UNKNOWN, "")
