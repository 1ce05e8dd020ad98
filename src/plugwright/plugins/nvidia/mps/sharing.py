"""The plugin's side of MPS: makes a container a client of the right control daemon, and follows the daemon's state.

The daemon enforces the limits; the container's environment repeats them for information, and lowers them if one daemon
serves several sizes. A process outside the pipe has no limits, unless the compute mode is exclusive.

A container is a client of one daemon with one GPU, the source of all its shares. So it needs no CUDA_VISIBLE_DEVICES,
and programs expecting numbers in this variable find no UUID there.

Claims request memory and processors in whole shares, because there is a daemon for each of these sizes: a claim's
limits are those of its daemon, not of an environment under a tenant's control.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from plugwright.attributes import Capacity
from plugwright.errors import PluginError
from plugwright.model import Mount
from plugwright.plugins.nvidia import share_capacity, sharing
from plugwright.plugins.nvidia.config import NvidiaMps, NvidiaShare
from plugwright.plugins.nvidia.driver import ComputeMode
from plugwright.plugins.nvidia.mps import plan, state
from plugwright.plugins.nvidia.mps.plan import DaemonPlan, MpsPaths
from plugwright.plugins.nvidia.mps.state import ResourceState
from plugwright.plugins.nvidia.sharing import NOT_CONFINED, ContainerExtras, GpuUnit
from plugwright.sdk.share_usage import ShareUsage
from plugwright.system.blocking import BlockingCalls
from plugwright.system.inotify import Directory

__all__ = ["MpsSharing"]

_MIB = 2**20
_PIPE = "/tmp/nvidia-mps"  # CUDA's default, which a program with an empty environment also finds
_SHM = "/dev/shm"
_READ_LIMIT = 5.0  # seconds
_CAVEAT = "limits are for each process, and a tenant's GPU fault ends all of them"


class MpsSharing:
    """A `SharingBackend`."""

    is_lasting = True

    def __init__(self, resource: str, share: NvidiaShare, clock: Callable[[], float] = time.monotonic) -> None:
        self._resource, self._share, self._clock = resource, share, clock
        self._config = share.mps or NvidiaMps()
        self._paths = MpsPaths(Path(self._config.root), resource)
        self._plans: list[DaemonPlan] = []
        self._state: ResourceState | None = None
        self._unreadable = ""
        self._is_loaded = False
        self._reading = BlockingCalls(f"read of {self._paths.state}", _READ_LIMIT, most_hung=1)

    def units(self, whole: Sequence[GpuUnit]) -> list[GpuUnit]:
        sharing.check_list_size(self._resource, whole, self._share)
        units = sharing.split_all(whole, self._share)
        self._plan(units)
        return units

    def claimable(self, whole: Sequence[GpuUnit]) -> list[GpuUnit]:
        self._plan(sharing.first_shares(whole, self._share))
        return [unit for unit in whole if sharing.replica_count(unit, self._share)]

    def capacity(self, unit: GpuUnit) -> Mapping[str, Capacity]:
        [share] = sharing.first_shares([unit], self._share)
        capacity = share_capacity.multiples(unit, share, plan.max_units(self._share))
        clients = plan.max_clients(unit.gpu.capability)
        if sharing.replica_count(unit, self._share) <= clients:
            return capacity
        return {**capacity, **share_capacity.known(slots=share_capacity.slots(clients, most=1))}

    def fault(self, unit: GpuUnit) -> str:
        return (
            plan.unsupported_reason(unit)
            or self._unreadable
            or state.unusable_reason(self._state, self._plans, unit.gpu.uuid, self._clock())
        )

    def note(self, unit: GpuUnit) -> str:
        reason = self._unconfined_reason(unit)
        confinement = f"{NOT_CONFINED}: {reason}" if reason else "confined"
        return f"mps, {confinement}; {_CAVEAT}"

    def extras(self, units: Sequence[GpuUnit]) -> ContainerExtras:
        gpu = self._gpu(units)
        memory, percent = sum(unit.memory for unit in units), sum(unit.percent for unit in units)
        if units[0].replica is not None:
            sharing.check_request(self._resource, plan.max_units(self._share), units)
            daemon = self._daemon_for(gpu, len(units))
        else:
            daemon = self._daemon_with(gpu, memory // _MIB, percent)
        limits = {
            "CUDA_MPS_PIPE_DIRECTORY": _PIPE,
            "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": str(min(daemon.percent, percent)),
            "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": f"0={min(daemon.mebibytes, memory // _MIB)}M",
        }
        mounts = [Mount(str(self._paths.pipe(*daemon.key)), _PIPE)]
        mounts += [Mount(self._config.shm, _SHM)] if self._config.shm else []
        return ContainerExtras(env=sharing.share_env(units), limits=limits, mounts=tuple(mounts))

    def restored(self, units: Sequence[GpuUnit]) -> ContainerExtras:
        return self.extras(units)

    def renew(self, units: Sequence[GpuUnit]) -> bool:
        return True

    def release(self, keys: Sequence[str]) -> None:
        """Does nothing: a client has no files of its own."""

    def usage(self, keys: Sequence[str]) -> Sequence[ShareUsage]:
        return ()

    async def follow(self, changed: Callable[[], object], driver: object = None) -> None:
        directory = Directory(self._paths.directory)
        reported: object = None
        async with directory.watching():
            while True:
                seen = directory.changed.count
                await self._reading.run(self._load)
                if reported != (reported := self._relevant_state()):
                    changed()
                await directory.changed.wait(seen, self._valid_for())

    def _plan(self, shares: Sequence[GpuUnit]) -> None:
        self._plans = plan.plan_daemons(self._share, shares)
        if not self._is_loaded:  # the first list, made in a thread
            self._load()

    def _load(self) -> None:
        self._is_loaded = True
        try:
            self._state, self._unreadable = state.read(self._paths.state), ""
        except PluginError as error:
            self._state, self._unreadable = None, str(error)

    def _relevant_state(self) -> object:
        """The state on which `fault` depends, without the time of the last probe."""
        current = self._state
        daemons = current and [(daemon.plan, daemon.condition, daemon.reason) for daemon in current.daemons]
        return self._unreadable, current and current.problem, daemons, self._valid_for() is None

    def _valid_for(self) -> float | None:
        """Seconds until the state is outdated; None if it is outdated or missing."""
        if self._state is None:
            return None
        left = self._state.valid_until - self._clock()
        return left + 0.01 if left > 0 else None

    def _gpu(self, units: Sequence[GpuUnit]) -> str:
        """The single GPU of the container's units. They are preferred on one GPU, if it has enough left."""
        devices = sharing.units_by_device(units)
        if len(devices) != 1:
            counts = " and ".join(f"{len(shares)} of {uuid}" for uuid, shares in devices.items())
            raise PluginError(
                f"{self._resource}: with MPS the shares of a container must be of one GPU, got {counts}: no GPU had "
                f"{len(units)} left, create the pod again"
            )
        return next(iter(devices))

    def _daemon_for(self, gpu: str, size: int) -> DaemonPlan:
        for daemon in sorted(self._plans, key=lambda daemon: daemon.size):
            if daemon.gpu == gpu and daemon.size >= size:
                return daemon
        raise PluginError(f"{self._resource}: no MPS daemon is planned for containers with {size} shares of {gpu}")

    def _daemon_with(self, gpu: str, mebibytes: int, percent: int) -> DaemonPlan:
        """The daemon with the lowest sufficient limits for a claim."""
        for daemon in sorted(self._plans, key=lambda daemon: daemon.size):
            if daemon.gpu == gpu and daemon.mebibytes >= mebibytes and daemon.percent >= percent:
                return daemon
        raise PluginError(
            f"{self._resource}: no MPS daemon is planned for claims with {mebibytes} MiB and {percent} % of {gpu}: its "
            "configuration has changed since, create the pod again"
        )

    def _unconfined_reason(self, unit: GpuUnit) -> str:
        if unit.gpu.compute_mode is not ComputeMode.EXCLUSIVE_PROCESS:
            return f"the compute mode is {unit.gpu.compute_mode or 'not known'}, a process outside MPS has no limits"
        if plan.max_units(self._share) > 1:
            return f"every process may take as much as {plan.max_units(self._share)} shares"
        return ""
