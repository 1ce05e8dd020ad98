"""Those who wait for hardware share their ears, and nobody misses anything by it."""

import asyncio
import socket
from contextlib import AsyncExitStack
from pathlib import Path

from plugwright.sdk.hotplug import HotplugSource, Uevent


class Listener:
    """Remembers that it was touched."""

    def __init__(self) -> None:
        self.touched = asyncio.Event()

    def touch(self) -> None:
        self.touched.set()

    def hear(self, event: Uevent) -> None:
        self.touched.set()


def deaf() -> socket.socket:
    raise PermissionError(1, "Operation not permitted")


async def test_each_is_told_of_its_own_directories(tmp_path: Path) -> None:
    mine, yours = tmp_path / "mine", tmp_path / "yours"
    mine.mkdir()
    yours.mkdir()
    ears, first, second = HotplugSource(deaf), Listener(), Listener()
    async with asyncio.timeout(20), ears.lent_to(first), ears.lent_to(second):
        assert ears.follow(first, {mine})
        assert ears.follow(second, {yours})
        yours.joinpath("node").touch()
        await second.touched.wait()
        assert not first.touched.is_set()


async def test_a_directory_made_anew_is_new_to_everybody(tmp_path: Path) -> None:
    place = tmp_path / "dri"
    place.mkdir()
    ears, first, second = HotplugSource(deaf), Listener(), Listener()
    async with asyncio.timeout(20), ears.lent_to(first), ears.lent_to(second):
        assert ears.follow(first, {place})
        assert ears.follow(second, {place})
        assert not ears.follow(first, {place})
        place.rmdir()
        await first.touched.wait()
        while not ears.follow(first, {place}):  # until the kernel has said that the watch is gone
            await asyncio.sleep(0)
        place.mkdir()
        while not ears.follow(first, {place}):
            await asyncio.sleep(0)
        assert ears.follow(second, {place})
        assert not ears.follow(second, {place})


async def test_who_comes_while_the_last_one_leaves_hears(tmp_path: Path) -> None:
    ears, first, second = HotplugSource(deaf), Listener(), Listener()
    leaving = AsyncExitStack()
    await leaving.enter_async_context(ears.lent_to(first))
    left = asyncio.create_task(leaving.aclose())
    await asyncio.sleep(0)
    async with asyncio.timeout(20), ears.lent_to(second):
        ears.follow(second, {tmp_path})
        await left
        tmp_path.joinpath("node").touch()
        await second.touched.wait()
