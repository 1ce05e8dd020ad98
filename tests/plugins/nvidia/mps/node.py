"""A node with MPS and without a GPU: its files, fakes of NVIDIA's programs, and its supervisor."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from plugwright.plugins.nvidia.config import ComputeModePolicy
from plugwright.plugins.nvidia.driver import ComputeMode, Gpu
from plugwright.plugins.nvidia.mps.daemon import MpsControl, ProbeSettings
from plugwright.plugins.nvidia.mps.plan import DaemonPlan, MpsPaths
from plugwright.plugins.nvidia.mps.state import Condition, ResourceState
from plugwright.plugins.nvidia.mps.supervisor import Supervisor

__all__ = ["RESOURCE", "MpsNode", "becomes", "gpu", "program"]

RESOURCE = "nvidia.com/gpu-shared"
_LIMIT = 60.0  # seconds; only a test that fails waits for so long


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
    def paths(self) -> MpsPaths:
        return MpsPaths(self.root / "mps", RESOURCE)

    @property
    def settings(self) -> ProbeSettings:
        """With short intervals; tests wait for states and not for time."""
        return ProbeSettings(
            interval=0.1,
            timeout=5.0,
            grace=5.0,
            longest_wait=0.1,
            program=self.control_program(),
            smi=self.smi_program(),
        )

    def control_program(self) -> str:
        daemon, client = (Path(__file__).with_name(name) for name in ("control.py", "control_client.py"))
        python = f"exec {sys.executable} -S -E"
        script = f'[ $# = 0 ] && {python} {client}\n{python} {daemon} "$@"'
        return program(self.root / "nvidia-cuda-mps-control", script)

    def smi_program(self) -> str:
        return program(self.root / "nvidia-smi", f'[ ! -e {self.root}/no-smi ] && echo "$@" >> {self.root}/smi')

    @property
    def modes_set(self) -> list[str]:
        with suppress(FileNotFoundError):
            return (self.root / "smi").read_text().splitlines()
        return []

    def control(self, plan: DaemonPlan) -> MpsControl:
        return MpsControl(
            pipe=self.paths.pipe(*plan.key),
            log=self.paths.log(*plan.key),
            gpu=plan.gpu,
            program=self.control_program(),
        )

    def fault(self, plan: DaemonPlan, what: str) -> Path:
        """The file whose existence causes the fault."""
        return self.paths.pipe(*plan.key).parent / what

    def kill(self, plan: DaemonPlan) -> None:
        os.kill(int((self.paths.pipe(*plan.key) / "nvidia-cuda-mps-control.pid").read_text()), signal.SIGKILL)

    @asynccontextmanager
    async def supervised(
        self,
        plans: Sequence[DaemonPlan],
        settings: ProbeSettings | None = None,
        exclusive: Mapping[str, ComputeMode] | None = None,
    ) -> AsyncIterator[Supervisor]:
        supervisor = Supervisor(self.paths, plans, settings or self.settings)
        mode = ComputeModePolicy.LEAVE if exclusive is None else ComputeModePolicy.EXCLUSIVE
        task = asyncio.create_task(supervisor.run(mode, exclusive))
        try:
            yield supervisor
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task


async def becomes(supervisor: Supervisor, condition: Condition, reason: str = "") -> ResourceState:
    """The state in which all daemons have this condition, with a reason that has this text in it."""
    async with asyncio.timeout(_LIMIT):
        return await supervisor.state.until(
            lambda state: all(daemon.condition is condition and reason in daemon.reason for daemon in state.daemons)
        )
