"""Runs one of NVIDIA's programs to its end, and no longer than it may take."""

import asyncio
from collections.abc import Mapping, Sequence

from plugwright.errors import PeerGone

__all__ = ["answer"]


async def answer(
    command: Sequence[str], timeout: float, typed: str = "", environment: Mapping[str, str] | None = None
) -> str:
    """What it writes, on both its streams, when `typed` is its input; PeerGone when it fails or does not end."""
    try:
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            env=environment,
        )
    except OSError as error:
        raise PeerGone(f"cannot start {command[0]}: {error.strerror}") from error
    what = repr(typed.strip() or " ".join(command[1:]))
    try:
        async with asyncio.timeout(timeout):
            out, _ = await process.communicate(typed.encode())
    except TimeoutError as error:
        raise PeerGone(f"no answer to {what} within {timeout:g} s") from error
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    text = out.decode(errors="replace").strip()
    if process.returncode:
        raise PeerGone(f"{what} failed: {' '.join(text.split()) or f'status {process.returncode}'}")
    return text
