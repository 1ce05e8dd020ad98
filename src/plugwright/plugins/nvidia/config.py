"""The configuration of NVIDIA GPUs: the keys below `nvidia` in the operator's file, as the plugin reads them.

The structs are the only description of the options: the plugin, MPS, vgpu and the JSON schema use them directly. Only
device names are parsed into another form, by `selection.from_config`. The strategies have the names used by NVIDIA's
own device plugin.
"""

import re
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Literal

import msgspec

from plugwright.errors import ConfigError
from plugwright.plugins.nvidia.xids import NEEDS_RESET, XidAction
from plugwright.sdk import cdi
from plugwright.sdk.device_family import FamilySettings, Texts, byte_size
from plugwright.sdk.serve_settings import ServeMode

__all__ = [
    "HAMI_LIBRARY",
    "HOOK_DIRECTORY",
    "NVIDIA_PLUGIN_VENDOR",
    "ComputeModePolicy",
    "CoreUtilizationPolicy",
    "DeviceIdStrategy",
    "DeviceListStrategy",
    "MigStrategy",
    "MpsClients",
    "NvidiaCdi",
    "NvidiaConfig",
    "NvidiaDriver",
    "NvidiaHealth",
    "NvidiaImex",
    "NvidiaMps",
    "NvidiaPattern",
    "NvidiaShare",
    "NvidiaVgpu",
    "SharingStrategy",
    "VgpuLibrary",
    "XidAction",
    "check",
    "check_api",
]

HOOK_DIRECTORY = "/var/lib/plugwright/bin"
NVIDIA_PLUGIN_VENDOR = "k8s.device-plugin.nvidia.com"  # in CDI names of NVIDIA's device plugin
HAMI_LIBRARY = "/usr/local/vgpu/libvgpu.so"

Number = Annotated[int, msgspec.Meta(ge=0)]
Percent = Annotated[int, msgspec.Meta(ge=0, le=100)]
_ANNOTATIONS = re.compile(r"[0-9A-Za-z][0-9A-Za-z._/-]*")


class SharingStrategy(StrEnum):
    TIME_SLICING = "time-slicing"  # the driver switches between containers, without limits
    MPS = "mps"
    VGPU = "vgpu"


class VgpuLibrary(StrEnum):
    """The limiter library of vgpu shares in the container."""

    BUILTIN = "builtin"  # ours, which replaces the driver's: `native/vgpu`
    HAMI = "hami"  # HAMi's, which the operator provides


class MpsClients(StrEnum):
    """The users whose processes can be clients of one MPS daemon at the same time."""

    ONE_USER = "one-user"  # processes of another user wait until those of the first have ended
    ALL_USERS = "all-users"  # needs a driver whose control daemon has the option -M


class CoreUtilizationPolicy(StrEnum):
    """When the vgpu library slows kernels down; the values are HAMi's."""

    DEFAULT = "default"  # always, like FORCE: HAMi's monitor, which would suspend it on an idle GPU, does not run here
    FORCE = "force"
    DISABLE = "disable"


class DeviceIdStrategy(StrEnum):
    """The ids of GPUs in containers; the kubelet always knows GPUs by UUID."""

    UUID = "uuid"
    INDEX = "index"


class MigStrategy(StrEnum):
    NONE = "none"  # a GPU in MIG mode is offered as a whole GPU
    SINGLE = "single"  # all MIG devices have one profile and belong to this resource
    MIXED = "mixed"  # MIG devices are resources by profile, GPUs without MIG are whole


class ComputeModePolicy(StrEnum):
    """Whether the MPS supervisor changes the compute mode of its GPUs."""

    LEAVE = "leave"
    EXCLUSIVE = "exclusive"  # EXCLUSIVE_PROCESS while it runs, restored when it stops


class DeviceListStrategy(StrEnum):
    """Ways of making GPUs visible in a container."""

    ENVVAR = "envvar"  # NVIDIA's container runtime reads NVIDIA_VISIBLE_DEVICES
    VOLUME_MOUNTS = "volume-mounts"  # the runtime reads mounts instead, which an image cannot set
    DEVICE_NODES = "device-nodes"  # the plugin allocates nodes and libraries: works with any runtime
    CDI_ANNOTATIONS = "cdi-annotations"  # CDI names, for kubelets before 1.28
    CDI_CRI = "cdi-cri"  # CDI names

    @property
    def is_cdi(self) -> bool:
        return self in (DeviceListStrategy.CDI_ANNOTATIONS, DeviceListStrategy.CDI_CRI)


class NvidiaPattern(FamilySettings, frozen=True):
    """Properties of devices; one matching value of several is sufficient."""

    index: int | str | list[int | str] = msgspec.field(default_factory=list)
    uuid: Texts = msgspec.field(default_factory=list)
    pci: Texts = msgspec.field(default_factory=list)
    model: Texts = msgspec.field(default_factory=list)
    profile: Texts = msgspec.field(default_factory=list)
    least: int | str = 0
    most: int | str = 0


class NvidiaMps(FamilySettings, frozen=True):
    """Directories of the daemons of `plugwright mps run`, and their settings for GPUs."""

    root: str = "/run/plugwright/mps"
    shm: str = "/dev/shm/plugwright-mps"  # mounted as /dev/shm into daemon and containers; empty: no such mount
    mode: ComputeModePolicy = ComputeModePolicy.LEAVE
    clients: MpsClients = MpsClients.ONE_USER


class NvidiaVgpu(FamilySettings, frozen=True):
    """Path of the limiter library, and directory of its containers' files; `locks`, `cores`, `log` are HAMi's."""

    builtin: str = "/usr/lib/plugwright/vgpu"
    library: str = ""  # HAMi's; empty: HAMI_LIBRARY
    root: str = "/var/lib/plugwright/vgpu"
    locks: str = ""  # empty: `locks` in `root`
    cores: CoreUtilizationPolicy = CoreUtilizationPolicy.DEFAULT
    log: Number | None = None


class NvidiaShare(FamilySettings, frozen=True):
    """How each device is shared: by replicas, or by the memory or percent of one share."""

    by: SharingStrategy = SharingStrategy.TIME_SLICING
    replicas: Number = 0
    memory: int | str = 0
    percent: Percent = 0
    most: Number = 0
    library: VgpuLibrary = VgpuLibrary.BUILTIN  # for vgpu
    mps: NvidiaMps | None = None
    vgpu: NvidiaVgpu | None = None

    @property
    def memory_bytes(self) -> int:
        return byte_size(self.memory)


class NvidiaHealth(FamilySettings, frozen=True):
    """The conditions for an Unhealthy GPU, and how long they last."""

    xids: dict[str, XidAction] = msgspec.field(default_factory=dict)
    other: XidAction = XidAction.QUIET  # for codes missing in NVIDIA's catalogue
    quiet: Annotated[float, msgspec.Meta(ge=0)] = 300.0
    ecc: bool = True
    pending: bool = False
    unwatched: bool = True
    fabric: bool = True
    checks: bool = True


class NvidiaDriver(FamilySettings, frozen=True):
    """The directory of the driver: `root` as the daemon sees it, `host` as the host sees it."""

    root: str = "/"
    host: str = ""
    dev: str = ""
    libraries: list[str] = msgspec.field(default_factory=list)


class NvidiaCdi(FamilySettings, frozen=True):
    """`hooks` is the program called by hooks: `auto` for the program found on the host, `none`, or its path there.

    `programs` is the directory of the host, mounted at the same path, to which `auto` copies our program.
    """

    write: bool = True
    hooks: str = "auto"
    programs: str = HOOK_DIRECTORY
    dir: str = "/var/run/cdi"
    vendor: str = NVIDIA_PLUGIN_VENDOR
    annotations: str = "cdi.k8s.io/"


class NvidiaImex(FamilySettings, frozen=True):
    channels: list[Number] = msgspec.field(default_factory=list)
    required: bool = False


class NvidiaConfig(FamilySettings, frozen=True):
    """NVIDIA GPUs, MIG devices, or shares of them."""

    select: NvidiaPattern = NvidiaPattern()
    exclude: NvidiaPattern = NvidiaPattern()
    mig: MigStrategy = MigStrategy.NONE
    share: NvidiaShare | None = None
    strategy: DeviceListStrategy | list[DeviceListStrategy] = DeviceListStrategy.DEVICE_NODES
    ids: DeviceIdStrategy = DeviceIdStrategy.UUID
    confine: Literal["env", "cdi"] = "env"
    prefer: Literal["packed", "spread"] | None = None
    simulate: str = ""
    rescan: Annotated[float, msgspec.Meta(ge=1)] = 60.0
    health: NvidiaHealth = NvidiaHealth()
    driver: NvidiaDriver = NvidiaDriver()
    cdi: NvidiaCdi = NvidiaCdi()
    gdrcopy: bool = False
    gds: bool = False
    mofed: bool = False
    imex: NvidiaImex = NvidiaImex()
    labels: str = ""  # node-feature-discovery's directory features.d; empty: no node labels

    @property
    def strategies(self) -> list[DeviceListStrategy]:
        return list(dict.fromkeys(self.strategy if isinstance(self.strategy, list) else [self.strategy]))

    @property
    def imex_channels(self) -> list[int]:
        return sorted(set(self.imex.channels))

    @property
    def packed(self) -> bool:
        """Whether the units of one container come from as few GPUs as possible.

        The default if several units of one GPU make one larger share.
        """
        if self.prefer or self.share is None:
            return self.prefer == "packed"
        by, most = self.share.by, self.share.most
        return by is SharingStrategy.VGPU or (by is SharingStrategy.MPS and most > 1)


def check(config: NvidiaConfig) -> None:
    """ConfigError for combinations not excluded by types, as far as they are known without a GPU."""
    if not config.strategies:
        raise ConfigError("strategy must name at least one way to hand out GPUs, got an empty list")
    _check_paths(config)
    _check_health(config.health)
    if config.share is not None:
        _check_share(config.share, config.mig)
        if config.prefer == "spread" and config.share.by is SharingStrategy.MPS and config.share.most > 1:
            raise ConfigError("prefer must not be spread here: with MPS the shares of a container must be of one GPU")
        if config.share.by is SharingStrategy.VGPU:
            _check_vgpu(config, config.share)


def check_api(config: NvidiaConfig, api: ServeMode) -> None:
    """ConfigError if devices cannot be offered through this API."""
    if api is ServeMode.BOTH and config.share is not None:
        raise ConfigError(
            "share needs one API: the device plugin API counts shares, claims take parts of whole devices; set `serve` "
            "to device-plugin or dra, and use a second resource for the other"
        )


def _check_paths(config: NvidiaConfig) -> None:
    driver, share = config.driver, config.share or NvidiaShare()
    paths = [
        driver.root,
        driver.host or "/",
        driver.dev or "/",
        config.cdi.dir,
        config.cdi.programs,
        *driver.libraries,
        config.labels or "/",
    ]
    paths += [share.mps.root, share.mps.shm or "/"] if share.mps else []
    vgpu = share.vgpu or NvidiaVgpu()
    paths += [vgpu.builtin, vgpu.root, vgpu.library or "/", vgpu.locks or "/"]
    for path in paths:
        if not Path(path).is_absolute():
            raise ConfigError(f"a path must be absolute, got {path!r}")
    cdi.qualified_name(f"{config.cdi.vendor}/gpu", "0")  # raises if CDI does not allow such a vendor
    if config.cdi.hooks not in ("auto", "none") and not Path(config.cdi.hooks).is_absolute():
        raise ConfigError(f"cdi.hooks must be auto, none or an absolute path, got {config.cdi.hooks!r}")
    if not _ANNOTATIONS.fullmatch(config.cdi.annotations):
        raise ConfigError(f"cdi.annotations must be a prefix such as cdi.k8s.io/, got {config.cdi.annotations!r}")


def _check_health(health: NvidiaHealth) -> None:
    for code, action in health.xids.items():
        if not code.isdecimal():
            raise ConfigError(f"health.xids: a code must be a number in quotes, as in '94': reset, got {code!r}")
        if int(code) in NEEDS_RESET and action in (XidAction.PROBE, XidAction.QUIET):
            raise ConfigError(f"Xid {int(code)} needs a reset: its action must be ignore, reset or fail, got {action}")
    if health.other is XidAction.RESET:
        raise ConfigError("health.other must be ignore, probe, quiet or fail, got reset")


def _check_share(share: NvidiaShare, mig: MigStrategy) -> None:
    if not (share.replicas or share.memory_bytes or share.percent):
        raise ConfigError("share must set replicas, memory or percent")
    for strategy in (SharingStrategy.MPS, SharingStrategy.VGPU):
        if getattr(share, strategy.value) is not None and share.by is not strategy:
            raise ConfigError(f"share.{strategy} is only valid with `by: {strategy}`, got `by: {share.by}`")
    if share.by is SharingStrategy.MPS and mig is not MigStrategy.NONE:
        raise ConfigError(f"share by mps needs whole GPUs: remove `mig: {mig}`")


def _check_vgpu(config: NvidiaConfig, share: NvidiaShare) -> None:
    """Our library replaces the driver's, which only some strategies select; HAMi's is preloaded with any."""
    if share.library is VgpuLibrary.HAMI:
        if config.mig is not MigStrategy.NONE:
            raise ConfigError(f"share by vgpu with HAMi's library needs whole GPUs: remove `mig: {config.mig}`")
        return
    if share.vgpu and (share.vgpu.library or share.vgpu.locks):
        raise ConfigError("share.vgpu.library and share.vgpu.locks are of HAMi's library: set `share.library: hami`")
    own_files = config.strategies == [DeviceListStrategy.DEVICE_NODES]
    if not own_files and not (config.cdi.write and all(strategy.is_cdi for strategy in config.strategies)):
        raise ConfigError(
            "share by vgpu stands in for the driver's libraries, which NVIDIA's runtime would mount: set `strategy` to "
            "device-nodes, cdi-cri or cdi-annotations, or `share.library: hami`"
        )
