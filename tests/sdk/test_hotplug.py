"""Changes of hardware are noticed, by whichever way they can be."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tests.sdk.actors import listening

from plugwright.sdk.hotplug import Hotplug, HotplugSource, HotplugTiming, Uevent

PATIENT = HotplugTiming(rescan=3600, blind=3600, burst=0, gap=0)


class Kernel:
    """Speaks to whoever listens."""

    def __init__(self) -> None:
        self.mouth: socket.socket | None = None
        self.heard: asyncio.Queue[Uevent] = asyncio.Queue()

    def listen(self) -> socket.socket:
        ear, self.mouth = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        return ear

    def say(self, subsystem: str) -> None:
        assert self.mouth is not None
        self.mouth.send(f"add@/devices/x\0SUBSYSTEM={subsystem}\0".encode())

    def accept(self, event: Uevent) -> bool:
        self.heard.put_nowait(event)
        return event.subsystem == "usb"


def forbidden() -> socket.socket:
    raise PermissionError(1, "Operation not permitted")


@asynccontextmanager
async def watching(pace: HotplugTiming = PATIENT) -> AsyncIterator[tuple[Hotplug, Kernel]]:
    kernel = Kernel()
    hotplug = Hotplug(kernel.accept, HotplugSource(kernel.listen), pace)
    try:
        async with asyncio.timeout(20), hotplug.watching():
            yield hotplug, kernel
    finally:
        if kernel.mouth is not None:
            kernel.mouth.close()


async def test_an_event_of_interest_wakes_and_another_does_not() -> None:
    async with watching() as (hotplug, kernel):
        change = asyncio.create_task(hotplug.change([]))
        await asyncio.sleep(0)
        kernel.say("block")
        await kernel.heard.get()
        for _ in range(5):
            await asyncio.sleep(0)
        assert not change.done()
        kernel.say("usb")
        await change


async def test_an_event_between_two_looks_is_not_lost() -> None:
    async with watching() as (hotplug, kernel):
        kernel.say("usb")
        await kernel.heard.get()
        await hotplug.change([])


async def test_files_that_come_and_go_wake(tmp_path: Path) -> None:
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
    wanted = tmp_path / "serial" / "by-id"
    async with watching() as (hotplug, _):
        await hotplug.change([wanted])
        change = asyncio.create_task(hotplug.change([wanted]))
        await asyncio.sleep(0)
        wanted.mkdir(parents=True)
        await change
        await hotplug.change([wanted])  # now it is watched itself
        change = asyncio.create_task(hotplug.change([wanted]))
        await asyncio.sleep(0)
        wanted.joinpath("link").touch()
        await change


async def test_a_directory_that_is_made_anew_is_followed(tmp_path: Path) -> None:
    place = tmp_path / "dri"
    place.mkdir()
    async with watching() as (hotplug, _):
        await hotplug.change([place])
        place.rename(tmp_path / "old")
        await hotplug.change([place])
        place.mkdir()
        await hotplug.change([place])
        await hotplug.change([place])
        change = asyncio.create_task(hotplug.change([place]))
        await asyncio.sleep(0)
        place.joinpath("card0").touch()
        await change


async def test_without_leave_to_listen_there_is_a_look_now_and_then(caplog: pytest.LogCaptureFixture) -> None:
    with listening("plugwright.sdk.hotplug", caplog) as ear:
        hotplug = Hotplug(ears=HotplugSource(forbidden), pace=HotplugTiming(rescan=3600, blind=0.01))
        async with asyncio.timeout(20), hotplug.watching():
            await hotplug.change([])
        await ear.hears("no uevents, looking now and then: [Errno 1] Operation not permitted")


async def test_a_slow_look_is_taken_though_nothing_is_heard() -> None:
    async with watching(HotplugTiming(rescan=0.01, blind=3600)) as (hotplug, _):
        await hotplug.change([])


async def test_someone_else_may_ask_for_a_look() -> None:
    async with watching() as (hotplug, _):
        hotplug.touch()
        await hotplug.change([])


async def test_all_who_wait_share_one_ear_and_each_hears_of_its_own(tmp_path: Path) -> None:
    ears = HotplugSource(forbidden)
    first, second = Hotplug(ears=ears, pace=PATIENT), Hotplug(ears=ears, pace=PATIENT)
    mine, yours = tmp_path / "mine", tmp_path / "yours"
    mine.mkdir()
    yours.mkdir()
    before = inotify_instances()
    async with asyncio.timeout(20), second.watching():
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


async def test_what_cannot_be_watched_is_waited_for_without_a_busy_loop(tmp_path: Path) -> None:
    ears, place = HotplugSource(forbidden), tmp_path / "later"
    listener = Hotplug(ears=ears)
    async with ears.lent_to(listener):
        assert [ears.follow(listener, {place}) for _ in range(2)] == [False, False]
        place.mkdir()
        assert [ears.follow(listener, {place}) for _ in range(2)] == [True, False]


def inotify_instances() -> int:
    return sum("inotify" in str(each.readlink()) for each in Path("/proc/self/fd").iterdir() if each.is_symlink())
