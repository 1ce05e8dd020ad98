"""Plugin code that keeps the event loop to itself is noticed while it does."""

import asyncio
import logging
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace
from tests.observed_kubelet import ObservedKubelet
from tests.sdk.actors import TAPE, ListingPlugin

from plugwright import Device, Limits, Plugin, Settings, serving
from plugwright.model import Allocation
from plugwright.sdk.plugin_calls import PluginCalls, StallDetector

LIMIT = 0.05


@pytest.fixture
def watch() -> Iterator[StallDetector]:
    watch = StallDetector(LIMIT)
    yield watch
    watch.close()
    _wait_for_those_that_were_closed()


def _wait_for_those_that_were_closed() -> None:
    for thread in _watchers():
        thread.join(60)


def _watchers() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "plugwright-stalls"]


def block_until(happened: Callable[[], object]) -> None:
    """Blocks as a driver would; gives up so that a test which fails does not hang."""
    ending = time.monotonic() + 60
    while not happened() and time.monotonic() < ending:
        time.sleep(0.01)


def _said(caplog: pytest.LogCaptureFixture, message: str) -> list[dict[str, object]]:
    return [record.__dict__ for record in caplog.records if record.getMessage() == message]


async def test_a_blocked_loop_is_logged_with_its_line_while_it_is_blocked(
    watch: StallDetector, caplog: pytest.LogCaptureFixture
) -> None:
    seen: list[tuple[int, str]] = []

    async def allocate() -> None:
        block_until(lambda: watch.count)
        seen.append((watch.count, watch.stalled))

    await watch.run("allocate() of example.com/tape", allocate())
    assert seen == [(1, "allocate() of example.com/tape")]
    (facts,) = _said(caplog, "plugin code blocks the event loop")
    assert (facts["levelname"], facts["code"]) == ("ERROR", "allocate() of example.com/tape")
    assert str(facts["where"]).startswith(__file__)
    assert str(facts["where"]).endswith("in block_until")


async def test_a_stall_is_logged_once_and_its_end_too(watch: StallDetector, caplog: pytest.LogCaptureFixture) -> None:
    async def allocate() -> None:
        block_until(lambda: watch.count)
        (thread,) = _watchers()
        for _ in range(4):  # the detector looks several times more
            before = _switches(thread)
            block_until(lambda before=before: _switches(thread) != before)  # type: ignore[misc]

    await watch.run("allocate()", allocate())
    assert len(_said(caplog, "plugin code blocks the event loop")) == 1
    (facts,) = _said(caplog, "plugin code gave the event loop back")
    assert facts["levelname"] == "WARNING"
    assert float(str(facts["seconds"])) >= LIMIT
    assert (watch.count, watch.stalled) == (1, "")


async def test_a_step_that_begins_between_two_looks_is_timed_from_its_own_beginning(
    watch: StallDetector, caplog: pytest.LogCaptureFixture
) -> None:
    async def allocate() -> None:
        before = watch.count  # on a busy machine the first step may have been one too many
        block_until(lambda: watch.count > before)

    await watch.run("discover()", asyncio.sleep(0))  # the detector is awake now, and this begins before its next look
    await watch.run("allocate()", allocate())
    blocking = _said(caplog, "plugin code blocks the event loop")
    (facts,) = [facts for facts in blocking if facts["code"] == "allocate()"]
    assert str(facts["where"]).endswith("in block_until")


def without_thread() -> StallDetector:
    """A detector that only sees the end of a block: its thread has ended."""
    watch = StallDetector(LIMIT)
    watch.begin("allocate()")
    watch.close()
    _wait_for_those_that_were_closed()
    return watch


async def end_of(step: Callable[[], Awaitable[object]], caplog: pytest.LogCaptureFixture) -> str:
    await without_thread().run("allocate()", step())  # type: ignore[arg-type]
    return str(_said(caplog, "plugin code blocks the event loop")[0]["where"])


async def test_a_block_that_is_seen_at_its_end_names_the_line_where_the_plugin_waits(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def allocate() -> None:
        time.sleep(2 * LIMIT)
        await asyncio.sleep(0)

    where = await end_of(allocate, caplog)
    assert where == f"{__file__}:{allocate.__code__.co_firstlineno + 2} in allocate"


async def test_a_block_that_is_seen_at_its_end_names_the_method_that_has_ended(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def allocate() -> None:
        time.sleep(2 * LIMIT)

    assert await end_of(allocate, caplog) == f"{__file__}:{allocate.__code__.co_firstlineno} in allocate"


async def test_a_block_of_a_generator_that_is_seen_at_its_end_names_its_line(caplog: pytest.LogCaptureFixture) -> None:
    async def discover() -> AsyncIterator[list[Device]]:
        time.sleep(2 * LIMIT)
        yield []

    class Blocking(ListingPlugin):
        def discover(self) -> AsyncIterator[list[Device]]:
            return discover()

    async for _ in PluginCalls(TAPE, without_thread()).device_lists(Blocking()):
        pass
    (facts,) = _said(caplog, "plugin code blocks the event loop")
    assert facts["where"] == f"{__file__}:{discover.__code__.co_firstlineno + 2} in discover"


async def test_every_stall_is_counted(watch: StallDetector) -> None:
    async def allocate() -> None:
        for _ in range(3):
            before = watch.count
            block_until(lambda before=before: watch.count > before)  # type: ignore[misc]
            await asyncio.sleep(0)

    await watch.run("allocate()", allocate())
    assert watch.count >= 3  # more, if the machine is so busy that it stalls by itself


async def test_code_that_waits_without_blocking_is_no_stall(caplog: pytest.LogCaptureFixture) -> None:
    watch = StallDetector(0.3)

    async def discover() -> None:
        await asyncio.sleep(0.7)

    await watch.run("discover()", discover())
    watch.close()
    assert (watch.count, watch.stalled) == (0, "")
    assert not _said(caplog, "plugin code blocks the event loop")


async def test_there_is_no_thread_before_plugin_code_has_run_and_none_after_the_end() -> None:
    _wait_for_those_that_were_closed()  # by tests before this one
    watch = StallDetector(LIMIT)
    assert not _watchers()
    await watch.run("allocate()", asyncio.sleep(0))
    (thread,) = _watchers()
    assert thread.daemon
    watch.close()
    thread.join(60)
    assert not thread.is_alive()


async def test_close_twice_or_before_the_first_step_does_nothing() -> None:
    watch = StallDetector(LIMIT)
    watch.close()
    watch.close()
    assert not _watchers()


async def test_an_idle_detector_sleeps_until_plugin_code_runs_again(watch: StallDetector) -> None:
    async def allocate() -> None:
        block_until(lambda: watch.count)

    await watch.run("allocate()", asyncio.sleep(0))
    (thread,) = _watchers()
    assert await _sleeps_for_a_second(thread)
    await watch.run("allocate()", allocate())
    assert watch.count >= 1
    assert _watchers() == [thread]


async def _sleeps_for_a_second(thread: threading.Thread) -> bool:
    """Whether a whole second passes without a wake-up; it may first still look at what has just run."""
    for _ in range(5):
        before = _switches(thread)
        await asyncio.sleep(1)
        if _switches(thread) == before:
            return True
    return False


def _switches(thread: threading.Thread) -> str:
    status = Path(f"/proc/self/task/{thread.native_id}/status").read_text()
    return next(line for line in status.splitlines() if line.startswith("voluntary_ctxt_switches"))


async def test_a_timed_coroutine_behaves_as_an_untimed_one(watch: StallDetector) -> None:
    async def adding(one: int) -> int:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[int] = loop.create_future()
        loop.call_soon(future.set_result, 2)
        return one + await future

    async def failing() -> None:
        await asyncio.sleep(0)
        raise OSError("bus error")

    async def catching() -> str:
        try:
            await failing()
        except OSError as error:
            return str(error)
        return ""

    assert await watch.run("allocate()", adding(1)) == 3
    assert await watch.run("allocate()", catching()) == "bus error"
    with pytest.raises(OSError, match="bus error"):
        await watch.run("allocate()", failing())


async def test_a_timed_coroutine_can_be_cancelled_and_cleans_up(watch: StallDetector) -> None:
    entered, left = asyncio.Event(), asyncio.Event()

    async def waiting() -> None:
        entered.set()
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            left.set()

    async def watching() -> None:
        await watch.run("allocate()", waiting())

    task = asyncio.create_task(watching())
    await entered.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert left.is_set()


class Rude(Plugin):
    """Blocks the loop in both of its methods."""

    resource = "example.com/tape"

    def __init__(self, is_noticed: Callable[[str], bool]) -> None:
        self.is_noticed = is_noticed
        self.blocked = 0

    async def discover(self) -> AsyncIterator[list[Device]]:
        self.block("discover()")
        yield [Device("st0")]

    async def allocate(self, devices: object) -> Allocation:
        self.block("allocate()")
        return Allocation()

    def block(self, code: str) -> None:
        block_until(lambda: self.is_noticed(f"{code} of {self.resource}"))
        self.blocked += 1


async def test_a_served_plugin_that_blocks_is_named_and_counted_and_goes_on(
    kubelet: ObservedKubelet, settings: Settings, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.ERROR, "plugwright.sdk.plugin_calls")

    def noticed() -> set[str]:
        return {str(facts["code"]) for facts in _said(caplog, "plugin code blocks the event loop")}

    plugin = Rude(lambda code: code in noticed())
    async with serving(plugin, settings=replace(settings, limits=Limits(loop_step=LIMIT))) as daemon:
        tape = await kubelet.endpoint("example.com/tape")
        assert await tape.client.allocate(["st0"]) == [Allocation()]
        assert daemon.stalls.count >= plugin.blocked == 2
    assert noticed() == {"discover() of example.com/tape", "allocate() of example.com/tape"}
