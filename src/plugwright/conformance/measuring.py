"""What a program uses, and whether calls leave some of it behind."""

from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Growth", "Usage", "growth", "usage"]

_ROUNDS, _CONFIRMING_ROUNDS = 4, 6


@dataclass(frozen=True, slots=True)
class Usage:
    """Open descriptors, threads and bytes of private memory."""

    descriptors: int
    threads: int
    memory: int

    def __sub__(self, other: "Usage") -> "Usage":
        return Usage(self.descriptors - other.descriptors, self.threads - other.threads, self.memory - other.memory)


def usage(pids: Sequence[int]) -> Usage:
    """Of all these processes together; those that ended meanwhile count as nothing."""
    descriptors = threads = memory = 0
    for process in (Path(f"/proc/{pid}") for pid in pids):
        with suppress(OSError):
            descriptors += len(list((process / "fd").iterdir()))
            threads += len(list((process / "task").iterdir()))
            memory += _private_memory((process / "status").read_text())
    return Usage(descriptors, threads, memory)


def _private_memory(status: str) -> int:
    lines = (line.split() for line in status.splitlines() if line.startswith(("RssAnon:", "VmSwap:")))
    return sum(int(words[1]) * 1024 for words in lines)


@dataclass(frozen=True, slots=True)
class Growth:
    """What equal rounds of calls have added, round by round; `calls` is the number of calls of each."""

    calls: int
    rounds: tuple[Usage, ...]

    @property
    def total_calls(self) -> int:
        return self.calls * len(self.rounds)

    def total(self, part: Callable[[Usage], int]) -> int:
        return sum(map(part, self.rounds))

    def is_steady(self, part: Callable[[Usage], int], per_call: float) -> bool:
        """Whether every round has added so much for each call: caches and heaps reach their size, leaks do not."""
        return all(part(grown) >= max(1.0, per_call * self.calls) for grown in self.rounds)


async def growth(
    pids: Callable[[], Sequence[int]],
    make_calls: Callable[[int], Awaitable[None]],
    calls: int,
    suspicious: Callable[[Growth], bool],
) -> Growth:
    """Makes rounds of calls after a first one that does not count, and more of them while the growth is suspicious."""
    await make_calls(calls)
    before = usage(pids())
    rounds: list[Usage] = []
    for number in range(_ROUNDS + _CONFIRMING_ROUNDS):
        if number >= _ROUNDS and not suspicious(Growth(calls, tuple(rounds))):
            break
        await make_calls(calls)
        now = usage(pids())
        rounds.append(now - before)
        before = now
    return Growth(calls, tuple(rounds))
