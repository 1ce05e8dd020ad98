"""Claims of pods on the emulated kubelet: both halves over their sockets."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from tests.dra.resource_claims.claim_node import DRIVER, ClaimNode, Documents, Drives, document, edits, result
from tests.kubelet.actors import Clock, quick_settings
from tests.kubelet.dra.stored_claims import StoredClaims

from plugwright.errors import ContainerWaiting
from plugwright.kubelet import Kubelet, Phase, Pod
from plugwright.kubelet.dra.resource_api import ResourceClaim
from plugwright.protocol import dra, registration, transport
from plugwright.protocol.registration import PluginInfo
from plugwright.system.latest import Latest


@dataclass
class Announcement:
    endpoint: Path
    registered: Latest[tuple[bool, str] | None] = field(default_factory=lambda: Latest(None))

    async def announce(self) -> PluginInfo:
        return PluginInfo(DRIVER, dra.DRA_PLUGIN, str(self.endpoint), dra.VERSIONS)

    async def notify(self, registered: bool, error: str) -> None:
        self.registered.publish((registered, error))


@dataclass
class Cluster:
    """An API server's claims, as the kubelet and as the driver ask for them."""

    kubelet: Kubelet
    table: StoredClaims
    node: ClaimNode

    def put(self, made: dict[str, Any], *pods: str) -> None:
        made["status"]["reservedFor"] = [{"resource": "pods", "uid": f"{pod}-pod"} for pod in pods]
        self.node.api.put(made)
        self.table.add(ResourceClaim.read(made))

    async def admit(self, name: str, claim: str, request: str = "") -> Pod:
        use = {"name": "dev"} | ({"request": request} if request else {})
        return await self.kubelet.admit(
            {
                "metadata": {"name": name, "uid": f"{name}-pod"},
                "spec": {
                    "resourceClaims": [{"name": "dev", "resourceClaimName": claim}],
                    "containers": [{"name": "c", "resources": {"claims": [use]}}],
                },
            }
        )


@asynccontextmanager
async def serving(node: ClaimNode, kubelet: Kubelet) -> AsyncIterator[None]:
    for directory in (node.plugin_dir, kubelet.paths.plugins_registry):
        directory.mkdir(parents=True, exist_ok=True)
    announcement = Announcement(node.plugin_dir / "dra.sock")
    async with (
        transport.serve(announcement.endpoint, dra.methods(node.preparation)),
        transport.serve(
            kubelet.paths.plugins_registry / f"{DRIVER}-reg.sock", registration.announcement_methods(announcement)
        ),
    ):
        assert await announcement.registered.until(lambda said: said is not None) == (True, "")
        yield


@pytest.fixture
async def cluster(root: Path) -> AsyncIterator[Cluster]:
    table, node = StoredClaims(), ClaimNode(root, Documents(), Drives.on(root))
    async with (
        Kubelet(root / "k", quick_settings(clock=Clock()), resource_api=table) as kubelet,
        serving(node, kubelet),
    ):
        yield Cluster(kubelet, table, node)


def waiting(pod: Pod) -> str:
    with pytest.raises(ContainerWaiting) as raised:
        pod.container("c")
    return raised.value.message


async def test_a_pod_gets_the_device_of_its_claim_and_gives_it_back(cluster: Cluster) -> None:
    cluster.put(document("one", result("st1")), "a")
    pod = await cluster.admit("a", "one", "tape")
    (name,) = pod.container("c").cdi
    assert [device.path for device in edits(cluster.node, name).device_nodes] == ["/dev/st1"]
    await cluster.kubelet.remove(pod)
    assert cluster.node.leftovers() == []
    assert [device.id for device in cluster.node.drives.released] == ["st1"]


async def test_a_container_that_names_the_request_of_a_subrequest_gets_its_device(cluster: Cluster) -> None:
    cluster.put(document("one", result(request="tape/big")), "a")
    pod = await cluster.admit("a", "one", "tape")
    assert len(pod.container("c").cdi) == 1
    await cluster.kubelet.remove(pod)


async def test_a_second_claim_on_a_device_waits_with_the_name_of_the_first(cluster: Cluster) -> None:
    cluster.put(document("one"), "a")
    cluster.put(document("two"), "b")
    first, second = await cluster.admit("a", "one"), await cluster.admit("b", "two")
    assert "device st0 is held by ResourceClaim default/one until that is unprepared" in waiting(second)
    await cluster.kubelet.remove(first)
    await cluster.kubelet.start_waiting(second)
    assert second.phase is Phase.RUNNING
    await cluster.kubelet.remove(second)
    assert cluster.node.leftovers() == []


async def test_two_pods_on_one_claim_have_one_device_until_both_are_gone(cluster: Cluster) -> None:
    cluster.put(document("one"), "a", "b")
    first, second = await cluster.admit("a", "one"), await cluster.admit("b", "one")
    assert first.container("c").cdi == second.container("c").cdi
    await cluster.kubelet.remove(first)
    assert cluster.node.drives.released == []
    cluster.put(document("one"), "b")  # as the controller does when a pod has ended
    await cluster.kubelet.remove(second)
    assert cluster.node.leftovers() == []


async def test_a_pod_whose_claim_never_was_prepared_ends(cluster: Cluster) -> None:
    cluster.put(document("one", result("st9")), "a")
    pod = await cluster.admit("a", "one")
    assert "device st9 is not on this node" in waiting(pod)
    await cluster.kubelet.remove(pod)
    assert cluster.node.leftovers() == []


async def test_pods_keep_their_devices_when_the_machine_reboots(root: Path) -> None:
    table, node = StoredClaims(), ClaimNode(root, Documents(), Drives.on(root))
    async with Kubelet(root / "k", quick_settings(clock=Clock()), resource_api=table) as kubelet:
        async with serving(node, kubelet):
            cluster = Cluster(kubelet, table, node)
            cluster.put(document("one"), "a", "b")
            names = (await cluster.admit("a", "one")).container("c").cdi
        node = node.reboot("boot-2")
        await kubelet.restart()
        async with serving(node, kubelet):
            cluster = Cluster(kubelet, table, node)
            pod = await cluster.admit("b", "one")  # the first that needs the claim since (11.17)
            assert pod.container("c").cdi == names
            assert edits(node, names[0]).env == {"TAPES": "st0"}
            assert node.drives.allocated == [["st0"], ["st0"]]
