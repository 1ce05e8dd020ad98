"""What is known of a machine's GPUs, and the narrow interface through which it is learnt.

Values only, all frozen: a `Reading` is one look at the machine. `nvml` reads a real one and `simulation` a made-up one;
whoever uses a `Driver` cannot tell which. What a container is offered of it is `sharing`'s work, health `health`'s.

Short names for long content, the same on every start.

Not hashlib's: that loads OpenSSL, 3.5 MiB in a daemon that has no other use for it. Nobody from outside chooses what is
named here, so that checksums are enough to tell contents apart.
"""

import zlib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from typing import Protocol

from plugwright.errors import PlugwrightError

__all__ = [
    "UNLINKED",
    "ComputeMode",
    "Driver",
    "DriverGone",
    "Event",
    "EventKind",
    "Events",
    "Facts",
    "Gpu",
    "Link",
    "Links",
    "MigDevice",
    "PcieLevel",
    "Reading",
    "Recovery",
    "digest",
]


class DriverGone(PlugwrightError):
    """The driver, or its library, is not there or does not answer; it may be back later.

    `unloaded`: it is known not to be there, so that whatever comes back has begun anew.
    """

    def __init__(self, reason: str, unloaded: bool = False) -> None:
        super().__init__(reason)
        self.unloaded = unloaded


class PcieLevel(IntEnum):
    """How near two GPUs are to each other over PCIe: the higher the nearer. `nvidia-smi topo -m` has the same words."""

    UNKNOWN = 0
    SYS = 1  # across CPU sockets
    NODE = 2  # one NUMA node, several host bridges
    PHB = 3  # one host bridge
    PXB = 4  # several PCIe switches
    PIX = 5  # one PCIe switch
    PSB = 6  # one board


class ComputeMode(StrEnum):
    """Who may use a GPU at the same time; the words are `nvidia-smi`'s."""

    DEFAULT = "Default"
    EXCLUSIVE_PROCESS = "Exclusive_Process"
    PROHIBITED = "Prohibited"
    UNKNOWN = ""


class Recovery(StrEnum):
    """What the driver says must be done before a GPU can be used again; from driver 570 on, else unknown."""

    UNKNOWN = ""
    NONE = "none"
    RESET = "reset"
    REBOOT = "reboot"
    DRAIN = "drain"  # peer-to-peer is impaired: no new work across GPUs
    DRAIN_AND_RESET = "drain and reset"


@dataclass(frozen=True, slots=True)
class Link:
    """Between two GPUs. `nvlinks` counts those of a direct connection as well as those through an NVSwitch."""

    level: PcieLevel = PcieLevel.UNKNOWN
    nvlinks: int = 0


UNLINKED = Link()


@dataclass(frozen=True, slots=True)
class Links:
    """Every pair of GPUs, each once, its smaller UUID first."""

    pairs: Mapping[tuple[str, str], Link] = field(default_factory=dict, hash=False)

    def between(self, one: str, other: str) -> Link:
        return self.pairs.get((one, other) if one < other else (other, one), UNLINKED)


@dataclass(frozen=True, slots=True, kw_only=True)
class MigDevice:
    """A part of a GPU with memory and processors of its own. `index` counts within its GPU."""

    uuid: str
    index: int
    profile: str  # 1g.10gb, 1g.10gb+me
    memory: int  # bytes
    gpu_instance: int
    compute_instance: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """A physical GPU. `fault` says why it could not be read in full; the rest is then what is known of it."""

    uuid: str
    index: int
    minor: int | None = None  # of /dev/nvidiaN
    model: str = ""
    memory: int = 0  # bytes; 0 when it has none of its own
    pci: str = ""  # 0000:3b:00.0
    numa: int | None = None
    capability: tuple[int, int] = (0, 0)
    mig_enabled: bool = False
    mig: tuple[MigDevice, ...] = ()
    compute_mode: ComputeMode = ComputeMode.UNKNOWN
    fault: str = ""


@dataclass(frozen=True, slots=True)
class Reading:
    """One look at the machine: its GPUs in order of their indexes, and the links between them."""

    driver: str = ""  # its version
    cuda: str = ""
    gpus: tuple[Gpu, ...] = ()
    links: Links = Links()
    unread: int = 0  # GPUs that are there and of which not even the UUID could be read


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What a GPU says of its own health. None: it does not say."""

    fault: str = ""  # why it does not answer
    away: bool = False  # it is lost or not there: it comes back by a reset, or not at all
    ecc_uncorrected: int | None = None  # since the driver was loaded
    remap_pending: bool | None = None  # a row, or a page, to be replaced at the next reset
    remap_failed: bool | None = None
    recovery: Recovery = Recovery.UNKNOWN


class EventKind(StrEnum):
    XID = "xid"
    ECC = "ecc"
    MIG_CHANGED = "mig"
    RECOVERY = "recovery"  # the driver's advice (`Recovery`) has changed


@dataclass(frozen=True, slots=True)
class Event:
    """`gpu` is empty when the driver did not say which; instances are those of a MIG device, when it named one."""

    kind: EventKind
    gpu: str = ""
    xid: int = 0
    gpu_instance: int | None = None
    compute_instance: int | None = None


class Events(Protocol):
    """Being told of what happens to GPUs. Used by one thread, which closes it.

    A GPU that is in neither of the two says itself that it has no events.
    """

    @property
    def watched(self) -> Collection[str]: ...

    @property
    def unwatched(self) -> Mapping[str, str]:
        """The GPUs that cannot be watched though they should, and why: what happens to them would go unseen."""
        ...

    def wait(self, seconds: float) -> Event | None:
        """The next event, None when none came in time; DriverGone when none can come any more."""
        ...

    def close(self) -> None: ...


class Driver(Protocol):
    """Reads a machine. Every method may block, so it is called in a thread; each raises DriverGone and nothing else.

    A GPU that errs is no reason to raise: it is listed with its fault.
    """

    @property
    def name(self) -> str:
        """The same for the same machine."""
        ...

    def read(self) -> Reading: ...

    def facts(self, uuid: str) -> Facts: ...

    def events(self, uuids: tuple[str, ...]) -> Events: ...

    def close(self) -> None:
        """Lets go of the driver; the next call takes hold of it anew, as it is by then."""
        ...


def digest(texts: Iterable[str], size: int = 16) -> str:
    """`size` hexadecimal digits; the order of the texts does not matter."""
    content = "\n".join(sorted(texts)).encode()
    words = (zlib.crc32(content[::-1] if seed % 2 else content, seed + 1) for seed in range(-(-size // 8)))
    # A checksum of a longer text by its own result: words of equal seeds would differ by a constant.
    return "".join(f"{zlib.crc32(f'{word}/{seed}'.encode() + content):08x}" for seed, word in enumerate(words))[:size]
