"""Looks after all control daemons of one resource, and says how they are in the file that the plugin reads.

It is what `plugwright mps run` runs, outside the plugin's process and pod: a plugin may be restarted at any time, and
the tenants' CUDA programs must not notice.
"""

import asyncio
import fcntl
import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace

from plugwright.errors import ConfigError, PluginError
from plugwright.plugins.nvidia.gpus import ComputeMode
from plugwright.plugins.nvidia.mps import compute, state
from plugwright.plugins.nvidia.mps.control import Control
from plugwright.plugins.nvidia.mps.keeper import Habits, Keeper
from plugwright.plugins.nvidia.mps.plan import DaemonPlan, Mode, Place
from plugwright.plugins.nvidia.mps.state import Condition, DaemonState, ResourceState
from plugwright.sdk.newest import Newest

__all__ = ["Supervisor"]

logger = logging.getLogger(__name__)

_MISSED_BEATS = 3  # a machine that is very busy is no reason to take its devices away


class Supervisor:
    def __init__(self, place: Place, plans: Sequence[DaemonPlan], habits: Habits) -> None:
        self._place, self._habits = place, habits
        self._daemons = {plan.size: DaemonState(plan=plan, since=time.time()) for plan in plans}
        self._modes: dict[str, ComputeMode] = {}
        self.state = Newest(self._composed())

    async def run(self, mode: Mode = Mode.LEAVE, modes: Mapping[str, ComputeMode] | None = None) -> None:
        """Until it is cancelled; ConfigError when somebody else does this already.

        `modes` are the compute modes of the GPUs now: changed only with Mode.EXCLUSIVE, and put back at the end.
        """
        reason = ""
        with self._alone():
            self._open_shm()
            self._modes = self._left_over()
            try:
                await (self._take(modes or {}) if mode is Mode.EXCLUSIVE else self._give_back())
                await self._keep()
            except PluginError as error:
                reason = str(error)
                raise
            finally:
                await self._give_back()
                self._stop(reason)

    @contextmanager
    def _alone(self) -> Iterator[None]:
        self._place.directory.mkdir(mode=0o755, parents=True, exist_ok=True)
        with (self._place.directory / "lock").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise ConfigError(
                    f"another process looks after the MPS daemons of {self._place.resource} in {self._place.root}"
                ) from None
            yield

    def _open_shm(self) -> None:
        """A directory that Kubernetes made for us is root's alone; clients of other users leave their memory there."""
        shm = self._habits.shm
        try:
            if shm.stat().st_mode & 0o1777 != 0o1777:
                shm.chmod(0o1777)
        except OSError as error:
            logger.warning("only root's programs can share memory with MPS", extra={"error": str(error)})

    async def _take(self, modes: Mapping[str, ComputeMode]) -> None:
        """What is to be put back is written down first: we may be killed at any time."""
        self._modes = {**modes, **self._modes}
        self._tell()
        await compute.make_exclusive(self._habits.smi, modes)

    def _left_over(self) -> dict[str, ComputeMode]:
        """What a supervisor before us changed and could not put back."""
        try:
            before = state.read(self._place.state)
        except PluginError:
            return {}
        return {uuid: ComputeMode(mode) for uuid, mode in before.modes.items()} if before else {}

    async def _keep(self) -> None:
        async with asyncio.TaskGroup() as group:
            for size, daemon in self._daemons.items():
                control = Control(
                    pipe=self._place.pipe(size),
                    log=self._place.log(size),
                    gpus=daemon.plan.gpus,
                    program=self._habits.program,
                    timeout=self._habits.timeout,
                )
                keeper = Keeper(daemon.plan, control, self._habits, self._hear)
                group.create_task(keeper.run(), name=f"MPS daemon {self._place.resource} {size}")

    def _hear(self, daemon: DaemonState) -> None:
        self._daemons[daemon.plan.size] = daemon
        self._tell()

    def _tell(self) -> None:
        composed = self._composed()
        try:
            state.write(self._place.state, composed)
        except OSError as error:  # a full disk must not end the tenants' programs
            logger.error("cannot write the state file", extra={"error": str(error)})
        self.state.publish(composed)

    def _composed(self) -> ResourceState:
        habits = self._habits
        return ResourceState(
            resource=self._place.resource,
            daemons=tuple(self._daemons.values()),
            beat=time.monotonic(),
            lasting=_MISSED_BEATS * (habits.interval + habits.timeout) + habits.grace,
            modes={uuid: mode.value for uuid, mode in self._modes.items()},
        )

    async def _give_back(self) -> None:
        try:
            await compute.put_back(self._habits.smi, self._modes)
            self._modes = {}
        except PluginError as error:
            logger.error("compute mode not put back", extra={"error": str(error)})

    def _stop(self, reason: str) -> None:
        for size, daemon in self._daemons.items():
            stopped = replace(daemon, condition=Condition.STOPPED, reason=reason, servers=(), since=time.time())
            self._daemons[size] = stopped
        self._tell()
