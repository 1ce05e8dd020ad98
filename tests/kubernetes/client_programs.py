"""Programs that are clients of an API server, run while this process serves it."""

import asyncio
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

__all__ = ["ANOTHER_VERSION", "Client", "Ended"]

_LIMIT = 120  # seconds
# For the clients beside the current ones: other versions, which are built or installed first.
ANOTHER_VERSION = pytest.mark.full("another version of a client, which is built or installed first")


@dataclass(frozen=True, slots=True)
class Ended:
    """What a program printed, and how it ended."""

    code: int
    out: str
    error: str


class Client:
    """A program that finds the API server by its kubeconfig; `client("get", "pods")` is what it prints."""

    def __init__(self, program: Path, kubeconfig: Path) -> None:
        self._program = program
        self._environment = {**os.environ, "KUBECONFIG": str(kubeconfig), "HOME": str(kubeconfig.parent)}

    async def ended(self, *words: object, given: str = "") -> Ended:
        process = await asyncio.create_subprocess_exec(
            str(self._program), *map(str, words), env=self._environment,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        out, error = await asyncio.wait_for(process.communicate(given.encode()), _LIMIT)
        return Ended(process.returncode or 0, out.decode(), error.decode())

    async def __call__(self, *words: object, given: str = "") -> str:
        """It must end well."""
        ended = await self.ended(*words, given=given)
        assert ended.code == 0, f"{words}: {ended.out}{ended.error}"
        return ended.out
