"""A process that ends itself when its event loop hangs, for whoever restarts it: the kubelet restarts a container.

In place of a liveness probe, which would come over the pod's network: a node whose network is broken would lose its
devices as well. Python's own fault handler waits in a thread that needs neither the loop nor the interpreter's lock. It
writes the lines of all threads to stderr before it ends the process. systemd has a watchdog of its own (`WatchdogSec`).
"""

import asyncio
import faulthandler
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from plugwright.system.concurrency import cancel

__all__ = ["running"]

_BEATS = 3  # within the limit: one that comes late is no hang


@asynccontextmanager
async def running(limit: float) -> AsyncIterator[None]:
    """While inside, the event loop must run at least once in `limit` seconds; 0 is no limit."""
    if not limit:
        yield
        return
    beating = asyncio.create_task(_beat(limit))
    try:
        yield
    finally:
        await cancel(beating)
        faulthandler.cancel_dump_traceback_later()


async def _beat(limit: float) -> None:
    while True:
        faulthandler.dump_traceback_later(limit, exit=True)
        await asyncio.sleep(limit / _BEATS)
