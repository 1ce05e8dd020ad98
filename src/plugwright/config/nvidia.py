"""NVIDIA GPUs in the operator's file: its types. What they ask for is made by `nvidia`, where a file has any.

What the operator's file says of MPS and vgpu, as the plugin takes it; the keys themselves are `config_nvidia`'s.
"""

import re
from collections.abc import Collection, Sequence
from typing import Annotated, ClassVar, Literal

import msgspec

from plugwright.plugins.nvidia.choices import Action, By, Clients, Cores, Ids, Mig, Mode, Strategy
from plugwright.sdk.families import DeviceFamily, FamilyContext, NameTemplates, ResourceEntry
from plugwright.sdk.plugin import Plugin

__all__ = [
    "FAMILY",
    "NvidiaEntry",
    "NvidiaFamily",
    "is_family",
    "name_of",
    "whole_family",
]

Texts = str | list[str]
Number = Annotated[int, msgspec.Meta(ge=0)]
Percent = Annotated[int, msgspec.Meta(ge=0, le=100)]


class _Strict(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """An unknown key is an error."""


class NvidiaPattern(_Strict, frozen=True):
    """What devices look like."""

    index: int | str | list[int | str] = []
    uuid: Texts = []
    pci: Texts = []
    model: Texts = []
    profile: Texts = []
    least: int | str = 0
    most: int | str = 0


class NvidiaMps(_Strict, frozen=True):
    """Where the daemons of `plugwright mps run` live, and what they do with the GPUs."""

    root: str = "/run/plugwright/mps"
    shm: str = "/dev/shm/plugwright-mps"
    mode: Mode = Mode.LEAVE
    clients: Clients = Clients.ONE_USER


class NvidiaVgpu(_Strict, frozen=True):
    """The operator's limiter library, and where the files of its tenants are."""

    library: str = "/usr/local/vgpu/libvgpu.so"
    root: str = "/var/lib/plugwright/vgpu"
    locks: str = "/tmp/vgpulock"
    cores: Cores = Cores.DEFAULT
    log: Number | None = None


class NvidiaShare(_Strict, frozen=True):
    """How each device is cut."""

    by: By = By.TIME_SLICING
    replicas: Number = 0
    memory: int | str = 0
    percent: Percent = 0
    most: Number = 0
    mps: NvidiaMps | None = None
    vgpu: NvidiaVgpu | None = None


class NvidiaHealth(_Strict, frozen=True):
    """What makes a GPU unfit, and when it is fit again."""

    xids: dict[str, Action] = {}
    other: Action = Action.QUIET
    quiet: Annotated[float, msgspec.Meta(ge=0)] = 300.0
    ecc: bool = True
    pending: bool = False
    unwatched: bool = True
    checks: bool = True


class NvidiaDriver(_Strict, frozen=True):
    """Where the driver is. `root` is its place in our own container, `host` the same place on the host."""

    root: str = "/"
    host: str = ""
    dev: str = ""
    libraries: list[str] = []


class NvidiaCdi(_Strict, frozen=True):
    write: bool = True
    dir: str = "/var/run/cdi"
    vendor: str = "k8s.device-plugin.nvidia.com"
    annotations: str = "cdi.k8s.io/"


class NvidiaImex(_Strict, frozen=True):
    channels: list[Number] = []
    required: bool = False


class NvidiaEntry(_Strict, frozen=True):
    """NVIDIA GPUs, MIG devices, or shares of them."""

    select: NvidiaPattern = NvidiaPattern()
    exclude: NvidiaPattern = NvidiaPattern()
    mig: Mig = Mig.NONE
    share: NvidiaShare | None = None
    strategy: Strategy | list[Strategy] = Strategy.DEVICE_NODES
    ids: Ids = Ids.UUID
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


def is_family(name: str) -> bool:
    """Whether the name is yet to be found out, by the models or MIG profiles that a machine has."""
    return "{" in name


def name_of(family: str, model: str, profile: str) -> str:
    """`1g.10gb+me` is `1g.10gb.me`, as NVIDIA's plugin has it, and `NVIDIA A100-SXM4-40GB` is `a100-sxm4-40gb`."""
    plain = re.sub(r"[^a-z0-9._-]+", "-", model.lower().removeprefix("nvidia ")).strip("-._")
    return family.replace("{model}", plain).replace("{profile}", profile.replace("+", "."))


def whole_family(name: str, entry: NvidiaEntry) -> NvidiaEntry:
    """What all members of a family are of: MIG devices of any profile, if that is what they are named by."""
    if "{profile}" not in name or entry.select.profile:
        return entry
    return msgspec.structs.replace(entry, select=msgspec.structs.replace(entry.select, profile="*"))


class NvidiaFamily(DeviceFamily[NvidiaEntry]):
    settings = NvidiaEntry
    placeholders: ClassVar = {"model": "model", "profile": "1g.10gb"}

    def plugin(self, entry: ResourceEntry[NvidiaEntry], context: FamilyContext) -> Plugin:
        from plugwright.config import nvidia_build

        return nvidia_build.plugin(entry.name, entry.settings)

    def check(self, entry: ResourceEntry[NvidiaEntry], earlier: Sequence[ResourceEntry[NvidiaEntry]]) -> None:
        """Refuses devices that two resources ask for, as far as that can be known without the machine."""
        from plugwright.config import nvidia_build

        nvidia_build.check(entry.name, entry.settings, {other.name: other.settings for other in earlier})

    def join(self, plugins: Sequence[Plugin], serving: Collection[Plugin]) -> None:
        """Gives plugins of one machine one monitor: that of a plugin which serves already, if there is one."""
        from plugwright.config import nvidia_build

        nvidia_build.joined(plugins, nvidia_build.watches_of(serving))

    def name_templates(self) -> NameTemplates[NvidiaEntry]:
        from plugwright.config.name_templates import NvidiaNames

        return NvidiaNames()


FAMILY = NvidiaFamily()
