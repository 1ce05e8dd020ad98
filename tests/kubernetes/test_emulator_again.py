"""The emulated kubelet beside the original, when a plugin or the kubelet comes back, and with several resources."""

import json

import pytest
from tests.kubernetes import scripted, stages
from tests.kubernetes.cluster import Cluster
from tests.kubernetes.comparing import Both, devices
from tests.kubernetes.pods import Pods
from tests.kubernetes.scripted import Scripted
from tests.kubernetes.stages import Outcome, RealStage, Stage, manifest

from plugwright.model import Options


@pytest.mark.essential
async def test_a_restart_with_and_without_the_plugin(both: Both) -> None:
    async def scenario(stage: Stage) -> list[object]:
        plugin = Scripted("compare/again", devices(3), Options(preference=True))
        told: list[object] = []
        async with scripted.serving(plugin, stage.paths, "first.sock"):
            await stage.shows("compare/again", 3, 3)
            told.append(await stage.admit(manifest("stays", {"main": {"compare/again": 1}})))
        await stage.shows("compare/again", 3, 0)
        await stage.restart()
        await stage.shows("compare/again", 0, 0)
        told.append(await stage.outcome("stays"))
        told.append(await stage.admit(manifest("early", {"main": {"compare/again": 1}})))
        told.append(await stages.listed(stage.paths, "stays"))
        async with scripted.serving(plugin, stage.paths, "second.sock"):
            await stage.shows("compare/again", 3, 3)
            told.append(await stage.admit(manifest("late", {"main": {"compare/again": 2}})))
            told.append(await stage.admit(manifest("surplus", {"main": {"compare/again": 1}})))
            told.append(stages.held(stages.read(stage.paths), "compare/again"))
            for name in ("stays", "early", "late", "surplus"):
                await stage.remove(name)
        return [*told, plugin.calls]

    await both.agree_on(scenario)


async def test_a_restart_after_an_init_container_that_had_devices(both: Both) -> None:
    """It does not run any more, so nothing protects its pod while the plugin is away (3.14, 3.16)."""

    async def scenario(stage: Stage) -> list[object]:
        # Of one device: without a preference the kubelet takes any of several.
        plugin = Scripted("compare/began", devices(1), Options())
        told: list[object] = []
        async with scripted.serving(plugin, stage.paths):
            await stage.shows("compare/began", 1, 1)
            pod = manifest("began", {"first": {"compare/began": 1}, "main": {}}, first="init")
            told.append(await stage.admit(pod))
        await stage.shows("compare/began", 1, 0)
        await stage.restart()
        await stage.shows("compare/began", 0, 0)
        told.append(await stage.becomes("began", "Failed"))
        await stage.remove("began")
        return [*told, plugin.calls]

    told = await both.agree_on(scenario)
    assert isinstance(told[1], Outcome)
    assert "no healthy devices present" in told[1].message


async def test_a_device_that_is_held_is_listed_again_by_a_new_plugin(both: Both) -> None:
    async def scenario(stage: Stage) -> list[object]:
        plugin = Scripted("compare/back", devices(3), Options(preference=True))
        told: list[object] = []
        async with scripted.serving(plugin, stage.paths, "first.sock"):
            await stage.shows("compare/back", 3, 3)
            told.append(await stage.admit(manifest("keeps", {"main": {"compare/back": 1}})))
        await stage.shows("compare/back", 3, 0)
        plugin.devices = []
        async with scripted.serving(plugin, stage.paths, "second.sock"):
            await stage.shows("compare/back", 0, 0)
            plugin.send(devices(3))
            await stage.shows("compare/back", 3, 3)
            told.append(await stage.admit(manifest("all", {"main": {"compare/back": 3}})))
            told.append(await stage.admit(manifest("rest", {"main": {"compare/back": 2}})))
            told.append(await stage.outcome("keeps"))
            told.append(stages.held(stages.read(stage.paths), "compare/back"))
            for name in ("keeps", "all", "rest"):
                await stage.remove(name)
        return [*told, plugin.calls]

    await both.agree_on(scenario)


async def test_two_resources_in_one_container(both: Both) -> None:
    """The container gets what both answered; if one fails, nothing of the other is written or kept (3.46, 3.54)."""

    async def scenario(stage: Stage) -> list[object]:
        good = Scripted("compare/good", devices(2), Options(), env={"GOOD": "1"})
        bad = Scripted("compare/bad", devices(2), Options(), env={"BAD": "2"})
        wants = {"compare/good": 2, "compare/bad": 1}
        told: list[object] = []
        async with (
            scripted.serving(good, stage.paths, "good.sock"),
            scripted.serving(bad, stage.paths, "bad.sock"),
        ):
            await stage.shows("compare/good", 2, 2)
            await stage.shows("compare/bad", 2, 2)
            bad.errors = {"Allocate": "hw fault"}
            told.append(await stage.admit(manifest("half", {"main": wants})))
            told.append(stages.held(stages.read(stage.paths), "compare/good"))
            bad.errors = {}
            told.append(await stage.admit(manifest("whole", {"main": wants})))
            granted = await stage.environment("whole")
            told.append({name: granted.get(name) for name in ("GOOD", "BAD")})
            written = stages.read(stage.paths)
            told += [len(each.devices) for name in wants for each in stages.held(written, name)]
            for name in ("half", "whole"):
                await stage.remove(name)
        return told

    told = await both.agree_on(scenario)
    assert told[1] == []


async def test_a_topology_without_nodes(both: Both) -> None:
    """Such a device is handed out, but GetAllocatableResources leaves it out (6.11)."""

    async def scenario(stage: Stage) -> list[object]:
        plugin = Scripted("compare/nowhere", devices(3, numa=[0]), Options(preference=True), emptied={"d1"})
        async with scripted.serving(plugin, stage.paths):
            await stage.shows("compare/nowhere", 3, 3)
            found = await stages.allocatable(stage.paths, "compare/nowhere")
            seen = await stage.admit(manifest("nowhere", {"main": {"compare/nowhere": 3}}))
            told = [found, seen, stages.held(stages.read(stage.paths), "compare/nowhere")]
            told.append(await stages.listed(stage.paths, "nowhere"))
            await stage.remove("nowhere")
        return told

    told = await both.agree_on(scenario)
    assert isinstance(told[0], list)
    assert [device.device_id for device in told[0]] == ["d0", "d2"]


async def test_a_static_pod_that_comes_again_finds_what_it_held(cluster: Cluster, pods: Pods) -> None:
    """Its uid is in the file: until somebody looks for free devices, the old record is its own (3.2, 3.57, 3.58)."""
    folder = cluster.state / "static"
    folder.mkdir()
    pod = manifest("static", {"main": {"compare/static": 1}})
    pod["metadata"]["uid"] = "0f2a8f5e0c9c4a5b9b570d4f2f6f6a09"
    plugin = Scripted("compare/static", devices(2), Options())
    with cluster.kubelet_settings(staticPodPath=str(folder)):
        real = RealStage(cluster)
        await real.listens()
        async with scripted.serving(plugin, real.paths):
            await real.shows("compare/static", 2, 2)
            for _ in range(2):
                (folder / "static.json").write_text(json.dumps(pod))
                await real.appears("static-node")
                assert await real.outcome("static-node") == Outcome("Running")
                (folder / "static.json").unlink()
                await real.vanishes("static-node")
    assert [each.method for each in plugin.calls].count("Allocate") == 1
