"""The driver of a real machine, through NVIDIA's management library. pynvml itself is in `questions`.

`read` never fails for one GPU's sake. Events are `nvml_events`', and what all of it means is `health`'s work.

How near the GPUs of a real machine are to each other: the PCIe level of each pair, and the NVLinks between them.

What the kernel's part of the driver says of its GPUs, for those that NVIDIA's library cannot read.
"""

import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path
from typing import Any

from plugwright.plugins.nvidia.driver import (
    ComputeMode,
    Facts,
    Gpu,
    Link,
    Links,
    MigDevice,
    PcieLevel,
    Reading,
    Recovery,
)
from plugwright.plugins.nvidia.nvml_events import NvmlEvents
from plugwright.plugins.nvidia.nvml_library import Library, Questions

__all__ = ["Nvml", "Roots", "gpus", "read"]

_MOST_LINKS = 36
_SWITCH = 2  # the kind of device at the far end
_LEVELS = {
    0: PcieLevel.PSB,
    10: PcieLevel.PIX,
    20: PcieLevel.PXB,
    30: PcieLevel.PHB,
    40: PcieLevel.NODE,
    50: PcieLevel.SYS,
}


def read(ask: Questions, gpus: Sequence[Gpu]) -> Links:
    """A GPU that does not answer has no links; it is nobody's reason to fail."""
    handles = {gpu.uuid: ask.want("nvmlDeviceGetHandleByUUID", gpu.uuid) for gpu in gpus}
    ends = {gpu.uuid: _far_ends(ask, handles[gpu.uuid]) for gpu in gpus if handles[gpu.uuid] is not None}
    pairs = {}
    for one, other in combinations(sorted(gpus, key=lambda gpu: gpu.uuid), 2):
        if one.uuid in ends and other.uuid in ends:
            level = ask.find("nvmlDeviceGetTopologyCommonAncestor", handles[one.uuid], handles[other.uuid])
            known = _LEVELS.get(level, PcieLevel.UNKNOWN)
            pairs[one.uuid, other.uuid] = Link(known, _between(ends[one.uuid], ends[other.uuid], other.pci))
    ask.faults.clear()
    return Links(pairs)


def _between(one: Counter[str], other: Counter[str], address: str) -> int:
    """Those that end at the other GPU, and those that both have to switches."""
    return one[address] + min(one[""], other[""])


def _far_ends(ask: Questions, handle: object) -> Counter[str]:
    """How many active links lead to each PCI address; those to any switch are counted together, under no address."""
    found: Counter[str] = Counter()
    for link in range(_MOST_LINKS):
        active = ask.find("nvmlDeviceGetNvLinkState", handle, link)
        if active is None:
            break
        if not active:
            continue
        kind = ask.find("nvmlDeviceGetNvLinkRemoteDeviceType", handle, link)
        info = ask.find("nvmlDeviceGetNvLinkRemotePciInfo", handle, link)
        if kind == _SWITCH:
            found[""] += 1
        elif info is not None:
            found[f"{info.domain:04x}:{info.bus:02x}:{info.device:02x}.0"] += 1
    return found


_LINE = re.compile(r"^(?P<key>[^:\n]+):[ \t]*(?P<text>.*?)[ \t]*$", re.MULTILINE)


def gpus(proc: Path) -> list[Gpu]:
    """Those whose UUID it knows, in order of their addresses."""
    found = []
    for path in sorted((proc / "driver/nvidia/gpus").glob("*/information")):
        try:
            facts = dict(_LINE.findall(path.read_text(encoding="utf-8", errors="replace")))
        except OSError:
            continue
        uuid, minor = facts.get("GPU UUID", ""), facts.get("Device Minor", "")
        if uuid.startswith("GPU-") and "?" not in uuid:
            found.append(
                Gpu(
                    uuid=uuid,
                    index=-1,
                    minor=int(minor) if minor.isdecimal() else None,
                    model=facts.get("Model", ""),
                    pci=path.parent.name.lower(),
                )
            )
    return found


_MODES = {0: ComputeMode.DEFAULT, 2: ComputeMode.PROHIBITED, 3: ComputeMode.EXCLUSIVE_PROCESS}
_RECOVERIES = {
    0: Recovery.NONE,
    1: Recovery.RESET,
    2: Recovery.REBOOT,
    3: Recovery.DRAIN,
    4: Recovery.DRAIN_AND_RESET,
    5: Recovery.DRAIN,  # the IMEX domain is to be recovered
    6: Recovery.RESET,  # of the bus
    7: Recovery.REBOOT,
}
_RECOVERY_FIELD = 230


@dataclass(frozen=True, slots=True)
class Roots:
    """Where the kernel says what it knows."""

    proc: Path = Path("/proc")
    sys: Path = Path("/sys")


class Nvml:
    """A `Driver`. `root` is where it is installed."""

    def __init__(
        self, root: Path = Path("/"), roots: Roots | None = None, binding: Callable[[], Any] | None = None
    ) -> None:
        self.name = f"driver in {root}"
        self._library = Library(root, binding)
        self._roots = roots or Roots()
        self._known: dict[int, Gpu] = {}
        self._links: tuple[object, Links] = (None, Links())

    def read(self) -> Reading:
        ask = self._library.open()
        count = ask.need("nvmlDeviceGetCount")
        read = {index: self._gpu(ask, index) for index in range(count)}
        gpus = [gpu for gpu in read.values() if gpu is not None]
        gpus += self._unread(gpus, [index for index, gpu in read.items() if gpu is None])
        gpus.sort(key=lambda gpu: gpu.index)
        cuda = ask.want("nvmlSystemGetCudaDriverVersion") or 0
        return Reading(
            driver=ask.want("nvmlSystemGetDriverVersion") or "",
            cuda=f"{cuda // 1000}.{cuda % 1000 // 10}",
            gpus=tuple(gpus),
            links=self._links_of(ask, gpus),
            unread=count - len(gpus),
        )

    def facts(self, uuid: str) -> Facts:
        ask = self._library.open()
        handle = ask.want("nvmlDeviceGetHandleByUUID", uuid)
        if handle is None:
            return Facts(fault=ask.fault or "not found", away=ask.lost)
        remapped = ask.want("nvmlDeviceGetRemappedRows", handle)
        pending = remapped[2] if remapped else ask.want("nvmlDeviceGetRetiredPagesPendingStatus", handle)
        return Facts(
            ecc_uncorrected=ask.want("nvmlDeviceGetTotalEccErrors", handle, 1, 0),  # uncorrected, since loaded
            remap_pending=None if pending is None else bool(pending),
            remap_failed=bool(remapped[3]) if remapped else None,
            recovery=_recovery(ask, handle),
            fault=ask.fault,
            away=ask.lost,
        )

    def events(self, uuids: tuple[str, ...]) -> "NvmlEvents":
        return NvmlEvents(self._library, uuids)

    def close(self) -> None:
        self._library.close()
        self._links = (None, Links())

    def _gpu(self, ask: Questions, index: int) -> Gpu | None:
        """None when not even its UUID is known; one that was read before is known by that."""
        ask.faults.clear()
        handle = ask.want("nvmlDeviceGetHandleByIndex", index)
        uuid = ask.want("nvmlDeviceGetUUID", handle) if handle is not None else None
        if uuid is None:
            before = self._known.get(index)
            return replace(before, fault=ask.fault or "does not answer") if before else None
        pci = _pci(ask.want("nvmlDeviceGetPciInfo", handle))
        memory = ask.want("nvmlDeviceGetMemoryInfo", handle)
        mode = ask.want("nvmlDeviceGetMigMode", handle)
        gpu = Gpu(
            uuid=uuid,
            index=index,
            minor=ask.want("nvmlDeviceGetMinorNumber", handle),
            model=ask.want("nvmlDeviceGetName", handle) or "",
            memory=memory.total if memory else 0,
            pci=pci,
            numa=self._numa(pci),
            capability=tuple(ask.want("nvmlDeviceGetCudaComputeCapability", handle) or (0, 0)),
            mig_enabled=bool(mode and mode[0]),
            mig=_mig(ask, handle) if mode and mode[0] else (),
            compute_mode=_MODES.get(ask.want("nvmlDeviceGetComputeMode", handle), ComputeMode.UNKNOWN),
            fault=ask.fault,
        )
        if not gpu.fault:
            self._known[index] = gpu
        return gpu

    def _unread(self, known: Sequence[Gpu], indexes: Sequence[int]) -> list[Gpu]:
        """GPUs that the library counts and cannot read, by what the kernel says of them."""
        others = [] if not indexes else [gpu for gpu in gpus(self._roots.proc) if gpu.uuid not in _uuids(known)]
        return [
            replace(gpu, index=index, numa=self._numa(gpu.pci), fault="NVIDIA's library cannot read it")
            for gpu, index in zip(others, indexes, strict=False)
        ]

    def _numa(self, pci: str) -> int | None:
        try:
            node = int((self._roots.sys / "bus/pci/devices" / pci / "numa_node").read_text(encoding="ascii"))
        except (OSError, ValueError):
            return None
        return node if node >= 0 else None

    def _links_of(self, ask: Questions, gpus: list[Gpu]) -> Links:
        """Read once, and again when GPUs come or go or change to or from MIG: a pair costs many calls."""
        state = tuple((gpu.uuid, gpu.index, gpu.mig_enabled, gpu.fault) for gpu in gpus)
        if self._links[0] != state:
            self._links = (state, read(ask, gpus))
        return self._links[1]


def _uuids(gpus: Sequence[Gpu]) -> set[str]:
    return {gpu.uuid for gpu in gpus}


def _recovery(ask: Questions, handle: object) -> Recovery:
    fields = ask.want("nvmlDeviceGetFieldValues", handle, [_RECOVERY_FIELD])
    if not fields or fields[0].nvmlReturn:
        return Recovery.UNKNOWN
    return _RECOVERIES.get(int(fields[0].value.uiVal), Recovery.UNKNOWN)


def _mig(ask: Questions, handle: object) -> tuple[MigDevice, ...]:
    found = []
    for index in range(ask.want("nvmlDeviceGetMaxMigDeviceCount", handle) or 0):
        part = ask.find("nvmlDeviceGetMigDeviceHandleByIndex", handle, index)
        if part is not None:
            found.append(_mig_device(ask, part, index))
    return tuple(each for each in found if each is not None)


def _mig_device(ask: Questions, part: object, index: int) -> MigDevice | None:
    uuid = ask.want("nvmlDeviceGetUUID", part)
    if uuid is None:
        return None
    attributes = ask.want("nvmlDeviceGetAttributes_v2", part)
    name = ask.want("nvmlDeviceGetName", part) or ""
    return MigDevice(
        uuid=uuid,
        index=index,
        profile=name.rpartition("MIG ")[2],  # NVIDIA A100-SXM4-40GB MIG 1g.5gb
        memory=attributes.memorySizeMB * 2**20 if attributes else 0,
        gpu_instance=ask.want("nvmlDeviceGetGpuInstanceId", part) or 0,
        compute_instance=ask.want("nvmlDeviceGetComputeInstanceId", part) or 0,
    )


def _pci(info: Any) -> str:
    """As the kernel writes it: 0000:3b:00.0."""
    return f"{info.domain:04x}:{info.bus:02x}:{info.device:02x}.0" if info else ""
