"""The supervisor of one resource's control daemons, started by `plugwright mps run`.

It runs outside the plugin's process and pod: a plugin can restart at any time, and the CUDA programs of containers must
not be affected. The daemons are planned once, when the driver is available: changing a daemon ends its clients'
programs, which the operator must decide by a restart. If configured, the supervisor also sets the compute mode of GPUs,
through `nvidia-smi`; nothing else in plugwright changes a GPU's settings.
"""

import asyncio
import fcntl
import logging
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec
from msgspec.structs import replace

from plugwright.errors import ConfigError, DriverGone, PeerGone, PluginError
from plugwright.plugins.nvidia import selection, sharing
from plugwright.plugins.nvidia.config import ComputeModePolicy, NvidiaMps, NvidiaShare
from plugwright.plugins.nvidia.driver import ComputeMode, Gpu, GpuDriver, GpuSnapshot
from plugwright.plugins.nvidia.mps import plan, state
from plugwright.plugins.nvidia.mps.daemon import MpsControl, MpsDaemon, ProbeSettings, end_leftover, run_program
from plugwright.plugins.nvidia.mps.plan import DaemonPlan, MpsPaths
from plugwright.plugins.nvidia.mps.state import Condition, DaemonState, ResourceState
from plugwright.plugins.nvidia.selection import Selection
from plugwright.system import concurrency
from plugwright.system.concurrency import Backoff, single_error
from plugwright.system.latest import Latest
from plugwright.system.log_once import LogOnce

__all__ = ["MpsResource", "Supervisor", "restore_modes", "run_supervisors", "set_exclusive", "supervise"]

logger = logging.getLogger(__name__)

_LONGEST_WAIT = 30.0  # seconds between two attempts to plan the daemons
_MISSED_PROBES = 3  # before the state is outdated: a busy machine must not make devices unhealthy
_SMI_TIMEOUT = 30.0  # seconds; without persistence mode nvidia-smi loads the driver first
_SMI_MODES = {
    ComputeMode.DEFAULT: "DEFAULT",
    ComputeMode.EXCLUSIVE_PROCESS: "EXCLUSIVE_PROCESS",
    ComputeMode.PROHIBITED: "PROHIBITED",
}


class MpsResource(msgspec.Struct, frozen=True, kw_only=True):
    """One resource shared by MPS."""

    resource: str
    share: NvidiaShare
    driver: GpuDriver
    selection: Selection = msgspec.field(default_factory=Selection)

    @property
    def config(self) -> NvidiaMps:
        return self.share.mps or NvidiaMps()

    @property
    def paths(self) -> MpsPaths:
        return MpsPaths(Path(self.config.root), self.resource)

    def plans(self, gpus: tuple[Gpu, ...]) -> list[DaemonPlan]:
        whole = selection.select_devices(gpus, self.selection)
        sharing.check_list_size(self.resource, whole, self.share)
        return plan.plan_daemons(self.share, sharing.split_all(whole, self.share))


def run_supervisors(resources: Sequence[MpsResource], settings: ProbeSettings) -> None:
    """Supervises the daemons of all resources until SIGTERM or SIGINT."""
    asyncio.run(_supervise_all(resources, settings))


async def _supervise_all(resources: Sequence[MpsResource], settings: ProbeSettings) -> None:
    task = asyncio.current_task()
    assert task is not None

    def stop() -> None:
        """Stops once: a second signal must not prevent the compute modes from being restored."""
        if not task.cancelling():
            task.cancel()

    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop)
    try:
        async with asyncio.TaskGroup() as group:
            for resource in resources:
                own = replace(settings, clients=resource.config.clients)
                group.create_task(supervise(resource, own), name=f"MPS of {resource.resource}")
    except asyncio.CancelledError:
        return
    except ExceptionGroup as errors:
        raise single_error(errors) from None


async def supervise(resource: MpsResource, settings: ProbeSettings) -> None:
    """Runs until cancelled; ConfigError if another process supervises this resource."""
    backoff = Backoff(min(1.0, settings.interval), _LONGEST_WAIT)
    problems = LogOnce(logger)
    while True:
        try:
            await _plan_and_run(resource, settings)
        except (DriverGone, PluginError) as error:
            problem = str(error)
            problems.error("cannot run MPS daemons", problem, extra={"resource": resource.resource, "error": problem})
            pause = backoff.delay()
            _write_problem(resource, problem, pause + settings.grace)
            await asyncio.sleep(pause)


async def _plan_and_run(resource: MpsResource, settings: ProbeSettings) -> None:
    snapshot = await concurrency.in_thread("nvidia read", lambda: _read_once(resource.driver))
    plans = resource.plans(snapshot.gpus)
    if not plans:
        raise PluginError("no GPU of this resource can be shared by MPS")
    planned = sorted({daemon.gpu for daemon in plans})
    modes = {gpu.uuid: gpu.compute_mode for gpu in snapshot.gpus if gpu.uuid in planned}
    sizes = sorted({daemon.size for daemon in plans})
    facts = {"resource": resource.resource, "gpus": planned, "sizes": sizes}
    logger.info("starting MPS daemons", extra=facts)
    await Supervisor(resource.paths, plans, settings).run(resource.config.mode, modes)


def _read_once(driver: GpuDriver) -> GpuSnapshot:
    """One snapshot; closes the driver, which cannot be replaced while a process has it open."""
    try:
        return driver.read()
    finally:
        driver.close()


def _write_problem(resource: MpsResource, problem: str, lasting: float) -> None:
    """Writes the problem; keeps the compute modes yet to be restored."""
    path = resource.paths.state
    try:
        before = state.read(path)
        modes = before.modes if before else {}
        now = time.monotonic()
        state.write(
            path,
            ResourceState(resource=resource.resource, problem=problem, beat=now, lasting=lasting, modes=modes),
        )
    except (OSError, PluginError) as error:
        logger.error("cannot write the MPS state file", extra={"path": str(path), "error": str(error)})


class Supervisor:
    def __init__(self, paths: MpsPaths, plans: Sequence[DaemonPlan], settings: ProbeSettings) -> None:
        self._paths, self._settings = paths, settings
        self._daemons = {plan.key: DaemonState(plan=plan, since=time.time()) for plan in plans}
        self._modes: dict[str, ComputeMode] = {}
        self.state = Latest(self._current_state())

    async def run(
        self,
        policy: ComputeModePolicy = ComputeModePolicy.LEAVE,
        modes: Mapping[str, ComputeMode] | None = None,
    ) -> None:
        """Runs until cancelled; ConfigError if another process supervises this resource.

        `modes` are the GPUs' present compute modes: only ComputeModePolicy.EXCLUSIVE changes them, and they are
        restored at the end.
        """
        reason = ""
        with self._locked():
            self._open_shm()
            self._modes = self._unrestored_modes()
            try:
                if policy is ComputeModePolicy.EXCLUSIVE:
                    await self._set_exclusive(modes or {})
                else:
                    await self._restore_modes()
                await self._run_daemons()
            except PluginError as error:
                reason = str(error)
                raise
            finally:
                await self._restore_modes()
                self._set_stopped(reason)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        self._paths.directory.mkdir(mode=0o755, parents=True, exist_ok=True)
        with (self._paths.directory / "lock").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise ConfigError(
                    f"another process supervises the MPS daemons of {self._paths.resource} in {self._paths.root}"
                ) from None
            yield

    def _open_shm(self) -> None:
        """Opens the directory, which Kubernetes creates for root only, to clients of other users."""
        shm = self._settings.shm
        try:
            if shm.stat().st_mode & 0o1777 != 0o1777:
                shm.chmod(0o1777)
        except OSError as error:
            facts = {"path": str(shm), "error": str(error)}
            logger.warning("cannot open the shared memory directory to users other than root", extra=facts)

    async def _set_exclusive(self, modes: Mapping[str, ComputeMode]) -> None:
        """Sets the mode, after writing the modes to restore, because the process can be killed at any time."""
        self._modes = {**modes, **self._modes}
        self._publish()
        await set_exclusive(self._settings.smi, modes)

    def _unrestored_modes(self) -> dict[str, ComputeMode]:
        """The modes changed but not restored by an earlier supervisor."""
        try:
            before = state.read_or_set_aside(self._paths.state)
        except PluginError as error:
            logger.error("compute modes of an earlier run are not known", extra={"error": str(error)})
            return {}
        return {uuid: ComputeMode(mode) for uuid, mode in before.modes.items()} if before else {}

    async def _run_daemons(self) -> None:
        await self._end_unplanned()
        async with asyncio.TaskGroup() as group:
            for (gpu, size), daemon in self._daemons.items():
                control = self._control(self._paths.pipe(gpu, size), gpu)
                runner = MpsDaemon(daemon.plan, control, self._settings, self._on_report)
                group.create_task(runner.run(), name=f"MPS daemon {self._paths.resource} {size} of {gpu}")

    async def _end_unplanned(self) -> None:
        """Ends a killed supervisor's daemons outside the plan."""
        planned = {self._paths.pipe(*key) for key in self._daemons}
        for pipe in sorted({*self._paths.directory.glob("*/pipe"), *self._paths.directory.glob("*/*/pipe")} - planned):
            await end_leftover(self._control(pipe), self._settings)

    def _control(self, pipe: Path, gpu: str = "") -> MpsControl:
        log, settings = pipe.with_name("log"), self._settings
        return MpsControl(pipe=pipe, log=log, gpu=gpu, program=settings.program, timeout=settings.timeout)

    def _on_report(self, daemon: DaemonState) -> None:
        self._daemons[daemon.plan.key] = daemon
        self._publish()

    def _publish(self) -> None:
        current = self._current_state()
        try:
            state.write(self._paths.state, current)
        except OSError as error:  # a full disk must not end the clients' programs
            facts = {"path": str(self._paths.state), "error": str(error)}
            logger.error("cannot write the MPS state file", extra=facts)
        self.state.publish(current)

    def _current_state(self) -> ResourceState:
        settings = self._settings
        return ResourceState(
            resource=self._paths.resource,
            daemons=tuple(self._daemons.values()),
            beat=time.monotonic(),
            lasting=_MISSED_PROBES * (settings.interval + settings.timeout) + settings.grace,
            modes={uuid: mode.value for uuid, mode in self._modes.items()},
        )

    async def _restore_modes(self) -> None:
        try:
            await restore_modes(self._settings.smi, self._modes)
            self._modes = {}
        except PluginError as error:
            logger.error("compute mode not restored", extra={"error": str(error)})

    def _set_stopped(self, reason: str) -> None:
        for key, daemon in self._daemons.items():
            stopped = replace(daemon, condition=Condition.STOPPED, reason=reason, servers=(), since=time.time())
            self._daemons[key] = stopped
        self._publish()


async def set_exclusive(program: str, modes: Mapping[str, ComputeMode]) -> None:
    """Sets exclusive mode; `modes` contains the present mode of each GPU."""
    for uuid, mode in sorted(modes.items()):
        if mode is not ComputeMode.EXCLUSIVE_PROCESS:
            await _set_mode(program, uuid, ComputeMode.EXCLUSIVE_PROCESS)


async def restore_modes(program: str, modes: Mapping[str, ComputeMode]) -> None:
    for uuid, mode in sorted(modes.items()):
        if mode in _SMI_MODES and mode is not ComputeMode.EXCLUSIVE_PROCESS:
            await _set_mode(program, uuid, mode)


async def _set_mode(program: str, uuid: str, mode: ComputeMode) -> None:
    try:
        await run_program([program, "-i", uuid, "-c", _SMI_MODES[mode]], _SMI_TIMEOUT)
    except PeerGone as error:
        raise PluginError(f"cannot set the compute mode of {uuid}: {error}") from error
