"""Speaks with one control daemon, through NVIDIA's own program `nvidia-cuda-mps-control`.

The program is started for each command and finds its daemon by the pipe directory in its environment. GPUs are named by
their place among those the daemon was started with: by UUID some drivers take a limit and do not apply it.

Keeps one control daemon alive: starts it, sets its limits, looks whether it answers, starts it again.

Its end is the end of every tenant's CUDA program, so one that does not answer is reported at once and restarted only
when it goes on like that. Who reads the reports is `supervisor`'s concern.

Runs one of NVIDIA's programs to its end, and no longer than it may take.
"""

import asyncio
import logging
import os
import re
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from plugwright.errors import PeerGone
from plugwright.plugins.nvidia.mps.plan import Clients, DaemonPlan
from plugwright.plugins.nvidia.mps.state import Condition, DaemonState
from plugwright.system import processes
from plugwright.system.concurrency import Backoff

__all__ = ["Control", "Habits", "Keeper", "answer", "same_memory", "same_percent", "without_cuda"]


async def answer(
    command: Sequence[str], timeout: float, typed: str = "", environment: Mapping[str, str] | None = None
) -> str:
    """What it writes, on both its streams, when `typed` is its input; PeerGone when it fails or does not end."""
    what = repr(typed.strip() or " ".join(command[1:]))
    try:
        async with asyncio.timeout(timeout):
            status, text = await processes.run(command, standard_input=typed.encode(), environment=environment)
    except TimeoutError as error:
        raise PeerGone(f"no answer to {what} within {timeout:g} s") from error
    except OSError as error:
        raise PeerGone(f"cannot start {command[0]}: {error.strerror}") from error
    text = text.strip()
    if status:
        raise PeerGone(f"{what} failed: {' '.join(text.split()) or f'status {status}'}")
    return text


_SIZE = re.compile(r"(\d+) ?([GM])B?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Control:
    pipe: Path
    log: Path
    gpus: tuple[str, ...]
    program: str = "nvidia-cuda-mps-control"
    timeout: float = 5.0  # seconds for one answer

    @property
    def environment(self) -> dict[str, str]:
        return without_cuda(os.environ) | {
            "CUDA_MPS_PIPE_DIRECTORY": str(self.pipe),
            "CUDA_MPS_LOG_DIRECTORY": str(self.log),
            "CUDA_VISIBLE_DEVICES": ",".join(self.gpus),
        }

    def environment_with(self, plan: DaemonPlan) -> dict[str, str]:
        """To start a daemon in: a client may be waiting for it, and be faster than we are to set a limit."""
        memory = ",".join(f"{place}={mebibytes}M" for place, (_, mebibytes) in enumerate(plan.memory))
        return self.environment | {
            "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": str(plan.percent),
            "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": memory,
        }

    async def ask(self, command: str) -> str:
        """The daemon's answer; PeerGone when there is none."""
        return await answer([self.program], self.timeout, command + "\n", self.environment)

    async def limit(self, plan: DaemonPlan) -> None:
        """Sets the limits: for servers that start afterwards, and in those that there are for clients to come."""
        await self.ask(f"set_default_active_thread_percentage {plan.percent}")
        for place, (_, mebibytes) in enumerate(plan.memory):
            await self.ask(f"set_default_device_pinned_mem_limit {place} {mebibytes}M")
        for server in await self.servers():
            await self._limit_server(plan, server)

    async def _limit_server(self, plan: DaemonPlan, server: int) -> None:
        await self.ask(f"set_active_thread_percentage {server} {plan.percent}")
        for place, (_, mebibytes) in enumerate(plan.memory):
            await self.ask(f"set_device_pinned_mem_limit {server} {place} {mebibytes}M")

    async def loosened(self, plan: DaemonPlan) -> str:
        """Which limit is not the one that was set; empty if all are, which also shows that the daemon answers."""
        said = await self.ask("get_default_active_thread_percentage")
        if not same_percent(said, plan.percent):
            return f"{said} % instead of {plan.percent} %"
        for place, (uuid, mebibytes) in enumerate(plan.memory):
            said = await self.ask(f"get_default_device_pinned_mem_limit {place}")
            if not same_memory(said, mebibytes):
                return f"{said} of {uuid} instead of {mebibytes}M"
        return ""

    async def servers(self) -> tuple[int, ...]:
        said = await self.ask("get_server_list")
        return tuple(int(word) for word in said.split() if word.isdecimal())

    async def faulty(self, server: int) -> str:
        """What the server says instead of being active; empty if it is, or has ended meanwhile."""
        try:
            said = await self.ask(f"get_server_status {server}")
        except PeerGone:
            return ""
        return said if "FAULT" in said.upper() else ""

    async def quit(self) -> None:
        await self.ask("quit")


def without_cuda(environment: Mapping[str, str]) -> dict[str, str]:
    """Nothing of MPS or CUDA that we were started with may leak into a daemon: it could change a limit."""
    return {name: text for name, text in environment.items() if not name.startswith(("CUDA_", "NVIDIA_VISIBLE"))}


def same_percent(said: str, percent: int) -> bool:
    """`25.0` is 25. An answer that is no number says nothing, and is no reason for alarm."""
    try:
        return abs(float(said.rsplit(maxsplit=1)[-1]) - percent) < 0.5
    except (ValueError, IndexError):
        return True


def same_memory(said: str, mebibytes: int) -> bool:
    """Drivers show whole GiB from 1 GiB on, and how they round is their affair; what is no size says nothing."""
    found = _SIZE.search(said)
    if not found:
        return True
    number, unit = int(found[1]), found[2]
    return number == mebibytes if unit == "M" else abs(number * 1024 - mebibytes) < 1024


logger = logging.getLogger(__name__)

_PROCESS_NAME = "nvidia-cuda-mps"  # as much of a server's name as the kernel keeps
_LOG_LIMIT = 16 * 2**20  # bytes; each probe writes some lines
_LOOK_AGAIN = 0.05  # seconds, while a daemon starts


@dataclass(frozen=True, slots=True, kw_only=True)
class Habits:
    """How a daemon is looked after. `patience`: how many probes in a row it may miss before it is restarted."""

    interval: float = 10.0  # seconds between probes
    timeout: float = 5.0  # for one answer
    patience: int = 3
    grace: float = 10.0  # for its end, and for its first answer
    longest_wait: float = 30.0  # between attempts to start it
    program: str = "nvidia-cuda-mps-control"
    smi: str = "nvidia-smi"
    clients: Clients = Clients.ONE_USER
    shm: Path = Path("/dev/shm")  # ours, which tenants see as theirs


class Keeper:
    """`told` gets the daemon's state at every probe, and whenever it changes."""

    def __init__(
        self, plan: DaemonPlan, control: Control, habits: Habits, told: Callable[[DaemonState], object]
    ) -> None:
        self._control, self._habits, self._told = control, habits, told
        self._backoff = Backoff(min(0.5, habits.interval), habits.longest_wait)
        self._state = DaemonState(plan=plan, since=time.time())

    async def run(self) -> None:
        """Until it is cancelled; the daemon then ends too."""
        await self._end_a_leftover()
        while True:
            reason = await self._one_life()
            self._become(Condition.DOWN, reason, restarts=self._state.restarts + 1, servers=())
            await asyncio.sleep(self._backoff.delay())

    async def _one_life(self) -> str:
        """Why it ended, or had to be ended."""
        self._become(Condition.STARTING, self._state.reason)
        try:
            process = await self._start()
        except OSError as error:
            return f"cannot start {self._habits.program}: {error.strerror}"
        try:
            await self._first_answer(process)
            await self._control.limit(self._state.plan)
            return await self._watch(process)
        except PeerGone as error:
            return str(error)
        finally:
            await self._end(process)

    async def _start(self) -> asyncio.subprocess.Process:
        for directory in (self._control.pipe, self._control.log):
            directory.mkdir(parents=True, exist_ok=True)
            directory.chmod(0o1777)  # a server runs as its client's user, and speaks and logs there
        with self._console.open("wb") as console:
            return await asyncio.create_subprocess_exec(
                self._habits.program,
                "-f",
                *(["-M"] if self._habits.clients is Clients.ALL_USERS else []),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=console,
                stderr=console,
                env=self._control.environment_with(self._state.plan),
                start_new_session=True,  # so that its servers can be found and ended after it
            )

    async def _first_answer(self, process: asyncio.subprocess.Process) -> None:
        give_up = time.monotonic() + self._habits.grace
        while True:
            try:
                await self._control.ask("get_default_active_thread_percentage")
            except PeerGone:
                if process.returncode is not None:
                    raise PeerGone(self._epitaph(process.returncode)) from None
                if time.monotonic() > give_up:
                    raise
                await asyncio.sleep(_LOOK_AGAIN)
            else:
                return

    async def _watch(self, process: asyncio.subprocess.Process) -> str:
        missed = 0
        ended = asyncio.create_task(process.wait())
        try:
            while not ended.done():
                try:
                    await self._probe()
                    missed = 0
                except PeerGone as error:
                    missed += 1
                    self._become(Condition.DOWN, str(error))
                    if missed >= self._habits.patience:
                        return f"{error}, {missed} times"
                await asyncio.wait([ended], timeout=self._habits.interval)
            return self._epitaph(ended.result())
        finally:
            ended.cancel()

    async def _probe(self) -> None:
        loosened = await self._control.loosened(self._state.plan)
        servers = await self._control.servers()
        if loosened:
            logger.warning("limits were changed from outside and are set again", extra={"found": loosened})
            await self._control.limit(self._state.plan)
        faults = [f"server {each} is in {fault}" for each in servers if (fault := await self._control.faulty(each))]
        self._trim_logs()
        self._backoff.reset()
        self._become(
            Condition.FAULT if faults else Condition.READY,
            f"{faults[0]}: a client's fault; new clients wait until all that were there are gone" if faults else "",
            servers=servers,
            corrections=self._state.corrections + bool(loosened),
        )

    def _become(self, condition: Condition, reason: str, **changes: object) -> None:
        before = self._state
        news = (condition, reason) != (before.condition, before.reason)
        since = time.time() if news else before.since
        self._state = replace(before, condition=condition, reason=reason, since=since, **changes)  # type: ignore[arg-type]
        if condition is not before.condition:
            facts = {"pipe": str(self._control.pipe), "condition": condition.value, "reason": reason}
            logger.log(logging.WARNING if reason else logging.INFO, "MPS daemon changed", extra=facts)
        self._told(self._state)

    async def _end(self, process: asyncio.subprocess.Process) -> None:
        if process.returncode is None:
            with suppress(PeerGone):
                await self._control.quit()
            with suppress(TimeoutError):
                async with asyncio.timeout(self._habits.grace):
                    await process.wait()
        # Servers that outlive their daemon keep the GPU, and in exclusive mode keep everybody out.
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        for server in self._state.servers:
            _end_server(server)
        await process.wait()

    async def _end_a_leftover(self) -> None:
        """Of a supervisor that was killed: nobody knows its limits, and two cannot share a directory."""
        left = self._left_over()
        if left is None:
            return
        logger.warning("ending a daemon that was left over", extra={"pipe": str(self._control.pipe), "pid": left})
        give_up = time.monotonic() + self._habits.grace
        with suppress(PeerGone):
            await self._control.quit()
            while self._left_over() and time.monotonic() < give_up:  # noqa: ASYNC110  it is no child of ours
                await asyncio.sleep(_LOOK_AGAIN)
        with suppress(ProcessLookupError):
            os.killpg(left, signal.SIGKILL)

    def _left_over(self) -> int | None:
        """The daemon whose number is in the pipe directory, if a process of that number speaks there."""
        try:
            number = int((self._control.pipe / "nvidia-cuda-mps-control.pid").read_text())
            environment = Path(f"/proc/{number}/environ").read_bytes().split(b"\0")
        except (OSError, ValueError):
            return None
        return number if f"CUDA_MPS_PIPE_DIRECTORY={self._control.pipe}".encode() in environment else None

    @property
    def _console(self) -> Path:
        return self._control.log / "console.log"

    def _epitaph(self, status: int) -> str:
        how = f"signal {-status}" if status < 0 else f"status {status}"
        last = _last_line(self._console) or _last_line(self._control.log / "control.log")
        return f"the control daemon ended with {how}{': ' + last if last else ''}"

    def _trim_logs(self) -> None:
        for path in self._control.log.glob("*.log"):
            if path.stat().st_size > _LOG_LIMIT:
                os.truncate(path, 0)


def _end_server(server: int) -> None:
    with suppress(OSError):
        if Path(f"/proc/{server}/comm").read_text().startswith(_PROCESS_NAME):
            os.kill(server, signal.SIGKILL)


def _last_line(path: Path) -> str:
    try:
        lines = path.read_text(errors="replace").splitlines()
    except OSError:
        return ""
    return next((line.strip()[:200] for line in reversed(lines) if line.strip()), "")
