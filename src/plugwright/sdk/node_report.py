"""The NodeReport: all facts about the devices of a node's daemon, as one versioned JSON document.

`plugwright status -o json` prints it, and every other view of a node is made from it. `docs/node-report.schema.json`
is its JSON Schema. Keys are camelCase and times are RFC 3339, as in Kubernetes objects. Within a version, keys
can be added but never change their meaning, so a reader must ignore unknown keys.
"""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Literal, TypeAlias

import msgspec

from plugwright.sdk.history_events import HistoryEvent

__all__ = [
    "CallFailureReport",
    "ConfigReport",
    "CordonReport",
    "DaemonReport",
    "DeviceReport",
    "DriverReport",
    "HolderReport",
    "HoldingsReport",
    "HungCallReport",
    "KubeletReport",
    "MoveReport",
    "NodeReport",
    "RefusedConfigReport",
    "ReportMetadata",
    "ResourceReport",
    "ShareReport",
    "ShareUsageReport",
    "UnknownReport",
    "timestamp",
]

Json: TypeAlias = Any  # any JSON value


class _Part(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Base of the parts of a report."""


class ReportMetadata(_Part, frozen=True, kw_only=True):
    node_name: str = ""  # empty if not configured; only claims need it
    release: str = ""  # owner of the resources: NAMESPACE/NAME of the Helm release
    generated_at: datetime


class RefusedConfigReport(_Part, frozen=True, kw_only=True):
    """The latest version of the configuration file, if it was rejected."""

    sha256: str = ""  # empty if the file could not be read
    since: datetime
    error: str


class ConfigReport(_Part, frozen=True, kw_only=True):
    """The configuration file in force."""

    path: str
    sha256: str  # the first digits
    loaded_at: datetime
    restored: bool = False  # the last valid version of an earlier run is in force
    failures: int = 0  # rejected reloads since the start
    refused: RefusedConfigReport | None = None
    refused_resources: Mapping[str, str] = {}  # resource name → reason
    unnamed: tuple[str, ...] = ()  # name templates without a device


class HungCallReport(_Part, frozen=True, kw_only=True):
    name: str  # such as "read of the configuration"
    since: datetime | None
    line: str  # of the code in which the call hangs


class DaemonReport(_Part, frozen=True, kw_only=True):
    version: str
    ready: bool
    waiting_for: tuple[str, ...] = ()  # lines of the readiness probe; empty if ready
    stalled: str = ""  # why the event loop is blocked
    stalls: int = 0
    hung: tuple[HungCallReport, ...] = ()  # blocking calls in threads
    log_lines_dropped: int = 0
    config: ConfigReport | None = None  # null for a plugin that runs without a configuration file


class KubeletReport(_Part, frozen=True, kw_only=True):
    """`version` and `topologyManagerPolicy` are null if the daemon cannot know them."""

    registration: str  # direct or watcher
    directory: str  # of device plugin sockets
    version: str | None = None
    topology_manager_policy: str | None = None
    topology_manager_scope: str | None = None


class UnknownReport(_Part, frozen=True, kw_only=True):
    """An unreadable source of holdings."""

    source: str
    reason: str
    since: datetime | None = None


class HoldingsReport(_Part, frozen=True, kw_only=True):
    """Whether the holders of all devices are known. If not, a device without a holder could be held."""

    complete: bool
    unknown: tuple[UnknownReport, ...] = ()


class ShareUsageReport(_Part, frozen=True, kw_only=True):
    """A holder's use of its share of a device, in bytes; null if unknown.

    The limiter in the holder's own processes counts `used`, `peak` and `refusals`, the driver counts `driver`.
    """

    limit: int  # of all shares of this device that the holder has, together
    used: int | None = None
    peak: int | None = None  # the highest count
    refusals: int | None = None  # rejected requests for memory
    processes: int | None = None
    driver: int | None = None
    driver_peak: int | None = None  # the highest measurement
    exceeded: bool = False  # whether the driver currently counts more than the limit
    incidents: int = 0  # how often the limit was exceeded again
    measured_at: datetime | None = None


class HolderReport(_Part, frozen=True, kw_only=True):
    """A container or a claim that holds a device. Empty strings are unknown."""

    api: str  # device-plugin or dra
    namespace: str = ""
    pod: str = ""
    pod_uid: str = ""
    container: str = ""
    claim: str = ""
    claim_uid: str = ""
    share_id: str = ""
    admin_access: bool = False
    since: datetime | None = None  # when the daemon first observed it
    source: str = ""  # the source of the holding
    usage: ShareUsageReport | None = None  # null unless the plugin measures it


class CordonReport(_Part, frozen=True, kw_only=True):
    """A cordon of one device, or a rule of the configuration, whose `resource` and `id` are patterns."""

    resource: str
    id: str
    reason: str
    by: str = ""
    since: datetime | None = None
    until: datetime | None = None  # null: no end
    declared: bool = False  # a rule of the configuration
    served: bool = True


class ShareReport(_Part, frozen=True, kw_only=True):
    """A share of a physical device."""

    by: str  # time-slicing, mps, vgpu, or count: only the number of shares is limited
    of: str = ""  # identity of the physical device
    memory: int | None = None  # limit in bytes
    percent: int | None = None  # limit of the processors


class MoveReport(_Part, frozen=True, kw_only=True):
    """The destination API of a moving device of `serve: both`, and the condition it waits for."""

    phase: str = ""
    target: str = ""
    waits_for: str = ""


class DeviceReport(_Part, frozen=True, kw_only=True):
    id: str
    health: str  # Healthy or Unhealthy
    reason: str = ""
    code: str = ""  # the kind of the reason, such as xid-79; empty for a Healthy device
    since: datetime  # when health or reason last changed
    api: str = ""  # the API that offers the device; empty while it moves between APIs
    numa: tuple[int, ...] = ()
    physical: tuple[str, ...] = ()  # names of the hardware behind the device
    links: Mapping[str, Json] = {}  # to other devices, by their identity
    attributes: Mapping[str, Json] = {}
    capacity: Mapping[str, int] = {}
    share: ShareReport | None = None
    holders: tuple[HolderReport, ...] = ()
    closed: str = ""  # why the ledger keeps the device back: another pod or claim holds or could hold its hardware
    cordoned: str = ""  # reason of the cordon
    taints: tuple[Mapping[str, str], ...] = ()  # of the device in its ResourceSlice
    move: MoveReport | None = None  # null unless `serve: both`


class DriverReport(_Part, frozen=True, kw_only=True):
    """The DRA driver of a resource."""

    name: str
    ready: bool
    state: str
    reason: str = ""
    problem: str = ""
    claims: tuple[Mapping[str, Json], ...] = ()
    slices: Mapping[str, Json] = {}
    taints: Mapping[str, Json] = {}
    handover: str = ""
    leaving: tuple[str, ...] = ()  # claims that must end before the device plugin API gets their devices


class CallFailureReport(_Part, frozen=True, kw_only=True):
    """A failed call of the kubelet; no call of its method has succeeded since."""

    time: datetime
    reason: str


class ResourceReport(_Part, frozen=True, kw_only=True):
    name: str
    serve: str  # device-plugin, dra or both
    state: str  # of the registration, or idle
    reason: str = ""
    since: datetime
    owner: str = ""  # the other daemon that owns the resource
    rival: str = ""  # evidence of a third-party plugin that serves the resource too
    waiting: str = ""  # which devices are kept back until a source of holdings can be read
    endpoint: str = ""
    streams: int = 0  # open ListAndWatch streams of the kubelet
    registrations: int = 0
    restarts: int = 0
    fault: str = ""  # why the resource was last restarted
    discovery: str = ""  # why discover() fails
    empty: str = ""  # why the latest list has no device
    expected: str = ""  # how many devices the configuration expects
    shortfall: str = ""  # why the devices are not the expected ones, or fewer than before the last start
    shortfall_code: str = ""  # missing, unexpected, other-model, fewer-than-before or driver-missing
    refused: str = ""  # why the latest list was rejected
    stuck: Mapping[str, int] = {}  # hung threads by plugin method
    failures: Mapping[str, CallFailureReport] = {}  # by method: the kubelet's latest call, if it failed
    simulates: tuple[str, ...] = ()  # commands of the plugin that make simulated devices fail, recover and so on
    driver: DriverReport | None = None
    devices: tuple[DeviceReport, ...] = ()


class NodeReport(_Part, frozen=True, kw_only=True):
    api_version: Literal["plugwright.dev/v1alpha1"] = "plugwright.dev/v1alpha1"
    kind: Literal["NodeReport"] = "NodeReport"
    metadata: ReportMetadata
    daemon: DaemonReport
    kubelet: KubeletReport
    holdings: HoldingsReport
    cordons: tuple[CordonReport, ...] = ()
    cordons_unreadable: str = ""  # why the cordons are unknown
    resources: tuple[ResourceReport, ...] = ()
    history: tuple[HistoryEvent, ...] = ()  # the last events of devices, from the oldest to the newest


def timestamp(seconds: float | None) -> datetime | None:
    """A time of the report; None if it is unknown or out of range."""
    if not seconds:
        return None
    try:
        return datetime.fromtimestamp(round(seconds, 3), UTC)
    except (OverflowError, ValueError, OSError):
        return None
