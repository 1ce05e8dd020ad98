"""Looks after all control daemons of one resource, and says how they are in the file that the plugin reads.

It is what `plugwright mps run` runs, outside the plugin's process and pod: a plugin may be restarted at any time, and
the tenants' CUDA programs must not notice.

From the configuration to daemons: waits for the driver, works out what is needed, and has it looked after.

What is needed is worked out once, when the driver is there: to change a daemon is to end the programs of its tenants,
which is the operator's decision and made by a restart.

The compute mode of GPUs: made exclusive where the operator asks for it, and put back as it was.

Through `nvidia-smi`, which is where NVIDIA's programs for MPS are. Nobody else in plugwright changes a GPU's settings.
"""

import asyncio
import fcntl
import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from plugwright.errors import ConfigError, PeerGone, PluginError
from plugwright.plugins.nvidia import selection, sharing
from plugwright.plugins.nvidia.driver import ComputeMode, Driver, DriverGone, Gpu, Reading
from plugwright.plugins.nvidia.mps import plan, state
from plugwright.plugins.nvidia.mps.daemon import Control, Habits, Keeper, answer
from plugwright.plugins.nvidia.mps.plan import DaemonPlan, Mode, MpsOptions, Place
from plugwright.plugins.nvidia.mps.state import Condition, DaemonState, ResourceState
from plugwright.plugins.nvidia.selection import Selection
from plugwright.plugins.nvidia.sharing import Share
from plugwright.system import concurrency
from plugwright.system.concurrency import Backoff, Latest

__all__ = ["Supervisor", "Wanted", "look_after", "make_exclusive", "put_back"]

_WORDS = {
    ComputeMode.DEFAULT: "DEFAULT",
    ComputeMode.EXCLUSIVE_PROCESS: "EXCLUSIVE_PROCESS",
    ComputeMode.PROHIBITED: "PROHIBITED",
}
_TIMEOUT = 30.0  # without persistence mode it loads the driver first


async def make_exclusive(program: str, modes: Mapping[str, ComputeMode]) -> None:
    """`modes`: each GPU's mode now. One that is exclusive already is not touched."""
    for uuid, mode in sorted(modes.items()):
        if mode is not ComputeMode.EXCLUSIVE_PROCESS:
            await _set(program, uuid, ComputeMode.EXCLUSIVE_PROCESS)


async def put_back(program: str, modes: Mapping[str, ComputeMode]) -> None:
    for uuid, mode in sorted(modes.items()):
        if mode in _WORDS and mode is not ComputeMode.EXCLUSIVE_PROCESS:
            await _set(program, uuid, mode)


async def _set(program: str, uuid: str, mode: ComputeMode) -> None:
    try:
        await answer([program, "-i", uuid, "-c", _WORDS[mode]], _TIMEOUT)
    except PeerGone as error:
        raise PluginError(f"cannot set the compute mode of {uuid}: {error}") from error


logger = logging.getLogger(__name__)

_MISSED_BEATS = 3  # a machine that is very busy is no reason to take its devices away


class Supervisor:
    def __init__(self, place: Place, plans: Sequence[DaemonPlan], habits: Habits) -> None:
        self._place, self._habits = place, habits
        self._daemons = {plan.size: DaemonState(plan=plan, since=time.time()) for plan in plans}
        self._modes: dict[str, ComputeMode] = {}
        self.state = Latest(self._composed())

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
        await make_exclusive(self._habits.smi, modes)

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
            await put_back(self._habits.smi, self._modes)
            self._modes = {}
        except PluginError as error:
            logger.error("compute mode not put back", extra={"error": str(error)})

    def _stop(self, reason: str) -> None:
        for size, daemon in self._daemons.items():
            stopped = replace(daemon, condition=Condition.STOPPED, reason=reason, servers=(), since=time.time())
            self._daemons[size] = stopped
        self._tell()


_LONGEST_WAIT = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """One resource that is shared by MPS."""

    resource: str
    share: Share
    options: MpsOptions
    driver: Driver
    selection: Selection = field(default_factory=Selection)

    @property
    def place(self) -> Place:
        return Place(self.options.root, self.resource)

    def plans(self, gpus: tuple[Gpu, ...]) -> list[DaemonPlan]:
        whole = selection.chosen(gpus, self.selection)
        sharing.check(self.resource, whole, self.share)
        return plan.daemons(self.share, self.options, sharing.shared(whole, self.share))


async def look_after(wanted: Wanted, habits: Habits) -> None:
    """Until it is cancelled; ConfigError when somebody else does this already."""
    backoff = Backoff(min(1.0, habits.interval), _LONGEST_WAIT)
    said = ""
    while True:
        try:
            await _attempt(wanted, habits)
        except (DriverGone, PluginError) as error:
            if said != (said := str(error)):
                logger.error("no MPS daemon", extra={"resource": wanted.resource, "error": said})
            pause = backoff.delay()
            _say(wanted, said, pause + habits.grace)
            await asyncio.sleep(pause)


async def _attempt(wanted: Wanted, habits: Habits) -> None:
    reading = await concurrency.in_thread("nvidia read", lambda: _read(wanted.driver))
    plans = wanted.plans(reading.gpus)
    if not plans:
        raise PluginError("there is no GPU here that MPS could share for this resource")
    mine = {uuid for each in plans for uuid in each.gpus}
    modes = {gpu.uuid: gpu.compute_mode for gpu in reading.gpus if gpu.uuid in mine}
    logger.info("MPS daemons wanted", extra={"resource": wanted.resource, "sizes": [each.size for each in plans]})
    await Supervisor(wanted.place, plans, habits).run(wanted.options.mode, modes)


def _read(driver: Driver) -> Reading:
    """Not held on to: nothing more is asked of it, and a driver that somebody holds cannot be replaced."""
    try:
        return driver.read()
    finally:
        driver.close()


def _say(wanted: Wanted, problem: str, lasting: float) -> None:
    """Kept are the compute modes that are still to be put back."""
    try:
        before = state.read(wanted.place.state)
        modes = before.modes if before else {}
        told = ResourceState(
            resource=wanted.resource, problem=problem, beat=time.monotonic(), lasting=lasting, modes=modes
        )
        state.write(wanted.place.state, told)
    except (OSError, PluginError) as error:
        logger.error("cannot write the state file", extra={"error": str(error)})
