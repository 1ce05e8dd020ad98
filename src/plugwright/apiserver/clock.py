"""Times in the format of the Kubernetes API, and the rounds of many nodes."""

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime

__all__ = ["Clock", "Rounds", "micro_time", "now", "parse", "timestamp"]

Clock = Callable[[], datetime]


def now() -> datetime:
    return datetime.now(UTC)


def timestamp(moment: datetime) -> str:
    """The format of `metav1.Time`: whole seconds."""
    return moment.isoformat(timespec="seconds")[: len("2000-01-01T00:00:00")] + "Z"


def micro_time(moment: datetime) -> str:
    """The format of `metav1.MicroTime`, in leases and events.k8s.io's fields."""
    return moment.isoformat(timespec="microseconds")[: len("2000-01-01T00:00:00.000000")] + "Z"


def parse(text: str) -> datetime:
    return datetime.fromisoformat(text)


class Rounds:
    """Times that are `period` seconds apart, `phase` seconds after each multiple of the period.

    They are equal for all users of the same two numbers, so the event loop wakes up once for all of them.
    """

    __slots__ = ("_last", "_period", "_phase")

    def __init__(self, period: float, phase: float = 0.0) -> None:
        self._period, self._phase = period, phase
        self._last = float("-inf")  # the number of the last round

    async def next(self) -> None:
        """Waits for the next round; skips rounds that have passed in the meantime."""
        await asyncio.sleep(self.delay(asyncio.get_running_loop().time()))

    def delay(self, now: float) -> float:
        """The seconds until the next round, which the following call treats as the last one."""
        # A timer can be early by the resolution of the clock, which is not another round.
        self._last = max(self._last, (now - self._phase) // self._period) + 1
        return self._last * self._period + self._phase - now
