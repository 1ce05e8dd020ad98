"""A plugin gets registered, however long the kubelet takes to come and whatever it answers."""

import asyncio
import logging
import os
import shutil
import stat
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import aclosing, asynccontextmanager, closing, contextmanager, suppress
from pathlib import Path

import pytest
from msgspec.structs import replace
from tests.observed_kubelet import ObservedKubelet, observed_kubelet
from tests.plugin_client import connect_plugin
from tests.sdk.misbehaving_kubelet import MisbehavingKubelet

from plugwright import Allocation, Device, Plugin, Settings, serving
from plugwright.errors import PathTooLong
from plugwright.model import Options
from plugwright.protocol import transport
from plugwright.protocol.registration import RegisterRequest
from plugwright.protocol.transport import Streaming
from plugwright.sdk.daemon import Daemon
from plugwright.sdk.logs import facts
from plugwright.sdk.registration import RegistrationState, RegistrationStatus
from plugwright.system import sockets

TAPE = "example.com/tape"
LIMIT = 60  # seconds that any fact here may take on a slow machine
REFUSED = "not registered, retrying"


class Tape(Plugin):
    resource = TAPE

    async def discover(self) -> AsyncIterator[list[Device]]:
        yield [Device("st0", numa=[0]), Device("st1", numa=[1])]

    async def allocate(self, devices: object) -> Allocation:
        return Allocation(nodes=["/dev/null"])


class Rewound(Tape):
    async def pre_start(self, devices: object) -> None:
        """Announced to the kubelet because it is here."""


class Slow(Plugin):
    """Finds nothing until it is told to."""

    resource = "example.com/slow"

    def __init__(self) -> None:
        self.ready = asyncio.Event()

    async def discover(self) -> AsyncIterator[list[Device]]:
        await self.ready.wait()
        yield [Device("only")]


class Curious(MisbehavingKubelet):
    """Asks a plugin everything before it forwards the registration."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.options: list[Options] = []
        self.devices: list[list[Device]] = []

    async def register(self, request: RegisterRequest) -> None:
        async with connect_plugin(self.paths.device_plugins / request.endpoint) as plugin:
            self.options.append(await plugin.options(timeout=LIMIT))
            async with aclosing(plugin.lists()) as lists:
                self.devices.append(await anext(lists))
        await super().register(request)


class Counting(logging.Handler):
    """Counts what is said, at any level."""

    def __init__(self, message: str) -> None:
        super().__init__(logging.DEBUG)
        self._message, self._count, self._news = message, 0, asyncio.Event()

    def emit(self, record: logging.LogRecord) -> None:
        self._count += record.getMessage() == self._message
        self._news.set()

    async def reaches(self, count: int) -> None:
        async with asyncio.timeout(LIMIT):
            while self._count < count:
                self._news.clear()
                await self._news.wait()


@asynccontextmanager
async def counting(message: str) -> AsyncIterator[Counting]:
    logger = logging.getLogger("plugwright.sdk.registration")
    handler, level = Counting(message), logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    try:
        yield handler
    finally:
        logger.setLevel(level)
        logger.removeHandler(handler)


async def stands(daemon: Daemon, state: RegistrationState, reason: str = "") -> RegistrationStatus:
    standing = daemon.resources[TAPE].registration.status
    async with asyncio.timeout(LIMIT):
        return await standing.until(lambda now: now.state is state and reason in now.reason)


def warned(caplog: pytest.LogCaptureFixture, message: str) -> list[object]:
    """The reasons that were given with a message, as an operator reads them."""
    return [
        facts(record)["reason"]
        for record in caplog.records
        if record.getMessage() == message and record.levelno >= logging.WARNING
    ]


async def test_a_plugin_registers_and_its_list_arrives(kubelet: ObservedKubelet, settings: Settings) -> None:
    async with serving(Tape(), settings=settings) as daemon:
        tape = await kubelet.endpoint(TAPE)
        assert [device.id for device in tape.lists[0]] == ["st0", "st1"]
        await stands(daemon, RegistrationState.REGISTERED)


async def test_a_plugin_serves_before_it_registers(root: Path, settings: Settings) -> None:
    kubelet = Curious(root)
    await kubelet.start()
    async with serving(Rewound(), settings=settings):
        await kubelet.endpoint(TAPE)
    await kubelet.stop()
    assert kubelet.options == [Options(pre_start=True, preference=True)]
    assert [[device.id for device in devices] for devices in kubelet.devices] == [["st0", "st1"]]


async def test_a_registration_names_a_socket_that_only_its_owner_may_open(
    misbehaving: MisbehavingKubelet, settings: Settings
) -> None:
    async with serving(Tape(), settings=settings):
        await misbehaving.endpoint(TAPE)
        [request] = misbehaving.requests
        path = misbehaving.paths.device_plugins / request.endpoint
        assert stat.S_IMODE(path.lstat().st_mode) == 0o600
        assert (request.version, request.resource) == ("v1beta1", TAPE)
    assert not path.exists()


async def test_nothing_is_registered_before_the_first_list(kubelet: ObservedKubelet, settings: Settings) -> None:
    slow, patience = Slow(), replace(settings.timeouts, discovery=60)
    async with serving(slow, Tape(), settings=replace(settings, timeouts=patience)) as daemon:
        await kubelet.endpoint(TAPE)
        assert daemon.resources[slow.resource].registration.status.value.state is RegistrationState.STARTING
        assert [request.resource for request in kubelet.registered] == [TAPE]
        slow.ready.set()
        await kubelet.endpoint(slow.resource)


async def test_a_plugin_waits_for_a_kubelet_that_comes_later(
    root: Path, settings: Settings, caplog: pytest.LogCaptureFixture
) -> None:
    kubelet = ObservedKubelet(root)
    kubelet.paths.device_plugins.mkdir()
    async with serving(Tape(), settings=settings) as daemon:
        standing = await stands(daemon, RegistrationState.WAITING)
        assert standing.reason == f"no kubelet.sock in {kubelet.paths.device_plugins}"
        assert list(kubelet.paths.device_plugins.iterdir()) == []
        await kubelet.start()
        await kubelet.endpoint(TAPE)
        await kubelet.stop()
    assert warned(caplog, "waiting for the kubelet")[0] == standing.reason
    assert len(kubelet.registered) == 1


async def test_a_plugin_waits_for_a_directory_that_comes_later(root: Path, settings: Settings) -> None:
    kubelet = ObservedKubelet(root / "not" / "yet")
    async with serving(Tape(), settings=replace(settings, kubelet_dir=root / "not" / "yet")) as daemon:
        await stands(daemon, RegistrationState.WAITING)
        await kubelet.start()
        await kubelet.endpoint(TAPE)
        await kubelet.stop()


async def test_a_directory_removed_and_made_again_is_found_again(kubelet: ObservedKubelet, settings: Settings) -> None:
    async with serving(Tape(), settings=settings) as daemon:
        for _ in range(10):
            await kubelet.endpoint(TAPE)
            await kubelet.stop()
            shutil.rmtree(kubelet.paths.device_plugins)
            await stands(daemon, RegistrationState.WAITING)
            await kubelet.start()
        await kubelet.endpoint(TAPE)


async def test_a_directory_removed_under_a_running_kubelet_is_found_again(
    kubelet: ObservedKubelet, settings: Settings
) -> None:
    async with serving(Tape(), settings=settings) as daemon:
        await kubelet.endpoint(TAPE)
        shutil.rmtree(kubelet.paths.device_plugins)
        await stands(daemon, RegistrationState.WAITING)
        await kubelet.restart()
        await kubelet.endpoint(TAPE)


async def test_a_refusal_is_logged_once_and_tried_again_until_it_is_over(
    misbehaving: MisbehavingKubelet, settings: Settings, caplog: pytest.LogCaptureFixture
) -> None:
    misbehaving.refuse = 'the ResourceName "example.com/tape" is invalid'
    async with serving(Tape(), settings=settings) as daemon:
        await misbehaving.until(lambda _: len(misbehaving.requests) >= 5)
        standing = await stands(daemon, RegistrationState.REFUSED)
        misbehaving.refuse = ""
        await misbehaving.endpoint(TAPE)
        await stands(daemon, RegistrationState.REGISTERED)
    assert standing.reason == 'the ResourceName "example.com/tape" is invalid (UNKNOWN)'
    assert warned(caplog, REFUSED) == [standing.reason]
    assert len({request.endpoint for request in misbehaving.requests}) == len(misbehaving.requests)


async def test_another_reason_is_logged_again(
    misbehaving: MisbehavingKubelet, settings: Settings, caplog: pytest.LogCaptureFixture
) -> None:
    misbehaving.refuse = "first"
    async with serving(Tape(), settings=settings) as daemon:
        for reason in ("first", "second", "first"):
            misbehaving.refuse = reason
            await stands(daemon, RegistrationState.REFUSED, reason)
    assert [str(reason).partition(" ")[0] for reason in warned(caplog, REFUSED)] == ["first", "second", "first"]


async def test_a_stale_kubelet_socket_is_tried_until_a_kubelet_listens(
    root: Path, settings: Settings, caplog: pytest.LogCaptureFixture
) -> None:
    kubelet = ObservedKubelet(root)
    kubelet.paths.device_plugins.mkdir()
    sockets.listen(kubelet.paths.kubelet_socket).close()
    async with counting(REFUSED) as refusals, serving(Tape(), settings=settings) as daemon:
        await refusals.reaches(3)
        await stands(daemon, RegistrationState.REFUSED, "kubelet.sock")
        await kubelet.start()
        await kubelet.endpoint(TAPE)
        await stands(daemon, RegistrationState.REGISTERED)
        await kubelet.stop()
    assert len(warned(caplog, REFUSED)) == 1


async def test_a_kubelet_sock_that_is_no_socket_is_tried_until_a_kubelet_comes(root: Path, settings: Settings) -> None:
    kubelet = ObservedKubelet(root)
    kubelet.paths.device_plugins.mkdir()
    kubelet.paths.kubelet_socket.write_text("not a socket")
    async with serving(Tape(), settings=settings) as daemon:
        await stands(daemon, RegistrationState.REFUSED, "kubelet.sock")
        kubelet.paths.kubelet_socket.unlink()
        await kubelet.start()
        await kubelet.endpoint(TAPE)
        await kubelet.stop()


async def test_a_kubelet_that_never_answers_is_given_up_and_tried_again(root: Path, settings: Settings) -> None:
    kubelet, patience = ObservedKubelet(root), replace(settings.timeouts, register=0.2)
    kubelet.paths.device_plugins.mkdir()
    with closing(sockets.listen(kubelet.paths.kubelet_socket)):
        async with counting(REFUSED) as refusals, serving(Tape(), settings=replace(settings, timeouts=patience)):
            await refusals.reaches(2)
            await kubelet.start()
            await kubelet.endpoint(TAPE)
            await kubelet.stop()


async def test_a_new_kubelet_is_not_kept_waiting_by_one_that_never_answers(root: Path, settings: Settings) -> None:
    kubelet, patience = ObservedKubelet(root), replace(settings.timeouts, register=600)
    kubelet.paths.device_plugins.mkdir()
    with closing(sockets.listen(kubelet.paths.kubelet_socket)):
        async with serving(Tape(), settings=replace(settings, timeouts=patience)) as daemon:
            await stands(daemon, RegistrationState.REGISTERING)
            await kubelet.start()
            await kubelet.endpoint(TAPE)
            await kubelet.stop()


@contextmanager
def hanging_up(path: Path) -> Iterator[None]:
    """Closes every connection in the moment in which it is made: before the caller has said a word."""
    loop, over = asyncio.get_running_loop(), False

    def hang_up() -> None:
        with suppress(BlockingIOError):
            listening.accept()[0].close()
        if not over:
            loop.call_soon(hang_up)

    with closing(sockets.listen(path)) as listening:
        hang_up()
        try:
            yield
        finally:
            over = True


async def test_a_kubelet_that_hangs_up_at_once_is_tried_again(root: Path, settings: Settings) -> None:
    kubelet = ObservedKubelet(root)
    kubelet.paths.device_plugins.mkdir()
    async with serving(Tape(), settings=settings) as daemon:
        with hanging_up(kubelet.paths.kubelet_socket):
            await stands(daemon, RegistrationState.REFUSED, "kubelet.sock")
        await kubelet.start()
        await kubelet.endpoint(TAPE)
        await kubelet.stop()


@pytest.mark.parametrize("messages", [[b"\xff\xff\xff"], []], ids=["no message of its kind", "no message"])
async def test_a_kubelet_that_answers_nonsense_is_tried_again(
    root: Path, settings: Settings, messages: list[bytes]
) -> None:
    async def answers(_: bytes) -> AsyncGenerator[bytes, None]:
        for message in messages:
            yield message

    kubelet = ObservedKubelet(root)
    kubelet.paths.device_plugins.mkdir()
    register = Streaming("/v1beta1.Registration/Register", answers)
    async with serving(Tape(), settings=settings) as daemon:
        async with transport.serve(kubelet.paths.kubelet_socket, [register]):
            await stands(daemon, RegistrationState.REFUSED)
        await kubelet.start()
        await kubelet.endpoint(TAPE)
        await kubelet.stop()


def as_deep_as(root: Path, length: int) -> Path:
    """A kubelet's directory whose device-plugins has a path of `length` bytes."""
    deep = root / ("d" * (length - len(os.fsencode(root / "device-plugins")) - 1))
    deep.mkdir()
    return deep


async def test_a_directory_too_deep_for_any_socket_is_refused_at_once(root: Path, settings: Settings) -> None:
    deep = as_deep_as(root, 100)
    with pytest.raises(PathTooLong, match="the kernel allows 107") as refused:
        async with serving(Tape(), settings=replace(settings, kubelet_dir=deep)):
            pass
    assert str(deep / "device-plugins") in str(refused.value)


async def test_a_resource_whose_name_is_too_long_for_the_directory_is_refused_once_and_alone(
    root: Path, settings: Settings, caplog: pytest.LogCaptureFixture
) -> None:
    deep = as_deep_as(root, 55)
    tape, long = Tape(), Tape()
    long.resource = "long.example.com/streamer-of-tapes"
    async with observed_kubelet(deep) as kubelet, counting(REFUSED) as refusals:
        settings = replace(settings, kubelet_dir=deep)
        async with serving(tape, settings=settings) as daemon:
            await daemon.apply([tape, long])
            await refusals.reaches(3)
            await kubelet.endpoint(TAPE)
    [reason] = warned(caplog, REFUSED)
    assert str(deep / "device-plugins") in str(reason)
    assert "the kernel allows 107" in str(reason)
    assert [request.resource for request in kubelet.registered] == [TAPE]
