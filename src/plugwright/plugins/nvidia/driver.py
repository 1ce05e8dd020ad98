"""The facts about a machine's GPUs, and the interface of their driver.

Frozen values only. `nvml` reads a real machine and `simulation` a simulated one; users of a `GpuDriver` cannot
distinguish them. `sharing` decides what containers are offered of a GPU, and `health` which GPUs are healthy.
"""

import zlib
from collections.abc import Callable, Collection, Iterable, Mapping
from enum import IntEnum, StrEnum
from pathlib import Path
from typing import Protocol

import msgspec

__all__ = [
    "SWITCH",
    "UNLINKED",
    "ComputeMode",
    "DriverLoad",
    "EventKind",
    "EventSet",
    "FaultInjection",
    "Gpu",
    "GpuDriver",
    "GpuEvent",
    "GpuHealth",
    "GpuLink",
    "GpuLinks",
    "GpuProcess",
    "GpuSnapshot",
    "GpuUse",
    "MigDevice",
    "PcieLevel",
    "RecoveryAction",
    "digest",
]

_ARCHITECTURES = {
    3: "Kepler",
    5: "Maxwell",
    6: "Pascal",
    7: "Volta",
    8: "Ampere",
    9: "Hopper",
    10: "Blackwell",
    12: "Blackwell",
    13: "Rubin",
}  # by the major number of the compute capability


class PcieLevel(IntEnum):
    """The nearest common level of two GPUs over PCIe, with the names of `nvidia-smi topo -m`; higher is nearer."""

    UNKNOWN = 0
    SYS = 1  # across CPU sockets
    NODE = 2  # one NUMA node, several host bridges
    PHB = 3  # one host bridge
    PXB = 4  # several PCIe switches
    PIX = 5  # one PCIe switch
    PSB = 6  # one board


class ComputeMode(StrEnum):
    """How processes can share a GPU, with the names of `nvidia-smi`."""

    DEFAULT = "Default"
    EXCLUSIVE_PROCESS = "Exclusive_Process"
    PROHIBITED = "Prohibited"
    UNKNOWN = ""


class RecoveryAction(StrEnum):
    """The driver's recommended action before a GPU is used again; reported from driver 570 on."""

    UNKNOWN = ""
    NONE = "none"
    RESET = "reset"
    REBOOT = "reboot"
    DRAIN = "drain"  # peer-to-peer is impaired: no new work across GPUs
    DRAIN_AND_RESET = "drain and reset"


class DriverLoad(msgspec.Struct, frozen=True):
    """One load of the driver: another boot or another load has reset every GPU. Empty if unknown."""

    boot: str = ""
    driver: str = ""

    def may_be(self, other: "DriverLoad") -> bool:
        """Whether there is no evidence of different loads."""
        pairs = ((self.boot, other.boot), (self.driver, other.driver))
        return all(one == two or not one or not two for one, two in pairs)


class GpuLink(msgspec.Struct, frozen=True):
    """The links between two GPUs. `nvlinks` counts direct links and links through an NVSwitch."""

    level: PcieLevel = PcieLevel.UNKNOWN
    nvlinks: int = 0


UNLINKED = GpuLink()


class GpuLinks(msgspec.Struct, frozen=True):
    """Every pair of GPUs once, the smaller UUID first."""

    pairs: Mapping[tuple[str, str], GpuLink] = {}

    def between(self, one: str, other: str) -> GpuLink:
        return self.pairs.get((one, other) if one < other else (other, one), UNLINKED)

    def of(self, gpu: str) -> dict[str, dict[str, object]]:
        """The links of one GPU by the UUID of the other, for display in `status`."""
        return {
            one if other == gpu else other: {"pcie": link.level.name.lower(), "nvlinks": link.nvlinks}
            for (one, other), link in sorted(self.pairs.items())
            if gpu in (one, other)
        }


class MigDevice(msgspec.Struct, frozen=True, kw_only=True):
    """A part of a GPU with its own memory and processors. `index` counts within its GPU."""

    uuid: str
    index: int
    profile: str  # 1g.10gb, 1g.10gb+me
    memory: int  # bytes, of its GPU instance
    gpu_instance: int
    compute_instance: int
    multiprocessors: int = 0  # 0 if unknown
    engines: Mapping[str, int] = {}  # by their names in claims


class Gpu(msgspec.Struct, frozen=True, kw_only=True):
    """A physical GPU. `fault` is why it could not be read completely; the other fields then have the known values."""

    uuid: str
    index: int
    minor: int | None = None  # of /dev/nvidiaN
    model: str = ""
    memory: int = 0  # bytes; 0 if it has no memory of its own
    reserved: int = 0  # bytes of these reserved by the driver
    pci: str = ""  # 0000:3b:00.0
    numa: int | None = None
    capability: tuple[int, int] = (0, 0)
    mig_enabled: bool = False
    mig: tuple[MigDevice, ...] = ()
    compute_mode: ComputeMode = ComputeMode.UNKNOWN
    brand: str = ""  # Tesla, Nvidia, GeForceRTX
    multiprocessors: int = 0  # 0 if unknown
    standard: Mapping[str, str | int] = {}  # attributes with names defined by Kubernetes
    fault: str = ""

    @property
    def usable(self) -> int:
        """The memory available to programs, in bytes."""
        return self.memory - self.reserved

    @property
    def architecture(self) -> str:
        """Hopper, Ada Lovelace; empty if unknown."""
        major, minor = self.capability
        if major == 7 and minor >= 5:
            return "Turing"
        return "Ada Lovelace" if self.capability == (8, 9) else _ARCHITECTURES.get(major, "")


class GpuSnapshot(msgspec.Struct, frozen=True):
    """One read of the machine: its GPUs by index, and the links between them."""

    driver: str = ""  # its version
    cuda: str = ""
    gpus: tuple[Gpu, ...] = ()
    links: GpuLinks = GpuLinks()
    unread: int = 0  # GPUs counted by the driver whose UUID could not be read


class GpuProcess(msgspec.Struct, frozen=True):
    """A process on a GPU, and its bytes there; None if the driver does not report them."""

    pid: int
    memory: int | None


class GpuUse(msgspec.Struct, frozen=True):
    """The used memory of one GPU or MIG device, in bytes, and its processes.

    Memory opened by several processes counts for each of them, but once in `used`.
    """

    used: int
    processes: tuple[GpuProcess, ...] = ()


class GpuHealth(msgspec.Struct, frozen=True, kw_only=True):
    """The health values reported by a GPU; None for missing ones."""

    fault: str = ""  # why it does not respond
    away: bool = False  # it is lost or absent, and can return only after a reset
    ecc_uncorrected: int | None = None  # since the driver was loaded
    ecc_sram: int | None = None  # of these in SRAM, on GPUs that remap rows of DRAM: errors in DRAM are contained there
    remap_pending: bool | None = None  # a row or page that the next reset will replace
    remap_failed: bool | None = None
    recovery: RecoveryAction = RecoveryAction.UNKNOWN
    fabric: str = ""  # why its NVLink fabric is unusable


SWITCH = "nvswitch "  # prefix of a switch's name, followed by its address


class EventKind(StrEnum):
    XID = "xid"
    SXID = "sxid"  # a fatal error of an NVSwitch
    ECC = "ecc"
    MIG_CHANGED = "mig"
    RECOVERY = "recovery"  # the recommended `RecoveryAction` has changed


class GpuEvent(msgspec.Struct, frozen=True):
    """`gpu` is empty if the driver did not name it, and can be a switch; the instances are those of a MIG device."""

    kind: EventKind
    gpu: str = ""
    xid: int = 0
    gpu_instance: int | None = None
    compute_instance: int | None = None


class EventSet(Protocol):
    """The events of some GPUs. Only one thread uses and closes it.

    A GPU neither watched nor unwatched does not support events.
    """

    @property
    def watched(self) -> Collection[str]: ...

    @property
    def unwatched(self) -> Mapping[str, str]:
        """The GPUs with support for events but without a registration, with the reasons."""
        ...

    def wait(self, seconds: float) -> GpuEvent | None:
        """The next event, or None after the timeout; DriverGone if no more events are possible."""
        ...

    def close(self) -> None: ...


FaultInjection = Callable[[str, Mapping[str, str]], str]


class GpuDriver(Protocol):
    """Reads a machine. Every method can block, so it is called in a thread, and raises only DriverGone.

    A fault of one GPU does not raise: the GPU is listed with its fault.
    """

    @property
    def name(self) -> str:
        """The machine's name, always the same for the same machine."""
        ...

    @property
    def inject(self) -> FaultInjection | None:
        """Injects a fault by name and arguments and returns what was done; None for a real machine.

        A machine with fault injection has no device nodes and no driver files.
        """
        ...

    def read(self) -> GpuSnapshot: ...

    def health(self, uuid: str) -> GpuHealth: ...

    def use(self, uuid: str) -> GpuUse | None:
        """The use of a GPU or MIG device; None if not reported. Can be called while another thread is in `read`."""
        ...

    def load(self) -> DriverLoad: ...

    def events(self, uuids: tuple[str, ...]) -> EventSet: ...

    def switch_log(self) -> Path | None:
        """The kernel's log of errors of the machine's NVSwitches; None without such switches."""
        ...

    def cards_on_bus(self) -> str:
        """The machine's cards for the driver, as text; empty if there are none."""
        ...

    def close(self) -> None:
        """Releases the driver, which can then be replaced; the next call opens it again."""
        ...


def digest(texts: Iterable[str], size: int = 16) -> str:
    """A name of `size` hexadecimal digits for some texts in any order, the same on every start.

    Made of checksums: hashlib loads OpenSSL, 3.5 MiB in a daemon that does not need it, and the texts are our own.
    """
    content = "\n".join(sorted(texts)).encode()
    words = (zlib.crc32(content[::-1] if seed % 2 else content, seed + 1) for seed in range(-(-size // 8)))
    # Each word is hashed again with its content: checksums that differ only in their seed differ by a constant.
    return "".join(f"{zlib.crc32(f'{word}/{seed}'.encode() + content):08x}" for seed, word in enumerate(words))[:size]
