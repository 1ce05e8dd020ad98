"""Child processes: run to the end with the last of their output, or ended with their whole session."""

import asyncio
import os
import signal
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress

__all__ = ["end", "run"]

_KEPT = 4096  # last bytes of output that are kept


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
