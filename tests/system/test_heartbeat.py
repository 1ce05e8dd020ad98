"""The heartbeat: a blocked event loop is seen from any other thread, whatever blocks it, with the line."""

import asyncio
import os
import re
import threading
from pathlib import Path

from plugwright.system.concurrency import in_thread
from plugwright.system.heartbeat import Heartbeat

SHORT = 0.05
LONG = 60.0


def asked_from_a_thread(heartbeat: Heartbeat, limit: float = SHORT) -> str:
    """What a thread is answered while this one, the loop's, is blocked."""
    answers: list[str] = []
    thread = threading.Thread(target=lambda: answers.append(heartbeat.check(limit)))
    thread.start()
    thread.join()
    return answers[0]


async def test_a_loop_that_runs_is_alive() -> None:
    heartbeat = Heartbeat()
    assert await in_thread("probe", lambda: heartbeat.check(LONG)) == ""
    assert await in_thread("probe", lambda: heartbeat.check(LONG)) == ""


async def test_a_blocked_loop_is_named_with_the_line_that_blocks_it() -> None:
    heartbeat = Heartbeat()
    answer = asked_from_a_thread(heartbeat)
    # for as long as the check waited, or longer on a busy machine; not threading.py, which it waits in
    line = re.fullmatch(
        rf"event loop blocked for ([\d.]+) s at {re.escape(__file__)}:\d+ in asked_from_a_thread", answer
    )
    assert line, answer
    assert SHORT <= float(line[1]) < LONG


async def test_a_task_that_nobody_watches_is_seen_to_block() -> None:
    heartbeat, answers = Heartbeat(), list[str]()

    async def unwatched() -> None:
        answers.append(asked_from_a_thread(heartbeat))

    await asyncio.create_task(unwatched())
    assert answers[0].startswith("event loop blocked")


async def test_a_file_that_hangs_is_seen_with_the_line_that_reads_it(root: Path) -> None:
    fifo = root / "operstate"
    os.mkfifo(fifo)
    heartbeat, answers = Heartbeat(), list[str]()

    def ask_then_write() -> None:
        answers.append(heartbeat.check(SHORT))
        fifo.write_text("up\n")

    thread = threading.Thread(target=ask_then_write)
    thread.start()
    assert fifo.read_text() == "up\n"
    thread.join()
    assert f"at {__file__}:" in answers[0]


async def test_a_loop_that_runs_again_is_alive_again() -> None:
    heartbeat = Heartbeat()
    assert asked_from_a_thread(heartbeat)
    assert await in_thread("probe", lambda: heartbeat.check(LONG)) == ""


async def test_a_loop_that_stays_blocked_is_answered_with_the_whole_time_and_gets_no_more_to_do() -> None:
    heartbeat = Heartbeat()
    loop = asyncio.get_running_loop()
    before = len(loop._ready)  # type: ignore[attr-defined]
    seconds = [float(asked_from_a_thread(heartbeat).split()[4]) for _ in range(3)]
    assert seconds == sorted(seconds)
    assert len(set(seconds)) == 3 or seconds[0] >= 1  # three digits are shown
    assert len(loop._ready) <= before + 1  # type: ignore[attr-defined]


async def test_the_loop_itself_is_answered_at_once() -> None:
    assert Heartbeat().check(LONG) == ""


def test_a_loop_that_has_ended_is_said_to_have() -> None:
    async def make() -> Heartbeat:
        return Heartbeat()

    assert asked_from_a_thread(asyncio.run(make())) == "the event loop has ended"


def test_a_loop_that_has_ended_is_answered_in_its_own_thread_too() -> None:
    async def make() -> Heartbeat:
        return Heartbeat()

    assert asyncio.run(make()).check(SHORT) == "the event loop has ended"


async def test_nothing_wakes_up_while_nobody_asks() -> None:
    before = set(threading.enumerate())
    heartbeat = Heartbeat()
    timers = len(asyncio.get_running_loop()._scheduled)  # type: ignore[attr-defined]
    assert asked_from_a_thread(heartbeat)
    assert set(threading.enumerate()) <= before
    assert len(asyncio.get_running_loop()._scheduled) == timers  # type: ignore[attr-defined]
