"""The pod-resources API over real sockets; numbers in comments are those of the facts."""

import os
import stat
from collections.abc import Iterable
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plugwright.errors import PeerGone, PeerRefused
from plugwright.kubelet.metrics import KubeletMetrics, MetricName
from plugwright.kubelet.pod_resources import ContainerView, PodResourcesService, PodView, TokenBucket, serving
from plugwright.kubelet.pods import ContainerKind
from plugwright.kubelet.versions import profile
from plugwright.protocol import pod_resources
from plugwright.protocol.pod_resources import (
    AllocatableDevice,
    ContainerDevices,
    ContainerResources,
    PodResources,
    PodResourcesClient,
)

TAPE = "example.com/tape"
FIRST, SECOND = ContainerDevices(TAPE, "st0", 0), ContainerDevices(TAPE, "st0", 1)
BARE = ContainerDevices(TAPE, "st1")
BUSY = PodView(
    "busy",
    "work",
    (
        ContainerView("prepare", ContainerKind.INIT, (BARE,)),
        ContainerView("beside", ContainerKind.SIDECAR, (BARE,)),
        ContainerView("main", ContainerKind.MAIN, (SECOND, FIRST)),
    ),
)
IDLE = PodView("idle", "work", (ContainerView("main"),))
ENDED = PodView("ended", "home", (ContainerView("main"),))
SHOWN_BUSY = PodResources(
    "busy", "work", (ContainerResources("beside", (BARE,)), ContainerResources("main", (FIRST, SECOND)))
)
SHOWN_IDLE = PodResources("idle", "work", (ContainerResources("main"),))
SHOWN_ENDED = PodResources("ended", "home", (ContainerResources("main"),))


class FixedProvider:
    """Two active pods and one that has ended, whose device stays recorded until the next update."""

    def __init__(self, *devices: AllocatableDevice) -> None:
        self.updates = 0
        self.devices = devices

    def update_allocated_devices(self) -> None:
        self.updates += 1

    def active_pods(self) -> Iterable[PodView]:
        return [IDLE, BUSY]

    def all_pods(self) -> Iterable[PodView]:
        return [IDLE, BUSY, ENDED]

    def active_pod(self, name: str, namespace: str) -> PodView | None:
        return next((pod for pod in self.active_pods() if (pod.name, pod.namespace) == (name, namespace)), None)

    def allocatable_devices(self) -> Iterable[AllocatableDevice]:
        return self.devices


class PodResourcesServer:
    """The service over a provider, with a manual clock."""

    def __init__(self, root: Path, *devices: AllocatableDevice, version: str = "1.36") -> None:
        self.now = 1000.0
        self.provider, self.metrics = FixedProvider(*devices), KubeletMetrics()
        self.service = PodResourcesService(self.provider, profile(version), self.metrics, lambda: self.now)
        self.socket = root / "pod-resources" / "kubelet.sock"
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> PodResourcesClient:
        await self._stack.enter_async_context(serving(self.service, self.socket))
        return await self._stack.enter_async_context(pod_resources.connect(self.socket))

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    def counted(self, name: MetricName, version: str = "v1") -> float:
        return self.metrics.value(name, server_api_version=version)


async def test_active_pods_are_listed_with_and_without_devices(root: Path) -> None:  # 6.4, 6.5
    server = PodResourcesServer(root)
    async with server as client:
        assert await client.pods() == [SHOWN_BUSY, SHOWN_IDLE]
        assert server.provider.updates == 1


async def test_before_1_34_all_known_pods_are_listed(root: Path) -> None:  # 6.4
    async with PodResourcesServer(root, version="1.33") as client:
        assert await client.pods() == [SHOWN_ENDED, SHOWN_BUSY, SHOWN_IDLE]


async def test_before_1_30_no_sidecar_is_listed(root: Path) -> None:  # 6.6
    async with PodResourcesServer(root, version="1.29") as client:
        listed = {pod.name: [container.name for container in pod.containers] for pod in await client.pods()}
        assert listed["busy"] == ["main"]


async def test_sidecars_come_before_the_others_and_init_containers_never(root: Path) -> None:  # 6.6
    async with PodResourcesServer(root) as client:
        assert [container.name for container in (await client.pod("busy", "work")).containers] == ["beside", "main"]


async def test_device_on_two_nodes_is_listed_twice_and_one_on_none_without_topology(root: Path) -> None:  # 6.7, 6.8
    async with PodResourcesServer(root) as client:
        beside, main = (await client.pods())[0].containers
        assert main.devices == (ContainerDevices(TAPE, "st0", 0), ContainerDevices(TAPE, "st0", 1))
        assert beside.devices == (ContainerDevices(TAPE, "st1", None),)


async def test_healthy_devices_are_allocatable_but_an_empty_topology_hides_one(root: Path) -> None:  # 6.10, 6.11
    devices = [
        AllocatableDevice(TAPE, "st2", (1, 0)),
        AllocatableDevice(TAPE, "hidden", ()),
        AllocatableDevice(TAPE, "st1", None),
    ]
    async with PodResourcesServer(root, *devices) as client:
        assert await client.allocatable() == [
            AllocatableDevice(TAPE, "st1", None),
            AllocatableDevice(TAPE, "st2", (0, 1)),
        ]


async def test_nothing_is_allocatable_before_the_first_list(root: Path) -> None:  # 6.10
    async with PodResourcesServer(root) as client:
        assert await client.allocatable() == []


async def test_get_returns_an_active_pod_and_frees_nothing(root: Path) -> None:  # 6.12
    server = PodResourcesServer(root)
    async with server as client:
        assert await client.pod("busy", "work") == SHOWN_BUSY
        assert server.provider.updates == 0


@pytest.mark.parametrize(("name", "namespace"), [("ended", "home"), ("busy", "home"), ("", "")])
async def test_a_pod_that_is_not_active_is_not_found(root: Path, name: str, namespace: str) -> None:  # 6.12
    server = PodResourcesServer(root)
    async with server as client:
        with pytest.raises(PeerRefused) as refused:
            await client.pod(name, namespace)
        assert (refused.value.code, refused.value.message) == (
            "UNKNOWN",
            f"pod {name} in namespace {namespace} not found",
        )
        assert server.counted(MetricName.POD_RESOURCES_GET_ERRORS) == 1


async def test_v1alpha1_lists_main_containers_of_all_pods_without_numa_nodes(root: Path) -> None:  # 6.13
    server = PodResourcesServer(root)
    async with server as client:
        ended, busy, idle = await client.alpha_pods()
        assert (ended, idle) == (SHOWN_ENDED, SHOWN_IDLE)
        assert busy.containers == (
            ContainerResources("main", (ContainerDevices(TAPE, "st0"), ContainerDevices(TAPE, "st0"))),
        )
        assert server.provider.updates == 1


async def test_requests_are_counted_by_version_and_method(root: Path) -> None:  # 9
    server = PodResourcesServer(root)
    async with server as client:
        await client.pods()
        await client.pods()
        await client.allocatable()
        await client.pod("busy", "work")
        await client.alpha_pods()
        assert server.counted(MetricName.POD_RESOURCES) == 4
        assert server.counted(MetricName.POD_RESOURCES_LIST) == 2
        assert server.counted(MetricName.POD_RESOURCES_ALLOCATABLE) == 1
        assert server.counted(MetricName.POD_RESOURCES_GET) == 1
        assert server.counted(MetricName.POD_RESOURCES_GET_ERRORS) == 0
        assert server.counted(MetricName.POD_RESOURCES, "v1alpha1") == 1
        assert server.counted(MetricName.POD_RESOURCES_LIST, "v1alpha1") == 0


async def test_eleventh_request_at_once_is_refused(root: Path) -> None:  # 6.2
    server = PodResourcesServer(root)
    async with server as client, pod_resources.connect(server.socket) as another:
        for _ in range(5):  # one bucket for all clients and both versions
            await client.pods()
            await another.alpha_pods()
        for refused in (client.pods, client.allocatable, another.alpha_pods):
            with pytest.raises(PeerRefused, match="rejected by rate limit") as refusal:
                await refused()
            assert refusal.value.code == "RESOURCE_EXHAUSTED"
        with pytest.raises(PeerRefused, match="rejected by rate limit"):
            await client.pod("busy", "work")
        assert (server.counted(MetricName.POD_RESOURCES), server.counted(MetricName.POD_RESOURCES, "v1alpha1")) == (
            5,
            5,
        )
        server.now += 1 / 64  # a token and a half
        assert await client.pods()
        with pytest.raises(PeerRefused):
            await client.pods()


@given(st.lists(st.floats(0, 0.02), max_size=60))
def test_token_bucket_never_exceeds_its_rate(pauses: list[float]) -> None:  # 6.2
    now, taken = 0.0, []
    bucket = TokenBucket(lambda: now)
    for pause in pauses:
        now += pause
        if bucket.take():
            taken.append(now)
    for start in range(len(taken)):
        for end in range(start, len(taken)):
            assert end - start + 1 <= 10 + 100 * (taken[end] - taken[start]) + 1e-6


def test_a_bucket_never_holds_more_than_its_burst() -> None:  # 6.2
    now = 0.0
    bucket = TokenBucket(lambda: now)
    now = 3600.0
    assert [bucket.take() for _ in range(12)] == [True] * 10 + [False] * 2


def test_a_clock_that_goes_back_gives_nothing_and_takes_nothing() -> None:
    now = 10.0
    bucket = TokenBucket(lambda: now)
    assert bucket.take()
    now = 5.0
    assert [bucket.take() for _ in range(10)] == [True] * 9 + [False]


async def test_the_directory_is_made_for_root_and_its_group(root: Path) -> None:  # 6.1
    before = os.umask(0o022)
    try:
        server = PodResourcesServer(root)
        async with server:
            assert stat.S_IMODE(server.socket.parent.stat().st_mode) == 0o750
            assert stat.S_IMODE(server.socket.stat().st_mode) == 0o755
            assert [entry.name for entry in server.socket.parent.iterdir()] == ["kubelet.sock"]
    finally:
        os.umask(before)


async def test_after_a_restart_a_client_dials_again(root: Path) -> None:  # 6.15
    server = PodResourcesServer(root)
    async with serving(server.service, server.socket, kept=True), pod_resources.connect(server.socket) as client:
        assert await client.pods()
    assert server.socket.is_socket()
    async with pod_resources.connect(server.socket) as client:
        with pytest.raises(PeerGone, match="no process listens"):
            await client.pods()
        async with serving(server.service, server.socket):
            assert await client.pods()


async def test_directory_that_cannot_be_created_is_an_error(root: Path) -> None:  # 6.1: the server ends
    (root / "pod-resources").touch()
    with pytest.raises(OSError, match="pod-resources"):
        async with PodResourcesServer(root):
            pass
