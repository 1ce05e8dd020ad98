"""Watches one machine for all resources that offer parts of it: its GPUs, what they say, what happens to them.

The driver is asked in threads and told to report events to one; an hour without news costs a look a minute. What the
findings mean is decided elsewhere: `selection` what is offered, `health` what is fit.

A thread that waits for what happens to GPUs, and tells it to somebody in the event loop.

What has changed between two looks at a machine, for the log: GPUs that came or went, and how they are cut.

Whether a GPU is fit is `health`'s to say.
"""

import asyncio
import logging
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Protocol

from plugwright.plugins.nvidia import health
from plugwright.plugins.nvidia.driver import Driver, DriverGone, Event, EventKind, Facts, Gpu, Reading
from plugwright.plugins.nvidia.health import Incident
from plugwright.plugins.nvidia.selection import Selection
from plugwright.system import concurrency

__all__ = ["Ear", "GpuMonitor", "Listener", "PollIntervals", "View", "changes"]


class Listener(Protocol):
    """Whoever is told; always in the event loop."""

    def listening(self, ear: "Ear", watched: frozenset[str], unwatched: Mapping[str, str]) -> None: ...

    def heard(self, ear: "Ear", event: Event) -> None: ...

    def deafened(self, ear: "Ear", why: str) -> None: ...


class Ear:
    """NVIDIA's library cannot be woken: a thread that is not needed any more is left behind, and ends within
    `read_timeout` seconds. It holds nobody up meanwhile, not even the end of the process.
    """

    def __init__(self, driver: Driver, uuids: tuple[str, ...], listener: Listener, read_timeout: float) -> None:
        self.left = False
        self._driver, self._uuids, self._listener, self._patience = driver, uuids, listener, read_timeout
        self._loop = asyncio.get_running_loop()

    def start(self) -> None:
        threading.Thread(target=self._work, name="nvidia events", daemon=True).start()

    def _work(self) -> None:
        try:
            events = self._driver.events(self._uuids)
        except DriverGone as error:
            self._tell(partial(self._listener.deafened, self, str(error)))
            return
        watched = frozenset(events.watched)
        self._tell(partial(self._listener.listening, self, watched, dict(events.unwatched)))
        try:
            while watched and not self.left:
                event = events.wait(self._patience)
                if event is not None:
                    self._tell(partial(self._listener.heard, self, event))
        except DriverGone as error:
            self._tell(partial(self._listener.deafened, self, str(error)))
        finally:
            events.close()

    def _tell(self, news: Callable[[], None]) -> None:
        with suppress(RuntimeError):  # the loop ended while the thread waited
            self._loop.call_soon_threadsafe(news)


def changes(before: Reading, after: Reading) -> Iterator[tuple[str, dict[str, object]]]:
    """Each as a sentence and its facts. The first look of all changes nothing."""
    if not before.driver:
        return
    old, new = {gpu.uuid: gpu for gpu in before.gpus}, {gpu.uuid: gpu for gpu in after.gpus}
    for uuid in sorted(old.keys() - new.keys()):
        yield "GPU is gone", {"gpu": uuid, "index": old[uuid].index}
    for uuid in sorted(new.keys() - old.keys()):
        yield "GPU is new", {"gpu": uuid, "index": new[uuid].index}
    for uuid in sorted(new.keys() & old.keys()):
        if _cut(old[uuid]) != _cut(new[uuid]):
            profiles = ",".join(part.profile for part in new[uuid].mig)
            yield "MIG layout has changed", {"gpu": uuid, "mig": new[uuid].mig_enabled, "profiles": profiles}


def _cut(gpu: Gpu) -> object:
    return gpu.mig_enabled, [part.uuid for part in gpu.mig]


logger = logging.getLogger(__name__)

Answer = tuple[Reading, dict[str, Facts]] | DriverGone  # what the driver says, or why it says nothing


@dataclass(frozen=True, slots=True, kw_only=True)
class PollIntervals:
    """How often, in seconds. `ear`: how long a thread that nobody needs any more may go on waiting for an event."""

    rescan: float = 60.0
    retry: float = 5.0  # while something is wrong
    read_timeout: float = 30.0  # for an answer of the driver
    ear: float = 60.0


@dataclass(frozen=True, slots=True)
class View:
    """The newest that is known. `problem`: why nothing newer is known of any GPU.

    `watched` are the GPUs whose events are heard, `unwatched` those whose events are not, though they should be.
    """

    reading: Reading = field(default_factory=Reading)
    facts: Mapping[str, Facts] = field(default_factory=dict, hash=False)
    incidents: Mapping[str, tuple[Incident, ...]] = field(default_factory=dict, hash=False)
    watched: frozenset[str] = frozenset()
    unwatched: Mapping[str, str] = field(default_factory=dict, hash=False)
    problem: str = ""


class GpuMonitor:
    """Looks for as long as somebody is `watching`; what was seen is kept in between."""

    def __init__(
        self, driver: Driver, pace: PollIntervals | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.driver = driver
        self.pace = pace or PollIntervals()
        self.clock = clock
        self.view: View | None = None
        self.claims: dict[str, Selection] = {}
        self._bells: list[Callable[[], object]] = []
        self._wanted = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._asking: asyncio.Future[Answer] | None = None
        self._ears: dict[Ear, frozenset[str]] = {}
        self._rest: asyncio.TimerHandle | None = None
        self._deaf: set[str] = set()  # GPUs that have no events, as they say themselves

    @asynccontextmanager
    async def watching(self, bell: Callable[[], object]) -> AsyncIterator[None]:
        """Calls `bell` after every change of the view."""
        self._bells.append(bell)
        if self._task is None:
            self._task = asyncio.create_task(self._run(), name="watch NVIDIA GPUs")
        try:
            yield
        finally:
            self._bells.remove(bell)
            if not self._bells:
                await self._stop()

    @contextmanager
    def claiming(self, resource: str, devices: Selection) -> Iterator[None]:
        """Says which devices a resource asks for, so that the others know."""
        self.claims[resource] = devices
        self._ring()
        try:
            yield
        finally:
            if self.claims.get(resource) is devices:  # a newer one may have taken over
                del self.claims[resource]
                self._ring()

    def look(self) -> None:
        """Asks the driver now rather than later."""
        self._wanted.set()

    def forgive(self, uuid: str) -> None:
        """An operator says that what has happened to the GPU is over."""
        view = self.view or View()
        self._show(replace(view, incidents={each: seen for each, seen in view.incidents.items() if each != uuid}))
        self.look()

    async def _run(self) -> None:
        while True:
            self._wanted.clear()
            self._take(await self._ask())
            pause = self.pace.retry if self.view is None or self.view.problem else self.pace.rescan
            with suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._wanted.wait()

    async def _ask(self) -> Answer:
        """A driver that hangs is not asked again before it has answered: each question would be a thread that hangs."""
        if self._asking is None or self._asking.done():
            self._asking = concurrency.begin_in_thread("nvidia read", self._read)
        done, _ = await asyncio.wait((self._asking,), timeout=self.pace.read_timeout)
        if not done:
            return DriverGone(f"the driver has not answered for {self.pace.read_timeout:g} s")
        return self._asking.result()

    def _read(self) -> Answer:
        try:
            reading = self.driver.read()
            return reading, {gpu.uuid: self.driver.facts(gpu.uuid) for gpu in reading.gpus}
        except DriverGone as error:
            self.driver.close()  # the next attempt takes hold of it anew, as it is by then
            return error

    def _take(self, found: Answer) -> None:
        view = self.view or View()
        if isinstance(found, DriverGone):
            gone = {uuid: Facts(fault=str(found), away=found.unloaded) for uuid in view.facts}
            self._show(replace(view, problem=str(found), incidents=_after(view.incidents, gone)))
            return
        reading, facts = found
        facts = {gpu.uuid: _with_fault(facts[gpu.uuid], gpu.fault) for gpu in reading.gpus}
        absent = {uuid: Facts(fault="absent", away=True) for uuid in view.incidents if uuid not in facts}
        incidents = _after(view.incidents, {**facts, **absent})
        unwatched = {uuid: why for uuid, why in view.unwatched.items() if uuid in facts}
        self._say(reading)
        self._show(View(reading, facts, incidents, view.watched, unwatched))
        self._listen(reading)

    def _say(self, reading: Reading) -> None:
        before = self.view.reading if self.view else Reading()
        if reading.unread and reading.unread != before.unread:
            logger.error("GPUs that do not even tell their UUID", extra={"count": reading.unread})
        if reading.driver != before.driver:
            logger.info("NVIDIA driver", extra={"version": reading.driver, "gpus": len(reading.gpus)})
        for text, facts in changes(before, reading):
            logger.warning(text, extra=facts)

    def _show(self, view: View) -> None:
        if self.view is not None and self.view.problem != view.problem:
            if view.problem:
                logger.error("GPUs cannot be read, they turn Unhealthy", extra={"error": view.problem})
            else:
                logger.info("GPUs can be read again")
        if view != self.view:
            self.view = view
            self._ring()

    def _ring(self) -> None:
        for bell in list(self._bells):
            bell()

    def _listen(self, reading: Reading) -> None:
        """One thread hears of all GPUs that are there now; one more for those that come later."""
        heard = {uuid for ear, uuids in self._ears.items() if not ear.left for uuid in uuids}
        unheard = [gpu.uuid for gpu in reading.gpus if gpu.uuid not in heard and gpu.uuid not in self._deaf]
        if unheard and self._rest is None:
            ear = Ear(self.driver, tuple(unheard), self, self.pace.ear)
            self._ears[ear] = frozenset(unheard)
            ear.start()

    def listening(self, ear: Ear, watched: frozenset[str], unwatched: Mapping[str, str]) -> None:
        if ear.left or self.view is None:
            return
        self._deaf |= self._ears[ear] - watched - set(unwatched)
        self._ears[ear] = watched
        if not watched:
            self._ears.pop(ear)
        for uuid, why in unwatched.items():
            if uuid not in self.view.unwatched:
                logger.error("events of a GPU cannot be heard", extra={"gpu": uuid, "error": why})
        known = {uuid: why for uuid, why in self.view.unwatched.items() if uuid not in watched}
        heard = (self.view.watched | watched) - set(unwatched)
        self._show(replace(self.view, watched=heard, unwatched={**known, **unwatched}))

    def heard(self, ear: Ear, event: Event) -> None:
        if ear.left or self.view is None:
            return
        if event.kind is EventKind.XID:
            logger.warning("Xid", extra={"gpu": event.gpu, "xid": event.xid, "gpu_instance": event.gpu_instance})
        if event.kind is EventKind.XID and event.gpu:  # one that no longer tells its name is found by the look
            incidents = health.after_xid(self.view.incidents.get(event.gpu, ()), event.xid, self.clock())
            self._show(replace(self.view, incidents={**self.view.incidents, event.gpu: incidents}))
        self.look()

    def deafened(self, ear: Ear, why: str) -> None:
        """The ear hears nothing any more: a look will tell whether the driver is gone, and listen anew if not."""
        lost = self._ears.pop(ear, None)
        if lost is not None and not ear.left and self.view is not None:
            self._show(replace(self.view, watched=self.view.watched - lost))
            logger.info("listening to GPUs ended", extra={"reason": why})
            self._deaf.clear()
            if self._rest is None:  # what fails at once would fail again at once
                self._rest = asyncio.get_running_loop().call_later(self.pace.retry, self._rested)
            self.look()

    def _rested(self) -> None:
        self._rest = None
        self.look()

    async def _stop(self) -> None:
        for ear in self._ears:
            ear.left = True
        self._ears.clear()
        if self.view is not None:
            self.view = replace(self.view, watched=frozenset())
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait((task,))
        if self._rest is not None:
            self._rest.cancel()
            self._rest = None
        if self.view is not None and not self.view.reading.driver:
            self.view = None  # nothing was ever read: whoever comes next waits for a new attempt


def _after(
    incidents: Mapping[str, tuple[Incident, ...]], facts: Mapping[str, Facts]
) -> dict[str, tuple[Incident, ...]]:
    return {uuid: health.after_facts(seen, facts[uuid]) if uuid in facts else seen for uuid, seen in incidents.items()}


def _with_fault(facts: Facts, fault: str) -> Facts:
    return replace(facts, fault=facts.fault or fault)
