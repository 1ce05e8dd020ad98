"""A program's resource usage, and whether calls leak some of it."""

from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Growth", "Usage", "growth", "usage"]

_ROUNDS = 4
_PART_OF_CALLS = 0.05  # share of calls that can leave a descriptor or a thread behind
_MEMORY_PER_CALL = 1024  # bytes; a call that leaks less needs months to matter


@dataclass(frozen=True, slots=True)
class Usage:
    """Open descriptors, threads and bytes of private memory."""

    descriptors: int
    threads: int
    memory: int

    def __sub__(self, other: "Usage") -> "Usage":
        return Usage(self.descriptors - other.descriptors, self.threads - other.threads, self.memory - other.memory)


def usage(pids: Sequence[int]) -> Usage:
    """The sum over all these processes; ended ones count as zero."""
    descriptors = threads = memory = 0
    for process in (Path(f"/proc/{pid}") for pid in pids):
        with suppress(OSError):
            descriptors += len(list((process / "fd").iterdir()))
            threads += len(list((process / "task").iterdir())) + _zombies(process)
            memory += _private_memory((process / "status").read_text())
    return Usage(descriptors, threads, memory)


def _zombies(process: Path) -> int:
    """Ended children for which the process does not wait: each keeps an entry in the process table."""
    children = [pid for path in process.glob("task/*/children") for pid in path.read_text().split()]
    states = [Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] for pid in children]
    return states.count("Z")


def _private_memory(status: str) -> int:
    lines = (line.split() for line in status.splitlines() if line.startswith(("RssAnon:", "VmSwap:")))
    return sum(int(words[1]) * 1024 for words in lines)


@dataclass(frozen=True, slots=True)
class Growth:
    """The growth by equal rounds of calls, round by round; `calls` is the number of calls of each."""

    calls: int
    rounds: tuple[Usage, ...]

    @property
    def total_calls(self) -> int:
        return self.calls * len(self.rounds)

    @property
    def total(self) -> Usage:
        return Usage(
            sum(one.descriptors for one in self.rounds),
            sum(one.threads for one in self.rounds),
            sum(one.memory for one in self.rounds),
        )

    @property
    def leaks_descriptors(self) -> bool:
        return all(one.descriptors > self.calls * _PART_OF_CALLS for one in self.rounds)

    @property
    def leaks_threads(self) -> bool:
        return all(one.threads > self.calls * _PART_OF_CALLS for one in self.rounds)

    @property
    def leaks_memory(self) -> bool:
        """Whether every round has added memory for each call: caches and heaps reach a limit, leaks do not."""
        return all(one.memory > self.calls * _MEMORY_PER_CALL for one in self.rounds)


async def growth(
    pids: Callable[[], Sequence[int]], make_calls: Callable[[int], Awaitable[None]], calls: int, many_calls: int
) -> Growth:
    """Makes rounds of calls after one that does not count; larger ones if the last round has added memory.

    A heap with a garbage collector grows over many calls before it reaches its limit, so few calls prove no leak.
    """
    await make_calls(calls)
    found = await _rounds(pids, make_calls, calls)
    last = Growth(calls, found.rounds[-1:])
    if last.leaks_memory and not (found.leaks_descriptors or found.leaks_threads):
        await make_calls(many_calls)
        found = await _rounds(pids, make_calls, many_calls)
    return found


async def _rounds(
    pids: Callable[[], Sequence[int]], make_calls: Callable[[int], Awaitable[None]], calls: int
) -> Growth:
    before = usage(pids())
    rounds: list[Usage] = []
    for _ in range(_ROUNDS):
        await make_calls(calls)
        now = usage(pids())
        rounds.append(now - before)
        before = now
    return Growth(calls, tuple(rounds))
