"""The NodeReport and the history of a node as HTTP pages: `/node-report` and `/history`, only if switched on.

Operators read them through the API server's proxy of pods, which needs fewer rights than exec into a daemon's pod. Only
daemons with these pages load this module.
"""

import asyncio
import time
from collections.abc import Callable, Coroutine, Mapping

import msgspec

from plugwright.errors import PlugwrightError
from plugwright.sdk.control import read_history, read_node_report
from plugwright.sdk.daemon import Daemon
from plugwright.system.http_server import HttpAnswer
from plugwright.text import clean

__all__ = ["report_pages"]

_PAST = 7 * 86_400.0  # seconds of history
_LIMIT = 2.5  # seconds for a page; a request has three
_FRESH = 1.0  # seconds for which an answer is repeated, so that clients cannot keep the daemon busy


def report_pages(daemon: Daemon) -> Mapping[str, Callable[[], HttpAnswer]]:
    """By path; for other threads than the event loop's, one at a time."""
    loop = asyncio.get_running_loop()
    return {
        "/node-report": _Page(loop, lambda: read_node_report(daemon)),
        "/history": _Page(loop, lambda: _history(daemon)),
    }


async def _history(daemon: Daemon) -> object:
    events = await read_history(daemon, time.time() - _PAST)
    return {"apiVersion": "plugwright.dev/v1alpha1", "kind": "NodeHistory", "events": events}


class _Page:
    """A document made by the event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, read: Callable[[], Coroutine[None, None, object]]) -> None:
        self._loop, self._read = loop, read
        self._last: tuple[float, HttpAnswer] | None = None

    def __call__(self) -> HttpAnswer:
        if self._last is not None and time.monotonic() - self._last[0] < _FRESH:
            return self._last[1]
        reading = asyncio.run_coroutine_threadsafe(self._read(), self._loop)
        try:
            document = reading.result(_LIMIT)
        except TimeoutError:
            reading.cancel()
            return HttpAnswer("503 Service Unavailable", b"the daemon could not read its state in time\n")
        except PlugwrightError as error:
            return HttpAnswer("404 Not Found", f"{clean(error)}\n".encode())
        answer = HttpAnswer("200 OK", msgspec.json.encode(document), ("Content-Type: application/json",))
        self._last = time.monotonic(), answer
        return answer
