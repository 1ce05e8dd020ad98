"""The machines for simulations: built-in models, and files with the output of `nvidia-smi topo -m`.

Data only; `simulation` makes a driver of it.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from itertools import combinations
from pathlib import Path

import msgspec
from msgspec.structs import replace

from plugwright.errors import ConfigError
from plugwright.plugins.nvidia.driver import (
    ComputeMode,
    Gpu,
    GpuLink,
    GpuLinks,
    GpuSnapshot,
    MigDevice,
    PcieLevel,
    digest,
)

__all__ = ["CUDA_VERSION", "DRIVER_VERSION", "MACHINES", "MachineModel", "load", "partition_gpu"]

_GIB = 2**30
DRIVER_VERSION, CUDA_VERSION = "580.95.05", "13.0"
_FIRST_INSTANCE = 7  # the driver numbers the smallest instances from here
_PROFILE = re.compile(r"(?:(?P<compute>\d+)c\.)?(?P<slices>\d+)g\.(?P<gigabytes>\d+)gb(?:[+.-][a-z]+)*")
_ANSI = re.compile(r"\x1b\[[0-9;]*m")
_LISTED = re.compile(r"GPU (?P<index>\d+): (?P<model>.+?) \(UUID: (?P<uuid>GPU-[0-9a-f-]{36})\)")
_NVLINK = re.compile(r"NV(\d+)")


class MachineModel(msgspec.Struct, frozen=True, kw_only=True):
    """GPUs differing only in NUMA node, PCI bus, links and MIG devices."""

    model: str
    memory: int  # MiB
    capability: tuple[int, int]
    multiprocessors: int
    brand: str = "Nvidia"
    numa: tuple[int | None, ...]
    buses: str = ""
    nvlinks: Callable[[int, int], int] = msgspec.field(default=lambda _, __: 0)
    level: Callable[[int, int], PcieLevel] = msgspec.field(default=lambda _, __: PcieLevel.SYS)
    mig: tuple[str, ...] = ()  # per GPU: its profiles, separated by commas; "-" for MIG mode off


def load(name: str) -> GpuSnapshot:
    """A built-in machine by its name, or the machine in a file with the output of `nvidia-smi topo -m`."""
    if name in MACHINES:
        return _from_model(name, MACHINES[name])
    if "/" not in name:
        known = ", ".join(sorted(MACHINES))
        raise ConfigError(f"simulate must be one of {known}, or the path of a file, got {name!r}")
    try:
        text = _read_file(Path(name))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read {name}: {getattr(error, 'strerror', '') or error}") from error
    return _from_topology(name, text)


def _read_file(path: Path) -> str:
    """The content of a file; rejects devices and pipes, which can be endless."""
    if path.exists() and not path.is_file():
        raise ConfigError(f"cannot read {path}: it is not a regular file")
    return path.read_text(encoding="utf-8")


def partition_gpu(gpu: Gpu, profiles: Iterable[str]) -> Gpu:
    """The same GPU with MIG devices of these profiles."""
    devices = tuple(_mig_device(gpu, index, profile) for index, profile in enumerate(profiles))
    return replace(gpu, mig_enabled=True, mig=devices)


def _mig_device(gpu: Gpu, index: int, profile: str) -> MigDevice:
    match = _PROFILE.fullmatch(profile)
    if not match:
        raise ConfigError(f"a MIG profile must look like 1g.10gb, got {profile!r}")
    slices = int(match["compute"] or match["slices"])
    return MigDevice(
        uuid=_stable_uuid("MIG", f"{gpu.uuid}/{index}/{profile}"),
        index=index,
        profile=profile,
        memory=int(match["gigabytes"]) * _GIB,
        gpu_instance=_FIRST_INSTANCE + index,
        compute_instance=0,
        multiprocessors=slices * _slice_multiprocessors(gpu.multiprocessors),
        engines={"copyEngines": int(match["slices"])},
    )


def _slice_multiprocessors(whole: int) -> int:
    """An even number of multiprocessors: 14 of an A100's 108, 16 of an H100's 132, 18 of a B200's 148."""
    return (whole + 8) // 16 * 2


def _stable_uuid(kind: str, name: str) -> str:
    """The same UUID for the same name everywhere."""
    digits = digest([kind, name], 32)
    return f"{kind}-{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"


def _from_model(name: str, machine: MachineModel) -> GpuSnapshot:
    gpus = tuple(_gpu(name, machine, index) for index in range(len(machine.numa)))
    pairs = {
        _pair(gpus[one], gpus[other]): GpuLink(machine.level(one, other), machine.nvlinks(one, other))
        for one, other in combinations(range(len(gpus)), 2)
    }
    return _machine(gpus, GpuLinks(pairs))


def _machine(gpus: Sequence[Gpu], links: GpuLinks) -> GpuSnapshot:
    """The PCIe root of a GPU is named after the first GPU at the same host bridge."""
    located: list[Gpu] = []
    for gpu in gpus:
        first = next(one for one in gpus if one is gpu or links.between(one.uuid, gpu.uuid).level >= PcieLevel.PHB)
        standard: dict[str, str | int] = {
            "resource.kubernetes.io/pciBusID": gpu.pci,
            "resource.kubernetes.io/pcieRoot": f"pci{first.pci.rpartition(':')[0]}",
        }
        if gpu.numa is not None:
            standard["resource.kubernetes.io/numaNode"] = gpu.numa
        located.append(replace(gpu, standard=standard))
    return GpuSnapshot(driver=DRIVER_VERSION, cuda=CUDA_VERSION, gpus=tuple(located), links=links)


def _gpu(name: str, machine: MachineModel, index: int) -> Gpu:
    buses = machine.buses.split()
    gpu = Gpu(
        uuid=_stable_uuid("GPU", f"{name}/{index}"),
        index=index,
        minor=index,
        model=machine.model,
        memory=machine.memory * 2**20,
        pci=_pci(buses[index] if buses else format(index + 1, "02x")),
        numa=machine.numa[index],
        capability=machine.capability,
        brand=machine.brand,
        multiprocessors=machine.multiprocessors,
        compute_mode=ComputeMode.DEFAULT,
    )
    profiles = machine.mig[index] if machine.mig else "-"
    return gpu if profiles == "-" else partition_gpu(gpu, filter(None, profiles.split(",")))


def _pci(bus: str) -> str:
    """`5d` is a bus of the first PCI domain, `0018:01` a bus of another."""
    return f"{bus}:00.0" if ":" in bus else f"0000:{bus}:00.0"


def _pair(one: Gpu, other: Gpu) -> tuple[str, str]:
    return (one.uuid, other.uuid) if one.uuid < other.uuid else (other.uuid, one.uuid)


def _from_topology(name: str, text: str) -> GpuSnapshot:
    """The machine in a table of `nvidia-smi topo -m`; lines of `nvidia-smi -L` in the file add models and UUIDs."""
    text = _ANSI.sub("", text)
    listed = {int(match["index"]): match for match in _LISTED.finditer(text)}
    rows = {int(match[1]): match[2].split() for match in re.finditer(r"^GPU(\d+)[ \t]+(.+)$", text, re.MULTILINE)}
    rows = {index: cells for index, cells in rows.items() if "X" in cells}
    if sorted(rows) != list(range(len(rows))) or not rows:
        raise ConfigError(f"{name} must be the output of `nvidia-smi topo -m`, got no rows GPU0, GPU1, …")
    numa = _numa_nodes(text, rows)
    gpus = tuple(_listed_gpu(name, index, numa.get(index), listed.get(index)) for index in range(len(rows)))
    pairs = {
        _pair(gpus[one], gpus[other]): _link(name, rows[one][other : other + 1], numa.get(one) == numa.get(other))
        for one, other in combinations(range(len(gpus)), 2)
    }
    return _machine(gpus, GpuLinks(pairs))


def _listed_gpu(name: str, index: int, numa: int | None, listed: "re.Match[str] | None") -> Gpu:
    return Gpu(
        uuid=listed["uuid"] if listed else _stable_uuid("GPU", f"{Path(name).name}/{index}"),
        index=index,
        minor=index,
        model=listed["model"] if listed else "NVIDIA Simulated",
        memory=80 * _GIB,
        pci=f"0000:{index + 1:02x}:00.0",
        numa=numa,
        capability=(9, 0),
        brand="Nvidia",
        multiprocessors=132,
        compute_mode=ComputeMode.DEFAULT,
    )


def _numa_nodes(text: str, rows: dict[int, list[str]]) -> dict[int, int]:
    """The column NUMA Affinity, which follows the CPUs at the end of a row."""
    if "NUMA Affinity" not in text:
        return {}
    has_id_column = "GPU NUMA ID" in text
    column = {index: cells[-2 if has_id_column else -1] for index, cells in rows.items()}
    return {index: int(cell) for index, cell in column.items() if cell.isdecimal()}


def _link(name: str, cells: list[str], same_numa: bool) -> GpuLink:
    cell = cells[0] if cells else ""
    nvlinks = _NVLINK.fullmatch(cell)
    if nvlinks:  # the table then contains no PCIe level
        return GpuLink(PcieLevel.NODE if same_numa else PcieLevel.SYS, int(nvlinks[1]))
    if cell not in PcieLevel.__members__:
        raise ConfigError(
            f"{name} must be the output of `nvidia-smi topo -m`, got {cell or 'a missing cell'!r} in a row"
        )
    return GpuLink(PcieLevel[cell])


def _two_by_two(one: int, other: int) -> PcieLevel:
    """The PCIe levels of a DGX-2: two GPUs under one switch, four at one host bridge, eight on one socket."""
    for size, level in ((2, PcieLevel.PIX), (4, PcieLevel.PXB), (8, PcieLevel.NODE)):
        if one // size == other // size:
            return level
    return PcieLevel.SYS


def _by_socket(one: int, other: int) -> PcieLevel:
    return PcieLevel.NODE if one // 4 == other // 4 else PcieLevel.SYS


def _two_sockets_of_two(one: int, other: int) -> PcieLevel:
    return PcieLevel.NODE if one // 2 == other // 2 else PcieLevel.SYS


def _by_pair(one: int, other: int) -> PcieLevel:
    return PcieLevel.PXB if one // 2 == other // 2 else PcieLevel.SYS


def _cube_mesh(one: int, other: int) -> int:
    """The NVLinks of a DGX-1: each GPU has six, to four others."""
    pair = f"{min(one, other)}{max(one, other)}"
    doubles, singles = "03 04 12 15 23 47 56 67", "01 02 13 26 37 45 46 57"
    return 2 if pair in doubles.split() else 1 if pair in singles.split() else 0


_A100 = MachineModel(
    model="NVIDIA A100-SXM4-40GB",
    memory=40960,
    capability=(8, 0),
    multiprocessors=108,
    numa=(3, 3, 1, 1, 7, 7, 5, 5),
    buses="07 0f 47 4e 87 90 b7 bd",
    nvlinks=lambda _, __: 12,
    level=_by_pair,
)
_H100 = MachineModel(
    model="NVIDIA H100 80GB HBM3",
    memory=81559,
    capability=(9, 0),
    multiprocessors=132,
    numa=(0, 0, 0, 0, 1, 1, 1, 1),
    buses="18 2a 3a 5d 9a ab ba db",
    nvlinks=lambda _, __: 18,
    level=_by_socket,
)
_B200 = MachineModel(
    model="NVIDIA B200",
    memory=183359,
    capability=(10, 0),
    multiprocessors=148,
    numa=(0, 0, 0, 0, 1, 1, 1, 1),
    buses="18 2a 3a 5d 9a ab ba db",  # as on the H100's board: addresses differ between manufacturers
    nvlinks=lambda _, __: 18,
    level=_by_socket,
)
MACHINES = {
    "dgx-1": MachineModel(
        model="Tesla V100-SXM2-32GB",
        memory=32768,
        capability=(7, 0),
        multiprocessors=80,
        brand="Tesla",
        numa=(0, 0, 0, 0, 1, 1, 1, 1),
        buses="06 07 0a 0b 85 86 89 8a",
        nvlinks=_cube_mesh,
        level=lambda one, other: _two_by_two(one, other) if one // 4 == other // 4 else PcieLevel.SYS,
    ),
    "dgx-2": MachineModel(
        model="Tesla V100-SXM3-32GB",
        memory=32768,
        capability=(7, 0),
        multiprocessors=80,
        brand="Tesla",
        numa=(0,) * 8 + (1,) * 8,
        buses="34 36 39 3b 57 59 5c 5e b7 b9 bc be e0 e2 e5 e7",
        nvlinks=lambda _, __: 6,
        level=_two_by_two,
    ),
    "dgx-a100": _A100,
    "dgx-a100-mig": replace(
        _A100, mig=("1g.5gb," * 7,) * 2 + ("3g.20gb,3g.20gb", "2g.10gb,2g.10gb,2g.10gb", "", "-", "-", "-")
    ),
    "hgx-h100": _H100,
    "hgx-h100-mig": replace(_H100, mig=("1g.10gb," * 7,) * 8),
    "hgx-h200": replace(_H100, model="NVIDIA H200", memory=143771),
    "h200": replace(_H100, model="NVIDIA H200", memory=143771, numa=(0,), buses="5d"),
    "t4": MachineModel(
        model="Tesla T4",
        memory=15360,
        capability=(7, 5),
        multiprocessors=40,
        brand="Tesla",
        numa=(0, 0, 1, 1),
        buses="3b 5e 86 d8",
        level=_two_sockets_of_two,
    ),
    "l40s": MachineModel(
        model="NVIDIA L40S",
        memory=46068,
        capability=(8, 9),
        multiprocessors=142,
        numa=(0, 0, 1, 1),
        buses="21 41 a1 c1",
        level=_two_sockets_of_two,
    ),
    "hgx-b200": _B200,
    "hgx-b200-mig": replace(_B200, mig=("1g.23gb," * 7,) * 8),
    # One compute tray of an NVL72: two superchips, each GPU in its own PCI domain. The NVLinks to other trays are not
    # part of the machine.
    "gb200": MachineModel(
        model="NVIDIA GB200",
        memory=189471,
        capability=(10, 0),
        multiprocessors=152,
        numa=(0, 0, 1, 1),
        buses="0008:01 0009:01 0018:01 0019:01",
        nvlinks=lambda _, __: 18,
    ),
}
