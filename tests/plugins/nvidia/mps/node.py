"""A node with MPS and without a GPU: its files, programs that stand in for NVIDIA's, and its supervisor."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from plugwright.plugins.nvidia.driver import ComputeMode, Gpu
from plugwright.plugins.nvidia.mps.daemon import Control, Habits
from plugwright.plugins.nvidia.mps.plan import DaemonPlan, Mode, Place
from plugwright.plugins.nvidia.mps.state import Condition, ResourceState
from plugwright.plugins.nvidia.mps.supervisor import Supervisor

__all__ = ["RESOURCE", "MpsNode", "becomes", "gpu", "program"]

RESOURCE = "nvidia.com/gpu-shared"
_LIMIT = 30.0  # seconds; only a test that fails waits for so long


def gpu(index: int, memory: int = 80 * 2**30, mode: ComputeMode = ComputeMode.DEFAULT) -> Gpu:
    uuid = f"GPU-0000000{index}-0000-0000-0000-000000000000"
    return Gpu(uuid=uuid, index=index, memory=memory, model="H", capability=(9, 0), compute_mode=mode)


def program(path: Path, script: str) -> str:
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return str(path)


@dataclass(frozen=True, slots=True)
class MpsNode:
    root: Path

    @property
    def place(self) -> Place:
        return Place(self.root / "mps", RESOURCE)

    @property
    def habits(self) -> Habits:
        """As hasty as a test may be; whoever waits is told by a fact, not by a clock."""
        return Habits(
            interval=0.05,
            timeout=5.0,
            grace=5.0,
            longest_wait=0.1,
            program=self.control_program(),
            smi=self.smi_program(),
        )

    def control_program(self) -> str:
        stand_in = Path(__file__).with_name("control.py")
        return program(self.root / "nvidia-cuda-mps-control", f'exec {sys.executable} -S -E {stand_in} "$@"')

    def smi_program(self) -> str:
        return program(self.root / "nvidia-smi", f'[ ! -e {self.root}/no-smi ] && echo "$@" >> {self.root}/smi')

    @property
    def modes_set(self) -> list[str]:
        with suppress(FileNotFoundError):
            return (self.root / "smi").read_text().splitlines()
        return []

    def control(self, plan: DaemonPlan) -> Control:
        return Control(
            pipe=self.place.pipe(plan.size),
            log=self.place.log(plan.size),
            gpus=plan.gpus,
            program=self.control_program(),
        )

    def fault(self, size: int, what: str) -> Path:
        """Made, it happens; removed, it is over."""
        return self.place.pipe(size).parent / what

    def kill(self, size: int) -> None:
        os.kill(int((self.place.pipe(size) / "nvidia-cuda-mps-control.pid").read_text()), signal.SIGKILL)

    @asynccontextmanager
    async def supervised(
        self,
        plans: Sequence[DaemonPlan],
        habits: Habits | None = None,
        exclusive: Mapping[str, ComputeMode] | None = None,
    ) -> AsyncIterator[Supervisor]:
        supervisor = Supervisor(self.place, plans, habits or self.habits)
        mode = Mode.LEAVE if exclusive is None else Mode.EXCLUSIVE
        task = asyncio.create_task(supervisor.run(mode, exclusive))
        try:
            yield supervisor
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task


async def becomes(supervisor: Supervisor, condition: Condition, reason: str = "") -> ResourceState:
    """Once all daemons are so, for a reason with these words."""
    async with asyncio.timeout(_LIMIT):
        return await supervisor.state.until(
            lambda state: all(each.condition is condition and reason in each.reason for each in state.daemons)
        )
