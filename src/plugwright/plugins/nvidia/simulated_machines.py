"""Machines with GPUs that one may not have: as they are built, or read from the text of `nvidia-smi topo -m`.

Data and its reading only; what happens to such a machine is `simulation`'s work.
"""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from itertools import combinations
from pathlib import Path

from plugwright.errors import ConfigError
from plugwright.plugins.nvidia.driver import ComputeMode, Gpu, Link, Links, MigDevice, PcieLevel, Reading, digest

__all__ = ["MACHINES", "Machine", "load", "partitioned"]

_GIB = 2**30
_FIRST_INSTANCE = 7  # the driver counts the smallest instances from there
_PROFILE = re.compile(r"(?:\d+c\.)?\d+g\.(?P<gigabytes>\d+)gb(?:[+.-][a-z]+)*")
_ANSI = re.compile(r"\x1b\[[0-9;]*m")
_LISTED = re.compile(r"GPU (?P<index>\d+): (?P<model>.+?) \(UUID: (?P<uuid>GPU-[0-9a-f-]{36})\)")
_NVLINK = re.compile(r"NV(\d+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """Its GPUs are alike but for their place: NUMA node, PCI bus, links, and how each is cut by MIG."""

    model: str
    memory: int  # MiB
    capability: tuple[int, int]
    numa: tuple[int | None, ...]
    buses: str = ""
    nvlinks: Callable[[int, int], int] = field(default=lambda _, __: 0)
    level: Callable[[int, int], PcieLevel] = field(default=lambda _, __: PcieLevel.SYS)
    mig: tuple[str, ...] = ()  # per GPU: its profiles, with commas; "-" for MIG mode off


def load(name: str) -> Reading:
    """A machine by its name, or by the path of a file with the text of `nvidia-smi topo -m`."""
    if name in MACHINES:
        return _built(name, MACHINES[name])
    if "/" not in name:
        raise ConfigError(f"no machine is called {name!r}: there is {', '.join(sorted(MACHINES))}, or a file's path")
    try:
        text = _text(Path(name))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read {name}: {getattr(error, 'strerror', '') or error}") from error
    return _drawn(name, text)


def _text(path: Path) -> str:
    """A device or a pipe might never end."""
    if path.exists() and not path.is_file():
        raise ConfigError(f"cannot read {path}: it is no file")
    return path.read_text(encoding="utf-8")


def partitioned(gpu: Gpu, profiles: Iterable[str]) -> Gpu:
    """The same GPU cut into MIG devices of these profiles."""
    return replace(gpu, mig_enabled=True, mig=tuple(_part(gpu, *each) for each in enumerate(profiles)))


def _part(gpu: Gpu, index: int, profile: str) -> MigDevice:
    found = _PROFILE.fullmatch(profile)
    if not found:
        raise ConfigError(f"a MIG profile looks like 1g.10gb, not {profile!r}")
    return MigDevice(
        uuid=_made_up("MIG", f"{gpu.uuid}/{index}/{profile}"),
        index=index,
        profile=profile,
        memory=int(found["gigabytes"]) * _GIB,
        gpu_instance=_FIRST_INSTANCE + index,
        compute_instance=0,
    )


def _made_up(kind: str, name: str) -> str:
    """Like a UUID, and the same for the same name everywhere."""
    made = digest([kind, name], 32)
    return f"{kind}-{made[:8]}-{made[8:12]}-{made[12:16]}-{made[16:20]}-{made[20:]}"


def _built(name: str, machine: Machine) -> Reading:
    gpus = tuple(_gpu(name, machine, index) for index in range(len(machine.numa)))
    pairs = {
        _pair(gpus[one], gpus[other]): Link(machine.level(one, other), machine.nvlinks(one, other))
        for one, other in combinations(range(len(gpus)), 2)
    }
    return Reading(driver="simulated", gpus=gpus, links=Links(pairs))


def _gpu(name: str, machine: Machine, index: int) -> Gpu:
    buses = machine.buses.split()
    gpu = Gpu(
        uuid=_made_up("GPU", f"{name}/{index}"),
        index=index,
        minor=index,
        model=machine.model,
        memory=machine.memory * 2**20,
        pci=f"0000:{buses[index] if buses else format(index + 1, '02x')}:00.0",
        numa=machine.numa[index],
        capability=machine.capability,
        compute_mode=ComputeMode.DEFAULT,
    )
    cut = machine.mig[index] if machine.mig else "-"
    return gpu if cut == "-" else partitioned(gpu, [each for each in cut.split(",") if each])


def _pair(one: Gpu, other: Gpu) -> tuple[str, str]:
    return (one.uuid, other.uuid) if one.uuid < other.uuid else (other.uuid, one.uuid)


def _drawn(name: str, text: str) -> Reading:
    """A machine as `nvidia-smi topo -m` draws it; lines of `nvidia-smi -L` beside it give models and UUIDs."""
    text = _ANSI.sub("", text)
    listed = {int(found["index"]): found for found in _LISTED.finditer(text)}
    rows = {int(found[1]): found[2].split() for found in re.finditer(r"^GPU(\d+)[ \t]+(.+)$", text, re.MULTILINE)}
    rows = {index: cells for index, cells in rows.items() if "X" in cells}
    if sorted(rows) != list(range(len(rows))) or not rows:
        raise ConfigError(f"{name} is not the text of `nvidia-smi topo -m`: no rows GPU0, GPU1, …")
    numa = _numa(text, rows)
    gpus = tuple(_placed(name, index, numa.get(index), listed.get(index)) for index in range(len(rows)))
    pairs = {
        _pair(gpus[one], gpus[other]): _cell(name, rows[one][other : other + 1], numa.get(one) == numa.get(other))
        for one, other in combinations(range(len(gpus)), 2)
    }
    return Reading(driver="simulated", gpus=gpus, links=Links(pairs))


def _placed(name: str, index: int, numa: int | None, listed: "re.Match[str] | None") -> Gpu:
    return Gpu(
        uuid=listed["uuid"] if listed else _made_up("GPU", f"{Path(name).name}/{index}"),
        index=index,
        minor=index,
        model=listed["model"] if listed else "NVIDIA Simulated",
        memory=80 * _GIB,
        pci=f"0000:{index + 1:02x}:00.0",
        numa=numa,
        capability=(9, 0),
        compute_mode=ComputeMode.DEFAULT,
    )


def _numa(text: str, rows: dict[int, list[str]]) -> dict[int, int]:
    """The column NUMA Affinity: the last number of a row that is alone in its cell, behind the CPUs."""
    if "NUMA Affinity" not in text:
        return {}
    has_id_column = "GPU NUMA ID" in text
    found = {index: cells[-2 if has_id_column else -1] for index, cells in rows.items()}
    return {index: int(cell) for index, cell in found.items() if cell.isdecimal()}


def _cell(name: str, cells: list[str], near: bool) -> Link:
    cell = cells[0] if cells else ""
    nvlinks = _NVLINK.fullmatch(cell)
    if nvlinks:  # the drawing then does not say how they are connected over PCIe
        return Link(PcieLevel.NODE if near else PcieLevel.SYS, int(nvlinks[1]))
    if cell not in PcieLevel.__members__:
        raise ConfigError(f"{name} is not the text of `nvidia-smi topo -m`: {cell or 'a missing cell'!r} in its rows")
    return Link(PcieLevel[cell])


def _two_by_two(one: int, other: int) -> PcieLevel:
    """Two under one switch, four at one host bridge, eight on one socket, as in a DGX-2."""
    for size, level in ((2, PcieLevel.PIX), (4, PcieLevel.PXB), (8, PcieLevel.NODE)):
        if one // size == other // size:
            return level
    return PcieLevel.SYS


def _by_socket(one: int, other: int) -> PcieLevel:
    return PcieLevel.NODE if one // 4 == other // 4 else PcieLevel.SYS


def _by_pair(one: int, other: int) -> PcieLevel:
    return PcieLevel.PXB if one // 2 == other // 2 else PcieLevel.SYS


def _cube_mesh(one: int, other: int) -> int:
    """A DGX-1's: six links of each GPU, to four others."""
    pair = f"{min(one, other)}{max(one, other)}"
    doubles, singles = "03 04 12 15 23 47 56 67", "01 02 13 26 37 45 46 57"
    return 2 if pair in doubles.split() else 1 if pair in singles.split() else 0


_A100 = Machine(
    model="NVIDIA A100-SXM4-40GB",
    memory=40960,
    capability=(8, 0),
    numa=(3, 3, 1, 1, 7, 7, 5, 5),
    buses="07 0f 47 4e 87 90 b7 bd",
    nvlinks=lambda _, __: 12,
    level=_by_pair,
)
_H100 = Machine(
    model="NVIDIA H100 80GB HBM3",
    memory=81559,
    capability=(9, 0),
    numa=(0, 0, 0, 0, 1, 1, 1, 1),
    buses="18 2a 3a 5d 9a ab ba db",
    nvlinks=lambda _, __: 18,
    level=_by_socket,
)
MACHINES = {
    "dgx-1": Machine(
        model="Tesla V100-SXM2-32GB",
        memory=32768,
        capability=(7, 0),
        numa=(0, 0, 0, 0, 1, 1, 1, 1),
        buses="06 07 0a 0b 85 86 89 8a",
        nvlinks=_cube_mesh,
        level=lambda one, other: _two_by_two(one, other) if one // 4 == other // 4 else PcieLevel.SYS,
    ),
    "dgx-2": Machine(
        model="Tesla V100-SXM3-32GB",
        memory=32768,
        capability=(7, 0),
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
    "t4": Machine(
        model="Tesla T4",
        memory=15360,
        capability=(7, 5),
        numa=(0, 0, 1, 1),
        buses="3b 5e 86 d8",
        level=lambda one, other: PcieLevel.NODE if one // 2 == other // 2 else PcieLevel.SYS,
    ),
}
