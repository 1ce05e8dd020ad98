"""The event log of an emulated kubelet: calls, state changes and findings, in order.

A finding describes the behaviour of a real kubelet with a defect, or with a defect provoked by a pod or plugin; the
emulator itself continues safely. Findings carry the number of the underlying fact. In strict mode they are also raised.
This module decides nothing, and the showing programs format events.
"""

import asyncio
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import islice

from plugwright.errors import KubeletFindings, PeerGone, PlugwrightError
from plugwright.protocol.messages import ListedDevice
from plugwright.system.latest import Signal

__all__ = ["Call", "Event", "EventLog", "Finding", "Findings", "StateChange"]

_MAX_EVENTS = 20_000  # a kubelet that runs for weeks drops the oldest
_MAX_LISTED = 200_000  # devices in the lists that events carry; the oldest lists are dropped beyond it


@dataclass(frozen=True, slots=True)
class Call:
    """One RPC, with the name of the method as on the wire."""

    method: str
    resource: str
    asked: tuple[str, ...] = ()  # device ids, or the socket of a registration
    seconds: float = 0.0
    outcome: str = "OK"  # otherwise the text of the error
    began: float = field(default_factory=time.perf_counter, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class StateChange:
    """A change of the kubelet, a plugin, a pod or a container, such as `registered`, `admitted` or `stopped`."""

    kind: str
    about: str
    text: str = ""
    devices: tuple[ListedDevice, ...] = field(default=(), repr=False)  # of a `list`, in the plugin's order


@dataclass(frozen=True, slots=True)
class Finding:
    """`fact` is the number of the real kubelet's behaviour; `about` a resource, a pod or a file."""

    fact: str
    about: str
    happened: str
    really: str

    @property
    def page(self) -> str:
        """The address of the fact in the documentation."""
        return f"docs/kubelet-behaviour.md#{self.fact}"

    def __str__(self) -> str:
        return f"{self.about}: {self.happened}; a real kubelet {self.really} ({self.page})"


Event = Call | StateChange | Finding


class EventLog:
    def __init__(self) -> None:
        self._events: deque[Event] = deque(maxlen=_MAX_EVENTS)
        self._count = 0  # of all events, those that were dropped included
        self._changed = Signal()
        self._lists: list[tuple[int, int]] = []  # the events that carry a list: their number, and its length
        self._listed = 0  # the devices in all of them
        self._closed = False

    @property
    def events(self) -> list[Event]:
        return list(self._events)

    @property
    def calls(self) -> list[Call]:
        """The calls in the order they began; a call becomes an event when it ends."""
        return sorted((event for event in self.events if isinstance(event, Call)), key=lambda call: call.began)

    def add(self, event: Event) -> None:
        self._events.append(event)
        if isinstance(event, StateChange) and event.devices:
            self._lists.append((self._count, len(event.devices)))
            self._listed += len(event.devices)
            self._forget_old_lists()
        self._count += 1
        self._changed.notify()

    def _forget_old_lists(self) -> None:
        """Drops the devices of the oldest lists, so a plugin with many devices does not fill the memory."""
        first = self._count + 1 - len(self._events)
        while self._listed > _MAX_LISTED and len(self._lists) > 1:
            number, length = self._lists.pop(0)
            self._listed -= length
            if number >= first:
                event = self._events[number - first]
                assert isinstance(event, StateChange)
                self._events[number - first] = replace(event, devices=())

    @contextmanager
    def record_call(self, method: str, resource: str, asked: tuple[str, ...] = ()) -> Iterator[None]:
        """Records the call made inside the `with`, with its duration and outcome."""
        began, outcome = time.perf_counter(), "OK"
        try:
            yield
        except PlugwrightError as error:
            outcome = str(error)
            raise
        except BaseException as error:
            outcome = type(error).__name__
            raise
        finally:
            self.add(Call(method, resource, asked, time.perf_counter() - began, outcome, began))

    async def until(self, condition: Callable[[], bool], timeout: float, problem: Callable[[], str]) -> None:
        """Waits until `condition` holds after some event; raises `PeerGone` with the `problem` of then on timeout."""
        try:
            async with asyncio.timeout(timeout):
                await self._changed.until(condition)
        except TimeoutError:
            raise PeerGone(f"{problem()} after {timeout:g} s") from None

    def close(self) -> None:
        """Ends every `follow` after the last event."""
        self._closed = True
        self._changed.notify()

    def follow(self, *, new: bool = False) -> AsyncGenerator[Event, None]:
        """All kept events from the oldest on, or only new events, until the log is closed."""
        return self._follow(self._count if new else 0)

    async def _follow(self, seen: int) -> AsyncGenerator[Event, None]:
        def is_unseen() -> bool:
            return self._count > seen or self._closed

        closed = False
        while not closed:
            await self._changed.until(is_unseen)
            closed, count = self._closed, self._count
            unseen = min(count - seen, len(self._events))
            seen = count
            for event in list(islice(self._events, len(self._events) - unseen, None)):
                yield event


class Findings:
    """The findings of one kubelet, in order; each is passed to `record` when it is reported."""

    def __init__(self, record: Callable[[Finding], None], *, strict: bool, allowed: Collection[str] = ()) -> None:
        self._record = record
        self._strict = strict
        self._allowed = frozenset(allowed)
        self._findings: list[Finding] = []
        self._raised = 0

    def report(self, fact: str, about: str, happened: str, really: str) -> None:
        finding = Finding(fact, about, happened, really)
        self._findings.append(finding)
        self._record(finding)

    @property
    def all(self) -> tuple[Finding, ...]:
        return tuple(self._findings)

    @property
    def unexpected(self) -> tuple[Finding, ...]:
        """The findings not allowed and not raised yet."""
        return tuple(finding for finding in self._findings[self._raised :] if finding.fact not in self._allowed)

    def check(self, *, strict: bool = False) -> None:
        """Raises, in strict mode, the findings since the last check."""
        if not self._strict and not strict:
            return
        unexpected = self.unexpected
        self._raised = len(self._findings)
        if unexpected:
            raise KubeletFindings([str(finding) for finding in unexpected])
