"""A changed file is applied to the resources that changed; an invalid one changes nothing."""

import asyncio
import shutil
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from tests.cli.processes import Node, Running, configuration
from tests.observed_kubelet import ObservedEndpoint, ObservedKubelet
from tests.protocol.held_devices import serve_held_devices

from plugwright import Settings, serving
from plugwright.config import schema
from plugwright.errors import PeerRefused
from plugwright.protocol.pod_resources import HeldDevice
from plugwright.system.latest import Latest
from plugwright.testing import pod_requesting

NIC = {"count": 1}


def write(path: Path, text: str) -> None:
    path.write_text(text)


def rename(path: Path, text: str) -> None:
    new = path.with_suffix(".new")
    new.write_text(text)
    new.replace(path)


def remove_and_recreate(path: Path, text: str) -> None:
    path.unlink()
    path.write_text(text)


def mount(path: Path, text: str, version: int = 1) -> None:
    """As the kubelet mounts a ConfigMap: the file is a link through `..data`, which is exchanged as a whole."""
    path.parent.mkdir(exist_ok=True)
    content = path.with_name(f"..{version}")
    content.mkdir()
    content.joinpath(path.name).write_text(text)
    new, data = path.with_name("..data_tmp"), path.with_name("..data")
    new.symlink_to(content.name)
    before = data.readlink() if data.is_symlink() else None
    new.replace(data)
    if before is not None:
        shutil.rmtree(path.with_name(str(before)))
    if not path.is_symlink():
        path.symlink_to(f"..data/{path.name}")


@asynccontextmanager
async def serving_a_gpu_and_a_nic(kubelet: ObservedKubelet) -> AsyncIterator[tuple[Node, Running]]:
    """A daemon whose kubelet has the list of two GPUs and of one NIC."""
    node = Node(kubelet.paths.root)
    if not node.config.exists():
        node.configure(gpu={"count": 2}, nic=NIC)
    async with node.daemon() as daemon:
        await kubelet.endpoint("mock/gpu", 2)
        await kubelet.endpoint("mock/nic")
        yield node, daemon


def is_untouched(kubelet: ObservedKubelet, before: ObservedEndpoint) -> bool:
    """It was registered once, on the same socket, and its list was sent once and never ended."""
    again = [request for request in kubelet.registered if request.resource == before.request.resource]
    now = kubelet.endpoints[before.request.resource]
    socket = kubelet.paths.device_plugins / before.request.endpoint
    return again == [before.request] and now is before and len(now.lists) == 1 and not now.ended and socket.is_socket()


async def test_a_changed_file_is_taken_however_it_is_changed(kubelet: ObservedKubelet) -> None:
    async with serving_a_gpu_and_a_nic(kubelet) as (node, _):
        nic = kubelet.endpoints["mock/nic"]
        for count, change in enumerate([write, rename, remove_and_recreate, write], 3):
            change(node.config, configuration(gpu={"count": count}, nic=NIC))
            await kubelet.endpoint("mock/gpu", count)
        assert is_untouched(kubelet, nic)


async def test_a_changed_configmap_is_taken_again_and_again(kubelet: ObservedKubelet) -> None:
    path = Node(kubelet.paths.root).config
    mount(path, configuration(gpu={"count": 2}, nic=NIC))
    async with serving_a_gpu_and_a_nic(kubelet):
        nic = kubelet.endpoints["mock/nic"]
        for count in (3, 4, 5):
            mount(path, configuration(gpu={"count": count}, nic=NIC), version=count)
            await kubelet.endpoint("mock/gpu", count)
        assert is_untouched(kubelet, nic)


async def test_a_release_that_is_switched_by_a_link_is_taken(kubelet: ObservedKubelet) -> None:
    node = Node(kubelet.paths.root)
    releases = [node.root / f"release-{number}" for number in range(2)]
    for number, release in enumerate(releases):
        release.mkdir()
        release.joinpath(node.config.name).write_text(configuration(gpu={"count": 2 + number}, nic=NIC))
    node.config.parent.symlink_to(releases[0])
    async with serving_a_gpu_and_a_nic(kubelet):
        nic = kubelet.endpoints["mock/nic"]
        new = node.root / "new"
        new.symlink_to(releases[1])
        new.replace(node.config.parent)
        await kubelet.endpoint("mock/gpu", 3)
        releases[1].joinpath(node.config.name).write_text(configuration(gpu={"count": 4}, nic=NIC))
        await kubelet.endpoint("mock/gpu", 4)
        assert is_untouched(kubelet, nic)


async def test_a_file_behind_a_link_is_taken_and_so_is_the_next_one(kubelet: ObservedKubelet) -> None:
    node = Node(kubelet.paths.root)
    files = [node.root / name / "gpus.yaml" for name in ("one", "two")]
    for file in files:
        file.parent.mkdir()
        file.write_text(configuration(gpu={"count": 2}, nic=NIC))
    node.config.parent.mkdir()
    node.config.symlink_to(files[0])
    async with serving_a_gpu_and_a_nic(kubelet) as (_, daemon):
        nic = kubelet.endpoints["mock/nic"]
        files[0].write_text(configuration(gpu={"count": 3}, nic=NIC))
        await kubelet.endpoint("mock/gpu", 3)
        files[1].write_text(configuration(gpu={"count": 4}, nic=NIC))
        new = node.config.with_name("new")
        new.symlink_to(files[1])
        new.replace(node.config)
        await kubelet.endpoint("mock/gpu", 4)
        files[1].write_text(configuration(gpu={"count": 5}, nic=NIC))
        await kubelet.endpoint("mock/gpu", 5)
        assert is_untouched(kubelet, nic)
        assert not [line for line in daemon.err.all if "rejected" in line]


async def test_sighup_reads_a_file_whose_change_caused_no_event(kubelet: ObservedKubelet) -> None:
    async with serving_a_gpu_and_a_nic(kubelet) as (node, daemon):
        nic = kubelet.endpoints["mock/nic"]
        elsewhere = node.root / "another-name.yaml"
        elsewhere.hardlink_to(node.config)
        for count in (3, 4, 5):
            elsewhere.write_text(configuration(gpu={"count": count}, nic=NIC))
            daemon.signal(signal.SIGHUP)
            await kubelet.endpoint("mock/gpu", count)
        assert is_untouched(kubelet, nic)


async def test_sighup_without_a_change_touches_nothing(kubelet: ObservedKubelet) -> None:
    async with serving_a_gpu_and_a_nic(kubelet) as (node, daemon):
        before = dict(kubelet.endpoints)
        daemon.signal(signal.SIGHUP)
        node.configure(gpu={"count": 2}, nic=NIC, fpga={"count": 1})
        await kubelet.endpoint("mock/fpga")
        assert is_untouched(kubelet, before["mock/gpu"])
        assert is_untouched(kubelet, before["mock/nic"])


async def test_a_resource_that_is_new_is_served_and_one_that_is_gone_ends(kubelet: ObservedKubelet) -> None:
    async with serving_a_gpu_and_a_nic(kubelet) as (node, _):
        gpu, nic = kubelet.endpoints["mock/gpu"], kubelet.endpoints["mock/nic"]
        node.configure(nic=NIC, fpga={"count": 3})
        await kubelet.endpoint("mock/fpga", 3)
        await kubelet.until(lambda _: gpu.ended)
        assert not kubelet.paths.device_plugins.joinpath(gpu.request.endpoint).exists()
        assert is_untouched(kubelet, nic)


async def test_devices_that_a_changed_file_lacks_turn_unhealthy(kubelet: ObservedKubelet) -> None:
    async with serving_a_gpu_and_a_nic(kubelet) as (node, _):
        first, second = kubelet.endpoints["mock/gpu"].devices
        node.configure(gpu={"count": 1}, nic=NIC)
        await kubelet.health("mock/gpu", second, "Unhealthy")
        assert kubelet.endpoints["mock/gpu"].devices[first].healthy
        node.configure(gpu={"count": 2}, nic=NIC)
        await kubelet.health("mock/gpu", second, "Healthy")


class RefusingPodResources:
    """A pod-resources API that refuses every request."""

    def __init__(self) -> None:
        self.asked = Latest(0)

    async def held_devices(self) -> list[HeldDevice]:
        self.asked.publish(self.asked.value + 1)
        raise PeerRefused("UNAVAILABLE", "not today")

    async def until_asked_again(self) -> None:
        """Returns after two more requests: the answer to the first has been used by then."""
        count = self.asked.value + 2
        async with asyncio.timeout(60):
            await self.asked.until(lambda asked: asked >= count)


@asynccontextmanager
async def refused_pod_resources(kubelet: ObservedKubelet) -> AsyncIterator[RefusingPodResources]:
    """Refuses every request in the place of the kubelet's own API, which is back afterwards."""
    service, socket = RefusingPodResources(), kubelet.paths.pod_resources_socket
    kept = socket.rename(socket.with_name("kept.sock"))
    async with serve_held_devices(service, socket):
        yield service
    kept.rename(socket)


async def test_missing_devices_disappear_when_the_kubelet_reports_them_free(
    kubelet: ObservedKubelet, settings: Settings
) -> None:
    node = Node(kubelet.paths.root)
    node.configure(gpu={"count": 3})
    before = schema.load(node.config)
    async with serving(*before.plugins(), settings=settings) as daemon:
        first, second, third = (await kubelet.endpoint("mock/gpu", 3)).devices
        pods = [await kubelet.kubelet.admit(pod_requesting({"mock/gpu": 1})) for _ in range(3)]
        allocated = [call.asked for call in kubelet.kubelet.calls if call.method == "Allocate"]
        holders = {device_id: pod for [device_id], pod in zip(allocated, pods, strict=True)}
        await kubelet.kubelet.remove(holders[third])
        async with refused_pod_resources(kubelet) as pod_resources:
            node.configure(gpu={"count": 1})
            await daemon.apply(schema.load(node.config).plugins(before))
            await kubelet.health("mock/gpu", third, "Unhealthy")
            await pod_resources.until_asked_again()
            assert set(kubelet.endpoints["mock/gpu"].devices) == {first, second, third}
        await kubelet.until(lambda kubelet: set(kubelet.endpoints["mock/gpu"].devices) == {first, second})
        assert not kubelet.endpoints["mock/gpu"].devices[second].healthy
        await kubelet.kubelet.remove(holders[second])
        await kubelet.until(lambda kubelet: set(kubelet.endpoints["mock/gpu"].devices) == {first})


async def test_a_changed_resource_is_not_registered_again(kubelet: ObservedKubelet) -> None:
    async with serving_a_gpu_and_a_nic(kubelet) as (node, daemon):
        gpu = kubelet.endpoints["mock/gpu"]
        node.configure(gpu={"count": 2, "model": "B200"}, nic=NIC)
        await daemon.err.until("configuration reloaded")
        [answer] = await gpu.client.allocate(list(gpu.devices))
        assert answer.env["MOCK_MODEL"] == "B200"
        assert is_untouched(kubelet, gpu)


async def test_an_invalid_file_keeps_the_old_one_running_and_is_logged_once(kubelet: ObservedKubelet) -> None:
    async with serving_a_gpu_and_a_nic(kubelet) as (node, daemon):
        before = dict(kubelet.endpoints)
        node.config.write_text("resources:\n  - {name: mock/gpu, mock: {}, cuont: 1}\n")
        said = await daemon.err.until("new configuration rejected, the previous one stays")
        assert "plugwright.yaml:2: resources[0]: unknown key 'cuont'" in said
        daemon.signal(signal.SIGHUP)
        node.config.touch()
        node.configure(gpu={"count": 2}, nic=NIC, fpga={"count": 1})
        await kubelet.endpoint("mock/fpga")
        assert len([line for line in daemon.err.all if "rejected" in line]) == 1
        assert is_untouched(kubelet, before["mock/gpu"])
        assert is_untouched(kubelet, before["mock/nic"])


async def test_a_file_that_is_removed_keeps_the_old_one_running(kubelet: ObservedKubelet) -> None:
    async with serving_a_gpu_and_a_nic(kubelet) as (node, daemon):
        nic = kubelet.endpoints["mock/nic"]
        node.config.unlink()
        assert "cannot read" in await daemon.err.until("new configuration rejected, the previous one stays")
        node.configure(gpu={"count": 3}, nic=NIC)
        await kubelet.endpoint("mock/gpu", 3)
        assert is_untouched(kubelet, nic)


async def test_a_directory_that_is_removed_and_recreated_is_watched_again(kubelet: ObservedKubelet) -> None:
    async with serving_a_gpu_and_a_nic(kubelet) as (node, daemon):
        shutil.rmtree(node.config.parent)
        await daemon.err.until("new configuration rejected, the previous one stays")
        node.configure(gpu={"count": 3}, nic=NIC)
        await kubelet.endpoint("mock/gpu", 3)


async def test_a_file_that_is_almost_yaml_does_not_end_the_daemon(kubelet: ObservedKubelet) -> None:
    async with serving_a_gpu_and_a_nic(kubelet) as (node, daemon):
        node.config.write_text("? [a]\n: b\n")
        await daemon.err.until("new configuration rejected, the previous one stays")
