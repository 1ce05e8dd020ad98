"""The NodeReports of a cluster's daemons, kept up to date.

A daemon on this machine sends each change. A daemon reached through the API server is queried again when something in
the API server has changed for its node, and every half minute: each request starts a program in its pod.
"""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import aclosing
from functools import partial
from typing import Any

import msgspec

from plugwright.errors import PlugwrightError
from plugwright.fleet.cluster_view import node_source
from plugwright.fleet.daemons import LocalDaemon, ReachableDaemon
from plugwright.fleet.fleet_devices import NodeSource
from plugwright.system import json_lines
from plugwright.system.blocking import BlockingCalls
from plugwright.system.concurrency import Backoff, cancel
from plugwright.system.latest import Signal
from plugwright.text import clean

__all__ = ["DaemonReports", "FindDaemons"]

FindDaemons = Callable[[], Sequence[ReachableDaemon]]  # called in a thread

_FIND_AGAIN = 30.0  # seconds between two searches for daemons
_ASK_AGAIN = 30.0  # seconds between two reports of a daemon reached through the API server
_AT_ONCE = 16  # concurrent requests for reports
_LIMIT = 90.0  # seconds for a report or a search
_SETTLE = (0.7, 2.0)  # seconds between the end of a pod and the requests for the devices that it still holds


class _FollowedDaemon:
    """A daemon, its last report as JSON, and the pending requests to it."""

    __slots__ = ("daemon", "outdated", "problem", "report", "task")

    def __init__(self, daemon: ReachableDaemon) -> None:
        self.daemon, self.report, self.problem = daemon, b"", "not read yet"
        self.outdated = Signal()
        self.task: asyncio.Task[None] | None = None


class DaemonReports:
    """`run` follows the daemons returned by `find` until cancelled; `changed` is called with the name of a node."""

    def __init__(self, find: FindDaemons, changed: Callable[[str], object]) -> None:
        self._find, self._changed = find, changed
        self._followed: dict[str, _FollowedDaemon] = {}
        self._calls = BlockingCalls("NodeReport", _LIMIT, most_hung=_AT_ONCE, at_once=_AT_ONCE)
        self._turns = asyncio.Semaphore(_AT_ONCE)
        self.problem = ""  # why daemons cannot be found
        self.is_found = False

    def source(self, node: str) -> NodeSource | None:
        """The report of a node's daemon, or why there is none; None if no daemon is known there."""
        followed = self._followed.get(node)
        if followed is None or (not followed.report and followed.problem == "not read yet"):
            return None
        via = followed.daemon.via
        if followed.problem:
            return NodeSource(node=node, via=via, problem=followed.problem)
        return NodeSource(node=node, via=via, report=msgspec.json.decode(followed.report))

    def daemon(self, node: str) -> ReachableDaemon | None:
        followed = self._followed.get(node)
        return followed.daemon if followed is not None else None

    async def ask(self, daemon: ReachableDaemon, request: dict[str, object]) -> Any:
        """The daemon's answer."""
        return await self._calls.run(partial(daemon.ask, request))

    def refresh(self, node: str) -> None:
        """Requests a new report after a change in the API server that the daemon could have missed."""
        if (followed := self._followed.get(node)) is not None:
            followed.outdated.notify()

    async def run(self) -> None:
        try:
            while True:
                try:
                    found = await self._calls.run(self._find)
                    self.problem, self.is_found = "", True
                    self._compare({daemon.node: daemon for daemon in found})
                except PlugwrightError as error:
                    self.problem = f"no daemon can be found: {clean(error)}"
                    self._changed("")
                await asyncio.sleep(_FIND_AGAIN)
        finally:
            await cancel(*(one.task for one in self._followed.values() if one.task is not None))

    def _compare(self, found: dict[str, ReachableDaemon]) -> None:
        for node in [node for node, one in self._followed.items() if str(one.daemon) != str(found.get(node))]:
            gone = self._followed.pop(node)
            if gone.task is not None:
                gone.task.cancel()
            self._changed(node)
        for node, daemon in found.items():
            if node not in self._followed:
                followed = self._followed[node] = _FollowedDaemon(daemon)
                follow = self._stream if isinstance(daemon, LocalDaemon) else self._poll
                followed.task = asyncio.create_task(follow(followed))

    async def _stream(self, followed: _FollowedDaemon) -> None:
        """Receives each change from the daemon, and also queries it after the end of pods."""
        backoff = Backoff(first=0.2, longest=10.0)
        asking = asyncio.create_task(self._poll(followed, every=None))
        try:
            while True:
                try:
                    await self._read_stream(followed, backoff)
                except (PlugwrightError, OSError, ValueError) as error:
                    self._take_problem(followed, clean(error))
                await asyncio.sleep(backoff.delay())
        finally:
            await cancel(asking)

    async def _read_stream(self, followed: _FollowedDaemon, backoff: Backoff) -> None:
        assert isinstance(followed.daemon, LocalDaemon)
        stream = json_lines.stream(followed.daemon.path, {"do": "watch reports"})
        async with aclosing(stream) as reports:
            async with self._turns:  # a thousand daemons of one process must not all report simultaneously
                self._take(followed, await anext(reports))
            backoff.reset()
            async for report in reports:
                self._take(followed, report)

    async def _poll(self, followed: _FollowedDaemon, every: float | None = _ASK_AGAIN) -> None:
        seen = followed.outdated.count
        delays: Sequence[float] = (0.0,) if every is not None else ()
        while True:
            for delay in delays:
                await asyncio.sleep(delay)
                try:
                    self._take(followed, await self.ask(followed.daemon, {"do": "report"}))
                except PlugwrightError as error:
                    self._take_problem(followed, clean(error))
            seen = await followed.outdated.wait(seen, every)
            delays = _SETTLE

    def _take(self, followed: _FollowedDaemon, report: object) -> None:
        problem = node_source(followed.daemon.node, "", report).problem
        content = b"" if problem else msgspec.json.encode(report)
        if (content, problem) != (followed.report, followed.problem):
            followed.report, followed.problem = content, problem
            self._changed(followed.daemon.node)

    def _take_problem(self, followed: _FollowedDaemon, problem: str) -> None:
        if problem != followed.problem:
            followed.report, followed.problem = b"", problem
            self._changed(followed.daemon.node)
