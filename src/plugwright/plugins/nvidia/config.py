"""What an operator can set of NVIDIA GPUs: values only. The file they come from is `cli.config_nvidia`'s."""

from dataclasses import dataclass, field
from pathlib import Path

from plugwright.plugins.nvidia.choices import Ids, Strategy
from plugwright.plugins.nvidia.health import Rules
from plugwright.plugins.nvidia.selection import Selection
from plugwright.plugins.nvidia.sharing import Share

__all__ = ["PEER", "Features", "Ids", "Options", "Places", "Strategy"]

PEER = "k8s.device-plugin.nvidia.com"  # the vendor in the CDI names of NVIDIA's plugin


@dataclass(frozen=True, slots=True, kw_only=True)
class Features:
    """What else a container with a GPU gets."""

    gdrcopy: bool = False
    gds: bool = False
    mofed: bool = False
    imex: tuple[int, ...] = ()  # channels
    imex_required: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    """Where things lie. `root` is the driver's as we see it, `host_root` the same as the host's programs see it."""

    root: Path = Path("/")
    host_root: Path = Path("/")
    dev_root: Path = Path("/")  # under which `dev` is, as we see it
    proc: Path = Path("/proc")
    sys: Path = Path("/sys")
    cdi: Path = Path("/var/run/cdi")
    libraries: tuple[str, ...] = ()  # where a container finds the driver's libraries; empty: where loaders look
    vendor: str = PEER  # of CDI names


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    selection: Selection = field(default_factory=Selection)
    share: Share | None = None
    strategies: tuple[Strategy, ...] = (Strategy.DEVICE_NODES,)
    ids: Ids = Ids.UUID
    confine: bool = False  # what confines a tenant goes through CDI, whatever the strategy
    packed: bool = False  # shares of one GPU are handed out one after the other, not GPU by GPU
    write_specs: bool = True  # CDI specs of GPUs; those of nvidia-ctk may be used instead
    annotation_prefix: str = "cdi.k8s.io/"
    features: Features = field(default_factory=Features)
    places: Places = field(default_factory=Places)
    rules: Rules = field(default_factory=Rules)
