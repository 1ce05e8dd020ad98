"""Speaks with one control daemon, through NVIDIA's own program `nvidia-cuda-mps-control`.

The program is started for each command and finds its daemon by the pipe directory in its environment. GPUs are named by
their place among those the daemon was started with: by UUID some drivers take a limit and do not apply it.
"""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from plugwright.errors import PeerGone
from plugwright.plugins.nvidia.mps.plan import DaemonPlan
from plugwright.plugins.nvidia.mps.programs import answer

__all__ = ["Control", "same_memory", "same_percent", "without_cuda"]

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
