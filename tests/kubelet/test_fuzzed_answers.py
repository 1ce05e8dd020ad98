"""Fuzzed responses of a plugin: a pod is admitted or refused, nothing leaks, and the next one is served."""

import asyncio
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager
from pathlib import Path
from typing import TypeVar

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.kubelet.rogue import TAPE, Rogue, allocate, always, options, registered
from tests.proto import deviceplugin_v1beta1_pb2 as pb

from plugwright.errors import PodRefused
from plugwright.kubelet import Kubelet, Pod
from plugwright.kubelet.events import StateChange
from plugwright.model import natural_order
from plugwright.protocol import checkpoint
from plugwright.testing import pod_requesting

IDS = tuple(f"st{n}" for n in range(6))
T = TypeVar("T")
one_node_for_all = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)


class Scene:
    """One kubelet and one plugin, in an event loop that goes on from example to example."""

    def __init__(self, runner: asyncio.Runner, kubelet: Kubelet, rogue: Rogue) -> None:
        self.runner, self.kubelet, self.rogue = runner, kubelet, rogue

    def run(self, work: Coroutine[object, object, T]) -> T:
        return self.runner.run(work)

    async def admit(self, count: int) -> Pod:
        return await self.kubelet.admit(pod_requesting({TAPE: count}))

    async def listed(self, message: bytes) -> None:
        async with aclosing(self.kubelet.events(new=True)) as events:
            self.rogue.lists.publish(message)
            async for event in events:
                if isinstance(event, StateChange) and (event.kind, event.about) == ("list", TAPE):
                    return

    async def clear(self) -> None:
        for pod in self.kubelet.pods:
            await self.kubelet.remove(pod)


@asynccontextmanager
async def playing(root: Path) -> AsyncIterator[tuple[Kubelet, Rogue]]:
    rogue = Rogue(*IDS)
    rogue.answers["GetDevicePluginOptions"] = options(preference=True)
    async with Kubelet(root) as kubelet, registered(kubelet, rogue):
        await kubelet.allocatable(TAPE, len(IDS))
        yield kubelet, rogue


async def entered(play: AbstractAsyncContextManager[T]) -> T:
    return await play.__aenter__()


async def left(play: AbstractAsyncContextManager[object]) -> None:
    await play.__aexit__(None, None, None)


@pytest.fixture
def scene(root: Path) -> Iterator[Scene]:
    with asyncio.Runner() as runner:
        play = playing(root)
        kubelet, rogue = runner.run(entered(play))
        yield Scene(runner, kubelet, rogue)
        runner.run(left(play))


def texts() -> st.SearchStrategy[str]:
    return st.text(max_size=8)


def responses() -> st.SearchStrategy[bytes]:
    """Answers to Allocate: of the right kind for any number of containers, or any bytes."""
    nodes = st.builds(pb.DeviceSpec, host_path=texts(), container_path=texts(), permissions=texts())
    mounts = st.builds(pb.Mount, host_path=texts(), container_path=texts(), read_only=st.booleans())
    containers = st.builds(
        pb.ContainerAllocateResponse,
        envs=st.dictionaries(texts(), texts(), max_size=3),
        mounts=st.lists(mounts, max_size=3),
        devices=st.lists(nodes, max_size=3),
        annotations=st.dictionaries(texts(), texts(), max_size=3),
        cdi_devices=st.lists(st.builds(pb.CDIDevice, name=texts()), max_size=3),
    )
    good = st.builds(pb.AllocateResponse, container_responses=st.lists(containers, max_size=3))
    return st.one_of(good.map(lambda message: message.SerializeToString()), st.binary(max_size=60))


@one_node_for_all
@given(answer=responses(), count=st.integers(1, len(IDS)))
def test_any_response_to_allocate_loses_no_device(scene: Scene, answer: bytes, count: int) -> None:
    async def play() -> None:
        scene.rogue.answers["Allocate"] = always(answer)
        try:
            pod = await scene.admit(count)
            assert pod.phase == "Running"
            scene.kubelet.device_health(pod)
            pod.container("main")
        except PodRefused as refused:
            assert "Allocate failed due to" in refused.message  # noqa: PT017  it may be refused, and need not
        await scene.clear()
        scene.rogue.answers["Allocate"] = allocate
        everything = await scene.admit(len(IDS))
        assert everything.container("main").env["TAPES"] == ",".join(IDS)
        await scene.clear()

    scene.run(play())


@one_node_for_all
@given(preference=st.lists(st.sampled_from([*IDS, "", "none", "ST0"]), max_size=12), count=st.integers(1, len(IDS)))
def test_any_preference_is_cut_completed_and_otherwise_followed(
    scene: Scene, preference: list[str], count: int
) -> None:
    async def play() -> list[str]:
        answer = pb.ContainerPreferredAllocationResponse(deviceIDs=preference)
        response = pb.PreferredAllocationResponse(container_responses=[answer])
        scene.rogue.answers["GetPreferredAllocation"] = always(response)
        pod = await scene.admit(count)
        await scene.clear()
        return pod.container("main").env["TAPES"].split(",")

    sensible = list(dict.fromkeys(device_id for device_id in preference if device_id in IDS))[:count]
    rest = [device_id for device_id in IDS if device_id not in sensible][: count - len(sensible)]
    assert scene.run(play()) == sorted([*sensible, *rest], key=natural_order)


def devices() -> st.SearchStrategy[pb.Device]:
    healths = st.one_of(st.sampled_from(["Healthy", "Unhealthy", "healthy", ""]), texts())
    nodes = st.lists(st.builds(pb.NUMANode, ID=st.integers(-(2**63), 2**63 - 1)), max_size=2)
    topologies = st.one_of(st.none(), st.builds(pb.TopologyInfo, nodes=nodes))
    return st.builds(pb.Device, ID=st.one_of(st.sampled_from(IDS), texts()), health=healths, topology=topologies)


@one_node_for_all
@given(listed=st.lists(devices(), max_size=6))
def test_any_list_is_counted_and_recorded(scene: Scene, listed: list[pb.Device]) -> None:
    async def play() -> None:
        await scene.listed(pb.ListAndWatchResponse(devices=listed).SerializeToString())
        healthy = {device.ID for device in listed if device.health == "Healthy"}
        others = {device.ID for device in listed if device.health != "Healthy"}
        count = scene.kubelet.node()[TAPE]
        assert (count.capacity, count.allocatable) == (len(healthy) + len(others), len(healthy))
        written = checkpoint.decode(scene.kubelet.paths.checkpoint.read_bytes()).registered or {}
        assert written[TAPE] == tuple(sorted(healthy))
        if healthy:
            pod = await scene.admit(len(healthy))
            assert {device.device_id for device in scene.kubelet.device_health(pod)["main"]} == healthy
            await scene.clear()

    scene.run(play())
