"""The parts of the modelled node: devices, configurations, kubelet versions, and what a release has on disk."""

from collections.abc import Mapping, Sequence

import msgspec

from plugwright.attributes import Consumption, CounterSet
from plugwright.model import Device
from plugwright.sdk.holdings.book import Book
from plugwright.sdk.holdings.overlaps import Name, Offer
from plugwright.sdk.holdings.records import Memory
from plugwright.sdk.serve_settings import ServeMode

__all__ = ["BOTH", "DRA", "FIRST", "PLUGIN", "SECOND", "VERSIONS", "Holder", "Release", "driver", "overlap", "renamed"]

HALVES = CounterSet("card-a", {"halves": 2})
A, B, C, D = (f"example.com/{name}" for name in ("card", "other", "second", "fourth"))
WHOLE_A = Device("GPU-a", physical=("GPU-a",), consumes=[Consumption(HALVES, {"halves": 2})])
# Their ids tell the hardware: after the memory of offers is lost, nothing else does.
HALF = [Device(f"GPU-a/{n}", physical=(f"GPU-a/{n}",), consumes=[Consumption(HALVES, {"halves": 1})]) for n in (0, 1)]
WHOLE_B = Device("GPU-b", physical=("GPU-b",))
SHARES = [Device(f"GPU-b::{n}", physical=("GPU-b",), sharing="x") for n in (0, 1)]
PLUGIN, DRA, BOTH = ServeMode.DEVICE_PLUGIN, ServeMode.DRA, ServeMode.BOTH
Config = dict[str, tuple[ServeMode, list[Device]]]
FIRST: Sequence[Config] = (
    {A: (PLUGIN, [WHOLE_A, WHOLE_B])},
    {A: (PLUGIN, [*HALF, *SHARES])},
    {A: (PLUGIN, [WHOLE_A, *HALF])},
    {A: (DRA, [WHOLE_A, WHOLE_B])},
    {A: (BOTH, [WHOLE_A, WHOLE_B])},
    {B: (PLUGIN, [WHOLE_A, *SHARES])},
    {A: (PLUGIN, [WHOLE_A, WHOLE_B]), B: (PLUGIN, [*HALF, *SHARES])},
    {A: (DRA, [WHOLE_A]), B: (PLUGIN, [*HALF, WHOLE_B])},
    {A: (BOTH, [WHOLE_A, WHOLE_B]), B: (PLUGIN, HALF)},
)
SECOND: Sequence[Config] = (
    {C: (PLUGIN, [WHOLE_A, WHOLE_B])},
    {C: (PLUGIN, [*HALF, *SHARES])},
    {C: (DRA, [WHOLE_A, WHOLE_B])},
    {C: (BOTH, [*HALF, WHOLE_B])},
    {C: (PLUGIN, [WHOLE_A]), D: (DRA, [*HALF, WHOLE_B])},
)


class Version(msgspec.Struct, frozen=True):
    """What a kubelet does that matters to holdings (11.1, 6.4, and `Get`)."""

    name: str
    prepares_claims: bool
    lists_active_only: bool
    has_get: bool


VERSIONS = (
    Version("1.27", prepares_claims=False, lists_active_only=False, has_get=False),
    Version("1.33", prepares_claims=False, lists_active_only=False, has_get=False),
    Version("1.34", prepares_claims=True, lists_active_only=True, has_get=True),
    Version("1.37", prepares_claims=True, lists_active_only=True, has_get=True),
)


class Holder(msgspec.Struct, eq=False):
    name: Name
    device: Device
    is_claim: bool = False
    admin: bool = False
    offers: Mapping[Name, Offer] | None = None  # of then, if another release offered the device too


class Release:
    """What survives the daemon of a release, and the daemon, which has a book while it runs."""

    def __init__(self, number: int, configs: Sequence[Config]) -> None:
        self.number, self.configs = number, configs
        self.config = configs[0]
        self.next_config: Config | None = None  # after a reload, until its plugins have listed their devices
        self.memory: Memory | None = None
        self.split: dict[Name, ServeMode] | None = None  # the file of the split; None if there is none
        self.sides: dict[Name, ServeMode] = {}  # as the running daemon places devices
        self.book: Book | None = None
        self.is_listed = False  # whether the daemon has offered its devices

    @property
    def devices(self) -> dict[Name, tuple[ServeMode, Device]]:
        return {
            (resource, device.id): (api, device)
            for resource, (api, devices) in self.config.items()
            for device in devices
        }

    def side(self, name: Name) -> ServeMode | None:
        """The API that offers a device; None while that is not decided."""
        api, _ = self.devices[name]
        return api if api is not BOTH else self.sides.get(name)


def driver(resource: str) -> str:
    return f"{resource.rpartition('/')[2]}.example.com"


def renamed(config: Mapping[str, tuple[ServeMode, list[Device]]]) -> Config:
    """With ids that tell nothing about the hardware."""
    return {
        resource: (api, [device.replace(id=f"slot-{device.id[4:].replace('/', '-')}") for device in devices])
        for resource, (api, devices) in config.items()
    }


def overlap(one: Device, other: Device) -> bool:
    if one.sharing and one.sharing == other.sharing:
        return False
    return any(
        f"{first}/".startswith(f"{second}/") or f"{second}/".startswith(f"{first}/")
        for first in one.physical
        for second in other.physical
    )
