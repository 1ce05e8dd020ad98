"""The settings of an emulated kubelet, its timeouts, and the shared context of its components.

`versions` defines the behaviour of each version; `topology_manager` checks whether a policy suits the machine.
"""

import re
import time
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, TypeAlias

from plugwright.errors import ConfigError
from plugwright.kubelet import topology_manager
from plugwright.kubelet.devicemanager.devices import DeviceCount
from plugwright.kubelet.events import EventLog, Findings, StateChange
from plugwright.kubelet.topology_manager import TopologyPolicy, TopologyScope
from plugwright.kubelet.versions import DEFAULT_VERSION, VersionProfile, profile
from plugwright.protocol.paths import KubeletPaths
from plugwright.protocol.registration import RegisterRequest

__all__ = ["KubeletContext", "KubeletSettings", "Timing"]

_MAX_NUMA_NODES = 64  # the number of bits in a NUMA mask
_FACT = re.compile(r"\d{1,2}\.\d{1,2}")

PolicyName: TypeAlias = Literal["none", "best-effort", "restricted", "single-numa-node"]
ScopeName: TypeAlias = Literal["container", "pod"]


@dataclass(frozen=True, slots=True)
class Timing:
    """Timeouts and intervals in seconds; the defaults are the real kubelet's (0.8)."""

    dial: float = 10.0
    get_info: float = 1.0
    notify: float = 5.0
    pre_start: float = 30.0
    grace: float = 300.0  # from the end of a plugin's stream to the removal of its resource
    reconcile: float = 1.0  # between two reconciliations of plugins_registry
    retry: float = 0.5  # after the first failed registration from plugins_registry; doubles each time
    max_retry: float = 122.0
    node_status: float = 10.0
    prepare: float = 45.0  # for one call of NodePrepareResources or NodeUnprepareResources
    unprepare_retry: float = 10.0  # between two tries to unprepare the claims of a pod that has ended
    claim_reconcile: float = 60.0  # between two searches for claims of deleted pods
    wipe: float = 30.0  # from the loss of a DRA driver to the removal of its slices
    health_retry: float = 5.0  # from the end of a DRA driver's health stream to the next


@dataclass(frozen=True, slots=True)
class KubeletSettings:
    """Every default is a real node's, except `numa`: a machine with one NUMA node.

    `clock` returns seconds; the grace period and the retries in plugins_registry are measured by it, so a test can let
    minutes pass. `host_root` is where the device nodes and mounts of allocations must exist, `/` for this machine; None
    to skip the check, because a test has no hardware. `allowed` are the facts whose findings are expected: strict mode,
    and the test kit, let no others pass. `on_register` is called with every Register before it is checked; it can wait,
    and refuse the call by raising `PeerRefused`. `on_host` translates an endpoint announced from plugins_registry, for
    plugins with other directories than this process.
    """

    version: str = DEFAULT_VERSION
    numa: int = 1
    policy: TopologyPolicy | PolicyName = TopologyPolicy.NONE  # the enum's value from `__post_init__` on
    scope: TopologyScope | ScopeName = TopologyScope.CONTAINER
    strict: bool = False  # raise findings where they happen
    allowed: Collection[str] = ()  # such as ("3.63",)
    host_root: str | Path | None = None
    timeout: float = 10.0  # for methods that wait for a plugin, such as `Kubelet.allocatable()`
    timing: Timing = field(default_factory=Timing)
    clock: Callable[[], float] = time.monotonic
    on_register: Callable[[RegisterRequest], Awaitable[None]] | None = None
    on_host: Callable[[Path], Path] | None = None

    def __post_init__(self) -> None:
        if not 1 <= self.numa <= _MAX_NUMA_NODES:
            raise ConfigError(f"number of NUMA nodes must be 1 to {_MAX_NUMA_NODES}, got {self.numa}")
        object.__setattr__(self, "policy", _choice("topology policy", TopologyPolicy, self.policy))
        object.__setattr__(self, "scope", _choice("topology scope", TopologyScope, self.scope))
        topology_manager.check_machine(TopologyPolicy(self.policy), self.machine)
        if isinstance(self.allowed, str) or not all(_FACT.fullmatch(fact) for fact in self.allowed):
            raise ConfigError(f"allowed must be a list of facts such as '3.63', got {self.allowed!r}")
        profile(self.version)

    @property
    def profile(self) -> VersionProfile:
        return profile(self.version)

    @property
    def machine(self) -> tuple[int, ...]:
        """The ids of the machine's NUMA nodes."""
        return tuple(range(self.numa))


def _choice(
    name: str, choices: type[TopologyPolicy] | type[TopologyScope], value: str
) -> TopologyPolicy | TopologyScope:
    try:
        return choices(value)
    except ValueError:
        raise ConfigError(f"{name} must be one of {', '.join(choices)}, got {value!r}") from None


@dataclass(frozen=True, slots=True)
class KubeletContext:
    """`node_status` counts the devices in the node object, which the API server keeps while the kubelet restarts."""

    settings: KubeletSettings
    paths: KubeletPaths
    event_log: EventLog
    findings: Findings
    node_status: dict[str, DeviceCount] = field(default_factory=dict)

    @property
    def profile(self) -> VersionProfile:
        return self.settings.profile

    def record(self, kind: str, about: str, text: str = "") -> None:
        """Records a state change in the event log."""
        self.event_log.add(StateChange(kind, about, text))
