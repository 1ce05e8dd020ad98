"""Rules of resources: descriptors, threads and memory over restarts of the kubelet, and what an idle plugin costs."""

import os
from collections.abc import Callable
from pathlib import Path

from plugwright.conformance.asking import expect, expect_list
from plugwright.conformance.observations import idleness
from plugwright.conformance.rule import Level, Rule
from plugwright.conformance.session import Session
from plugwright.conformance.verifier import Verifier
from plugwright.errors import RuleNotApplicable

__all__ = ["RULES"]

_WARM_UP, _RESTARTS, _THOROUGH = 3, 12, 1000
_MEMORY = 256 * 1024  # bytes that one restart may add
_LISTS = 2000
_WAKE_UPS = 50  # in a second
_CPU = 0.5  # of one core


async def _session(verifier: Verifier) -> Session:
    session = await verifier.running()
    if verifier.target.attached:
        raise RuleNotApplicable("the program is attached")
    return session


async def _growth(verifier: Verifier, count: Callable[[list[int]], int], restarts: int) -> int:
    """How much a count has grown over restarts of the kubelet."""
    session = await _session(verifier)
    for _ in range(_WARM_UP):
        await session.restart_kubelet()
    before = count(session.program.processes())
    for _ in range(restarts):
        await session.restart_kubelet()
    return count(session.program.processes()) - before


def _descriptors(pids: list[int]) -> int:
    return sum(len(list(Path(f"/proc/{pid}/fd").iterdir())) for pid in pids)


def _threads(pids: list[int]) -> int:
    return sum(len(list(Path(f"/proc/{pid}/task").iterdir())) for pid in pids)


def _memory(pids: list[int]) -> int:
    pages = sum(int(Path(f"/proc/{pid}/statm").read_text().split()[1]) for pid in pids)
    return pages * os.sysconf("SC_PAGE_SIZE")


def _restarts(verifier: Verifier) -> int:
    return _THOROUGH if verifier.options.thorough else _RESTARTS


class KeepsDescriptors(Rule):
    id, level, facts = "RES-01", Level.MUST, ("1.38",)
    title = "Restarts of the kubelet leave no descriptor open"
    why = "After some hundred restarts the program can open no file any more."
    fix = "Stop the old server and close the old connection at each registration."

    async def check(self, verifier: Verifier) -> None:
        restarts = _restarts(verifier)
        grown = await _growth(verifier, _descriptors, restarts)
        expect(grown < restarts // 2, "as many descriptors as before", f"{grown} more after {restarts} restarts")


class KeepsThreads(Rule):
    id, level, facts = "RES-02", Level.MUST, ()
    title = "Restarts of the kubelet leave no thread behind"
    why = "Each one holds memory, and in the end none can be started any more."
    fix = "End a stream's thread when its context ends."

    async def check(self, verifier: Verifier) -> None:
        restarts = _restarts(verifier)
        grown = await _growth(verifier, _threads, restarts)
        expect(grown < restarts // 2, "as many threads as before", f"{grown} more after {restarts} restarts")


class KeepsMemory(Rule):
    id, level, facts = "RES-03", Level.SHOULD, ()
    title = "Restarts of the kubelet do not fill the memory"
    why = "The pod is killed at its memory limit, with all its devices."
    fix = "Drop the state of the last registration; look for lists that only grow."

    async def check(self, verifier: Verifier) -> None:
        restarts = _restarts(verifier)
        grown = await _growth(verifier, _memory, restarts)
        seen = f"{grown / 1024:.0f} KiB more after {restarts} restarts"
        expect(grown < restarts * _MEMORY, f"less than {_MEMORY // 1024} KiB for each restart", seen)


class IsQuietWhenIdle(Rule):
    id, level, facts = "RES-04", Level.SHOULD, ()
    title = "An idle plugin does not wake up all the time"
    why = "It runs on every node, for months, beside work that needs the cores."
    fix = "Wait for events; where you must look, look every few seconds."

    async def check(self, verifier: Verifier) -> None:
        await _session(verifier)
        rate = (await verifier.remembered(idleness)).wake_ups
        expect(rate <= _WAKE_UPS, f"at most {_WAKE_UPS} wake-ups in a second", f"{rate:.0f}")


class CostsNothingWhenIdle(Rule):
    id, level, facts = "RES-05", Level.MUST, ()
    title = "An idle plugin does not use the processor"
    why = "A busy loop takes a core of every node."
    fix = "Wait for events; a `for {}` around a select with a default is a busy loop."

    async def check(self, verifier: Verifier) -> None:
        await _session(verifier)
        used = (await verifier.remembered(idleness)).cpu
        expect(used <= _CPU, f"at most {_CPU:.0%} of a core", f"{used:.0%}")


class EnduresStreams(Rule):
    id, level, facts, thorough = "RES-06", Level.MUST, ("2.22",), True
    title = f"{_LISTS} streams, opened and ended, leave nothing behind"
    why = "Monitoring agents and debuggers open streams too; each must end without a trace."
    fix = "Remove a stream from your list of streams when it ends."

    async def check(self, verifier: Verifier) -> None:
        session = await _session(verifier)
        plugin = session.plugins()[0]
        before = None
        for number in range(_LISTS):
            await expect_list(verifier, plugin, "each stream")
            if number == _LISTS // 10:
                before = _descriptors(session.program.processes()), _memory(session.program.processes())
        assert before is not None
        descriptors, memory = _descriptors(session.program.processes()), _memory(session.program.processes())
        expect(descriptors - before[0] < _LISTS // 10, "no descriptor more", f"{descriptors - before[0]} more")
        expect(memory - before[1] < _LISTS * 8192, "no memory more", f"{(memory - before[1]) // 1024} KiB more")


RULES: tuple[type[Rule], ...] = (
    KeepsDescriptors,
    KeepsThreads,
    KeepsMemory,
    IsQuietWhenIdle,
    CostsNothingWhenIdle,
    EnduresStreams,
)
