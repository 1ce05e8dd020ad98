"""The test bed: a node, a kubelet and a daemon, and what is seen of them before, during and after a fault.

What must hold is decided in `verdict`; this module measures.
"""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

from chaos.daemon import Daemon, Footprint, Launch
from chaos.kubelets import EmulatedKubelet, KubeletUnderTest
from chaos.node import CHECKED, RESOURCES, STEADY, Node

from plugwright.errors import PlugwrightError
from plugwright.system.concurrency import cancel

__all__ = ["ANSWER_LIMIT", "Baseline", "Rig", "Serving", "emulated_rig"]

ANSWER_LIMIT = 2.0  # seconds within which Allocate must be answered, and health be true
_START_LIMIT = 60.0
_POLL = 0.02
_LOOKS = 10
_THREAD_LIMIT = 130.0
_CORDON = "chaos"


@dataclass(slots=True)
class Serving:
    """Allocate calls on the resource that no fault touches, one after another."""

    answered: int = 0
    slowest: float = 0.0
    failures: Counter[str] = field(default_factory=Counter)


@dataclass(frozen=True, slots=True)
class Baseline:
    """What there was before the fault; memory may be `rss_limit` MiB more: an allocator gives nothing back at once."""

    footprint: Footprint
    files: frozenset[str]
    held: tuple[str, ...]
    rss_limit: float = 12.0


class Rig:
    """`broken` and `notes` are added to by faults that see more than the usual observations do."""

    def __init__(self, node: Node, kubelet: KubeletUnderTest, daemon: Daemon) -> None:
        self.node, self.kubelet, self.daemon = node, kubelet, daemon
        self.devices: Mapping[str, frozenset[str]] = {}
        self.cordoned = ""
        self.broken: list[str] = []
        self.notes: list[str] = []

    async def begin(self) -> None:
        """Everything is served, a pod holds two devices, and one device is cordoned."""
        self.node.furnish()
        await self.kubelet.start()
        self.daemon.start()
        await self.until("the daemon serves every resource", self._has_all_devices, _START_LIMIT)
        self.devices = {resource: await self.kubelet.healthy(resource) for resource in RESOURCES}
        async with asyncio.timeout(_START_LIMIT):
            refused = await self.kubelet.hold(STEADY, 2)
        assert not refused, refused
        held = await self.kubelet.held()
        self.cordoned = min(self.devices[STEADY] - set(held))
        await self.daemon.ask({"do": "cordon", "resource": STEADY, "id": self.cordoned, "reason": _CORDON}, 10)
        await self.until("everything is as it should be", self.is_well, _START_LIMIT)

    async def end(self) -> None:
        with suppress(Exception):  # the daemon may be gone already
            await self.daemon.stop()
        await self.kubelet.stop()

    @property
    def free(self) -> str:
        """A healthy device of the resource that no fault touches."""
        return max(self.devices[STEADY] - {self.cordoned})

    async def baseline(self) -> Baseline:
        """The least of several looks: a check that runs just then has a thread and an open file."""
        await self.kubelet.allocate(STEADY, [self.free])  # a connection for it is made once, and stays
        footprint = self.daemon.footprint()
        for _ in range(_LOOKS):
            await asyncio.sleep(_POLL)
            footprint = footprint.least(self.daemon.footprint())
        return Baseline(footprint, frozenset(self.node.files()), tuple(sorted(await self.kubelet.held())))

    async def is_well(self) -> bool:
        return not await self.complaint()

    async def complaint(self) -> str:
        """What is not as it was at the beginning, empty if all is."""
        if not self.daemon.alive:
            return f"the daemon has ended with {self.daemon.code}"
        for resource, devices in self.devices.items():
            missing = (devices - {self.cordoned}) - await self.kubelet.healthy(resource)
            if missing:
                return f"{resource}: {', '.join(sorted(missing))} not healthy"
        if self.cordoned in await self.kubelet.healthy(STEADY):
            return "the cordon is lost"
        status = await self.daemon.status()
        if status is None:
            return "`plugwright status` is not answered"
        if not status["ready"]:
            return "`plugwright status` says that it is not ready"
        if self.daemon.port and (code := await self.daemon.get("/healthz")) != 200:
            return f"/healthz answers {code}"
        return ""

    async def recovery(self, limit: float) -> tuple[float, str]:
        """The seconds until all is well again, and what was not, if it took longer than `limit`."""
        began = time.monotonic()
        complaint = await self.complaint()
        while complaint and time.monotonic() - began < limit and self.daemon.alive:
            await asyncio.sleep(_POLL)
            complaint = await self.complaint()
        return time.monotonic() - began, complaint

    async def until(self, what: str, fact: Callable[[], Awaitable[bool]], limit: float) -> float:
        """The seconds until `fact`; raises TimeoutError with `what` after `limit`."""
        began = time.monotonic()
        while not await fact():
            if time.monotonic() - began > limit:
                words = "\n".join(self.daemon.lines()[-15:])
                raise TimeoutError(f"not within {limit:g} s: {what} ({await self.complaint()})\n{words}")
            await asyncio.sleep(_POLL)
        return time.monotonic() - began

    async def seconds_until_unhealthy(self, resource: str, limit: float) -> float | None:
        """From now until the kubelet would give none of the resource's devices to a pod."""
        began = time.monotonic()
        while await self.kubelet.healthy(resource):
            if time.monotonic() - began > limit:
                return None
            await asyncio.sleep(_POLL)
        return time.monotonic() - began

    async def truth(self, limit: float) -> float | None:
        """A device breaks while the fault lasts: the seconds until the kubelet knows, None beyond `limit`."""
        self.node.say_checked(healthy=False)
        try:
            return await self.seconds_until_unhealthy(CHECKED, limit)
        finally:
            self.node.say_checked(healthy=True)

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[Serving]:
        """Allocates without a pause while inside."""
        seen = Serving()
        task = asyncio.create_task(self._allocate(seen))
        try:
            yield seen
        finally:
            await cancel(task)

    async def given_twice(self) -> list[str]:
        return [device for device, holders in Counter(await self.kubelet.held()).items() if holders > 1]

    async def no_longer_held(self, before: Baseline, limit: float = 30.0) -> list[str]:
        """Devices that pods held before the fault; a kubelet that has just started finds its pods one by one."""
        deadline = time.monotonic() + limit
        while (missing := set(before.held) - set(await self.kubelet.held())) and time.monotonic() < deadline:
            await asyncio.sleep(0.1)
        return sorted(missing)

    async def leaks(self, before: Baseline, limit: float = 5.0) -> list[str]:
        """What the daemon has more of than before the fault, once connections have had the time to end.

        Threads have longer: NVIDIA's library cannot be woken, so a thread that no longer waits for events goes on for a
        minute, and it may be a minute until the driver is read again.
        """
        began = time.monotonic()
        while True:
            grown = self.daemon.footprint().growth(before.footprint)
            left = sorted(self.node.files() - before.files)
            if not grown and not left:
                return []
            only_threads = not left and all(text.endswith("threads") for text in grown)
            if time.monotonic() - began > (_THREAD_LIMIT if only_threads else limit):
                return [*grown, *(f"file {name}" for name in left)]
            await asyncio.sleep(0.1)

    async def _allocate(self, seen: Serving) -> None:
        while True:
            began = time.monotonic()
            try:
                async with asyncio.timeout(ANSWER_LIMIT):
                    await self.kubelet.allocate(STEADY, [self.free])
            except TimeoutError:
                seen.failures[f"no answer within {ANSWER_LIMIT:g} s"] += 1
            except (OSError, PlugwrightError) as error:
                seen.failures[str(error)[:80]] += 1
            else:
                seen.answered += 1
            seen.slowest = max(seen.slowest, time.monotonic() - began)
            await asyncio.sleep(_POLL)

    async def _has_all_devices(self) -> bool:
        for resource, count in RESOURCES.items():
            if len(await self.kubelet.healthy(resource)) != count:
                return False
        return True


@asynccontextmanager
async def emulated_rig(launch: Launch | None = None, kubelet_dir_inside: str = "k") -> AsyncIterator[Rig]:
    """With the emulated kubelet, in a directory of its own, whose path is short enough for sockets.

    `kubelet_dir_inside` is where below it the daemon finds the kubelet's directory.
    """
    with TemporaryDirectory(prefix="chaos-", dir="/tmp", ignore_cleanup_errors=True) as directory:
        node = Node(Path(directory), Path(directory, "k"), Path(directory, kubelet_dir_inside))
        rig = Rig(node, EmulatedKubelet(node), Daemon(node, launch))
        try:
            await rig.begin()
            yield rig
        finally:
            await rig.end()
