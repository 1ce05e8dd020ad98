"""The author's code is called within a limit, and whatever it does becomes an error of ours."""

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable, Iterator
from functools import partialmethod

import pytest

from plugwright.errors import CallNotStarted, InvalidValue, PluginError, PluginFailed, PluginTimeout
from plugwright.model import Device
from plugwright.sdk.plugin_calls import MOST_THREADS, PluginCalls, StallDetector

Method = Callable[[], Awaitable[None] | None]


@pytest.fixture
def caller() -> Iterator[PluginCalls]:
    stalls = StallDetector(5)
    yield PluginCalls("example.com/tape", stalls)
    stalls.close()


async def with_async(value: int) -> int:
    await asyncio.sleep(0)
    return value + 1


def without_async(value: int) -> int:
    return value + 1


def returning_an_awaitable(value: int) -> Awaitable[int]:
    return with_async(value)


returning_an_int: Callable[[int], int | Awaitable[int]] = with_async


async def returning_at_once(value: int) -> int:
    return value + 1


@pytest.mark.parametrize("method", [with_async, without_async, returning_an_awaitable, returning_at_once])
async def test_a_method_may_be_written_with_or_without_async(
    method: Callable[[int], int | Awaitable[int]], caller: PluginCalls
) -> None:
    assert await caller.call("rewind", method, 1, limit=20) == 2


async def test_a_method_without_async_runs_in_a_thread_named_after_it(caller: PluginCalls) -> None:
    def rewind() -> str:
        return threading.current_thread().name

    assert await caller.call("rewind", rewind, limit=20) == "rewind() of example.com/tape"


async def test_a_method_with_async_runs_in_the_loop(caller: PluginCalls) -> None:
    seen: list[threading.Thread] = []

    async def rewind() -> None:
        seen.append(threading.current_thread())

    method: Method = rewind
    await caller.call("rewind", method, limit=20)
    assert seen == [threading.current_thread()]


class Hang:
    """A method that does not end, in both ways."""

    def __init__(self) -> None:
        self.let_go = threading.Event()
        self.cancelled = False

    async def with_async(self) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            self.cancelled = True

    def without_async(self) -> None:
        self.let_go.wait(20)


@pytest.fixture
def hang() -> Iterator[Hang]:
    hang = Hang()
    yield hang
    hang.let_go.set()


async def test_a_method_that_hangs_is_left_at_its_limit(hang: Hang, caller: PluginCalls) -> None:
    methods: list[Method] = [hang.with_async, hang.without_async]
    for method in methods:
        with pytest.raises(PluginTimeout, match=r"^rewind\(\) of example.com/tape did not end within 0.05 s"):
            await caller.call("rewind", method, limit=0.05)
    assert hang.cancelled


def threads_of(method: str) -> int:
    return sum(thread.name == f"{method}() of example.com/tape" for thread in threading.enumerate())


async def test_a_hundred_calls_that_hang_keep_few_threads_and_no_other_method(hang: Hang, caller: PluginCalls) -> None:
    hanging = [caller.call("spool", hang.without_async, limit=0.05) for _ in range(100)]
    ended = await asyncio.gather(*hanging, return_exceptions=True)
    assert {type(error) for error in ended} <= {PluginTimeout, CallNotStarted}
    assert threads_of("spool") == caller.threads.stuck["spool"] == MOST_THREADS
    assert await caller.call("eject", without_async, 1, limit=20) == 2


async def test_calls_fail_at_once_while_four_are_stuck_and_name_the_line(hang: Hang, caller: PluginCalls) -> None:
    for stuck in range(4):
        with pytest.raises(PluginTimeout):
            await caller.call("wind", hang.without_async, limit=0.05)
        while caller.threads.stuck != {"wind": stuck + 1}:
            await asyncio.sleep(0)
    line = rf"{__file__}:\d+ in without_async"
    for _ in range(3):
        text = rf"^wind\(\) of example.com/tape not started: 4 earlier calls still hang in {line}$"
        with pytest.raises(PluginError, match=text):
            await caller.call("wind", hang.without_async, limit=20)
    assert threads_of("wind") == 4
    hang.let_go.set()
    while caller.threads.stuck:
        await asyncio.sleep(0.001)
    assert await caller.call("wind", without_async, 1, limit=20) == 2


async def test_slow_calls_that_end_in_time_are_not_stuck(hang: Hang, caller: PluginCalls) -> None:
    calls = [asyncio.create_task(caller.call("load", hang.without_async, limit=60)) for _ in range(20)]
    while threads_of("load") < MOST_THREADS:
        await asyncio.sleep(0.001)
    assert caller.threads.stuck == {}
    hang.let_go.set()
    assert await asyncio.gather(*calls) == [None] * 20


@pytest.fixture
def no_thread_left() -> Iterator[None]:
    """No thread can be started: no address space has room for such a stack, even if the kernel overcommits memory."""
    before = threading.stack_size(1 << 60)
    yield
    threading.stack_size(before)


@pytest.mark.usefixtures("no_thread_left")
async def test_a_thread_that_cannot_be_started_fails_that_call(caller: PluginCalls) -> None:
    for _ in range(2 * MOST_THREADS):
        with pytest.raises(CallNotStarted, match="can't start new thread"):
            await caller.call("rewind", without_async, 1, limit=20)
    assert caller.threads.stuck == {}
    assert await caller.call("rewind", returning_an_int, 1, limit=20) == 2


@pytest.mark.usefixtures("no_thread_left")
async def test_a_stall_detector_whose_thread_cannot_be_started_tries_again(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "plugwright.sdk.plugin_calls")
    stalls = StallDetector(0.05)
    assert await PluginCalls("example.com/tape", stalls).call("rewind", returning_an_int, 1, limit=20) == 2
    assert "stalls are not watched" in caplog.messages
    threading.stack_size(0)
    await PluginCalls("example.com/tape", stalls).call("rewind", returning_an_int, 1, limit=20)
    assert [thread for thread in threading.enumerate() if thread.name == "plugwright-stalls"]
    stalls.close()


FAILURES: dict[str, tuple[BaseException, str]] = {
    "an exception": (OSError("bus error"), "OSError: bus error"),
    "an exception without a text": (KeyError(), "KeyError"),
    "an exit": (SystemExit(3), "SystemExit: 3"),
    "a cancellation of its own": (asyncio.CancelledError(), "CancelledError"),
    "a timeout of its own": (TimeoutError("no answer"), "TimeoutError: no answer"),
    "the end of an iteration": (StopIteration(), "RuntimeError: "),
    "the end of an async iteration": (StopAsyncIteration(), "StopAsyncIteration"),
}


@pytest.mark.parametrize(("error", "reason"), FAILURES.values(), ids=FAILURES)
async def test_an_exception_of_a_method_becomes_plugin_failed(
    error: BaseException, reason: str, caller: PluginCalls
) -> None:
    async def with_async() -> None:
        await asyncio.sleep(0)
        raise error

    def without_async() -> None:
        raise error

    methods: list[Method] = [with_async, without_async]
    for method in methods:
        with pytest.raises(PluginFailed, match=rf"^rewind\(\) of example.com/tape failed: {reason}"):
            await caller.call("rewind", method, limit=20)


async def test_the_exception_of_a_method_is_the_cause(caller: PluginCalls) -> None:
    def allocate() -> None:
        raise OSError("bus error")

    with pytest.raises(PluginFailed) as caught:
        await caller.call("allocate", allocate, limit=20)
    assert isinstance(caught.value.__cause__, OSError)
    assert (caught.value.resource, caught.value.method) == ("example.com/tape", "allocate")


async def test_a_plugin_error_that_the_plugin_raises_passes_as_it_is(caller: PluginCalls) -> None:
    error = PluginError("eject first")

    def allocate() -> None:
        raise error

    with pytest.raises(PluginError) as caught:
        await caller.call("allocate", allocate, limit=20)
    assert caught.value is error


async def test_a_value_that_the_plugin_made_wrong_is_named_with_its_line(caller: PluginCalls) -> None:
    def allocate() -> Device:
        return Device("")

    with pytest.raises(
        PluginFailed, match=r"InvalidValue: device id .* got '' at .*test_plugin_calls.py:\d+ in allocate"
    ):
        await caller.call("allocate", allocate, limit=20)


async def test_an_operators_wrong_value_is_answered_as_it_is(caller: PluginCalls) -> None:
    def command() -> Device:
        return Device("")

    with pytest.raises(InvalidValue, match=r"^device id must"):
        await caller.call("command", command, limit=20)


async def test_a_call_that_is_cancelled_is_cancelled(hang: Hang, caller: PluginCalls) -> None:
    methods: list[Method] = [hang.with_async, hang.without_async]
    for method in methods:
        calling = asyncio.create_task(caller.call("rewind", method, limit=20))
        await asyncio.sleep(0)
        calling.cancel()
        with pytest.raises(asyncio.CancelledError):
            await calling


class Mechanism:
    def move(self, forward: bool, steps: int) -> int:
        return steps if forward else -steps

    rewind = partialmethod(move, False)


async def test_a_method_may_be_made_from_another(caller: PluginCalls) -> None:
    assert await caller.call("rewind", Mechanism().rewind, 3, limit=20) == -3


async def test_a_method_that_ignores_its_cancellation_is_left_at_its_limit(caller: PluginCalls) -> None:
    let_go = asyncio.Event()

    async def stubborn() -> None:
        try:
            await let_go.wait()
        except asyncio.CancelledError:
            await let_go.wait()

    method: Method = stubborn
    calling = asyncio.create_task(caller.call("rewind", method, limit=0.05))
    done, _ = await asyncio.wait([calling], timeout=60)
    let_go.set()
    (ended,) = await asyncio.gather(calling, return_exceptions=True)
    assert done
    assert isinstance(ended, PluginTimeout)
