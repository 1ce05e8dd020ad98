"""The emulated kubelet beside the original: the same scenario is played to both, and they must tell the same.

What happens when a plugin or the kubelet comes back is in `test_emulator_again`. Scenarios use resources of their own
names. Whatever differs is either mended or listed in docs/kubelet.md.
"""

import asyncio
import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from tests.kubernetes import scripted, stages
from tests.kubernetes.cluster import Cluster
from tests.kubernetes.comparing import Both, devices
from tests.kubernetes.pods import Pods
from tests.kubernetes.scripted import Scripted
from tests.kubernetes.stages import Outcome, RealStage, Stage, manifest

from plugwright.errors import PeerRefused
from plugwright.kubelet import Kubelet, PodSpec
from plugwright.kubelet import pods as emulated_pods
from plugwright.model import Device, Options
from plugwright.protocol import pod_resources, registration
from plugwright.protocol.registration import PluginInfo, RegisterRequest


@pytest.mark.essential
async def test_calls_and_records_of_one_pod(both: Both) -> None:
    async def scenario(stage: Stage) -> list[object]:
        plugin = Scripted("compare/one", devices(4, numa=[0]), env={"A": "b"})
        async with scripted.serving(plugin, stage.paths):
            await stage.shows("compare/one", 4, 4)
            seen = await stage.admit(manifest("one", {"main": {"compare/one": 2}}))
            written = stages.read(stage.paths)
            told = [
                seen,
                list(plugin.calls),
                stages.held(written, "compare/one"),
                stages.registered(written, "compare/one"),
                await stages.listed(stage.paths, "one"),
                await stages.allocatable(stage.paths, "compare/one"),
                await stage.health("one"),
            ]
            await stage.remove("one")
        await stage.shows("compare/one", 4, 0)
        return told

    told = await both.agree_on(scenario)
    assert told[0] == Outcome("Running")


async def test_init_containers_sidecars_and_what_they_hand_on(both: Both) -> None:
    async def scenario(stage: Stage) -> list[object]:
        plugin = Scripted("compare/reuse", devices(5))
        async with scripted.serving(plugin, stage.paths):
            await stage.shows("compare/reuse", 5, 5)
            wants = {"first": 2, "side": 1, "second": 3, "app1": 2, "app2": 1}
            pod = manifest(
                "reuse",
                {name: {"compare/reuse": count} for name, count in wants.items()},
                first="init",
                side="sidecar",
                second="init",
            )
            seen = await stage.admit(pod)
            asked = [(each.method, len(each.devices), len(each.required), each.size) for each in plugin.calls]
            # Which of the reusable devices are taken is up to chance, so the sums are compared.
            written = stages.held(stages.read(stage.paths), "compare/reuse")
            counts = sorted((each.container, sum(len(ids) for _, ids in each.devices)) for each in written)
            in_use = {device for each in written for _, ids in each.devices for device in ids}
            await stage.remove("reuse")
        return [seen, asked, counts, len(in_use)]

    await both.agree_on(scenario)


@pytest.mark.essential
async def test_refusals_and_their_words(both: Both) -> None:
    async def scenario(stage: Stage) -> list[object]:
        plugin = Scripted("compare/no", devices(2))
        told: list[object] = []

        async def ask(name: str, count: int = 1) -> None:
            told.append(await stage.admit(manifest(name, {"main": {"compare/no": count}})))
            await stage.remove(name)

        async with scripted.serving(plugin, stage.paths):
            await stage.shows("compare/no", 2, 2)
            await ask("too-many", 3)
            plugin.errors = {"Allocate": "hw fault"}
            await ask("fails")
            plugin.errors = {"GetPreferredAllocation": "no idea"}
            await ask("no-wish")
            plugin.errors = {"PreStartContainer": "not ready"}
            await ask("not-started")
            plugin.errors = {}
            plugin.send([device.unhealthy("broken") for device in devices(2)])
            await stage.shows("compare/no", 2, 0)
            await ask("unhealthy")
            await ask("none-at-all", 0)
            plugin.send([])
            await stage.shows("compare/no", 0, 0)
            await ask("empty")
        await ask("stopped")
        told.append(await stage.admit(manifest("unknown", {"main": {"compare/nobody": 1}})))
        await stage.remove("unknown")
        return [*told, plugin.calls]

    await both.agree_on(scenario)


async def test_an_answer_without_containers(both: Both) -> None:
    async def scenario(stage: Stage) -> list[object]:
        plugin = Scripted("compare/nothing", devices(2), Options(), answers_nothing=True)
        async with scripted.serving(plugin, stage.paths):
            await stage.shows("compare/nothing", 2, 2)
            seen = await stage.admit(manifest("nothing", {"main": {"compare/nothing": 1}}))
            await stage.remove("nothing")
        words = "Pod was rejected: Allocate failed due to no containers return in allocation response"
        return [seen.phase, seen.reason, seen.message.startswith(words), len(plugin.calls)]

    await both.agree_on(scenario)


async def test_the_health_of_devices_in_a_pods_status(both: Both, cluster: Cluster) -> None:
    async def scenario(stage: Stage) -> list[object]:
        plugin = Scripted("compare/ill", devices(2), Options())
        async with scripted.serving(plugin, stage.paths):
            await stage.shows("compare/ill", 2, 2)
            await stage.admit(manifest("ill", {"main": {"compare/ill": 2}}))
            plugin.send([devices(2)[0].unhealthy("hot"), devices(2)[1]])
            await stage.shows("compare/ill", 2, 1)
            wanted = {"d0": "Unhealthy", "d1": "Healthy"}
            await _eventually(lambda: stage.health("ill"), wanted)
            plugin.send([devices(2)[1]])
            await stage.shows("compare/ill", 1, 1)
            await stage.remove("ill")
        return [wanted]

    await both.agree_on(scenario)


async def _eventually(ask: Callable[[], Awaitable[object]], wanted: object) -> None:
    async with asyncio.timeout(30):
        while (await ask()) != wanted:
            await asyncio.sleep(0.2)


@pytest.mark.parametrize(
    ("policy", "scope"), [("restricted", "container"), ("single-numa-node", "pod"), ("best-effort", "container")]
)
async def test_topology_policies(both: Both, cluster: Cluster, policy: str, scope: str) -> None:
    resource = f"compare/numa-{policy}"  # of its own: a kubelet that was just started has not freed old devices yet

    async def scenario(stage: Stage) -> list[object]:
        plugin = Scripted(resource, [Device("near", numa=[0]), Device("far", numa=[7]), Device("any")])
        told: list[object] = []
        async with scripted.serving(plugin, stage.paths):
            await stage.shows(resource, 3, 3)
            for name, count in (("a", 1), ("b", 2)):
                told.append(await stage.admit(manifest(name, {"main": {resource: count}})))
            for name in ("a", "b"):
                await stage.remove(name)
        return [*told, plugin.calls]

    with cluster.kubelet_settings(topologyManagerPolicy=policy, topologyManagerScope=scope):
        await both.agree_on(scenario, policy=policy, scope=scope)


@pytest.mark.essential
async def test_words_of_the_registration_service(both: Both) -> None:
    async def scenario(stage: Stage) -> list[object]:
        requests = [
            RegisterRequest("compare/old", "x.sock", version="v1alpha"),
            RegisterRequest("compare/old", "x.sock", version=""),
            RegisterRequest("no-slash", "x.sock"),
            RegisterRequest("Upper.com/x", "x.sock"),
            RegisterRequest("mykubernetes.io/x", "x.sock"),
            RegisterRequest("compare/nobody-listens", "nobody.sock"),
        ]
        told = []
        async with registration.connect(stage.paths.kubelet_socket) as kubelet:
            for request in requests:
                with pytest.raises(PeerRefused) as refused:
                    await kubelet.register(request, timeout=20)
                told.append((refused.value.code, refused.value.message))
        plugin = Scripted("compare/optionless", devices(1), errors={"GetDevicePluginOptions": "none"})
        with pytest.raises(PeerRefused) as refused:
            async with scripted.serving(plugin, stage.paths):
                pass
        return [*told, (refused.value.code, refused.value.message)]

    await both.agree_on(scenario)


async def test_a_socket_that_is_found(both: Both) -> None:
    async def scenario(stage: Stage) -> list[object]:
        told: list[object] = []
        plugin = Scripted("compare/found", devices(2))
        for announcement in (
            PluginInfo("compare/found", kind="OtherPlugin"),
            PluginInfo("compare/found", versions=("v1alpha1", "v2")),
            PluginInfo("no-slash"),
            PluginInfo("compare/found"),
        ):
            notified: asyncio.Queue[tuple[bool, str]] = asyncio.Queue()
            path = stage.paths.plugins_registry / "found.sock"
            async with registration.serve_watched(plugin, _Announcing(announcement, notified), path):
                registered, error = await asyncio.wait_for(notified.get(), 20)
                told.append((registered, error.partition(" at socket ")[0]))
                if registered:
                    await stage.shows("compare/found", 2, 2)
        await stage.shows("compare/found", 2, 0)
        return [*told, plugin.calls]

    await both.agree_on(scenario)


class _Announcing:
    def __init__(self, announcement: PluginInfo, notified: "asyncio.Queue[tuple[bool, str]]") -> None:
        self._announcement, self._notified = announcement, notified

    async def announce(self) -> PluginInfo:
        return self._announcement

    async def notify(self, registered: bool, error: str) -> None:
        self._notified.put_nowait((registered, error))


async def test_pod_resources_of_a_pod_that_is_not_there(both: Both) -> None:
    async def scenario(stage: Stage) -> list[object]:
        async with pod_resources.connect(stage.paths.pod_resources_socket) as kubelet:
            with pytest.raises(PeerRefused) as refused:
                await kubelet.pod("nobody", "nowhere", timeout=5)
        return [refused.value.code, refused.value.message]

    await both.agree_on(scenario)


@pytest.mark.essential
async def test_each_reads_the_others_checkpoint(cluster: Cluster, pods: Pods, root: Path) -> None:
    """The emulated kubelet starts from the real one's file; then the real one starts from the emulated one's."""
    real = RealStage(cluster)
    await real.listens()
    plugin = Scripted("compare/file", devices(3), Options(preference=True))
    async with scripted.serving(plugin, real.paths, "real.sock"):
        await real.shows("compare/file", 3, 3)
        for name in ("one", "two"):
            await real.admit(manifest(name, {"main": {"compare/file": 1}}))
        theirs = await stages.listed(real.paths, "one", "two")
        specs = [emulated_pods.read(found) for found in (await asyncio.to_thread(pods.every)).values()]
        async with _kubelet_from(real, root, specs) as ours:
            assert [(pod.phase, pod.message) for pod in ours.pods] == [("Running", ""), ("Running", "")]
            assert await stages.listed(ours.paths, "one", "two") == theirs
            async with scripted.serving(plugin, ours.paths, "ours.sock"):
                await ours.allocatable("compare/file", 3)
                await ours.admit(manifest("three", {"main": {"compare/file": 1}}))
            assert [each.method for each in plugin.calls].count("Allocate") == 3  # one for each pod, on either side
            written = ours.paths.checkpoint.read_bytes()
            assert len(stages.held(stages.read(ours.paths), "compare/file")) == 3
        await _start_real_from(cluster, written)
        await _eventually(lambda: stages.listed(real.paths, "one", "two"), theirs)
    corrupted = cluster.kubelet.lines("checkpoint is corrupted")
    assert [line for line in corrupted if "dra_manager_state" not in line] == []  # another test damages that one


def _kubelet_from(real: Stage, root: Path, specs: list[PodSpec]) -> Kubelet:
    """An emulated kubelet that finds the real one's checkpoint, and its pods running."""
    kubelet = Kubelet(root / "from-real", pods=specs)
    kubelet.paths.device_plugins.mkdir(parents=True)
    (kubelet.paths.root / ".plugwright-kubelet").touch()
    shutil.copy(real.paths.checkpoint, kubelet.paths.checkpoint)
    return kubelet


async def _start_real_from(cluster: Cluster, written: bytes) -> None:
    stage = RealStage(cluster)

    def swap() -> None:
        cluster.stop("kubelet")
        stage.paths.checkpoint.write_bytes(written)
        cluster.start("kubelet")

    await asyncio.to_thread(swap)
    await stage.listens()
    await stage.shows("compare/file", 0, 0)
