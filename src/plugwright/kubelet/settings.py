"""How an emulated kubelet is set up, and how long it waits for what."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from plugwright.errors import ConfigError
from plugwright.kubelet import topology_manager
from plugwright.kubelet.topology_manager import Policy, Scope
from plugwright.kubelet.versions import DEFAULT_VERSION, Profile, profile

__all__ = ["KubeletSettings", "Timing"]

_MOST_NUMA = 64  # as many as a mask has bits


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds, each the real kubelet's own (0.8)."""

    dial: float = 10.0
    get_info: float = 1.0
    notify: float = 5.0
    pre_start: float = 30.0
    grace: float = 300.0  # how long a resource outlives its plugin
    look: float = 1.0  # between looks into plugins_registry
    retry: float = 0.5  # after a failed registration found there, doubling
    most_retry: float = 122.0
    node_status: float = 10.0


@dataclass(frozen=True, slots=True)
class KubeletSettings:
    """Every default is that of a real node, but for `numa`: a machine with one NUMA node.

    `clock` gives seconds; the grace period and the retries in plugins_registry are read from it, so that a test can let
    minutes pass.
    """

    version: str = DEFAULT_VERSION
    numa: int = 1
    policy: Policy = Policy.NONE
    scope: Scope = Scope.CONTAINER
    strict: bool = False
    timeout: float = 10.0  # how long questions such as `allocatable()` wait for a plugin
    timing: Timing = field(default_factory=Timing)
    clock: Callable[[], float] = time.monotonic

    def __post_init__(self) -> None:
        if not 1 <= self.numa <= _MOST_NUMA:
            raise ConfigError(f"a machine has 1 to {_MOST_NUMA} NUMA nodes, not {self.numa}")
        object.__setattr__(self, "policy", _one_of(Policy, self.policy))
        object.__setattr__(self, "scope", _one_of(Scope, self.scope))
        topology_manager.check_machine(self.policy, self.machine)
        profile(self.version)

    @property
    def profile(self) -> Profile:
        return profile(self.version)

    @property
    def machine(self) -> tuple[int, ...]:
        """The ids of its NUMA nodes."""
        return tuple(range(self.numa))


def _one_of(kind: type[Policy] | type[Scope], name: str) -> Policy | Scope:
    try:
        return kind(name)
    except ValueError:
        known = ", ".join(kind)
        raise ConfigError(f"a topology {kind.__name__.lower()} is one of {known}, not {name!r}") from None
