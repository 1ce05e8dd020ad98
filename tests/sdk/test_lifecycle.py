"""A plugin stays registered, whatever happens to it or to the kubelet."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

from plugwright import Allocation, Device, Plugin, Settings, serving
from tiny_kubelet import TinyKubelet


class Tape(Plugin):
    resource = "example.com/tape"

    async def discover(self) -> AsyncIterator[list[Device]]:
        yield [Device("st0", numa=[0]), Device("st1", numa=[1])]

    async def allocate(self, devices: object) -> Allocation:
        return Allocation(nodes=["/dev/null"])


async def test_a_plugin_registers_and_its_list_arrives(kubelet: TinyKubelet, settings: Settings) -> None:
    async with serving(Tape(), settings=settings):
        tape = await kubelet.endpoint("example.com/tape")
        assert [device.id for device in tape.lists[0]] == ["st0", "st1"]


async def test_a_plugin_waits_for_a_kubelet_that_comes_later(root: Path, settings: Settings) -> None:
    kubelet = TinyKubelet(root)
    async with serving(Tape(), settings=settings):
        await asyncio.sleep(0)
        await kubelet.start()
        await kubelet.endpoint("example.com/tape")
        await kubelet.stop()


async def test_a_hundred_kubelet_restarts_are_survived(kubelet: TinyKubelet, settings: Settings) -> None:
    async with serving(Tape(), settings=settings):
        for _ in range(100):
            await kubelet.endpoint("example.com/tape")
            await kubelet.restart()
        await kubelet.endpoint("example.com/tape")
