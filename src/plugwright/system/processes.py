"""Child processes: run to the end with the last of their output, or ended with their whole session."""

import asyncio
import os
import signal
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from uuid import uuid4

from plugwright.system.concurrency import in_thread

__all__ = ["end", "run", "run_alone"]

_KEPT = 4096  # last bytes of output that are kept
_MARK = "PLUGWRIGHT_COMMAND"  # a variable with another value for each command of `run_alone`
_EXAMINED = 1.0  # seconds in which the processes of a command are found
_ROUNDS = 10  # a process can start others until it is killed


async def run_alone(command: Sequence[str]) -> tuple[int, str]:
    """Like `run`, and also kills what the command started in other sessions, however the command ends.

    These processes are recognized by a variable in their environment.
    """
    value, before = uuid4().hex, _newest_process()
    try:
        return await run(command, environment={**os.environ, _MARK: value})
    finally:
        with suppress(RuntimeError, TimeoutError):  # no thread could be started, or a process cannot be examined
            async with asyncio.timeout(_EXAMINED):
                await in_thread("processes of a command", partial(_kill_marked, f"{_MARK}={value}".encode(), before))


async def run(
    command: Sequence[str], *, standard_input: bytes = b"", environment: Mapping[str, str] | None = None
) -> tuple[int, str]:
    """The exit status and the end of the output. OSError if the command cannot be started.

    Returns when the process ends, and kills the remaining processes of its session. A cancelled caller, for example
    by a time limit, kills the process and its whole session.
    """
    with _collecting() as (tail, reading, writing):
        try:
            process = await asyncio.create_subprocess_exec(
                *command,
                stdin=asyncio.subprocess.PIPE if standard_input else asyncio.subprocess.DEVNULL,
                stdout=writing,
                stderr=writing,
                env=environment,
                start_new_session=True,
            )
        finally:
            os.close(writing)
        try:
            if process.stdin is not None:
                await _write_input(process.stdin, standard_input)
            status = await process.wait()
        finally:
            await end(process)
        # Not until the end of the pipe: a child of the process can write indefinitely.
        for _ in range(_KEPT):
            if not tail.read(reading):
                break
        return status, tail.kept.decode(errors="replace")


async def end(process: asyncio.subprocess.Process, grace: float = 0.0) -> None:
    """Terminates the process, waits up to `grace` seconds, then kills its session. Without a grace, kills it now.

    Also kills the rest of the group if the process itself has ended.
    """
    try:
        if process.returncode is None and grace:
            with suppress(ProcessLookupError, TimeoutError):
                process.terminate()
                async with asyncio.timeout(grace):
                    await process.wait()
    finally:  # up to Python 3.11.2 a timeout in a task that is being cancelled raises CancelledError
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()


async def _write_input(pipe: asyncio.StreamWriter, content: bytes) -> None:
    with suppress(ConnectionError):  # the process need not read it
        pipe.write(content)
        await pipe.drain()
    pipe.close()
    with suppress(ConnectionError):
        await pipe.wait_closed()


def _kill_marked(mark: bytes, before: int) -> None:
    """Kills the processes with this variable that are newer than the process `before`, until there is no other one."""
    killed: set[int] = set()
    for _ in range(_ROUNDS):
        found = {pid for pid in _processes_after(before) if pid not in killed and _kill_if_marked(pid, mark)}
        if not found:
            break
        killed |= found


def _kill_if_marked(pid: int, mark: bytes) -> bool:
    try:
        descriptor = os.pidfd_open(pid)  # before the environment is read: the id may belong to another process later
    except OSError:
        return False
    try:
        if mark not in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):  # empty after the process has ended
            return False
        signal.pidfd_send_signal(descriptor, signal.SIGKILL)
    except OSError:
        return False
    else:
        return True
    finally:
        os.close(descriptor)


def _processes_after(before: int) -> list[int]:
    """The ids are ascending, and begin again after the highest one."""
    newest = _newest_process()
    found = [int(entry) for entry in os.listdir("/proc") if entry.isdigit()]  # noqa: PTH208  faster
    return [pid for pid in found if (before < pid <= newest if before <= newest else pid > before or pid <= newest)]


def _newest_process() -> int:
    """The last process id that was assigned in our PID namespace."""
    try:
        return int(Path("/proc/loadavg").read_text().split()[-1])
    except (OSError, ValueError, IndexError):
        return 0


class _Tail:
    """The last `_KEPT` bytes read from a pipe."""

    def __init__(self) -> None:
        self.kept = b""

    def read(self, pipe: int) -> bool:
        """Whether more data can be read immediately."""
        try:
            written = os.read(pipe, _KEPT)
        except BlockingIOError:
            return False
        self.kept = (self.kept + written)[-_KEPT:]
        if not written:
            asyncio.get_running_loop().remove_reader(pipe)
        return bool(written)


@contextmanager
def _collecting() -> Iterator[tuple[_Tail, int, int]]:
    tail, (reading, writing) = _Tail(), os.pipe()
    os.set_blocking(reading, False)
    loop = asyncio.get_running_loop()
    loop.add_reader(reading, tail.read, reading)
    try:
        yield tail, reading, writing
    finally:
        loop.remove_reader(reading)
        os.close(reading)
