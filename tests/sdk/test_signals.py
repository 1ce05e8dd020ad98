"""Signals: none is lost while a daemon starts, and none is in vain while it hangs."""

import logging
import os
import signal
import sys
import threading
from pathlib import Path

import pytest
from tests.cli.processes import Node, python, running
from tests.observed_kubelet import ObservedKubelet

from plugwright.protocol import transport
from plugwright.sdk import logs
from plugwright.sdk.signals import Signals, StopLimits
from plugwright.system.early_signals import handle_early_signals

WAIT = 60  # seconds; only a test that fails waits for so long

# Stands in for yaml: reports that it loads, and waits for a line before it loads the real module. It polls for that
# line, since a signal that arrives just before a blocking call runs its handler only when the call returns.
SLOW_IMPORT = """
import select
import sys
print("loading", flush=True)
while not select.select([sys.stdin], [], [], 0.05)[0]:
    pass
sys.path.remove({directory!r})
del sys.modules["yaml"]
import yaml
sys.modules["yaml"] = yaml
"""
STUCK_IN_C = """
import ctypes
import sys
from plugwright import Allocation, Device, Plugin, Settings, run

class Stuck(Plugin):
    resource = "example.com/stuck"

    async def discover(self):
        yield [Device("one")]
        mutex, library = ctypes.create_string_buffer(64), ctypes.CDLL(None)
        print("stuck", flush=True)
        library.pthread_mutex_lock(mutex)
        library.pthread_mutex_lock(mutex)  # never returns to Python, not even for a signal

run(Stuck(), settings=Settings(kubelet_dir=sys.argv[1]))
"""


SIGNALLED_THREAD = """
import asyncio
import signal
import sys
import threading
from plugwright import Device, Plugin, Settings, run

def signal_this_thread():
    signal.pthread_kill(threading.get_ident(), signal.SIGTERM)

class Signalled(Plugin):
    resource = "example.com/signalled"

    async def discover(self):
        yield [Device("one")]
        await asyncio.sleep(0.1)
        asyncio.get_running_loop().call_soon(threading.Thread(target=signal_this_thread).start)
        await asyncio.Event().wait()

run(Signalled(), settings=Settings(kubelet_dir=sys.argv[1]))
"""


def slow_import(directory: Path) -> dict[str, str]:
    directory.joinpath("yaml.py").write_text(SLOW_IMPORT.format(directory=str(directory)))
    return {"PYTHONPATH": os.pathsep.join([str(directory), *filter(None, [os.environ.get("PYTHONPATH")])])}


@pytest.fixture
def node(kubelet: ObservedKubelet) -> Node:
    node = Node(kubelet.paths.root)
    node.configure(gpu={"count": 1})
    return node


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_stop_while_it_loads_ends_it_well(node: Node, tmp_path: Path, number: signal.Signals) -> None:
    async with running(node.command(), slow_import(tmp_path), stdin=True) as daemon:
        await daemon.out.until("loading")
        daemon.signal(number)
        assert await daemon.ends() == 0
    assert daemon.err.all == []


async def test_a_hangup_while_it_loads_does_not_end_it(node: Node, tmp_path: Path) -> None:
    async with running(node.command(), slow_import(tmp_path), stdin=True) as daemon:
        await daemon.out.until("loading")
        daemon.signal(signal.SIGHUP)
        assert daemon.process.stdin is not None
        daemon.process.stdin.write(b"\n")
        await daemon.err.until("registered")


def test_a_hangup_before_is_a_reload_now() -> None:
    before = [(number, signal.getsignal(number)) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)]
    try:
        handle_early_signals()
        with Signals() as signals:
            assert not signals.reload
        os.kill(os.getpid(), signal.SIGHUP)
        with Signals() as signals:
            assert (signals.stop, signals.reload) == (False, True)
    finally:
        for number, handler in before:
            signal.signal(number, handler)


async def test_a_check_that_is_interrupted_does_not_say_good(node: Node, tmp_path: Path) -> None:
    async with running(node.command("--check"), slow_import(tmp_path), stdin=True) as check:
        await check.out.until("loading")
        check.signal(signal.SIGTERM)
        assert await check.ends() == -signal.SIGTERM


async def test_a_signal_ends_it_while_a_library_never_returns(root: Path) -> None:
    async with running(python("-c", STUCK_IN_C, root)) as plugin:
        await plugin.out.until("stuck")
        plugin.signal(signal.SIGTERM)
        assert await plugin.ends() == 0
    assert any("did not end in time" in line and "in discover" in line for line in plugin.err.all)


async def test_a_signal_that_another_thread_got_ends_it(root: Path) -> None:
    """Python's handler would run when the main thread wakes up, which may be never."""
    async with running(python("-c", SIGNALLED_THREAD, root)) as plugin:
        assert await plugin.ends() == 0


async def test_a_signal_ends_it_while_nobody_reads_its_log(kubelet: ObservedKubelet, node: Node) -> None:
    reading, writing = os.pipe()
    try:
        async with running(node.command("--log-level", "debug"), stderr=writing) as daemon:
            gpu = await kubelet.endpoint("mock/gpu", 1)
            for _ in range(1500):  # more lines than a pipe holds
                await gpu.client.allocate(list(gpu.devices))
            daemon.signal(signal.SIGTERM)
            assert await daemon.ends() == 0
    finally:
        os.close(reading)
        os.close(writing)


def test_the_end_comes_by_force_if_it_does_not_come_in_order() -> None:
    ended, limits = threading.Event(), StopLimits(stop=0.05, last_words=0.01)
    received: list[StopLimits] = []

    def end(with_limits: StopLimits) -> None:
        received.append(with_limits)
        ended.set()

    with Signals(limits, end) as signals:
        os.kill(os.getpid(), signal.SIGTERM)
        assert ended.wait(WAIT)
        assert (signals.stop, signals.reload) == (True, False)
    assert received == [limits]


def test_a_stop_in_order_is_not_followed_by_force() -> None:
    woken, ended = threading.Event(), threading.Event()
    with Signals(StopLimits(stop=3600), lambda _: ended.set()) as signals:
        signals.subscribe(woken.set)
        os.kill(os.getpid(), signal.SIGINT)
        assert woken.wait(WAIT)
        assert signals.stop
    assert not any(thread.name == "plugwright-signals" for thread in threading.enumerate())
    assert not ended.is_set()


def test_hangups_reload_and_the_handlers_before_are_put_back() -> None:
    numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
    before = [signal.getsignal(number) for number in numbers]
    woken = threading.Event()
    with Signals() as signals:
        signals.subscribe(woken.set)
        os.kill(os.getpid(), signal.SIGHUP)
        assert woken.wait(WAIT)
        assert (signals.stop, signals.reload) == (False, True)
    assert [signal.getsignal(number) for number in numbers] == before


def test_what_a_stop_may_wait_for_is_less_than_a_second_in_all() -> None:
    """Docs: exit code 0 in under a second, without claims in progress. A third of the limit is left for the rest."""
    limits = StopLimits()
    assert limits.stop + limits.last_words < 1
    assert limits.stop * 2 / 3 >= transport._HANG_UP_LIMIT + logs._FLUSH_LIMIT


def test_claims_in_progress_leave_time_for_the_rest_within_the_grace_period_of_a_pod() -> None:
    limits = StopLimits()
    assert limits.finish + limits.stop + limits.last_words < 9.5  # of 10 s in the chart, the manifests and the unit


def test_the_rest_of_a_stop_has_its_limit_once_claims_are_finished() -> None:
    ended = threading.Event()
    with Signals(StopLimits(finish=3600, stop=0.2, last_words=0.01), lambda _: ended.set()) as signals:
        os.kill(os.getpid(), signal.SIGTERM)
        with signals.finishing():
            pass
        assert ended.wait(WAIT)


def test_a_second_stop_ends_the_time_for_claims() -> None:
    ended = threading.Event()
    with Signals(StopLimits(finish=3600, stop=2, last_words=0.01), lambda _: ended.set()) as signals:
        os.kill(os.getpid(), signal.SIGTERM)
        with signals.finishing():
            os.kill(os.getpid(), signal.SIGINT)
            assert ended.wait(WAIT)
        assert signals.stop_now


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_nothing_is_left_of_a_receiver() -> None:
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(10):
        with Signals():
            logging.getLogger(__name__).debug("inside")
    assert len(list(Path("/proc/self/fd").iterdir())) == before


@pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGUSR2])
async def test_a_signal_without_a_meaning_does_not_end_the_daemon(
    kubelet: ObservedKubelet, number: signal.Signals
) -> None:
    node = Node(kubelet.paths.root)
    node.configure(gpu={"count": 2})
    async with node.daemon() as daemon:
        await kubelet.endpoint("mock/gpu", 2)
        daemon.signal(number)
        node.configure(gpu={"count": 3})  # served by the same process
        await kubelet.endpoint("mock/gpu", 3)
        daemon.signal(signal.SIGTERM)
        assert await daemon.ends() == 0
