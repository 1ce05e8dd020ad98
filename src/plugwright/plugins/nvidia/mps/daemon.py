"""One MPS control daemon: started, limited, probed and restarted, through NVIDIA's program `nvidia-cuda-mps-control`.

When a control daemon ends, the CUDA programs of all its clients end too. An unresponsive daemon is therefore reported
immediately, but restarted only after several probes. `supervisor` runs the daemons of a resource and writes their
states.

The program runs once for each command and finds its daemon by the pipe directory in its environment. The GPU is
identified by its position in the daemon's list, 0: some drivers accept a limit by UUID without applying it.
"""

import asyncio
import logging
import os
import re
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec
from msgspec.structs import replace

from plugwright.errors import PeerGone
from plugwright.plugins.nvidia.config import MpsClients
from plugwright.plugins.nvidia.mps.plan import DaemonPlan
from plugwright.plugins.nvidia.mps.state import Condition, DaemonState
from plugwright.system import processes
from plugwright.system.concurrency import Backoff

__all__ = [
    "MpsControl",
    "MpsDaemon",
    "ProbeSettings",
    "end_leftover",
    "run_program",
    "same_memory",
    "same_percent",
    "without_cuda",
]

logger = logging.getLogger(__name__)

_PROCESS_NAME = "nvidia-cuda-mps"  # of a server, truncated as by the kernel
_LOG_LIMIT = 16 * 2**20  # bytes; each probe logs some lines
_START_POLL = 0.05  # seconds between two attempts to reach a starting daemon
_NUMBER = re.compile(r"[\d.]+")
_SIZE = re.compile(r"(\d+) ?([GM])B?")


class ProbeSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings for running and probing daemons. `patience`: consecutive failed probes before a daemon is restarted."""

    interval: float = 10.0  # seconds between probes
    timeout: float = 5.0  # for one command
    patience: int = 3
    grace: float = 10.0  # for its first response, and for its end
    longest_wait: float = 30.0  # between attempts to start it
    program: str = "nvidia-cuda-mps-control"
    smi: str = "nvidia-smi"
    clients: MpsClients = MpsClients.ONE_USER
    shm: Path = Path("/dev/shm")  # of this process, mounted by containers as theirs


class MpsDaemon:
    """Runs one control daemon; `report` gets its state after every probe and every change."""

    def __init__(
        self,
        plan: DaemonPlan,
        control: "MpsControl",
        settings: ProbeSettings,
        report: Callable[[DaemonState], object],
    ) -> None:
        self._control, self._settings, self._report = control, settings, report
        self._backoff = Backoff(min(0.5, settings.interval), settings.longest_wait)
        self._state = DaemonState(plan=plan, since=time.time())

    async def run(self) -> None:
        """Runs until cancelled, which ends the daemon."""
        await end_leftover(self._control, self._settings)
        while True:
            reason = await self._run_once()
            self._set_state(Condition.DOWN, reason, restarts=self._state.restarts + 1, servers=())
            await asyncio.sleep(self._backoff.delay())

    async def _run_once(self) -> str:
        """Runs the daemon; returns why it ended or had to be ended."""
        self._set_state(Condition.STARTING, self._state.reason)
        try:
            process = await self._start()
        except OSError as error:
            return f"cannot start {self._settings.program}: {error.strerror}"
        try:
            await self._wait_for_first_answer(process)
            await self._control.set_limits(self._state.plan)
            return await self._probe_until_failure(process)
        except PeerGone as error:
            return str(error)
        finally:
            await self._end(process)

    async def _start(self) -> asyncio.subprocess.Process:
        for directory in (self._control.pipe, self._control.log):
            directory.mkdir(parents=True, exist_ok=True)
            directory.chmod(0o1777)  # servers run as their client's user, and create sockets and logs there
        with self._console.open("wb") as console:
            return await asyncio.create_subprocess_exec(
                self._settings.program,
                "-f",
                *(["-M"] if self._settings.clients is MpsClients.ALL_USERS else []),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=console,
                stderr=console,
                env=self._control.environment_with(self._state.plan),
                start_new_session=True,  # so that its servers can be ended together with it
            )

    async def _wait_for_first_answer(self, process: asyncio.subprocess.Process) -> None:
        deadline = time.monotonic() + self._settings.grace
        while True:
            try:
                await self._control.send("get_default_active_thread_percentage")
            except PeerGone:
                if process.returncode is not None:
                    raise PeerGone(self._exit_reason(process.returncode)) from None
                if time.monotonic() > deadline:
                    raise
                await asyncio.sleep(_START_POLL)
            else:
                return

    async def _probe_until_failure(self, process: asyncio.subprocess.Process) -> str:
        failed = 0
        ended = asyncio.create_task(process.wait())
        try:
            while not ended.done():
                try:
                    await self._probe()
                    failed = 0
                except PeerGone as error:
                    failed += 1
                    self._set_state(Condition.DOWN, str(error))
                    if failed >= self._settings.patience:
                        return f"{error}, {failed} times"
                await asyncio.wait([ended], timeout=self._settings.interval)
            return self._exit_reason(ended.result())
        finally:
            ended.cancel()

    async def _probe(self) -> None:
        servers = await self._control.servers()
        drift = await self._control.limit_drift(self._state.plan, servers)
        if drift:
            facts = {"gpu": self._state.plan.gpu, "drift": drift}
            logger.warning("MPS limits changed by another program, setting them again", extra=facts)
            await self._control.set_limits(self._state.plan)
        else:
            await self._control.set_memory(self._state.plan, servers)
        faults = [
            f"server {server} is in {fault}"
            for server in servers
            if (fault := await self._control.server_fault(server))
        ]
        self._trim_logs()
        self._backoff.reset()
        self._set_state(
            Condition.FAULT if faults else Condition.READY,
            f"{faults[0]}: a client's fault; new clients wait until all present ones have ended" if faults else "",
            servers=servers,
            corrections=self._state.corrections + bool(drift),
        )

    def _set_state(self, condition: Condition, reason: str, **changes: object) -> None:
        before = self._state
        is_new = (condition, reason) != (before.condition, before.reason)
        since = time.time() if is_new else before.since
        self._state = replace(before, condition=condition, reason=reason, since=since, **changes)
        if condition is not before.condition:
            facts = {"pipe": str(self._control.pipe), "condition": condition.value, "reason": reason}
            logger.log(logging.WARNING if reason else logging.INFO, "MPS daemon changed", extra=facts)
        self._report(self._state)

    async def _end(self, process: asyncio.subprocess.Process) -> None:
        try:
            if process.returncode is None:
                with suppress(PeerGone):
                    await self._control.quit()
                with suppress(TimeoutError):
                    async with asyncio.timeout(self._settings.grace):
                        await process.wait()
        finally:  # up to Python 3.11.2 a timeout in a task that is being cancelled raises CancelledError
            # Servers that outlive their daemon keep the GPU, and in exclusive mode no other process can use it.
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            for server in self._state.servers:
                with suppress(OSError):
                    if Path(f"/proc/{server}/comm").read_text().startswith(_PROCESS_NAME):
                        os.kill(server, signal.SIGKILL)
            await process.wait()

    @property
    def _console(self) -> Path:
        return self._control.log / "console.log"

    def _exit_reason(self, status: int) -> str:
        how = f"signal {-status}" if status < 0 else f"status {status}"
        last = _last_line(self._console) or _last_line(self._control.log / "control.log")
        return f"the control daemon ended with {how}{': ' + last if last else ''}"

    def _trim_logs(self) -> None:
        for path in self._control.log.glob("*.log"):
            if path.stat().st_size > _LOG_LIMIT:
                os.truncate(path, 0)


class MpsControl(msgspec.Struct, frozen=True, kw_only=True):
    """The commands of one control daemon. A failed or unanswered command raises PeerGone."""

    pipe: Path
    log: Path
    gpu: str
    program: str = "nvidia-cuda-mps-control"
    timeout: float = 5.0  # seconds for one command

    @property
    def environment(self) -> dict[str, str]:
        return without_cuda(os.environ) | {
            "CUDA_MPS_PIPE_DIRECTORY": str(self.pipe),
            "CUDA_MPS_LOG_DIRECTORY": str(self.log),
            "CUDA_VISIBLE_DEVICES": self.gpu,
        }

    def environment_with(self, plan: DaemonPlan) -> dict[str, str]:
        """The environment for starting a daemon: a waiting client can connect before a command sets the limits."""
        return self.environment | {
            "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": str(plan.percent),
            "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": f"0={plan.mebibytes}M",
        }

    async def send(self, command: str) -> str:
        return await run_program([self.program], self.timeout, command + "\n", self.environment)

    async def set_limits(self, plan: DaemonPlan) -> None:
        """Sets limits for later servers, and in running servers for their future clients."""
        await self.send(f"set_default_active_thread_percentage {plan.percent}")
        servers = await self.servers()
        for server in servers:
            await self.send(f"set_active_thread_percentage {server} {plan.percent}")
        await self.set_memory(plan, servers)

    async def set_memory(self, plan: DaemonPlan, servers: Sequence[int]) -> None:
        """Sets the limit at every probe: drivers report whole GiB, which hides smaller changes by other programs."""
        await self.send(f"set_default_device_pinned_mem_limit 0 {plan.mebibytes}M")
        for server in servers:
            await self._send_to_server(f"set_device_pinned_mem_limit {server} 0 {plan.mebibytes}M")

    async def limit_drift(self, plan: DaemonPlan, servers: Sequence[int]) -> str:
        """The first limit of the daemon or of a server in conflict with the plan; empty if all agree."""
        percents = {"": await self.send("get_default_active_thread_percentage")}
        sizes = {"": await self.send("get_default_device_pinned_mem_limit 0")}
        for server in servers:
            name = f" in server {server}"
            answer = await self._send_to_server(f"get_active_thread_percentage {server}")
            percents[name] = answer if _NUMBER.fullmatch(answer) else ""  # an error can end in the server's number
            sizes[name] = await self._send_to_server(f"get_device_pinned_mem_limit {server} 0")
        wrong = [
            f"{answer} % instead of {plan.percent} %{where}"
            for where, answer in percents.items()
            if not same_percent(answer, plan.percent)
        ]
        wrong += [
            f"{answer} instead of {plan.mebibytes}M{where}"
            for where, answer in sizes.items()
            if not same_memory(answer, plan.mebibytes)
        ]
        return next(iter(wrong), "")

    async def _send_to_server(self, command: str) -> str:
        """The response; empty if the server has ended meanwhile, or the driver does not know the command."""
        try:
            return await self.send(command)
        except PeerGone:
            return ""

    async def servers(self) -> tuple[int, ...]:
        answer = await self.send("get_server_list")
        return tuple(int(word) for word in answer.split() if word.isdecimal())

    async def server_fault(self, server: int) -> str:
        """The server's fault state; empty if it has none, or has ended meanwhile."""
        answer = await self._send_to_server(f"get_server_status {server}")
        return answer if "FAULT" in answer.upper() else ""

    async def quit(self) -> None:
        await self.send("quit")


async def end_leftover(control: MpsControl, settings: ProbeSettings) -> None:
    """Ends the daemon of a killed supervisor: its limits are unknown, and two cannot share a pipe directory."""
    pid = _leftover_pid(control.pipe)
    if pid is None:
        return
    logger.warning("ending the MPS daemon of an earlier supervisor", extra={"pipe": str(control.pipe), "pid": pid})
    deadline = time.monotonic() + settings.grace
    with suppress(PeerGone):
        await control.quit()
        while _leftover_pid(control.pipe) and time.monotonic() < deadline:  # noqa: ASYNC110  not a child process
            await asyncio.sleep(_START_POLL)
    with suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)


def _leftover_pid(pipe: Path) -> int | None:
    """The pid in the pipe directory, if its process uses this directory."""
    try:
        pid = int((pipe / "nvidia-cuda-mps-control.pid").read_text())
        environment = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except (OSError, ValueError):
        return None
    return pid if f"CUDA_MPS_PIPE_DIRECTORY={pipe}".encode() in environment else None


async def run_program(
    command: Sequence[str], timeout: float, standard_input: str = "", environment: Mapping[str, str] | None = None
) -> str:
    """The output of one of NVIDIA's programs on both streams; PeerGone if it fails or does not end in time."""
    shown = repr(standard_input.strip() or " ".join(command[1:]))
    try:
        async with asyncio.timeout(timeout):
            status, text = await processes.run(command, standard_input=standard_input.encode(), environment=environment)
    except TimeoutError as error:
        raise PeerGone(f"no answer to {shown} within {timeout:g} s") from error
    except OSError as error:
        raise PeerGone(f"cannot start {command[0]}: {error.strerror}") from error
    text = text.strip()
    if status:
        raise PeerGone(f"{shown} failed: {' '.join(text.split()) or f'status {status}'}")
    return text


def without_cuda(environment: Mapping[str, str]) -> dict[str, str]:
    """Removes the variables of CUDA and MPS, which could change a daemon's limits."""
    return {name: text for name, text in environment.items() if not name.startswith(("CUDA_", "NVIDIA_VISIBLE"))}


def same_percent(answer: str, percent: int) -> bool:
    """Whether a response means this percentage: `25.0` is 25; a response without a number counts as equal."""
    try:
        return abs(float(answer.rsplit(maxsplit=1)[-1]) - percent) < 0.5
    except (ValueError, IndexError):
        return True


def same_memory(answer: str, mebibytes: int) -> bool:
    """Whether it is this size. Drivers round to whole GiB from 1 GiB on; an answer without a size counts as equal."""
    match = _SIZE.search(answer)
    if not match:
        return True
    number, unit = int(match[1]), match[2]
    return number == mebibytes if unit == "M" else abs(number * 1024 - mebibytes) < 1024


def _last_line(path: Path) -> str:
    try:
        lines = path.read_text(errors="replace").splitlines()
    except OSError:
        return ""
    return next((line.strip()[:200] for line in reversed(lines) if line.strip()), "")
