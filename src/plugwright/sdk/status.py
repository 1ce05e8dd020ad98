"""The structure of a daemon's status, as the control socket sends it and `plugwright status` prints it.

`control` fills it; a reader of this module does not load a server.
"""

import math
from collections.abc import Iterator, Mapping, Set
from typing import TypedDict

import msgspec

from plugwright.text import clean

__all__ = [
    "NOT_SERVING",
    "PLANNED_CODES",
    "ConfigState",
    "CordonStatus",
    "DaemonStatus",
    "DeviceStatus",
    "HungStatus",
    "RefusedConfig",
    "ResourceStatus",
    "shown",
]

NOT_SERVING = "starting or stopping"  # in the lines of the readiness probe: a report can lack resources
# Codes of devices Unhealthy as planned, or reported as missing: not a failure of the device.
PLANNED_CODES = frozenset({"cordoned", "dra", "gone", "held", "holders-unknown", "unconfigured"})

_LARGEST = 2**63  # larger integers are not portable across JSON readers
_DEEPEST = 4  # levels of nested attributes that are shown


class RefusedConfig(msgspec.Struct, frozen=True):
    """A rejected version of the operator's file, and why."""

    sha256: str  # empty if the file could not be read
    since: float
    error: str


class ConfigState(msgspec.Struct, frozen=True):
    """The operator's file: the version in force, and the latest one if it was rejected."""

    path: str
    sha256: str  # the first digits
    loaded: float  # when it was last read and accepted
    failures: int = 0  # rejected reloads since the start
    refused: RefusedConfig | None = None
    refused_names: Mapping[str, str] = {}  # omitted resources, with the reasons
    unnamed: tuple[str, ...] = ()  # names such as `nvidia.com/{model}` without a matching device
    restored: bool = False  # the file was rejected at the start: the last valid version of an earlier run is in force

    def problems(self) -> Iterator[str]:
        if self.refused is not None and self.restored:
            yield f"configuration rejected, the last valid one, {self.sha256}, is active: {self.refused.error}"
        elif self.refused is not None:
            yield f"new configuration refused, {self.sha256} stays: {self.refused.error}"
        for name, reason in sorted(self.refused_names.items()):
            yield f"{name} not served: {reason}"
        for name in self.unnamed:
            yield f"{name}: idle: no device to make a name of"


class DeviceStatus(TypedDict):
    id: str
    health: str
    reason: str
    code: str  # the kind of the reason, such as `xid-79`; empty for a Healthy device
    since: float
    numa: list[int]
    pods: list[str]  # pods that hold it, as namespace/name
    api: str  # API that offers it; empty while it moves from one to the other
    claims: list[str]  # claims that hold it, as namespace/name
    attributes: dict[str, object]
    capacity: dict[str, int]


class ResourceStatus(TypedDict):
    name: str
    state: str  # of its registration, or `idle`
    reason: str
    since: float
    rival: str  # evidence that another plugin serves the resource too; empty if there is none
    owner: str  # the other daemon that owns the resource, empty if there is none
    endpoint: str
    streams: int
    registrations: int
    fault: str  # why it was last restarted, empty after it has run steadily since
    restarts: int
    held: str  # why the devices that pods hold cannot be read, empty if they can
    stuck: dict[str, int]  # threads that hang in the plugin, by method
    failures: dict[str, tuple[float, str]]  # by method: time and reason of the kubelet's latest call, if it failed
    discovery: str  # why discover() fails, empty if it does not
    empty: str  # why the latest list has no device, if the plugin knows
    expected: str  # how many devices the operator's file expects, empty if it does not specify that
    shortfall: str  # why the devices are not the expected ones, empty if they are
    shortfall_code: str  # the kind of that reason
    refused: str  # why the latest list was rejected, empty if it was not
    serve: str  # by which API: device-plugin, dra or both
    exceeded: list[str]  # holders whose share exceeds or exceeded its limit
    driver: dict[str, object] | None  # status of the DRA driver; None if there is none
    devices: list[DeviceStatus]


class CordonStatus(TypedDict):
    resource: str
    id: str
    reason: str
    by: str  # empty if unknown
    since: float | None  # None if unknown
    until: float | None  # None: no end
    declared: bool  # by a rule of the configuration; `resource` and `id` are its patterns
    served: bool  # whether the resource is served at present


class HungStatus(TypedDict):
    """A hanging blocking call in a thread: a read of a dead file system, an unresponsive driver."""

    name: str
    since: float  # when the call began
    line: str  # of the code in which it hangs


class DaemonStatus(TypedDict):
    ready: bool
    registration: str
    directory: str
    stalled: str  # why the event loop is blocked, empty if it is not
    stalls: int
    hung: list[HungStatus]
    cordons: list[CordonStatus]
    cordons_unreadable: str  # why the cordons of an earlier run are not known, empty if they are
    pods_unreadable: str  # why the pods of the devices are not known, empty if they are
    waiting: dict[str, str]  # by resource, devices kept back until a source of holdings can be read
    log_lines_dropped: int
    config: dict[str, object] | None  # a `ConfigState`; None for a plugin without a file
    resources: list[ResourceStatus]


def shown(value: object) -> object:
    """An attribute's value as `status` shows it: a JSON value, or the text of anything else. Never raises."""
    try:
        return _shown(value, _DEEPEST)
    except Exception:  # noqa: BLE001  an object of the plugin's own type
        return clean(value)


def _shown(value: object, depth: int) -> object:
    if isinstance(value, str):
        return clean(value)
    if value is None or (isinstance(value, bool | int) and abs(value) < _LARGEST):
        return value
    if isinstance(value, float) and math.isfinite(value):
        return value
    if depth and isinstance(value, Mapping):
        return {clean(key): _shown(item, depth - 1) for key, item in value.items()}
    if depth and isinstance(value, list | tuple | Set):
        return [_shown(item, depth - 1) for item in value]
    return clean(value)
