"""ResourceClaims and the two kubelets when a driver or the kubelet goes and comes back; see `test_dra_kubelet`."""

import asyncio
from pathlib import Path

import pytest
from tests.kubelet.dra.driver import ScriptedDriver, registered
from tests.kubernetes.claim_stages import ClaimStage, RealClaims, listed_claims, pod_with_claims, recorded_claims
from tests.kubernetes.cluster import Cluster
from tests.kubernetes.comparing_claims import BothKubelets, called, device, eventually, offered, one_container
from tests.kubernetes.waiting import until

from plugwright.errors import KubeletError
from plugwright.kubelet import Kubelet


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


async def test_a_new_sandbox_has_its_claims_prepared_only_after_a_restart(both_kubelets: BothKubelets) -> None:
    async def scenario(stage: ClaimStage) -> list[object]:
        driver = ScriptedDriver([device(0, "gpu")], name="sandbox.example.com")
        async with offered(driver, stage):
            await stage.claim("sandbox", driver.name)
            await stage.admit(pod_with_claims("sandbox", {"dev": "sandbox"}, one_container()))
            await stage.new_sandbox("sandbox")
            told: list[object] = [called(driver.prepared), await stage.cdi_devices("sandbox")]
            driver.registered.publish(None)
            await stage.restart()
            await driver.until_registered()
            told.append(called(driver.prepared))
            await stage.new_sandbox("sandbox")
            told += [
                called(driver.prepared),
                await stage.cdi_devices("sandbox"),
                recorded_claims(stage.paths, "sandbox"),
            ]
            await stage.remove("sandbox")
        return [*told, called(driver.unprepared)]

    told = await both_kubelets.agree_on(scenario)
    assert [len(calls) for calls in (told[0], told[2], told[3]) if isinstance(calls, list)] == [1, 1, 2]


async def test_a_damaged_record_of_claims_ends_the_start(cluster: Cluster, root: Path) -> None:
    """The real kubelet ends, and so does ours, with the way out in its words."""
    record = RealClaims(cluster).paths.root / "dra_manager_state"
    cluster.stop("kubelet")
    written = record.read_bytes()
    damaged = written.replace(b"DRACheckpoint", b"DRAcheckpoint")
    record.write_bytes(damaged)
    cluster.start("kubelet")
    try:
        await asyncio.to_thread(until, "the kubelet ends", lambda: not cluster.kubelet.alive)
        assert "checkpoint is corrupted" in "\n".join(cluster.kubelet.lines("dra_manager_state")[-5:])
    finally:
        record.write_bytes(written)
        cluster.revive()
    emulated = Kubelet(root / "damaged")
    async with emulated:
        pass
    (emulated.paths.root / "dra_manager_state").write_bytes(damaged)
    with pytest.raises(KubeletError, match=r"dra_manager_state is damaged.*checkpoint is corrupted"):
        async with emulated:
            pass


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
            await eventually(lambda: _count(driver), True)
            told: list[object] = [await stage.gone("stuck"), await stage.failures("stuck")]
            driver.unprepare_error = ""
            await eventually(lambda: stage.gone("stuck"), True)
            told.append(recorded_claims(stage.paths, "stuck"))
        return told

    told = await both_kubelets.agree_on(scenario)
    assert told[0] is False


async def _count(driver: ScriptedDriver) -> bool:
    return len(driver.unprepared) >= 2


@pytest.mark.full("the kubelet removes the slices of a lost driver after 30 s")
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


@pytest.mark.full("the kubelet gives up a call after 45 s and retries it after a minute")
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
