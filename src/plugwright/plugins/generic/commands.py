"""Runs an operator's command to its end, and no longer than its caller waits.

What it wrote last is kept, however much it writes. It ends with its process: a child that it leaves behind with the
output still open is not waited for, and ends with it where the caller gave up.
"""

import asyncio
import os
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

__all__ = ["run"]

_KEPT = 4096  # bytes of what was written last


class _Tail:
    """The end of what comes out of a pipe."""

    def __init__(self) -> None:
        self.kept = b""

    def read(self, pipe: int) -> bool:
        """Whether there may be more at once; BlockingIOError is for later."""
        try:
            written = os.read(pipe, _KEPT)
        except BlockingIOError:
            return False
        self.kept = (self.kept + written)[-_KEPT:]
        if not written:
            asyncio.get_running_loop().remove_reader(pipe)
        return bool(written)


async def run(words: Sequence[str]) -> tuple[int, str]:
    """Its exit status, and the end of what it wrote. OSError where it cannot be started."""
    with _collecting() as (tail, reading, writing):
        try:
            process = await asyncio.create_subprocess_exec(
                *words, stdin=asyncio.subprocess.DEVNULL, stdout=writing, stderr=writing, start_new_session=True
            )
        finally:
            os.close(writing)
        try:
            status = await process.wait()
        finally:
            await _end(process)
        # Not until its end: whoever it left behind may write for ever.
        for _ in range(_KEPT):
            if not tail.read(reading):
                break
        return status, tail.kept.decode(errors="replace")


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


async def _end(process: asyncio.subprocess.Process) -> None:
    """With all that it has started, which is its session."""
    if process.returncode is None:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()
