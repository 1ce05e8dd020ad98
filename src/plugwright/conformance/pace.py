"""The duration of many simultaneous calls, known before the slowest of them has ended."""

import asyncio
import time
from collections.abc import Coroutine, Sequence

__all__ = ["PODS", "WINDOW", "pace"]

PODS = 12  # that start simultaneously, as after a boot
WINDOW = 45.0  # seconds; a kubelet's limit for the claims of a pod (11.11)
_ENOUGH = 3  # calls that show whether they wait for each other


async def pace(calls: Sequence[Coroutine[object, object, object]], limit: float) -> float:
    """The seconds until all calls have ended, or an estimate once it is beyond the limit.

    Calls that wait for each other end at intervals, from which the end of the last one follows. Raises exceptions of
    calls.
    """
    began = time.monotonic()
    tasks = [asyncio.ensure_future(call) for call in calls]
    running = set(tasks)
    ends: list[float] = []
    try:
        while running:
            done, running = await asyncio.wait(
                running, timeout=max(0.0, began + limit - time.monotonic()), return_when=asyncio.FIRST_COMPLETED
            )
            if not done:
                return max(estimate(ends, len(calls)), time.monotonic() - began, limit * 1.01)
            for call in done:
                call.result()
                ends.append(time.monotonic() - began)
            if len(ends) >= _ENOUGH and (seconds := estimate(ends, len(calls))) > limit * 1.05:
                return seconds
        return ends[-1]
    finally:
        for call in running:
            call.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def estimate(ends: Sequence[float], calls: int) -> float:
    """When the last call ends, if calls continue to end at the intervals of the first ones."""
    if len(ends) < 2:
        return 0.0
    return ends[0] + (ends[-1] - ends[0]) / (len(ends) - 1) * (calls - 1)
