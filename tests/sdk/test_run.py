"""Plugins run as programs, which end when told to, and inside other programs, which they leave as they found them."""

import asyncio
import functools
import gc
import logging
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import threading
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path

import pytest
from tests.observed_kubelet import ObservedKubelet

import plugwright
from plugwright import Device, InvalidValue, Plugin, Settings, serving
from plugwright.system import sockets
from tiny_kubelet import TinyKubelet

logger = logging.getLogger(__name__)

TAPE = "example.com/tape"
LIMIT = 60  # seconds that any fact here may take on a slow machine

# The project and what it needs, for an interpreter that has neither; its C extensions may be of another version.
PROJECT = {
    "PYTHONPATH": os.pathsep.join([str(Path(plugwright.__file__).parents[1]), sysconfig.get_path("purelib")]),
    "MULTIDICT_NO_EXTENSIONS": "1",
}

PROGRAM = """
import asyncio, threading, time
from plugwright import Allocation, Device, Plugin, run

calls = []

class Tape(Plugin):
    resource = "example.com/tape"

    async def allocate(self, devices):
        print("blocked", flush=True)
        time.sleep(3600)

{discover}

run(Tape())
"""

STEADY = """
    async def discover(self):
        calls.append(1)
        yield [Device(f"call-{len(calls)}")]
        await asyncio.Event().wait()
"""
BLOCKED = """
    async def discover(self):
        print("blocked", flush=True)
        time.sleep(3600)
        yield []
"""
STUBBORN = """
    async def discover(self):
        yield [Device("st0")]
        while True:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                pass
"""
IN_THREAD = """
    def discover(self):
        calls.append(1)
        yield [Device(f"call-{len(calls)}")]
        print("blocked", flush=True)
        time.sleep(3600)
"""
IN_EXECUTOR = """
    async def discover(self):
        yield [Device("st0")]
        await asyncio.to_thread(time.sleep, 3600)
"""
WITH_A_THREAD_OF_ITS_OWN = """
    async def discover(self):
        threading.Thread(target=time.sleep, args=(3600,)).start()
        yield [Device("st0")]
"""


class Shelf(Plugin):
    def __init__(self, resource: str = TAPE) -> None:
        self.resource = resource

    async def discover(self) -> AsyncIterator[list[Device]]:
        yield [Device("st0"), Device("st1")]


@functools.cache
def interpreter(version: str) -> tuple[str, str]:
    """An interpreter of this version that can import the project, or why there is none."""
    found = [sys.executable] if version == "{}.{}".format(*sys.version_info) else []
    found += [path for path in [shutil.which(f"python{version}")] if path]
    found += sorted(map(str, Path.home().glob(f".pyenv/versions/{version}.*/bin/python{version}")))
    reason = f"no python{version} at hand"
    for path in found:
        command, environment = [path, "-c", "import plugwright; plugwright.run"], os.environ | PROJECT
        tried = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        if tried.returncode == 0:
            return path, ""
        reason = f"{path}: {tried.stderr.strip().splitlines()[-1]}"
    return "", reason


@pytest.fixture(params=["3.11", "3.12", "3.13", "3.14"])
def python(request: pytest.FixtureRequest) -> str:
    path, reason = interpreter(request.param)
    if not path:
        pytest.skip(reason)
    return path


@asynccontextmanager
async def program(root: Path, discover: str, python: str = sys.executable) -> AsyncIterator[Process]:
    """A plugin in a process of its own."""
    script = root / "plugin.py"
    script.write_text(PROGRAM.format(discover=discover))
    environment = os.environ | PROJECT | {"PLUGWRIGHT_KUBELET_DIR": str(root)}
    process = await asyncio.create_subprocess_exec(
        python, "-W", "always::ResourceWarning", str(script), env=environment, stdout=PIPE, stderr=PIPE
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def says_blocked(process: Process) -> None:
    assert process.stdout is not None
    async with asyncio.timeout(LIMIT):
        assert await process.stdout.readline() == b"blocked\n"


async def ends(process: Process, *signals: signal.Signals) -> None:
    """Ends after the signals, long before plugin code that blocks does, and without a complaint."""
    for number in signals:
        process.send_signal(number)
    async with asyncio.timeout(LIMIT):
        assert await process.wait() == 0
    assert process.stderr is not None
    said = (await process.stderr.read()).decode()
    assert "Traceback" not in said
    assert "ResourceWarning" not in said


def sockets_in(kubelet: ObservedKubelet | TinyKubelet) -> set[str]:
    return {path.name for path in kubelet.paths.device_plugins.iterdir() if path.is_socket()}


async def test_a_signal_ends_it_and_takes_its_socket_along(kubelet: ObservedKubelet, root: Path, python: str) -> None:
    async with program(root, STEADY, python) as process:
        tape = await kubelet.endpoint(TAPE)
        await ends(process, signal.SIGTERM)
        await kubelet.until(lambda _: tape.ended)
    assert sockets_in(kubelet) == {"kubelet.sock"}


async def test_an_interrupt_ends_it_as_well(kubelet: ObservedKubelet, root: Path) -> None:
    async with program(root, STEADY) as process:
        tape = await kubelet.endpoint(TAPE)
        await ends(process, signal.SIGINT)
        await kubelet.until(lambda _: tape.ended)
    assert sockets_in(kubelet) == {"kubelet.sock"}


async def test_a_signal_ends_it_while_discovery_blocks_the_event_loop(root: Path, python: str) -> None:
    async with program(root, BLOCKED, python) as process:
        await says_blocked(process)
        await ends(process, signal.SIGTERM)


async def test_a_signal_ends_it_while_discovery_blocks_in_a_thread(
    kubelet: ObservedKubelet, root: Path, python: str
) -> None:
    async with program(root, IN_THREAD, python) as process:
        await says_blocked(process)
        tape = await kubelet.endpoint(TAPE)
        await ends(process, signal.SIGTERM)
        await kubelet.until(lambda _: tape.ended)
    assert sockets_in(kubelet) == {"kubelet.sock"}


async def test_a_signal_ends_it_while_an_allocation_blocks_the_event_loop(kubelet: ObservedKubelet, root: Path) -> None:
    async with program(root, STEADY) as process:
        tape = await kubelet.endpoint(TAPE)
        asked = asyncio.create_task(tape.client.allocate(["call-1"]))
        await says_blocked(process)
        await ends(process, signal.SIGTERM)
        await kubelet.until(lambda _: tape.ended)
        await asyncio.gather(asked, return_exceptions=True)


@pytest.mark.parametrize("discover", [STUBBORN, IN_EXECUTOR], ids=["refuses to be cancelled", "waits for a thread"])
async def test_a_signal_ends_it_whatever_discovery_does(kubelet: ObservedKubelet, root: Path, discover: str) -> None:
    async with program(root, discover) as process:
        await kubelet.endpoint(TAPE)
        await ends(process, signal.SIGTERM)


async def test_a_signal_ends_it_whatever_threads_a_plugin_has_started(kubelet: ObservedKubelet, root: Path) -> None:
    async with program(root, WITH_A_THREAD_OF_ITS_OWN) as process:
        tape = await kubelet.endpoint(TAPE)
        process.send_signal(signal.SIGTERM)
        await kubelet.until(lambda _: tape.ended)
        async with asyncio.timeout(LIMIT):
            assert await process.wait() == 0


async def test_many_signals_are_as_good_as_one(kubelet: ObservedKubelet, root: Path) -> None:
    async with program(root, STEADY) as process:
        await kubelet.endpoint(TAPE)
        await ends(process, signal.SIGHUP, signal.SIGTERM, signal.SIGINT, signal.SIGTERM)
    assert sockets_in(kubelet) == {"kubelet.sock"}


async def test_a_signal_ends_it_while_the_kubelet_does_not_answer(root: Path) -> None:
    directory = root / "device-plugins"
    directory.mkdir()
    with closing(sockets.listen(directory / "kubelet.sock")) as listening:
        async with program(root, STEADY) as process:
            async with asyncio.timeout(LIMIT):
                connection, _ = await asyncio.get_running_loop().sock_accept(listening)
            with connection:
                await ends(process, signal.SIGTERM)
    assert [path.name for path in directory.iterdir()] == ["kubelet.sock"]


@pytest.mark.parametrize("discover", [STEADY, IN_THREAD], ids=["async", "in a thread"])
async def test_sighup_calls_discover_again(kubelet: ObservedKubelet, root: Path, discover: str) -> None:
    async with program(root, discover) as process:
        for call in range(1, 4):
            await kubelet.health(TAPE, f"call-{call}", "Healthy")
            process.send_signal(signal.SIGHUP)
        await kubelet.health(TAPE, "call-4", "Healthy")
        await kubelet.health(TAPE, "call-1", "Unhealthy")
        assert process.stderr is not None
        async with asyncio.timeout(LIMIT):
            while b"calling discover() again" not in await process.stderr.readline():
                pass
    assert len(kubelet.registered) == 1


async def test_sockets_of_a_killed_run_are_removed_by_the_next(kubelet: ObservedKubelet, root: Path) -> None:
    async with program(root, STEADY) as process:
        killed = await kubelet.endpoint(TAPE)
        left = kubelet.paths.device_plugins / killed.request.endpoint
        os.utime(left, (0, 0))  # not of someone just starting
        process.kill()
        await kubelet.until(lambda _: killed.ended)
    assert sockets_in(kubelet) == {"kubelet.sock", left.name}
    async with program(root, STEADY) as process:
        await kubelet.until(lambda kubelet: len(kubelet.registered) == 2)
        again = await kubelet.endpoint(TAPE)
        assert sockets_in(kubelet) == {"kubelet.sock", again.request.endpoint}
        assert again.request.endpoint != left.name
        await ends(process, signal.SIGTERM)


async def test_serving_twice_in_one_loop_leaves_nothing_behind(kubelet: ObservedKubelet, settings: Settings) -> None:
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)}
    tasks, threads = asyncio.all_tasks(), set(threading.enumerate())
    for _ in range(2):
        async with serving(Shelf(), settings=settings):
            tape = await kubelet.endpoint(TAPE)
            assert {number: signal.getsignal(number) for number in handlers} == handlers
        await kubelet.until(lambda kubelet: kubelet.endpoints[TAPE].ended)
        assert sockets_in(kubelet) == {"kubelet.sock"}
        with pytest.raises(plugwright.PlugwrightError):
            await tape.client.options(timeout=1)
        del kubelet.endpoints[TAPE]
    # One that waits for the next call of this loop may stay.
    while len(left := set(threading.enumerate()) - threads) > 1 or any(
        thread.name != "plugwright-idle" for thread in left
    ):
        await asyncio.sleep(0.001)
    assert asyncio.all_tasks() <= tasks


async def test_serving_side_by_side_in_one_loop_is_no_trouble(kubelet: ObservedKubelet, settings: Settings) -> None:
    async with serving(Shelf(), settings=settings), serving(Shelf("example.com/disk"), settings=settings):
        await kubelet.endpoint(TAPE)
        await kubelet.endpoint("example.com/disk")
    assert sockets_in(kubelet) == {"kubelet.sock"}


async def test_serving_in_the_loop_of_another_thread_is_no_trouble(
    kubelet: ObservedKubelet, settings: Settings
) -> None:
    loops: list[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = []

    async def elsewhere() -> None:
        async with serving(Shelf(), settings=settings):
            loops.append((asyncio.get_running_loop(), asyncio.Event()))
            await loops[0][1].wait()

    thread = asyncio.create_task(asyncio.to_thread(asyncio.run, elsewhere()))
    await kubelet.endpoint(TAPE)
    [(loop, over)] = loops
    loop.call_soon_threadsafe(over.set)
    await thread
    assert sockets_in(kubelet) == {"kubelet.sock"}


async def test_cancelling_the_task_around_it_cleans_up_as_well(kubelet: ObservedKubelet, settings: Settings) -> None:
    async def embedding() -> None:
        async with serving(Shelf(), settings=settings):
            await asyncio.Event().wait()

    around = asyncio.create_task(embedding())
    tape = await kubelet.endpoint(TAPE)
    around.cancel()
    with pytest.raises(asyncio.CancelledError):
        await around
    await kubelet.until(lambda _: tape.ended)
    assert sockets_in(kubelet) == {"kubelet.sock"}


async def test_cancelling_at_any_step_of_its_start_cleans_up_as_well(
    kubelet: ObservedKubelet, settings: Settings
) -> None:
    async def embedding() -> None:
        async with serving(Shelf(), settings=settings):
            await asyncio.Event().wait()

    left = {}
    for steps in range(30):
        around = asyncio.create_task(embedding())
        for _ in range(steps):
            await asyncio.sleep(0)
        around.cancel()
        with pytest.raises(asyncio.CancelledError):
            await around
        left[steps] = sockets_in(kubelet) - {"kubelet.sock"}
        for name in left[steps]:
            (kubelet.paths.device_plugins / name).unlink()
    gc.collect()
    assert not any(left.values())


async def test_an_error_of_the_program_around_it_stays_what_it_is(kubelet: ObservedKubelet, settings: Settings) -> None:
    async def embedding() -> None:
        async with serving(Shelf(), settings=settings):
            await kubelet.endpoint(TAPE)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await embedding()
    assert sockets_in(kubelet) == {"kubelet.sock"}


async def test_two_plugins_of_one_resource_are_refused_before_anything_is_served(
    kubelet: ObservedKubelet, settings: Settings
) -> None:
    with pytest.raises(InvalidValue, match="two plugins serve"):
        async with serving(Shelf(), Shelf(), settings=settings):
            pass
    assert kubelet.registered == []
