"""The control daemons that a resource needs, the limits each one sets, and the paths of their files.

Pure: the plugin and `plugwright mps` compute the plan from the same configuration, and so agree without communicating.
A daemon has one limit for all its clients, so containers of different sizes need different daemons. A GPU in exclusive
compute mode accepts one MPS server, so there a single daemon has the limit of the largest size.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from plugwright.plugins.nvidia.config import ComputeModePolicy, NvidiaShare
from plugwright.plugins.nvidia.driver import ComputeMode
from plugwright.plugins.nvidia.sharing import GpuUnit
from plugwright.system import sockets

__all__ = ["DaemonPlan", "MpsPaths", "max_clients", "max_units", "plan_daemons", "unsupported_reason"]

_MIB = 2**20
_LONGEST_SOCKET = "control_privileged"


@dataclass(frozen=True, slots=True, kw_only=True)
class DaemonPlan:
    """One control daemon. `memory`: the MiB that a client may use of each GPU, in the daemon's order of GPUs."""

    size: int  # how many units of a GPU its clients have
    percent: int
    memory: tuple[tuple[str, int], ...]

    @property
    def gpus(self) -> tuple[str, ...]:
        return tuple(uuid for uuid, _ in self.memory)


@dataclass(frozen=True, slots=True)
class MpsPaths:
    """The files of one resource's daemons, below `root`."""

    root: Path
    resource: str

    def __post_init__(self) -> None:
        sockets.check_path(self.pipe(99) / _LONGEST_SOCKET)

    @property
    def directory(self) -> Path:
        return self.root / self.resource.replace("/", "_")

    @property
    def state(self) -> Path:
        return self.directory / "state.json"

    def pipe(self, size: int) -> Path:
        return self.directory / str(size) / "pipe"

    def log(self, size: int) -> Path:
        return self.directory / str(size) / "log"


def max_units(share: NvidiaShare) -> int:
    """The most units of one GPU that a container may have: one, unless configured."""
    return share.most or 1


def plan_daemons(share: NvidiaShare, units: Sequence[GpuUnit]) -> list[DaemonPlan]:
    """`units` are all those of the resource; devices that MPS does not support are left out."""
    first_units = {unit.gpu.uuid: unit for unit in reversed(units) if not unsupported_reason(unit)}
    gpus = sorted(first_units.values(), key=lambda unit: unit.gpu.index)
    if not gpus:
        return []
    policy = share.mps.mode if share.mps else ComputeModePolicy.LEAVE
    exclusive = policy is ComputeModePolicy.EXCLUSIVE or any(
        unit.gpu.compute_mode is ComputeMode.EXCLUSIVE_PROCESS for unit in gpus
    )
    sizes = [max_units(share)] if exclusive else range(1, max_units(share) + 1)
    return [_plan(size, gpus) for size in sizes]


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
    """Of one MPS server: 16 before Volta (compute capability 7), 48 since; an unknown GPU counts as a new one."""
    return 16 if (0, 0) < capability < (7, 0) else 48


def _plan(size: int, gpus: Sequence[GpuUnit]) -> DaemonPlan:
    # A daemon has one percentage for all its GPUs: where they differ, the smallest takes nothing from other containers.
    percent = min(unit.percent for unit in gpus)
    memory = tuple((unit.gpu.uuid, _memory(unit, size) // _MIB) for unit in gpus)
    return DaemonPlan(size=size, percent=min(100, percent * size), memory=memory)


def _memory(unit: GpuUnit, size: int) -> int:
    return min(unit.memory * size, unit.gpu.memory or unit.memory * size)
