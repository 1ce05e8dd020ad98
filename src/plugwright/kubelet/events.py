"""Everything that happened, in order: calls, states, findings.

One list of the newest events and a bell for those who wait. Nothing is decided here.

What the real kubelet would have done, where it has a defect or where a pod or plugin asks for trouble.

A finding names the fact's number, says what happened here and what a real kubelet would have done; the emulator
goes on safely. In strict mode findings are raised as well.
"""

import asyncio
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice

from plugwright.errors import KubeletFindings, PeerGone, PlugwrightError

__all__ = ["Call", "Event", "Finding", "Findings", "StateChange", "Trace"]


@dataclass(frozen=True, slots=True)
class Finding:
    """`fact` is the number of the behaviour; `about` a resource, a pod or a file."""

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


class Findings:
    """Every finding of one kubelet, in order; `tell` hears of each."""

    def __init__(self, tell: Callable[[Finding], None], *, strict: bool) -> None:
        self._tell = tell
        self._strict = strict
        self._found: list[Finding] = []
        self._raised = 0

    def report(self, fact: str, about: str, happened: str, really: str) -> None:
        finding = Finding(fact, about, happened, really)
        self._found.append(finding)
        self._tell(finding)

    @property
    def all(self) -> tuple[Finding, ...]:
        return tuple(self._found)

    def check(self) -> None:
        """In strict mode: raises what was found since it last did."""
        unraised = self._found[self._raised :]
        self._raised = len(self._found)
        if self._strict and unraised:
            raise KubeletFindings([str(finding) for finding in unraised])


_KEPT = 20_000  # events remembered; a kubelet that runs for weeks forgets the oldest


@dataclass(frozen=True, slots=True)
class Call:
    """One RPC: `method` as on the wire, who was asked, what came of it."""

    method: str
    resource: str
    asked: tuple[str, ...] = ()  # device ids, or the socket of a registration
    seconds: float = 0.0
    outcome: str = "OK"  # else the error's text
    began: float = field(default_factory=time.perf_counter, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class StateChange:
    """Something became another: a plugin registered, a list came, a pod was admitted, refused or removed."""

    kind: str
    about: str
    text: str = ""


Event = Call | StateChange | Finding


class Trace:
    def __init__(self) -> None:
        self._events: deque[Event] = deque(maxlen=_KEPT)
        self._count = 0
        self._bell = asyncio.Event()
        self._is_over = False

    @property
    def events(self) -> list[Event]:
        return list(self._events)

    @property
    def calls(self) -> list[Call]:
        """In the order they began; the events come in the order they ended."""
        return sorted((event for event in self.events if isinstance(event, Call)), key=lambda call: call.began)

    def add(self, event: Event) -> None:
        self._events.append(event)
        self._count += 1
        self.ring()

    def ring(self) -> None:
        """Something changed that somebody may wait for."""
        self._bell.set()
        self._bell = asyncio.Event()

    @contextmanager
    def timing(self, method: str, resource: str, asked: tuple[str, ...] = ()) -> Iterator[None]:
        """Around one call: it is noted with its duration and outcome."""
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

    async def until(self, happened: Callable[[], bool], timeout: float, what: str) -> None:
        """Waits for a fact; raises `PeerGone` with `what` when it does not come about."""
        try:
            async with asyncio.timeout(timeout):
                while not happened():
                    await self._bell.wait()
        except TimeoutError:
            raise PeerGone(f"{what} within {timeout:g} s") from None

    def close(self) -> None:
        """Nothing more will happen: those who follow hear what there was, and are done."""
        self._is_over = True
        self.ring()

    def follow(self, *, new: bool = False) -> AsyncGenerator[Event, None]:
        """Every event from the first that is still remembered, or of those to come, until the end."""
        return self._follow(self._count if new else 0)

    async def _follow(self, seen: int) -> AsyncGenerator[Event, None]:
        while True:
            bell, is_over = self._bell, self._is_over
            unseen = min(self._count - seen, len(self._events))
            seen = self._count
            for event in list(islice(self._events, len(self._events) - unseen, None)):
                yield event
            if is_over:
                return
            await bell.wait()
