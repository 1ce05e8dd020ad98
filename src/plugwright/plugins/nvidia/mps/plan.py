"""The control daemons of a resource, their limits, and the paths of their files.

Pure: the plugin and `plugwright mps` compute the plan from the same configuration, and so agree without communicating.
Each GPU has separate daemons: a fault or a restart affects only this GPU, and clients see it as their only GPU without
any variable. A daemon has one limit for all its clients, so containers of different sizes need different daemons. A GPU
in exclusive compute mode accepts one MPS server, so there a single daemon has the limit of the largest size.
"""

from collections.abc import Sequence
from pathlib import Path

import msgspec

from plugwright.plugins.nvidia.config import ComputeModePolicy, NvidiaShare
from plugwright.plugins.nvidia.driver import ComputeMode, digest
from plugwright.plugins.nvidia.sharing import GpuUnit
from plugwright.system import sockets

__all__ = ["DaemonPlan", "MpsPaths", "max_clients", "max_units", "plan_daemons", "unsupported_reason"]

_MIB = 2**20
_LONGEST_SOCKET = "control_privileged"
_DIGITS = 12  # of the name of a GPU's directory


class DaemonPlan(msgspec.Struct, frozen=True, kw_only=True):
    """One control daemon of one GPU, and the limits of each of its clients."""

    gpu: str  # UUID
    size: int  # number of the GPU's units that each client has
    percent: int
    mebibytes: int

    @property
    def key(self) -> tuple[str, int]:
        return self.gpu, self.size


class MpsPaths(msgspec.Struct, frozen=True):
    """The files of one resource's daemons, below `root`."""

    root: Path
    resource: str

    def __post_init__(self) -> None:
        sockets.check_path(self.pipe("", 99) / _LONGEST_SOCKET)

    @property
    def directory(self) -> Path:
        return self.root / self.resource.replace("/", "_")

    @property
    def state(self) -> Path:
        return self.directory / "state.json"

    def pipe(self, gpu: str, size: int) -> Path:
        return self._daemon(gpu, size) / "pipe"

    def log(self, gpu: str, size: int) -> Path:
        return self._daemon(gpu, size) / "log"

    def _daemon(self, gpu: str, size: int) -> Path:
        """Named by a digest, because a whole UUID would make the path of a socket too long."""
        return self.directory / digest([gpu], _DIGITS) / str(size)


def max_units(share: NvidiaShare) -> int:
    """The maximum number of units of one GPU per container: one, unless configured."""
    return share.most or 1


def plan_daemons(share: NvidiaShare, units: Sequence[GpuUnit]) -> list[DaemonPlan]:
    """The daemons for `units`, all those of the resource; omits devices without support for MPS."""
    first_units = {unit.gpu.uuid: unit for unit in reversed(units) if not unsupported_reason(unit)}
    gpus = sorted(first_units.values(), key=lambda unit: unit.gpu.index)
    return [_plan(size, unit) for unit in gpus for size in _sizes(share, unit)]


def unsupported_reason(unit: GpuUnit) -> str:
    """Why MPS cannot share this unit's device; empty if it can."""
    if unit.mig or unit.gpu.mig_enabled:
        return "MPS shares whole GPUs, and MIG is enabled on this one"
    if not unit.memory // _MIB or not unit.percent:
        return f"a share of {unit.memory} bytes and {unit.percent} % is too small for MPS"
    clients = max_clients(unit.gpu.capability)
    if unit.replica is not None and unit.replica >= clients:
        return f"MPS serves {clients} clients on this GPU, and this is share {unit.replica + 1}"
    return ""


def max_clients(capability: tuple[int, int]) -> int:
    """Clients of one MPS server: 16 before Volta (compute capability 7), 48 since; an unknown GPU counts as newer."""
    return 16 if (0, 0) < capability < (7, 0) else 48


def _sizes(share: NvidiaShare, unit: GpuUnit) -> Sequence[int]:
    policy = share.mps.mode if share.mps else ComputeModePolicy.LEAVE
    is_exclusive = ComputeMode.EXCLUSIVE_PROCESS is unit.gpu.compute_mode or policy is ComputeModePolicy.EXCLUSIVE
    return [max_units(share)] if is_exclusive else range(1, max_units(share) + 1)


def _plan(size: int, unit: GpuUnit) -> DaemonPlan:
    memory = min(unit.memory * size, unit.gpu.memory or unit.memory * size)
    return DaemonPlan(gpu=unit.gpu.uuid, size=size, percent=min(100, unit.percent * size), mebibytes=memory // _MIB)
