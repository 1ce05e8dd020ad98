"""A registered plugin stays registered: it registers again whenever the kubelet no longer knows it, and only then."""

import asyncio
import os
import random
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import aclosing
from pathlib import Path

import pytest
from msgspec.structs import replace
from tests.observed_kubelet import ObservedKubelet
from tests.plugin_client import PluginClient, connect_plugin
from tests.sdk.actors import TAPE, ListingPlugin
from tests.sdk.misbehaving_kubelet import MisbehavingKubelet

from plugwright import Allocation, Device, Settings, serving
from plugwright.errors import PeerRefused
from plugwright.protocol.registration import RegisterRequest
from plugwright.sdk.settings import Limits


class Rewound(ListingPlugin):
    async def pre_start(self, devices: object) -> None:
        """Announced to the kubelet because it is here."""


class Witness(MisbehavingKubelet):
    """Records what there is at the moment in which a registration arrives; it forwards every one."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.streams_left: list[str] = []
        self.sockets: list[set[str]] = []

    async def register(self, request: RegisterRequest) -> None:
        former = self.endpoints.get(request.resource)
        if former is not None and not former.ended:
            self.streams_left.append(former.request.endpoint)
        self.sockets.append(sockets_in(self.paths.device_plugins))
        await super().register(request)


@pytest.fixture
async def witness(root: Path) -> AsyncIterator[Witness]:
    kubelet = Witness(root)
    await kubelet.start()
    yield kubelet
    await kubelet.stop()


def sockets_in(directory: Path) -> set[str]:
    return {path.name for path in directory.iterdir() if path.is_socket()}


def make_kubelet_socket_again(kubelet: ObservedKubelet) -> None:
    """The very same socket, but gone in between: not even its inode number tells."""
    kept = kubelet.paths.root / "kept"
    os.link(kubelet.paths.kubelet_socket, kept)
    kubelet.paths.kubelet_socket.unlink()
    kept.rename(kubelet.paths.kubelet_socket)


def remove_our_sockets(kubelet: ObservedKubelet) -> None:
    for path in kubelet.paths.device_plugins.glob("plugwright-*.sock"):
        path.unlink()


def is_registered(count: int) -> Callable[[ObservedKubelet], bool]:
    return lambda kubelet: len(kubelet.registered) >= count


def is_requested(misbehaving: MisbehavingKubelet, count: int) -> Callable[[ObservedKubelet], bool]:
    return lambda _: len(misbehaving.requests) >= count


async def registrations(kubelet: ObservedKubelet, count: int, resource: str = TAPE) -> None:
    """Returns when the newest of `count` registrations has brought a list."""
    await kubelet.until(is_registered(count))
    await kubelet.endpoint(resource)


def settled(*plugins: ListingPlugin) -> Callable[[ObservedKubelet], bool]:
    """Every plugin is known by one socket, its list has arrived, and there is nothing else."""

    def is_settled(kubelet: ObservedKubelet) -> bool:
        known = [kubelet.endpoints.get(plugin.resource) for plugin in plugins]
        sockets = {endpoint.request.endpoint for endpoint in known if endpoint and not endpoint.ended}
        listed = [tuple(endpoint.devices) for endpoint in known if endpoint]
        return (
            sockets_in(kubelet.paths.device_plugins) == {"kubelet.sock", *sockets}
            and len(sockets) == len(plugins)
            and listed == [plugin.ids.value for plugin in plugins]
        )

    return is_settled


async def test_a_kubelet_that_restarts_is_registered_with_again(kubelet: ObservedKubelet, settings: Settings) -> None:
    async with serving(ListingPlugin(), settings=settings):
        for count in range(1, 101):
            await registrations(kubelet, count)
            await kubelet.restart()
        await kubelet.endpoint(TAPE)


async def test_a_kubelet_socket_made_again_with_the_same_inode_is_noticed(
    kubelet: ObservedKubelet, settings: Settings
) -> None:
    async with serving(ListingPlugin(), settings=settings):
        for count in range(1, 11):
            await registrations(kubelet, count)
            inode = kubelet.paths.kubelet_socket.stat().st_ino
            make_kubelet_socket_again(kubelet)
            assert kubelet.paths.kubelet_socket.stat().st_ino == inode
        await registrations(kubelet, 11)


async def test_a_removed_socket_of_ours_is_made_again(kubelet: ObservedKubelet, settings: Settings) -> None:
    async with serving(ListingPlugin(), settings=settings):
        for count in range(1, 11):
            await registrations(kubelet, count)
            remove_our_sockets(kubelet)
        await registrations(kubelet, 11)


async def test_a_socket_of_ours_that_was_replaced_is_left_to_its_new_owner(
    kubelet: ObservedKubelet, settings: Settings
) -> None:
    async with serving(ListingPlugin(), settings=settings):
        stolen = kubelet.paths.device_plugins / (await kubelet.endpoint(TAPE)).request.endpoint
        stolen.rename(kubelet.paths.root / "kept")  # its inode number stays in use
        stolen.write_text("somebody else's")
        await registrations(kubelet, 2)
    assert stolen.read_text() == "somebody else's"


async def test_old_streams_are_ended_and_old_sockets_gone_before_a_new_registration_arrives(
    witness: Witness, settings: Settings
) -> None:
    async with serving(ListingPlugin(), settings=settings) as daemon:
        await registrations(witness, 1)
        remove_our_sockets(witness)
        await registrations(witness, 2)
        make_kubelet_socket_again(witness)
        await registrations(witness, 3)
        await daemon.apply([Rewound()])
        await registrations(witness, 4)
    names = [request.endpoint for request in witness.registered]
    assert len(set(names)) == 4
    assert witness.streams_left == []
    assert witness.sockets == [{"kubelet.sock", name} for name in names]


async def test_a_list_that_the_kubelet_cancels_is_registered_again(
    misbehaving: MisbehavingKubelet, settings: Settings
) -> None:
    misbehaving.watch_lists = False
    async with serving(ListingPlugin(), settings=settings):
        for count in range(1, 4):
            await misbehaving.until(is_requested(misbehaving, count))
            path = misbehaving.paths.device_plugins / misbehaving.requests[-1].endpoint
            async with connect_plugin(path) as plugin, aclosing(plugin.lists()) as lists:
                assert [device.id for device in await anext(lists)] == ["st0", "st1"]
        await misbehaving.until(is_requested(misbehaving, 4))


async def test_a_list_that_ends_while_its_connection_stays_is_registered_again(
    misbehaving: MisbehavingKubelet, settings: Settings
) -> None:
    misbehaving.watch_lists = False
    async with serving(ListingPlugin(), settings=settings) as daemon:
        await misbehaving.until(is_requested(misbehaving, 1))
        async with connect_plugin(misbehaving.paths.device_plugins / misbehaving.requests[0].endpoint) as plugin:
            watching = asyncio.create_task(watch(plugin))
            await daemon.resources[TAPE].service.streams.until(lambda streams: streams.open == 1)
            watching.cancel()
            await misbehaving.until(is_requested(misbehaving, 2))
            with pytest.raises(asyncio.CancelledError):
                await watching


async def watch(plugin: PluginClient) -> None:
    async for _ in plugin.lists():
        pass


async def test_a_kubelet_that_asks_for_no_list_is_registered_with_again(
    misbehaving: MisbehavingKubelet, settings: Settings
) -> None:
    misbehaving.watch_lists = False
    patience = replace(settings.timeouts, first_stream=0.05)
    async with serving(ListingPlugin(), settings=replace(settings, timeouts=patience)):
        await misbehaving.until(is_requested(misbehaving, 3))
        misbehaving.watch_lists = True
        await misbehaving.until(settled(ListingPlugin()))
    assert len({request.endpoint for request in misbehaving.requests}) == len(misbehaving.requests)


async def test_other_options_are_registered_and_the_same_ones_are_not(
    kubelet: ObservedKubelet, settings: Settings
) -> None:
    async with serving(ListingPlugin(), settings=settings) as daemon:
        first = await kubelet.endpoint(TAPE)
        await daemon.apply([ListingPlugin(TAPE, "st2")])
        await kubelet.health(TAPE, "st2", "Healthy")
        assert kubelet.endpoints[TAPE] is first
        await daemon.apply([Rewound(TAPE, "st3")])
        await registrations(kubelet, 2)
        assert kubelet.endpoints[TAPE].options.pre_start
        await kubelet.health(TAPE, "st3", "Healthy")


async def test_a_resource_no_longer_served_takes_its_socket_and_leaves_the_others(
    kubelet: ObservedKubelet, settings: Settings
) -> None:
    tape, disk = ListingPlugin(), ListingPlugin("example.com/disk", "sda")
    async with serving(tape, disk, settings=settings) as daemon:
        await kubelet.until(settled(tape, disk))
        await daemon.apply([disk])
        await kubelet.until(lambda kubelet: kubelet.endpoints[TAPE].ended)
        assert sockets_in(kubelet.paths.device_plugins) == {
            "kubelet.sock",
            kubelet.endpoints["example.com/disk"].request.endpoint,
        }
        await daemon.apply([disk, tape])
        await kubelet.until(settled(tape, disk))
    assert [request.resource for request in kubelet.registered].count("example.com/disk") == 1


@pytest.mark.parametrize("seed", [1, 2, 3])
async def test_a_storm_of_restarts_and_removals_ends_with_one_endpoint(
    kubelet: ObservedKubelet, settings: Settings, seed: int
) -> None:
    plugins = [
        ListingPlugin(TAPE),
        ListingPlugin("example.com/disk", "sda", "sdb"),
        ListingPlugin("example.com/port", "eth0"),
    ]
    chance = random.Random(seed)
    async with serving(*plugins, settings=settings):
        for _ in range(150):
            if chance.random() < 0.5:
                remove_our_sockets(kubelet)
            if chance.random() < 0.5:
                await kubelet.restart()
            if chance.random() < 0.5:
                await kubelet.endpoint(chance.choice(plugins).resource)
        await kubelet.until(settled(*plugins))
        for plugin in plugins:
            plugin.ids.publish((*plugin.ids.value, "zz-new"))
        await kubelet.until(settled(*plugins))
    assert sockets_in(kubelet.paths.device_plugins) == {"kubelet.sock"}


async def test_a_storm_from_another_thread_ends_with_one_endpoint(kubelet: ObservedKubelet, settings: Settings) -> None:
    """Files go at any moment then, also between two lines of ours: which is a failed try, and tries must stay close."""
    plugin, over = ListingPlugin(), threading.Event()
    impatient = replace(settings, timeouts=replace(settings.timeouts, longest=0.01))

    def storm() -> None:
        while not over.is_set():
            for path in kubelet.paths.device_plugins.glob("plugwright-*.sock"):
                path.unlink(missing_ok=True)

    async with serving(plugin, settings=impatient):
        storming = asyncio.create_task(asyncio.to_thread(storm))
        try:
            await kubelet.until(is_registered(20), timeout=30)
        finally:
            over.set()
            await storming
        await kubelet.until(settled(plugin))


def no_hardware() -> list[Device]:
    raise OSError("no such hardware")


class Raising(ListingPlugin):
    async def discover(self) -> AsyncIterator[list[Device]]:
        yield no_hardware()


class RaisingLater(ListingPlugin):
    async def discover(self) -> AsyncIterator[list[Device]]:
        yield [Device("st0")]
        yield no_hardware()


class Nonsense(ListingPlugin):
    async def discover(self) -> AsyncIterator[list[Device]]:
        yield ["not a device"]  # type: ignore[list-item]


class Stuck(ListingPlugin):
    """Blocks in a driver until the test is over."""

    def __init__(self, resource: str, over: threading.Event) -> None:
        super().__init__(resource)
        self.over = over

    def discover(self) -> Iterator[list[Device]]:  # type: ignore[override]
        self.over.wait()
        yield []


def knows(resource: str) -> Callable[[ObservedKubelet], bool]:
    return lambda kubelet: resource in kubelet.endpoints


async def test_one_broken_discovery_leaves_the_others_alone(kubelet: ObservedKubelet, settings: Settings) -> None:
    over, plugin = threading.Event(), ListingPlugin()
    broken = [
        Raising("example.com/a"),
        RaisingLater("example.com/b"),
        Nonsense("example.com/c"),
        Stuck("example.com/d", over),
    ]
    try:
        async with serving(plugin, *broken, settings=settings):
            for faulty in broken:  # registered in the end, with what is known of it
                await kubelet.until(knows(faulty.resource))
            plugin.ids.publish(("st0", "st1", "st2"))
            await kubelet.endpoint(TAPE, count=3)
    finally:
        over.set()
    assert [request.resource for request in kubelet.registered].count(TAPE) == 1


class AllocateRaises(ListingPlugin):
    async def allocate(self, devices: object) -> Allocation:
        raise OSError("no such hardware")


class AllocateHangs(ListingPlugin):
    async def allocate(self, devices: object) -> Allocation:
        await asyncio.Event().wait()
        return Allocation()


class AllocateBlocks(Stuck):
    async def discover(self) -> AsyncIterator[list[Device]]:  # type: ignore[override]
        yield [Device("st0")]

    def allocate(self, devices: object) -> Allocation:  # type: ignore[override]
        self.over.wait()
        return Allocation()


async def test_one_broken_allocation_leaves_the_others_alone(kubelet: ObservedKubelet, settings: Settings) -> None:
    over, plugin = threading.Event(), ListingPlugin()
    broken = {
        AllocateRaises("example.com/a"): "no such hardware",
        AllocateHangs("example.com/b"): "did not end within",
        AllocateBlocks("example.com/c", over): "did not end within",
    }
    settings = replace(settings, limits=Limits(allocate=0.5))
    try:
        async with serving(plugin, *broken, settings=settings):
            tape = await kubelet.endpoint(TAPE)
            asked = [await ask(kubelet, plugin.resource) for plugin in broken]
            assert (await tape.client.allocate(["st0"]))[0].env == {"SHELF": TAPE}
            assert not any(task.done() for task in asked[1:])  # answered while the others hang
            for task, reason in zip(asked, broken.values(), strict=True):
                with pytest.raises(PeerRefused, match=reason):
                    await task
            plugin.ids.publish(("st0", "st1", "st2"))
            await kubelet.endpoint(TAPE, count=3)
    finally:
        over.set()
    assert len(kubelet.registered) == 4


async def ask(kubelet: ObservedKubelet, resource: str) -> "asyncio.Task[list[Allocation]]":
    endpoint = await kubelet.endpoint(resource)
    return asyncio.create_task(endpoint.client.allocate(["st0"]))
