"""Changes of hardware are noticed by uevents, by inotify and by rescans."""

import asyncio
import socket
import threading
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path

import pytest
from msgspec.structs import replace
from tests.sdk.actors import recorded_log
from tests.system.scarcity import inotify_instances, no_more_file_descriptors

from plugwright.errors import InvalidValue
from plugwright.sdk.hotplug import Hotplug, HotplugSource, HotplugTiming, Uevent

PATIENT = HotplugTiming(rescan=3600, rescan_often=3600, burst=0, gap=0)
SCANNING = HotplugTiming(rescan=3600, rescan_often=0.01, burst=0, gap=0)  # patient too, where there is inotify
NETLINK_USERSOCK = 2


class Kernel:
    """Sends uevents to the socket that a source has opened."""

    def __init__(self) -> None:
        self.sender: socket.socket | None = None
        self.offered: asyncio.Queue[Uevent] = asyncio.Queue()

    def connect(self) -> socket.socket:
        receiver, self.sender = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        return receiver

    def send(self, subsystem: str) -> None:
        assert self.sender is not None
        self.sender.send(f"add@/devices/x\0SUBSYSTEM={subsystem}\0".encode())

    def accept(self, event: Uevent) -> bool:
        self.offered.put_nowait(event)
        return event.subsystem == "usb"


def forbidden() -> socket.socket:
    raise PermissionError(1, "Operation not permitted")


@asynccontextmanager
async def watching(timing: HotplugTiming = SCANNING) -> AsyncIterator[tuple[Hotplug, Kernel]]:
    kernel = Kernel()
    hotplug = Hotplug(kernel.accept, HotplugSource(kernel.connect), timing)
    try:
        async with asyncio.timeout(60), hotplug.watching():
            yield hotplug, kernel
    finally:
        if kernel.sender is not None:
            kernel.sender.close()


async def test_an_accepted_uevent_ends_the_wait_and_another_does_not() -> None:
    async with watching(PATIENT) as (hotplug, kernel):
        change = asyncio.create_task(hotplug.change([]))
        await asyncio.sleep(0)
        kernel.send("block")
        await kernel.offered.get()
        for _ in range(5):
            await asyncio.sleep(0)
        assert not change.done()
        kernel.send("usb")
        await change


async def test_a_uevent_between_two_waits_is_not_lost() -> None:
    async with watching() as (hotplug, kernel):
        kernel.send("usb")
        await kernel.offered.get()
        await hotplug.change([])


def overflowing() -> tuple[socket.socket, socket.socket]:
    """A netlink socket with a small buffer, and one that sends to its group; skips where only root may have these."""
    receiver, sender = (socket.socket(socket.AF_NETLINK, socket.SOCK_DGRAM, NETLINK_USERSOCK) for _ in range(2))
    receiver.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    try:
        receiver.bind((0, 1))
    except PermissionError:
        receiver.close()
        sender.close()
        pytest.skip("receiving from a netlink group needs CAP_NET_ADMIN here")
    return receiver, sender


async def test_uevents_that_were_lost_mean_that_everything_may_have_changed() -> None:
    receiver, sender = overflowing()
    hotplug = Hotplug(lambda event: False, HotplugSource(lambda: receiver), PATIENT)
    with sender:
        async with asyncio.timeout(60), hotplug.watching():
            for _ in range(100):  # more than the buffer holds: the kernel reports the loss as ENOBUFS
                with suppress(OSError):
                    sender.sendto(b"x" * 1000, (0, 1))
            await hotplug.change([])


async def test_a_uevent_socket_that_fails_is_closed_and_opened_again(caplog: pytest.LogCaptureFixture) -> None:
    """Else its error would be reported again and again, at the price of a whole core."""
    caplog.set_level("INFO")
    broken = socket.socket(socket.AF_INET, socket.SOCK_STREAM)  # reading it is ENOTCONN, now and for ever
    kernel = Kernel()
    connects = [lambda: broken, forbidden, forbidden, kernel.connect]

    def connect() -> socket.socket:
        return connects.pop(0)()

    hotplug = Hotplug(kernel.accept, HotplugSource(connect), SCANNING)
    async with asyncio.timeout(60), hotplug.watching():
        for _ in range(4):
            await hotplug.change([])
        assert broken.fileno() == -1
        change = asyncio.create_task(hotplug.change([]))
        kernel.send("usb")
        await change
        assert (await kernel.offered.get()).subsystem == "usb"
    assert kernel.sender is not None
    kernel.sender.close()
    facts = [(record.getMessage(), getattr(record, "error", "")) for record in caplog.records]
    assert facts == [
        ("uevents unavailable, falling back to polling", "[Errno 107] Transport endpoint is not connected"),
        ("uevents unavailable, falling back to polling", "[Errno 1] Operation not permitted"),
        ("uevents are available again", ""),
    ]


class HangingPath(type(Path())):  # type: ignore[misc]
    """A directory of a file system that does not answer until it is released."""

    released = threading.Event()

    def is_dir(self) -> bool:
        self.released.wait()
        return True


async def test_a_directory_that_hangs_keeps_neither_the_loop_nor_the_next_scan_waiting(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with watching(replace(PATIENT, lookup=0.01)) as (hotplug, _):
        try:
            await hotplug.change([HangingPath(tmp_path)])
        finally:
            HangingPath.released.set()
    assert "directories not watched" in caplog.messages


async def test_created_and_removed_files_end_the_wait(tmp_path: Path) -> None:
    async with watching() as (hotplug, _):
        await hotplug.change([tmp_path])  # what came before the watch may have been missed
        change = asyncio.create_task(hotplug.change([tmp_path]))
        await asyncio.sleep(0)
        tmp_path.joinpath("ttyUSB0").touch()
        await change
        change = asyncio.create_task(hotplug.change([tmp_path]))
        await asyncio.sleep(0)
        tmp_path.joinpath("ttyUSB0").unlink()
        await change


async def test_a_directory_that_is_not_there_yet_is_waited_for(tmp_path: Path) -> None:
    links = tmp_path / "serial" / "by-id"
    async with watching() as (hotplug, _):
        await hotplug.change([links])
        change = asyncio.create_task(hotplug.change([links]))
        await asyncio.sleep(0)
        links.mkdir(parents=True)
        await change
        hotplug.touch()
        await hotplug.change([links])  # now it is watched itself, if it was not before
        change = asyncio.create_task(hotplug.change([links]))
        await asyncio.sleep(0)
        links.joinpath("link").touch()
        await change


async def test_a_directory_that_is_replaced_is_followed(tmp_path: Path) -> None:
    path = tmp_path / "dri"
    path.mkdir()
    async with watching() as (hotplug, _):
        await hotplug.change([path])
        path.rename(tmp_path / "old")
        await hotplug.change([path])
        path.mkdir()
        await hotplug.change([path])
        change = asyncio.create_task(hotplug.change([path]))
        await asyncio.sleep(0)
        path.joinpath("card0").touch()
        await change


async def test_hardware_is_rescanned_where_uevents_are_not_permitted(caplog: pytest.LogCaptureFixture) -> None:
    with recorded_log("plugwright.sdk.hotplug", caplog) as log:
        hotplug = Hotplug(source=HotplugSource(forbidden), timing=HotplugTiming(rescan=3600, rescan_often=0.01))
        async with asyncio.timeout(60), hotplug.watching():
            await hotplug.change([])
        await log.until("uevents unavailable, falling back to polling: [Errno 1] Operation not permitted")


@pytest.mark.usefixtures("inotify")
async def test_hardware_is_rescanned_though_nothing_is_reported() -> None:
    async with watching(HotplugTiming(rescan=0.01, rescan_often=3600)) as (hotplug, _):
        await hotplug.change([])


@pytest.mark.usefixtures("inotify")
async def test_hardware_is_rescanned_often_without_inotify_and_watched_once_there_is_an_instance(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    async with AsyncExitStack() as stack:
        kernel = Kernel()
        source = HotplugSource(kernel.connect)
        stack.enter_context(source.subscribed(lambda _: None))  # opens its socket now
        assert kernel.sender is not None
        stack.enter_context(kernel.sender)
        hotplug = Hotplug(source=source, timing=SCANNING)
        await stack.enter_async_context(asyncio.timeout(60))
        with no_more_file_descriptors():
            await stack.enter_async_context(hotplug.watching())
            await hotplug.change([tmp_path])
        await hotplug.change([tmp_path])  # what came before the watch may have been missed
        change = asyncio.create_task(hotplug.change([tmp_path]))
        await asyncio.sleep(0)
        tmp_path.joinpath("ttyUSB0").touch()
        await change
    assert caplog.messages == ["inotify unavailable, links and sockets are detected late", "inotify is available again"]


async def test_touch_ends_the_wait() -> None:
    async with watching() as (hotplug, _):
        hotplug.touch()
        await hotplug.change([])


@pytest.mark.usefixtures("inotify")
async def test_resources_share_one_inotify_instance_and_wait_for_their_own_directories(tmp_path: Path) -> None:
    source = HotplugSource(forbidden)
    first, second = Hotplug(source=source, timing=PATIENT), Hotplug(source=source, timing=PATIENT)
    mine, yours = tmp_path / "mine", tmp_path / "yours"
    mine.mkdir()
    yours.mkdir()
    before = inotify_instances()
    async with asyncio.timeout(60), second.watching():
        async with first.watching():
            assert inotify_instances() == before + 1
            await first.change([mine])
            await second.change([yours])
            changes = [asyncio.create_task(first.change([mine])), asyncio.create_task(second.change([yours]))]
            await asyncio.sleep(0)
            mine.joinpath("node").touch()
            await changes[0]
            assert not changes[1].done()
        yours.joinpath("node").touch()  # the other goes on when one has left
        await changes[1]
    assert inotify_instances() == before


async def test_resources_share_one_uevent_socket_that_the_last_one_closes() -> None:
    kernel = Kernel()
    source = HotplugSource(kernel.connect)
    first, second = Hotplug(source=source, timing=PATIENT), Hotplug(kernel.accept, source, PATIENT)
    async with asyncio.timeout(60), second.watching():
        async with first.watching():
            kernel.send("usb")
            await first.change([])
            await second.change([])
        kernel.send("usb")  # the other goes on when one has left
        await second.change([])
    assert not source.has_uevents
    assert kernel.sender is not None
    with kernel.sender, pytest.raises(ConnectionRefusedError):
        kernel.send("usb")


@pytest.mark.usefixtures("inotify")
async def test_a_resource_that_comes_after_the_last_one_has_left_is_served(tmp_path: Path) -> None:
    source = HotplugSource(forbidden)
    async with Hotplug(source=source, timing=PATIENT).watching():
        pass
    hotplug = Hotplug(source=source, timing=PATIENT)
    async with asyncio.timeout(60), hotplug.watching():
        await hotplug.change([tmp_path])
        change = asyncio.create_task(hotplug.change([tmp_path]))
        await asyncio.sleep(0)
        tmp_path.joinpath("node").touch()
        await change


async def test_every_ends_a_wait_in_which_nothing_is_reported() -> None:
    kernel = Kernel()
    hotplug = Hotplug(kernel.accept, HotplugSource(kernel.connect), PATIENT, every=0.01)
    try:
        async with asyncio.timeout(60), hotplug.watching():
            for _ in range(3):
                await hotplug.change([])
    finally:
        assert kernel.sender is not None
        kernel.sender.close()


def test_every_is_longer_than_nothing() -> None:
    with pytest.raises(InvalidValue, match="every must be a number of seconds greater than 0, got 0"):
        Hotplug(every=0)


@pytest.mark.usefixtures("inotify")
async def test_a_file_that_is_written_is_seen_where_that_was_asked_for(tmp_path: Path) -> None:
    (tmp_path / "health").write_text("good")
    hotplug = Hotplug(lambda _: False, HotplugSource(forbidden), PATIENT, writes=True)
    async with asyncio.timeout(60), hotplug.watching():
        await hotplug.change([tmp_path])  # a directory that is new to it
        change = asyncio.create_task(hotplug.change([tmp_path]))
        await asyncio.sleep(0)
        (tmp_path / "health").write_text("bad")
        await change
