"""The API through which the devices of a resource are offered: the device plugin API, claims, or both.

Each device is offered by one API at a time. `dra` serves claims; this package does not depend on it, and a daemon gets
it as a `daemon.DriverFactory`.
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
    """The kubelet API or APIs offering the devices."""

    DEVICE_PLUGIN = "device-plugin"
    DRA = "dra"
    BOTH = "both"


class Split(msgspec.Struct, frozen=True, kw_only=True):
    """The initial devices for claims if both APIs serve, and the number kept free on each side.

    `dra` is the number for claims, or None for all free devices; `attributes` select them instead, by patterns.
    """

    dra: int | None = None
    attributes: Mapping[str, tuple[str, ...]] = {}
    keep_free: int = 0


class TaintSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The taint of an Unhealthy device.

    `effect` is `NoSchedule`, `NoExecute`, or `None` for a rehearsal. `NoExecute` follows `grace` seconds after
    `NoSchedule`, for at most `budget` devices per hour.
    """

    effect: str = "NoSchedule"
    grace: float = 60.0
    budget: int = 1


class ServeSettings(msgspec.Struct, frozen=True, kw_only=True):
    """`driver` is the name of the DRA driver; if empty, it is made from the resource's name.

    `cdi` is the directory for the CDI specs of claims. Their device nodes must exist below `host_root`; None skips the
    check, because a test has no hardware.
    """

    api: ServeMode = ServeMode.DEVICE_PLUGIN
    driver: str = ""
    cdi: str = "/var/run/cdi"
    host_root: str | None = "/"
    split: Split = msgspec.field(default_factory=Split)
    taints: TaintSettings = msgspec.field(default_factory=TaintSettings)

    def __post_init__(self) -> None:
        """Also converts the name of an API to the enum's member."""
        try:
            msgspec.structs.force_setattr(self, "api", ServeMode(self.api))
        except ValueError:
            raise ConfigError(f"serve must be one of {', '.join(ServeMode)}, got {self.api!r}") from None

    @classmethod
    def of(cls, serve: "str | ServeSettings") -> "ServeSettings":
        """The settings; a string is the name of an API."""
        return serve if isinstance(serve, ServeSettings) else cls(api=serve)  # type: ignore[arg-type]

    def without_new_claims(self) -> "ServeSettings":
        """Both APIs, without devices for new claims: serves only claims already holding devices."""
        return replace(self, api=ServeMode.BOTH, split=Split(dra=0))


class Expectation(msgspec.Struct, frozen=True, kw_only=True):
    """The expected devices of a node: from `least` to `most` of them (None: no upper limit), all of one model.

    `model` is a pattern such as `NVIDIA H100*`. With `not_ready`, a daemon with other devices is not ready.
    """

    least: int
    most: int | None = None
    model: str = ""
    not_ready: bool = False

    @property
    def words(self) -> str:
        """The number as text."""
        if self.most is None:
            return f"at least {self.least}"
        return str(self.least) if self.least == self.most else f"{self.least} to {self.most}"


class DriverState(msgspec.Struct, frozen=True):
    """Whether a driver is registered and its devices are published; `reason` explains why not."""

    state: str  # of its registration
    reason: str = ""
    ready: bool = False
    since: float = 0.0


class ResourceDriver(Protocol):
    """Serves the devices of one resource by claims, in addition to its device plugin service or instead of it."""

    name: str
    state: Latest[DriverState]

    async def run(self) -> None: ...

    async def finish(self) -> None:
        """Called when the daemon stops: refuses further calls, and returns when those in progress have ended."""
        ...

    def fail(self, reason: str) -> None:
        """`run` has raised and will be called again; the driver's state contains the reason."""
        ...

    def status(self) -> Mapping[str, object]:
        """The driver's status for `plugwright status`, as JSON values."""
        ...

    async def command(self, name: str, arguments: Mapping[str, str]) -> str:
        """Runs an operator's command, such as moving devices from one API to the other."""
        ...
