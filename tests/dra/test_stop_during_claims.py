"""A driver's process that is stopped during a claim: the pod starts all the same, or nothing stays behind."""

import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tests.cli.processes import Running, python, running
from tests.dra.test_driver_process import DRIVER, Node, node

# allocate() and release() print a line, wait for a file, and then take longer than a stop without claims may.
PROGRAM = """
import asyncio, sys, time
from pathlib import Path
from plugwright import Allocation, Device, Plugin, ServeSettings, Settings, run
from plugwright.sdk.settings import Limits

go = Path(sys.argv[2])

class Tape(Plugin):
    resource = "example.com/tape"

    async def discover(self):
        yield [Device("null"), Device("zero")]

class Slow(Tape):
    async def allocate(self, devices):
        print("allocating", flush=True)
        while not go.exists():
            await asyncio.sleep(0.02)
        await asyncio.sleep(1.5)
        return Allocation(nodes=[f"/dev/{device.id}" for device in devices])

class Threaded(Tape):
    def allocate(self, devices):
        print("allocating", flush=True)
        while not go.exists():
            time.sleep(0.02)
        time.sleep(1.5)
        return Allocation(nodes=[f"/dev/{device.id}" for device in devices])

class SlowRelease(Tape):
    async def release(self, devices):
        print("releasing", flush=True)
        while not go.exists():
            await asyncio.sleep(0.02)
        await asyncio.sleep(1.5)

serve = ServeSettings(api="dra", cdi=sys.argv[1])
run(globals()[sys.argv[3]](), settings=Settings(limits=Limits(allocate=60)), serve=serve)
"""
FINISHING = "finishing claims before the stop"


@asynccontextmanager
async def serving(here: Node, go: Path, plugin: str) -> AsyncIterator[Running]:
    """The driver, registered, with its devices published."""
    async with running(python("-c", PROGRAM, here.cdi, go, plugin), here.environment) as driver:
        await here.until_published("null", "zero")
        await driver.err.until("registered")
        yield driver


def sockets(here: Node) -> list[Path]:
    root = here.lab.cluster.directory("node-1")
    return [path for path in root.rglob("*.sock") if DRIVER in str(path)]


@pytest.mark.parametrize("plugin", ["Slow", "Threaded"])
async def test_a_claim_in_progress_is_prepared_before_the_stop(tmp_path: Path, plugin: str) -> None:
    go = tmp_path / "go"
    async with node(tmp_path) as here:
        async with serving(here, go, plugin) as driver:
            here.create_pod("p", "zero")
            await driver.out.until("allocating")
            driver.signal(signal.SIGTERM)
            await driver.err.until(FINISHING)
            go.touch()
            assert await driver.ends() == 0
        await here.lab.phase("p")  # of the one call: no kubelet asks again so soon
        assert here.nodes("p") == ["/dev/zero"]
        assert driver.out.all == ["allocating"]
        assert sockets(here) == []


async def test_a_claim_is_unprepared_before_the_stop(tmp_path: Path) -> None:
    go = tmp_path / "go"
    async with node(tmp_path) as here:
        async with serving(here, go, "SlowRelease") as driver:
            here.create_pod("p", "zero")
            await here.lab.phase("p")
            here.lab.delete("p")
            await driver.out.until("releasing")
            driver.signal(signal.SIGTERM)
            await driver.err.until(FINISHING)
            go.touch()
            assert await driver.ends() == 0
        await here.lab.gone("p")
        assert list(here.cdi.iterdir()) == []
        assert sockets(here) == []


@pytest.mark.parametrize("plugin", ["Slow", "Threaded"])
async def test_a_second_signal_stops_without_the_claim(tmp_path: Path, plugin: str) -> None:
    """And the next driver prepares it."""
    go = tmp_path / "go"
    async with node(tmp_path) as here:
        async with serving(here, go, plugin) as driver:
            here.create_pod("p", "zero")
            await driver.out.until("allocating")
            driver.signal(signal.SIGTERM)
            await driver.err.until(FINISHING)
            driver.signal(signal.SIGTERM)
            assert await driver.ends() == 0
        assert sockets(here) == []
        go.touch()
        async with serving(here, go, plugin):
            await here.lab.phase("p")
            assert here.nodes("p") == ["/dev/zero"]


@pytest.mark.parametrize("plugin", ["Slow", "Threaded"])
async def test_a_claim_that_takes_too_long_does_not_keep_the_process(tmp_path: Path, plugin: str) -> None:
    """The process ends by itself, with its sockets removed, before the grace period of a pod would have it killed."""
    async with node(tmp_path) as here:
        async with serving(here, tmp_path / "never", plugin) as driver:
            here.create_pod("p", "zero")
            await driver.out.until("allocating")
            driver.signal(signal.SIGTERM)
            assert await driver.ends() == 0
        assert sockets(here) == []
