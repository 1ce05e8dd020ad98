"""The driver of a real machine, read through NVIDIA's management library.

`read` does not fail because of one GPU. If the library counts but cannot read a GPU, it is looked up in the kernel
module's files in /proc. `nvml_library` loads the library, `nvml_events` receives events, and `health` interprets the
values.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from plugwright.model import some
from plugwright.plugins.nvidia.driver import (
    ComputeMode,
    DriverLoad,
    FaultInjection,
    Gpu,
    GpuHealth,
    GpuLink,
    GpuLinks,
    GpuProcess,
    GpuSnapshot,
    GpuUse,
    PcieLevel,
    RecoveryAction,
)
from plugwright.plugins.nvidia.nvml_events import NvmlEvents
from plugwright.plugins.nvidia.nvml_library import NvmlCalls, NvmlLibrary
from plugwright.plugins.nvidia.nvml_properties import GpuKinds, mig_devices
from plugwright.sdk import sysfs
from plugwright.system.boot import boot_id
from plugwright.text import clean

__all__ = ["KernelPaths", "Nvml", "procfs_gpus", "read_links"]

_VENDOR, _DISPLAY = "10de", "03"  # PCI vendor, and the class of graphics and compute cards
_MAX_NVLINKS = 36
_REMOTE_SWITCH = 2  # the type of a remote NVLink device
_LEVELS = {
    0: PcieLevel.PSB,
    10: PcieLevel.PIX,
    20: PcieLevel.PXB,
    30: PcieLevel.PHB,
    40: PcieLevel.NODE,
    50: PcieLevel.SYS,
}
_COMPUTE_MODES = {0: ComputeMode.DEFAULT, 2: ComputeMode.PROHIBITED, 3: ComputeMode.EXCLUSIVE_PROCESS}
_RECOVERY_FIELD = 230
_RECOVERY_ACTIONS = {
    0: RecoveryAction.NONE,
    1: RecoveryAction.RESET,
    2: RecoveryAction.REBOOT,
    3: RecoveryAction.DRAIN,
    4: RecoveryAction.DRAIN_AND_RESET,
    5: RecoveryAction.DRAIN,  # of the IMEX domain
    6: RecoveryAction.RESET,  # of the bus
    7: RecoveryAction.REBOOT,
}
_UNCORRECTED, _SINCE_DRIVER_LOAD, _SRAM = 1, 0, 7  # arguments of calls that count ECC errors
_FABRIC_STATES = {1: "has not been started", 2: "is not ready yet"}  # 0: the GPU has no fabric
_FABRIC_COMPLETED = 3
# By the lower of the two bits of each in the health mask: 1 is true, 2 false, 0 not supported.
_FABRIC_FAULTS = {2: "routes are being recovered", 4: "a route is unhealthy", 6: "access is being recovered"}
_PROC_LINE = re.compile(r"^(?P<key>[^:\n]+):[ \t]*(?P<text>.*?)[ \t]*$", re.MULTILINE)


class KernelPaths(msgspec.Struct, frozen=True):
    proc: Path = Path("/proc")
    sys: Path = Path("/sys")
    log: Path = Path("/dev/kmsg")


class Nvml:
    """A `GpuDriver` of NVML. `root` is the directory of the driver."""

    inject: FaultInjection | None = None

    def __init__(
        self, root: Path = Path("/"), paths: KernelPaths | None = None, binding: Callable[[], Any] | None = None
    ) -> None:
        self.name = f"driver in {root}"
        self._library = NvmlLibrary(root, binding)
        self._paths = paths or KernelPaths()
        self._last_read: dict[int, Gpu] = {}
        self._count = 0
        self._models: dict[str, str] = {}  # by UUID
        self._kinds = GpuKinds()
        self._links: tuple[object, GpuLinks] = (None, GpuLinks())

    def read(self) -> GpuSnapshot:
        calls = self._library.open()
        self._count = count = calls.required("nvmlDeviceGetCount")
        read: dict[int, Gpu] = {}
        faults: dict[int, str] = {}
        for index in range(count):
            gpu = self._gpu(calls, index)
            if gpu is not None:
                read[index] = gpu
            else:
                faults[index] = calls.fault or "does not answer"
        gpus = [*read.values(), *self._remembered(read.values(), faults)]
        gpus += self._from_procfs(gpus, sorted(set(range(count)) - {gpu.index for gpu in gpus}))
        gpus.sort(key=lambda gpu: gpu.index)
        cuda = calls.optional("nvmlSystemGetCudaDriverVersion") or 0
        return GpuSnapshot(
            driver=calls.optional("nvmlSystemGetDriverVersion") or "",
            cuda=f"{cuda // 1000}.{cuda % 1000 // 10}",
            gpus=tuple(gpus),
            links=self._cached_links(calls, gpus),
            unread=count - len(gpus),
        )

    def health(self, uuid: str) -> GpuHealth:
        calls = self._library.open()
        handle = calls.optional("nvmlDeviceGetHandleByUUID", uuid)
        if handle is None:
            return GpuHealth(fault=calls.fault or "not found", away=calls.lost)
        remapped = calls.optional("nvmlDeviceGetRemappedRows", handle)
        pending = remapped[2] if remapped else calls.optional("nvmlDeviceGetRetiredPagesPendingStatus", handle)
        count = (handle, _UNCORRECTED, _SINCE_DRIVER_LOAD)
        return GpuHealth(
            ecc_uncorrected=calls.optional("nvmlDeviceGetTotalEccErrors", *count),
            ecc_sram=calls.lookup("nvmlDeviceGetMemoryErrorCounter", *count, _SRAM) if remapped else None,
            remap_pending=None if pending is None else bool(pending),
            remap_failed=bool(remapped[3]) if remapped else None,
            recovery=_recovery_action(calls, handle),
            fabric=self._fabric_fault(calls, handle),
            fault=calls.fault,
            away=calls.lost,
        )

    def use(self, uuid: str) -> GpuUse | None:
        calls = self._library.acquire()
        try:
            handle = calls.lookup("nvmlDeviceGetHandleByUUID", uuid)
            memory = calls.used_memory(handle) if handle is not None else None
            compute = calls.lookup("nvmlDeviceGetComputeRunningProcesses", handle) if memory is not None else None
            if memory is None or compute is None:
                return None
            graphics = calls.lookup("nvmlDeviceGetGraphicsRunningProcesses", handle) or ()
        finally:
            self._library.release()
        # A computing and drawing process is in both lists, each time with all of its memory.
        found = {process.pid: process.usedGpuMemory for process in (*graphics, *compute)}
        return GpuUse(memory, tuple(GpuProcess(pid, found[pid]) for pid in sorted(found)))

    def load(self) -> DriverLoad:
        try:
            # Its inode has a new, unique number whenever the module is loaded; its times also change for other reasons.
            module = str((self._paths.sys / "module/nvidia").stat().st_ino)
        except OSError:
            module = ""
        return DriverLoad(boot_id(self._paths.proc / "sys/kernel/random/boot_id"), module)

    def switch_log(self) -> Path | None:
        return self._paths.log if (self._paths.proc / "driver/nvidia-nvswitch").is_dir() else None

    def cards_on_bus(self) -> str:
        cards = [
            function.address
            for function in sysfs.pci_functions(self._paths.sys)
            if function.vendor == _VENDOR and function.class_code.startswith(_DISPLAY)
            # Cards of virtual machines need no driver here.
            if function.driver != "vfio-pci"
        ]
        return f"NVIDIA cards on the PCI bus ({some(cards)})" if cards else ""

    def events(self, uuids: tuple[str, ...]) -> NvmlEvents:
        return NvmlEvents(self._library, uuids)

    def close(self) -> None:
        self._library.close()
        self._links = (None, GpuLinks())
        self._last_read.clear()  # the next driver can count its GPUs in another order

    def _remembered(self, read: Iterable[Gpu], faults: Mapping[int, str]) -> Iterator[Gpu]:
        """The unresponsive GPUs, with their last values, unless they respond under another index."""
        uuids = {gpu.uuid for gpu in read}
        for index, fault in faults.items():
            before = self._last_read.get(index)
            if before is not None and before.uuid not in uuids:
                uuids.add(before.uuid)
                yield replace(before, fault=fault)

    def _fabric_fault(self, calls: NvmlCalls, handle: object) -> str:
        """The fabric's fault. A single GPU needs no fabric, and neither do MIG devices, which have no NVLinks."""
        info = calls.fabric(handle) if self._count > 1 else None
        mig_mode = calls.optional("nvmlDeviceGetMigMode", handle) if info is not None else None
        if info is None or (mig_mode and mig_mode[0]):
            return ""
        if info.state in _FABRIC_STATES:
            return f"its NVLink fabric {_FABRIC_STATES[info.state]}: is the fabric manager running?"
        if info.state == _FABRIC_COMPLETED and info.error:
            return f"its NVLink fabric is not usable: {info.error}"
        faults = [text for shift, text in _FABRIC_FAULTS.items() if info.health >> shift & 3 == 1]
        return f"its NVLink fabric is not usable: {faults[0]}" if faults else ""

    def _gpu(self, calls: NvmlCalls, index: int) -> Gpu | None:
        """The GPU with this index; None if its UUID cannot be read."""
        calls.faults.clear()
        handle = calls.optional("nvmlDeviceGetHandleByIndex", index)
        uuid = calls.optional("nvmlDeviceGetUUID", handle) if handle is not None else None
        if uuid is None:
            return None
        pci = _pci_address(calls.optional("nvmlDeviceGetPciInfo", handle))
        memory = calls.optional("nvmlDeviceGetMemoryInfo", handle)
        mig_mode = calls.optional("nvmlDeviceGetMigMode", handle)
        mig_enabled = bool(mig_mode and mig_mode[0])
        capability = tuple(calls.optional("nvmlDeviceGetCudaComputeCapability", handle) or (0, 0))
        kind = self._kinds.of(calls, handle, uuid)
        gpu = Gpu(
            uuid=uuid,
            index=index,
            minor=calls.optional("nvmlDeviceGetMinorNumber", handle),
            model=self._model(calls, handle, uuid),
            memory=memory.total if memory else 0,
            reserved=calls.reserved_memory(handle),
            pci=pci,
            numa=self._numa_node(pci),
            capability=capability,
            brand=kind.brand,
            multiprocessors=kind.multiprocessors(capability),
            standard=self._standard_attributes(pci),
            mig_enabled=mig_enabled,
            mig=mig_devices(calls, handle) if mig_enabled else (),
            compute_mode=_COMPUTE_MODES.get(calls.optional("nvmlDeviceGetComputeMode", handle), ComputeMode.UNKNOWN),
            fault=calls.fault,
        )
        if not gpu.fault:
            self._last_read[index] = gpu
        return gpu

    def _model(self, calls: NvmlCalls, handle: object, uuid: str) -> str:
        """The model; the last known model while the GPU does not respond, because it decides the GPU's resource."""
        name = calls.optional("nvmlDeviceGetName", handle)
        if name:
            self._models[uuid] = clean(name)
        return self._models.get(uuid, "")

    def _standard_attributes(self, pci: str) -> dict[str, str | int]:
        return sysfs.standard_attributes(self._paths.sys / "bus/pci/devices" / pci) if pci else {}

    def _from_procfs(self, read: Sequence[Gpu], unread: Sequence[int]) -> list[Gpu]:
        """The GPUs whose indexes the library could not read, if the kernel knows their UUIDs."""
        if not unread:
            return []
        uuids = {gpu.uuid for gpu in read}
        others = [gpu for gpu in procfs_gpus(self._paths.proc) if gpu.uuid not in uuids]
        return [
            replace(
                gpu,
                index=index,
                numa=self._numa_node(gpu.pci),
                standard=self._standard_attributes(gpu.pci),
                fault="NVIDIA's library cannot read it",
            )
            for gpu, index in zip(others, unread, strict=False)
        ]

    def _numa_node(self, pci: str) -> int | None:
        try:
            node = int((self._paths.sys / "bus/pci/devices" / pci / "numa_node").read_text(encoding="ascii"))
        except (OSError, ValueError):
            return None
        return node if node >= 0 else None

    def _cached_links(self, calls: NvmlCalls, gpus: list[Gpu]) -> GpuLinks:
        """The links, read again after changes of GPUs or MIG mode only, because each pair costs many calls."""
        version = tuple((gpu.uuid, gpu.index, gpu.mig_enabled, gpu.fault) for gpu in gpus)
        if self._links[0] != version:
            self._links = (version, read_links(calls, gpus))
        return self._links[1]


def read_links(calls: NvmlCalls, gpus: Sequence[Gpu]) -> GpuLinks:
    """The PCIe level of each pair of GPUs and the NVLinks between them; an unresponsive GPU has no links."""
    handles = {gpu.uuid: calls.optional("nvmlDeviceGetHandleByUUID", gpu.uuid) for gpu in gpus}
    remotes = {gpu.uuid: _remote_devices(calls, handles[gpu.uuid]) for gpu in gpus if handles[gpu.uuid] is not None}
    pairs = {}
    for one, other in combinations(sorted(gpus, key=lambda gpu: gpu.uuid), 2):
        if one.uuid in remotes and other.uuid in remotes:
            level = calls.lookup("nvmlDeviceGetTopologyCommonAncestor", handles[one.uuid], handles[other.uuid])
            # Links to the other GPU, and links of both GPUs to switches.
            direct, switched = remotes[one.uuid][other.pci], min(remotes[one.uuid][""], remotes[other.uuid][""])
            pairs[one.uuid, other.uuid] = GpuLink(_LEVELS.get(level, PcieLevel.UNKNOWN), direct + switched)
    calls.faults.clear()
    return GpuLinks(pairs)


def _remote_devices(calls: NvmlCalls, handle: object) -> Counter[str]:
    """The number of active NVLinks by the PCI address of their remote device, "" for any switch."""
    remotes: Counter[str] = Counter()
    for link in range(_MAX_NVLINKS):
        active = calls.lookup("nvmlDeviceGetNvLinkState", handle, link)
        if active is None:
            break
        if not active:
            continue
        kind = calls.lookup("nvmlDeviceGetNvLinkRemoteDeviceType", handle, link)
        info = calls.lookup("nvmlDeviceGetNvLinkRemotePciInfo", handle, link)
        if kind == _REMOTE_SWITCH:
            remotes[""] += 1
        elif info is not None:
            remotes[_pci_address(info)] += 1
    return remotes


def procfs_gpus(proc: Path) -> list[Gpu]:
    """The GPUs whose UUID the kernel module knows, in order of their PCI addresses and without an index."""
    gpus = []
    for path in sorted((proc / "driver/nvidia/gpus").glob("*/information")):
        try:
            values = dict(_PROC_LINE.findall(path.read_text(encoding="utf-8", errors="replace")))
        except OSError:
            continue
        uuid, minor = values.get("GPU UUID", ""), values.get("Device Minor", "")
        if uuid.startswith("GPU-") and "?" not in uuid:
            gpus.append(
                Gpu(
                    uuid=uuid,
                    index=-1,
                    minor=int(minor) if minor.isdecimal() else None,
                    model=clean(values.get("Model", "")),
                    pci=path.parent.name.lower(),
                )
            )
    return gpus


def _recovery_action(calls: NvmlCalls, handle: object) -> RecoveryAction:
    fields = calls.optional("nvmlDeviceGetFieldValues", handle, [_RECOVERY_FIELD])
    if not fields or fields[0].nvmlReturn:
        return RecoveryAction.UNKNOWN
    return _RECOVERY_ACTIONS.get(int(fields[0].value.uiVal), RecoveryAction.UNKNOWN)


def _pci_address(info: Any) -> str:
    """The address in the kernel's notation: 0000:3b:00.0."""
    return f"{info.domain:04x}:{info.bus:02x}:{info.device:02x}.0" if info else ""
