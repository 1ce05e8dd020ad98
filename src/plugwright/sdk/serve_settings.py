"""Through which API the devices of a resource are offered: the device plugin API, claims, or both.

Each device is offered by one API at a time. What serves claims is `dra`, which this package does not know: a daemon
gets it as a `daemon.DriverFactory`.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Protocol

import msgspec
from msgspec.structs import replace

from plugwright.errors import ConfigError
from plugwright.system.latest import Latest

__all__ = ["DriverState", "Expectation", "ResourceDriver", "ServeMode", "ServeSettings", "Split", "TaintSettings"]


class ServeMode(StrEnum):
    """Which of the kubelet's two APIs offers devices."""

    DEVICE_PLUGIN = "device-plugin"
    DRA = "dra"
    BOTH = "both"


class Split(msgspec.Struct, frozen=True, kw_only=True):
    """Which devices claims have at first where both APIs serve, and what is kept free on each side.

    `dra` is how many of them, or None for all that are free; `attributes` select them instead, by patterns.
    """

    dra: int | None = None
    attributes: Mapping[str, tuple[str, ...]] = {}
    keep_free: int = 0


class TaintSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The taint of an Unhealthy device.

    `effect` is `NoSchedule`, `NoExecute` or `None`, a rehearsal. `NoExecute` comes `grace` seconds after `NoSchedule`,
    for at most `budget` devices an hour.
    """

    effect: str = "NoSchedule"
    grace: float = 60.0
    budget: int = 1


class ServeSettings(msgspec.Struct, frozen=True, kw_only=True):
    """`driver` is the name of the DRA driver; empty: made of the resource's name.

    `cdi` is where the CDI specs of claims are written. `host_root` is where their device nodes must be seen; None where
    they are not looked for, because a test has no hardware.
    """

    api: ServeMode = ServeMode.DEVICE_PLUGIN
    driver: str = ""
    cdi: str = "/var/run/cdi"
    host_root: str | None = "/"
    split: Split = msgspec.field(default_factory=Split)
    taints: TaintSettings = msgspec.field(default_factory=TaintSettings)

    def __post_init__(self) -> None:
        """Also makes the enum's member of an API's name."""
        try:
            msgspec.structs.force_setattr(self, "api", ServeMode(self.api))
        except ValueError:
            raise ConfigError(f"serve must be one of {', '.join(ServeMode)}, got {self.api!r}") from None

    @classmethod
    def of(cls, serve: "str | ServeSettings") -> "ServeSettings":
        """The settings, or those of an API's name alone."""
        return serve if isinstance(serve, ServeSettings) else cls(api=serve)  # type: ignore[arg-type]

    def without_new_claims(self) -> "ServeSettings":
        """Both APIs, with no device for claims: serves only the claims that hold devices already."""
        return replace(self, api=ServeMode.BOTH, split=Split(dra=0))


class Expectation(msgspec.Struct, frozen=True, kw_only=True):
    """The devices that a node should have: from `least` to `most` of them (None: any number more), all of one model.

    `model` is a pattern, as `NVIDIA H100*`. With `not_ready`, a daemon with other devices is not ready.
    """

    least: int
    most: int | None = None
    model: str = ""
    not_ready: bool = False

    @property
    def words(self) -> str:
        """The number, for people."""
        if self.most is None:
            return f"at least {self.least}"
        return str(self.least) if self.least == self.most else f"{self.least} to {self.most}"


class DriverState(msgspec.Struct, frozen=True):
    """Whether a driver is registered and its devices are published; `reason` says why not."""

    state: str  # of its registration
    reason: str = ""
    ready: bool = False
    since: float = 0.0


class ResourceDriver(Protocol):
    """Serves the devices of one resource by claims, beside its device plugin service or instead of it."""

    name: str
    state: Latest[DriverState]

    async def run(self) -> None: ...

    async def finish(self) -> None:
        """The daemon stops: refuses further calls, and returns when those in progress have ended."""
        ...

    def fail(self, reason: str) -> None:
        """`run` has raised and is about to be called again; the driver's state tells the reason."""
        ...

    def status(self) -> Mapping[str, object]:
        """For `plugwright status`: what JSON has."""
        ...

    async def command(self, name: str, arguments: Mapping[str, str]) -> str:
        """An operator's command, such as to move devices from one API to the other."""
        ...
