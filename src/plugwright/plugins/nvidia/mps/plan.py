"""Which control daemons a resource needs, what each allows its clients, and where they live.

Pure: the plugin and `plugwright mps` both work it out from the same configuration, and so agree without talking.
A daemon has one limit for all its clients, so containers of different sizes need different daemons. A GPU in exclusive
mode takes one server, so there it is a single daemon with the limit of the largest size.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from plugwright.errors import ConfigError
from plugwright.plugins.nvidia.choices import Clients, Mode
from plugwright.plugins.nvidia.driver import ComputeMode
from plugwright.plugins.nvidia.sharing import Share, Unit
from plugwright.system import sockets

__all__ = ["Clients", "DaemonPlan", "Mode", "MpsOptions", "Place", "daemons", "largest", "most_clients", "why_not"]

_MIB = 2**20
_LONGEST_SOCKET = "control_privileged"


@dataclass(frozen=True, slots=True, kw_only=True)
class MpsOptions:
    """`shm`: the host's directory that stands for /dev/shm in daemon and tenants; None leaves theirs alone."""

    root: Path = Path("/run/plugwright/mps")
    shm: Path | None = Path("/dev/shm/plugwright-mps")
    mode: Mode = Mode.LEAVE
    clients: Clients = Clients.ONE_USER

    def __post_init__(self) -> None:
        for path in (self.root, self.shm):
            if path is not None and not path.is_absolute():
                raise ConfigError(f"the directories of MPS are absolute paths, not {str(path)!r}")


@dataclass(frozen=True, slots=True, kw_only=True)
class DaemonPlan:
    """One control daemon. `memory`: the MiB a client may use of each GPU, in the daemon's own order of them."""

    size: int  # how many units of a GPU its clients have
    percent: int
    memory: tuple[tuple[str, int], ...]

    @property
    def gpus(self) -> tuple[str, ...]:
        return tuple(uuid for uuid, _ in self.memory)


@dataclass(frozen=True, slots=True)
class Place:
    """Where the daemons of one resource keep their files."""

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


def largest(share: Share) -> int:
    """How many units of one GPU a container may have; one, unless the operator says more."""
    return share.most or 1


def daemons(share: Share, options: MpsOptions, units: Sequence[Unit]) -> list[DaemonPlan]:
    """`units` are all those of the resource; what MPS cannot share is left out."""
    first = {unit.gpu.uuid: unit for unit in reversed(units) if not why_not(unit)}
    cards = sorted(first.values(), key=lambda unit: unit.gpu.index)
    if not cards:
        return []
    exclusive = options.mode is Mode.EXCLUSIVE or any(_is_exclusive(unit) for unit in cards)
    sizes = [largest(share)] if exclusive else range(1, largest(share) + 1)
    return [_plan(size, cards) for size in sizes]


def _is_exclusive(unit: Unit) -> bool:
    return unit.gpu.compute_mode is ComputeMode.EXCLUSIVE_PROCESS


def why_not(unit: Unit) -> str:
    """Why MPS cannot share this unit's device; empty if it can."""
    if unit.mig or unit.gpu.mig_enabled:
        return "MPS shares whole GPUs, and MIG is enabled on this one"
    if not unit.memory // _MIB or not unit.percent:
        return f"a share of {unit.memory} bytes and {unit.percent} % is too small for MPS"
    clients = most_clients(unit.gpu.capability)
    if unit.replica is not None and unit.replica >= clients:
        return f"MPS serves {clients} clients on this GPU, and this is share {unit.replica + 1}"
    return ""


def most_clients(capability: tuple[int, int]) -> int:
    """Before Volta, which is 7.0, a server takes 16; an unknown GPU is taken for a newer one."""
    return 16 if (0, 0) < capability < (7, 0) else 48


def _plan(size: int, cards: Sequence[Unit]) -> DaemonPlan:
    # A daemon has one percentage for all its GPUs: where they differ, the smallest harms no neighbour.
    percent = min(unit.percent for unit in cards)
    memory = tuple((unit.gpu.uuid, _memory(unit, size) // _MIB) for unit in cards)
    return DaemonPlan(size=size, percent=min(100, percent * size), memory=memory)


def _memory(unit: Unit, size: int) -> int:
    return min(unit.memory * size, unit.gpu.memory or unit.memory * size)
