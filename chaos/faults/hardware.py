"""Hardware and drivers that fail: files that hang, devices that vanish, GPUs and their driver that are lost."""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from chaos.experiment import Fault
from chaos.node import CHECKED, GPU, NIC, RESOURCES
from chaos.rig import Rig

__all__ = ["FAULTS"]


@asynccontextmanager
async def _hanging_card(rig: Rig) -> AsyncIterator[None]:
    async with _hanging(rig.node.operstate):
        yield


@asynccontextmanager
async def _hanging_check(rig: Rig) -> AsyncIterator[None]:
    async with _hanging(rig.node.checked_file):
        yield


@asynccontextmanager
async def _hanging(path: Path) -> AsyncIterator[None]:
    """Whoever opens the file waits, as with a driver whose firmware is dead."""
    content, pipe = path.read_bytes(), path.with_name("pipe")
    os.mkfifo(pipe)
    os.link(pipe, path.with_name("pipe-again"))
    pipe.replace(path)
    try:
        yield
    finally:
        path.with_name("new").write_bytes(content)
        path.with_name("new").replace(path)
        _release(path.with_name("pipe-again"))


def _release(pipe: Path) -> None:
    """Those who wait in `open` get an end of file."""
    with suppress(OSError):
        os.close(os.open(pipe, os.O_RDWR | os.O_NONBLOCK))
    pipe.unlink()


@asynccontextmanager
async def _vanished(rig: Rig) -> AsyncIterator[None]:
    node = rig.node.machine.root / "dev/checked"
    node.unlink()
    try:
        yield
    finally:
        node.touch()


@asynccontextmanager
async def _driver_gone(rig: Rig) -> AsyncIterator[None]:
    await _simulate(rig, "driver", state="gone")
    try:
        yield
    finally:
        await _simulate(rig, "driver", state="back")


@asynccontextmanager
async def _gpus_lost(rig: Rig) -> AsyncIterator[None]:
    for index in range(RESOURCES[GPU]):
        await _simulate(rig, "lose", id=str(index))
    try:
        yield
    finally:
        for index in range(RESOURCES[GPU]):
            await _simulate(rig, "reset", id=str(index))


async def _simulate(rig: Rig, name: str, **arguments: str) -> None:
    await rig.daemon.ask({"do": "plugin", "resource": GPU, "name": name, "arguments": arguments})


FAULTS = (
    Fault("card", "a network card's driver file hangs", _hanging_card, affects=NIC),
    Fault("check", "a file of a health check hangs", _hanging_check, affects=CHECKED),
    Fault("vanished", "a device node vanishes", _vanished, affects=CHECKED),
    Fault("driver", "the GPU driver is unloaded", _driver_gone, affects=GPU),
    Fault("gpus", "every GPU falls off the bus", _gpus_lost, affects=GPU),
)
