"""The shapes of a daemon's status, as the control socket sends it and `plugwright status` prints it.

`control` fills them; a reader of this module loads no server.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypedDict

__all__ = ["ConfigState", "DaemonStatus", "DeviceStatus", "RefusedConfig", "ResourceStatus"]


@dataclass(frozen=True, slots=True)
class RefusedConfig:
    """A version of the operator's file that is not in force, and why."""

    sha256: str  # empty if it could not be read
    since: float
    error: str


@dataclass(frozen=True, slots=True)
class ConfigState:
    """The operator's file: the version in force, and the latest one if that was refused."""

    path: str
    sha256: str  # the first digits
    loaded: float  # when it was last read and taken
    failures: int = 0  # reloads that were refused, since the start
    refused: RefusedConfig | None = None
    refused_names: Mapping[str, str] = field(default_factory=dict)  # resources left out, with the reasons

    def problems(self) -> Iterator[str]:
        if self.refused is not None:
            yield f"new configuration refused, {self.sha256} stays: {self.refused.error}"
        for name, reason in sorted(self.refused_names.items()):
            yield f"{name} not served: {reason}"


class DeviceStatus(TypedDict):
    id: str
    health: str
    reason: str
    since: float
    numa: list[int]
    attributes: dict[str, object]


class ResourceStatus(TypedDict):
    name: str
    state: str
    reason: str
    since: float
    endpoint: str
    streams: int
    registrations: int
    discovery: str  # why discover() fails, empty if it does not
    refused: str  # why the latest list was refused, empty if it was not
    devices: list[DeviceStatus]


class DaemonStatus(TypedDict):
    ready: bool
    registration: str
    directory: str
    stalled: str
    stalls: int
    config: dict[str, object] | None  # a `ConfigState`; None for a plugin that is run without a file
    resources: list[ResourceStatus]
