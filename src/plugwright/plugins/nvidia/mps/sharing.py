"""The plugin's side of MPS: what a container gets to be a client of the right daemon, and whether that daemon works.

The limits are the daemon's; the container's env repeats them so that people see them, and tightens them where a daemon
serves several sizes. A process that does not use the pipe is held by nothing but the exclusive compute mode.
"""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

from plugwright.errors import PluginError
from plugwright.model import Mount
from plugwright.plugins.nvidia import sharing
from plugwright.plugins.nvidia.driver import ComputeMode
from plugwright.plugins.nvidia.mps import plan, state
from plugwright.plugins.nvidia.mps.plan import DaemonPlan, MpsOptions, Place
from plugwright.plugins.nvidia.mps.state import ResourceState
from plugwright.plugins.nvidia.sharing import (
    NOT_CONFINED,
    Extras,
    Share,
    Unit,
    by_device,
    check_most,
    memory_env,
    share_facts,
)
from plugwright.system.inotify import Directory

__all__ = ["Mps"]

_MIB = 2**20
_PIPE = "/tmp/nvidia-mps"  # where CUDA looks by itself: a program with a clean environment finds it too
_SHM = "/dev/shm"
_ANYHOW = "limits are for each process, and a tenant's GPU fault ends all of them"


class Mps:
    """An `Isolation`."""

    def __init__(
        self, resource: str, share: Share, options: MpsOptions, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._resource, self._share, self._options, self._clock = resource, share, options, clock
        self._place = Place(options.root, resource)
        self._plans: list[DaemonPlan] = []
        self._state: ResourceState | None = None
        self._unreadable = ""
        self._load()

    def units(self, whole: Sequence[Unit]) -> list[Unit]:
        sharing.check(self._resource, whole, self._share)
        units = sharing.shared(whole, self._share)
        self._plans = plan.daemons(self._share, self._options, units)
        return units

    def fault(self, unit: Unit) -> str:
        return (
            plan.why_not(unit)
            or self._unreadable
            or state.why_unusable(self._state, self._plans, unit.gpu.uuid, self._clock())
        )

    def attributes(self, unit: Unit) -> Mapping[str, object]:
        loose = self._why_loose(unit)
        return share_facts(unit, f"mps, {NOT_CONFINED}: {loose}; {_ANYHOW}" if loose else f"mps, confined; {_ANYHOW}")

    def extras(self, units: Sequence[Unit]) -> Extras:
        check_most(self._resource, plan.largest(self._share), units)
        held = by_device(units)
        size = self._size(held)
        served = self._served(size)
        memory = [sum(unit.memory for unit in each) // _MIB for each in held.values()]
        limits = {
            "CUDA_MPS_PIPE_DIRECTORY": _PIPE,
            # A server shows all GPUs it has, whatever the container was given; by index its order would count.
            "CUDA_VISIBLE_DEVICES": ",".join(held),
            "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": str(min(served.percent, size * units[0].percent)),
            "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": ",".join(f"{place}={each}M" for place, each in enumerate(memory)),
        }
        mounts = [Mount(str(self._place.pipe(served.size)), _PIPE)]
        mounts += [Mount(str(self._options.shm), _SHM)] if self._options.shm else []
        return Extras(env=memory_env(units), limits=limits, mounts=tuple(mounts))

    async def follow(self, changed: Callable[[], object]) -> None:
        directory = Directory(self._place.directory)
        said: object = None
        async with directory.watching():
            while True:
                seen = directory.ticks.value
                self._load()
                if said != (said := self._known()):
                    changed()
                with suppress(TimeoutError):
                    async with asyncio.timeout(self._fresh_for()):
                        await directory.ticks.until(lambda tick, seen=seen: tick != seen)  # type: ignore[misc]

    def _load(self) -> None:
        try:
            self._state, self._unreadable = state.read(self._place.state), ""
        except PluginError as error:
            self._state, self._unreadable = None, str(error)

    def _known(self) -> object:
        """What matters to the plugin: not when it was last seen to be so, unless that is too long ago."""
        found = self._state
        daemons = found and (found.problem, [(each.plan, each.condition, each.reason) for each in found.daemons])
        return self._unreadable, daemons, self._fresh_for() is None

    def _fresh_for(self) -> float | None:
        """Until the state is too old to be believed; None when there is nothing that could grow old."""
        if self._state is None:
            return None
        left = self._state.beat + self._state.lasting - self._clock()
        return left + 0.01 if left > 0 else None

    def _size(self, held: Mapping[str, Sequence[Unit]]) -> int:
        sizes = {len(each) for each in held.values()}
        if len(sizes) != 1:
            raise PluginError(
                f"{self._resource}: MPS gives a container as much of each of its GPUs, not {_counts(held)}: ask again"
            )
        return sizes.pop()

    def _served(self, size: int) -> DaemonPlan:
        """The daemon for containers of this size."""
        for each in sorted(self._plans, key=lambda each: each.size):
            if each.size >= size:
                return each
        raise PluginError(f"{self._resource}: MPS has no daemon here")

    def _why_loose(self, unit: Unit) -> str:
        if unit.gpu.compute_mode is not ComputeMode.EXCLUSIVE_PROCESS:
            return f"the compute mode is {unit.gpu.compute_mode or 'not known'}, a process outside MPS has no limits"
        if plan.largest(self._share) > 1:
            return f"every process may take as much as {plan.largest(self._share)} shares"
        return ""


def _counts(held: Mapping[str, Sequence[Unit]]) -> str:
    return " and ".join(f"{len(each)} of {uuid}" for uuid, each in held.items())
