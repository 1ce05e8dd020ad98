"""Every reader of the device list gets the newest one at once and whenever it changes, whatever other readers do."""

import asyncio
import gc
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from pathlib import Path

import pytest
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.settings import SettingCodes
from msgspec.structs import replace
from tests.observed_kubelet import ObservedKubelet
from tests.plugin_client import PluginClient, connect_plugin

from plugwright import Device, Plugin, Settings, serving
from plugwright.errors import PeerGone
from plugwright.protocol import transport
from plugwright.sdk.cordons import Cordon
from plugwright.sdk.daemon import Daemon
from plugwright.system.latest import Latest

TAPE = "example.com/tape"
LIMIT = 60  # seconds that any fact here may take on a slow machine
EMPTY_MESSAGE = bytes(5)  # the gRPC frame of a message without fields
MANY = 6_000  # devices: more than the buffers between two processes hold


class Shelf(Plugin):
    """Lists what it is given, one list after the other."""

    resource = TAPE

    def __init__(self, *devices: Device) -> None:
        self.devices = Latest(list(devices))
        self.taken = Latest(0)

    async def discover(self) -> AsyncIterator[list[Device]]:
        async for devices in self.devices.changes():
            yield devices
            self.taken.publish(self.taken.value + 1)

    async def list(self, *devices: Device) -> None:
        """Returns when the list has been taken."""
        taken = self.taken.value
        self.devices.publish([*devices])
        async with asyncio.timeout(LIMIT):
            await self.taken.until(lambda count: count > taken)


class Hurried(Plugin):
    """Changes its list a thousand times without a pause."""

    resource = TAPE

    def __init__(self) -> None:
        self.start = asyncio.Event()

    async def discover(self) -> AsyncIterator[list[Device]]:
        yield [Device("st0")]
        await self.start.wait()
        for n in range(1000):
            yield [Device("st0", "Healthy" if n % 2 else "Unhealthy")]
            await asyncio.sleep(0)
        yield [Device("st0"), Device("last")]


class Reader:
    """One stream, and the lists it has brought."""

    def __init__(self) -> None:
        self.lists: Latest[list[list[Device]]] = Latest([])
        self.ended = ""

    async def read(self, plugin: PluginClient) -> None:
        try:
            async for devices in plugin.lists():
                self.lists.publish([*self.lists.value, devices])
        except PeerGone as error:
            self.ended = str(error)

    async def sees(self, *ids: str) -> None:
        def seen(lists: list[list[Device]]) -> bool:
            return bool(lists) and [device.id for device in lists[-1]] == [*ids]

        async with asyncio.timeout(LIMIT):
            await self.lists.until(seen)


async def socket_of(kubelet: ObservedKubelet) -> Path:
    return kubelet.paths.device_plugins / (await kubelet.endpoint(TAPE)).request.endpoint


@asynccontextmanager
async def reading(path: Path, connections: int, streams: int = 1) -> AsyncIterator[list[Reader]]:
    """Readers on as many connections, with as many streams on every one."""
    readers = []
    async with AsyncExitStack() as stack:
        tasks = await stack.enter_async_context(asyncio.TaskGroup())
        started = []
        for _ in range(connections):
            plugin = await stack.enter_async_context(connect_plugin(path))
            for _ in range(streams):
                readers.append(Reader())
                started.append(tasks.create_task(readers[-1].read(plugin)))
        yield readers
        for task in started:
            task.cancel()


@contextmanager
def never_reading(path: Path, window: int) -> Iterator[None]:
    """A raw client that asks for the list, allows `window` bytes of it, and never takes one from its socket."""
    client = H2Connection(H2Configuration(client_side=True))
    client.initiate_connection()
    if window > 65_535:
        client.update_settings({SettingCodes.INITIAL_WINDOW_SIZE: window})
        client.increment_flow_control_window(window - 65_535)
    method = "/v1beta1.DevicePlugin/ListAndWatch"
    headers = {":method": "POST", ":scheme": "http", ":path": method, ":authority": "localhost", "te": "trailers"}
    client.send_headers(1, [*headers.items(), ("content-type", "application/grpc")])
    client.send_data(1, EMPTY_MESSAGE, end_stream=True)
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(path))
        connection.sendall(client.data_to_send())
        yield


async def streams(daemon: Daemon, count: int) -> None:
    async with asyncio.timeout(LIMIT):
        await daemon.resources[TAPE].service.streams.until(lambda streams: streams.open == count)


def many(prefix: str) -> list[Device]:
    return [Device(f"{prefix}-{n:05}-{'x' * 50}") for n in range(MANY)]


async def test_many_streams_get_the_latest_list_at_once_and_every_change(
    kubelet: ObservedKubelet, settings: Settings
) -> None:
    shelf = Shelf(Device("st0"))
    async with serving(shelf, settings=settings), reading(await socket_of(kubelet), 20, streams=5) as readers:
        for n in range(1, 5):
            for reader in readers:
                await reader.sees(*(f"st{m}" for m in range(n)))
            await shelf.list(*(Device(f"st{m}") for m in range(n + 1)))
        for reader in readers:
            await reader.sees("st0", "st1", "st2", "st3", "st4")
            assert [len(devices) for devices in reader.lists.value] == [1, 2, 3, 4, 5]


async def test_a_late_stream_gets_the_latest_list_and_no_older_one(
    kubelet: ObservedKubelet, settings: Settings
) -> None:
    shelf = Shelf(Device("st0"))
    async with serving(shelf, settings=settings):
        path = await socket_of(kubelet)
        await shelf.list(Device("st0"), Device("st1"))
        async with reading(path, 1) as [late]:
            await late.sees("st0", "st1")
            assert len(late.lists.value) == 1


async def test_a_burst_of_changes_is_sent_as_a_few_and_the_last_one_is_right(
    kubelet: ObservedKubelet, settings: Settings
) -> None:
    hurried, patience = Hurried(), replace(settings.timeouts, burst=0.05)
    async with serving(hurried, settings=replace(settings, timeouts=patience)):
        tape = await kubelet.endpoint(TAPE)
        hurried.start.set()
        await kubelet.endpoint(TAPE, count=2)
        assert {device.id: device.health for device in tape.lists[-1]} == {"st0": "Healthy", "last": "Healthy"}
        assert len(tape.lists) < 200


async def test_a_list_that_says_the_same_is_not_sent_again(kubelet: ObservedKubelet, settings: Settings) -> None:
    shelf = Shelf(Device("st0"), Device("st1", "Unhealthy", reason="dust"))
    async with serving(shelf, settings=settings) as daemon:
        tape = await kubelet.endpoint(TAPE)
        await shelf.list(Device("st0"), Device("st1", "Unhealthy", reason="dust"))
        await shelf.list(Device("st1", "Unhealthy", reason="dust"), Device("st0"))  # order tells the kubelet nothing
        await shelf.list(Device("st0"), Device("st1", "Unhealthy", reason="smoke"))  # nor does it see a reason
        await shelf.list(Device("st0", attributes={"serial": "7"}), Device("st1", "Unhealthy"))
        await daemon.cordons.add(TAPE, "st1", Cordon("out of order anyway"))
        await shelf.list(Device("st0"), Device("st1"), Device("st2"))
        await kubelet.endpoint(TAPE, count=3)
        assert [len(devices) for devices in tape.lists] == [2, 3]


async def test_a_list_changed_and_changed_back_at_once_is_not_sent_again(
    kubelet: ObservedKubelet, settings: Settings
) -> None:
    shelf = Shelf(Device("st0"))
    async with serving(shelf, settings=settings) as daemon:
        tape = await kubelet.endpoint(TAPE)
        for health in ("Unhealthy", "Healthy"):
            daemon.resources[TAPE].inventory.update([Device("st0", health)])
        await shelf.list(Device("st0"), Device("st1"))
        await kubelet.endpoint(TAPE, count=2)
        assert [len(devices) for devices in tape.lists] == [1, 2]


@pytest.mark.parametrize("window", [65_535, 2**31 - 1], ids=["window full", "socket full"])
async def test_a_reader_that_stopped_reading_delays_neither_the_others_nor_the_end(
    kubelet: ObservedKubelet, settings: Settings, window: int
) -> None:
    shelf = Shelf(*many("a"))
    async with AsyncExitStack() as stack:
        daemon = await stack.enter_async_context(serving(shelf, settings=settings))
        path = await socket_of(kubelet)
        with never_reading(path, window), never_reading(path, window):
            await streams(daemon, 3)
            await shelf.list(*many("a"), Device("b"))
            await kubelet.endpoint(TAPE, count=MANY + 1)
            async with reading(path, 1) as [late]:
                async with asyncio.timeout(LIMIT):
                    await late.lists.until(bool)
                assert len(late.lists.value[0]) == MANY + 1
            await shelf.list(*many("a"), Device("b"), Device("c"))
            await kubelet.endpoint(TAPE, count=MANY + 2)
            async with asyncio.timeout(LIMIT):
                await stack.aclose()


async def test_a_reader_that_stopped_reading_does_not_delay_a_new_registration(
    kubelet: ObservedKubelet, settings: Settings
) -> None:
    async with serving(Shelf(*many("a")), settings=settings) as daemon:
        path = await socket_of(kubelet)
        with never_reading(path, 2**31 - 1):
            await streams(daemon, 2)
            path.unlink()
            await kubelet.until(lambda kubelet: len(kubelet.registered) == 2)
            await kubelet.endpoint(TAPE, count=MANY)
            await streams(daemon, 1)


async def test_a_reader_that_leaves_is_no_longer_counted(kubelet: ObservedKubelet, settings: Settings) -> None:
    async with serving(Shelf(Device("st0")), settings=settings) as daemon:
        path = await socket_of(kubelet)
        for _ in range(5):
            async with reading(path, 3, streams=3) as readers:
                for reader in readers:
                    await reader.sees("st0")
                await streams(daemon, 10)
            await streams(daemon, 1)
        with never_reading(path, 65_535):
            await streams(daemon, 2)
        await streams(daemon, 1)
    assert len(kubelet.registered) == 1


async def test_an_ended_stream_carries_the_reason(kubelet: ObservedKubelet, settings: Settings) -> None:
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(serving(Shelf(Device("st0")), settings=settings))
        async with reading(await socket_of(kubelet), 2, streams=2) as readers:
            for reader in readers:
                await reader.sees("st0")
            await stack.aclose()
    assert ["the plugin is stopping or registers again" in reader.ended for reader in readers] == [True] * 4


async def is_closed(connection: socket.socket) -> bool:
    with suppress(ConnectionError):
        try:
            async with asyncio.timeout(LIMIT):
                while await asyncio.get_running_loop().sock_recv(connection, 65_536):
                    pass
        except TimeoutError:
            return False
    return True


async def test_a_connection_made_while_its_server_ends_is_ended_too(root: Path) -> None:
    """At whichever step of the event loop it comes."""
    left = []
    for steps in range(8):
        with socket.socket(socket.AF_UNIX) as connection:
            connection.setblocking(False)
            async with transport.serve(root / f"{steps}.sock", []) as server:
                connection.connect(str(server.path))
                for _ in range(steps):
                    await asyncio.sleep(0)
            if not await is_closed(connection):
                left.append(steps)
    gc.collect()
    assert left == []


async def test_a_server_cancelled_while_it_starts_does_not_silence_the_next(root: Path) -> None:
    """The next socket has its number, and the event loop must not take it for the one that is gone."""

    async def serve_for_ever(path: Path) -> None:
        async with transport.serve(path, []):
            await asyncio.Event().wait()

    silent = []
    for steps in range(4):
        cancelled = asyncio.create_task(serve_for_ever(root / f"cancelled-{steps}.sock"))
        for _ in range(steps):
            await asyncio.sleep(0)
        cancelled.cancel()
        with suppress(asyncio.CancelledError):
            await cancelled
        async with transport.serve(root / f"{steps}.sock", []) as server:
            if not await answers(server.path):
                silent.append(steps)
    assert silent == []


async def answers(path: Path) -> bool:
    """Whether someone who connects is told anything: HTTP/2 begins with the server's settings."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.setblocking(False)
        connection.connect(str(path))
        try:
            async with asyncio.timeout(LIMIT):
                return bool(await asyncio.get_running_loop().sock_recv(connection, 9))
        except TimeoutError:
            return False
