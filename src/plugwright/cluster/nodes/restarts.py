"""Whether and when an ended container is restarted, and the resulting phase of its pod. Pure."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from plugwright.apiserver.store import Object
from plugwright.cluster.nodes.container_runs import ContainerRun
from plugwright.kubelet.pod_table import Phase

__all__ = ["CrashLoopBackoff", "containers_of", "is_sidecar", "phase", "should_restart"]

_RESET = 2  # a container that ran for this multiple of the longest back-off starts again with the shortest


def containers_of(spec: Object) -> list[Object]:
    """The containers in the order in which they start: init containers first."""
    return [*(spec.get("initContainers") or ()), *(spec.get("containers") or ())]


def is_sidecar(spec: Object, container: Object) -> bool:
    return container.get("restartPolicy") == "Always" and container in (spec.get("initContainers") or ())


def should_restart(spec: Object, container: Object, exit_code: int) -> bool:
    """By the container's rules, otherwise its policy, otherwise its pod's policy; an init container succeeds once."""
    is_init = container in (spec.get("initContainers") or ()) and not is_sidecar(spec, container)
    if is_init and exit_code == 0:
        return False
    policy = container.get("restartPolicy")
    if policy and any(_matches(rule, exit_code) for rule in container.get("restartPolicyRules") or ()):
        return True
    policy = policy or spec.get("restartPolicy") or "Always"
    return policy == "Always" or (policy == "OnFailure" and exit_code != 0)


def _matches(rule: Object, exit_code: int) -> bool:
    codes = rule.get("exitCodes") or {}
    is_listed = exit_code in (codes.get("values") or ())
    return rule.get("action") == "Restart" and (is_listed if codes.get("operator") == "In" else not is_listed)


@dataclass(slots=True)
class CrashLoopBackoff:
    """Seconds between the end and the next start of one container: none at first, then doubling."""

    first: float
    longest: float
    _delay: float = 0.0
    _since: float = float("-inf")

    def delay(self, ended_at: float) -> float:
        """Seconds to wait after an end at this time."""
        if ended_at - self._since > _RESET * self.longest:
            self._delay = 0.0
        return self._delay

    def restarted(self, now: float) -> None:
        self._delay = min(self._delay * 2, self.longest) if self._delay else self.first
        self._since = now


def phase(spec: Object, runs: Mapping[str, ContainerRun]) -> Phase:
    """The phase resulting from the states of all containers."""
    inits = [container for container in spec.get("initContainers") or () if not is_sidecar(spec, container)]
    mains = [runs[container["name"]] for container in spec["containers"]]
    if any(_has_failed_for_good(spec, container, runs[container["name"]]) for container in inits):
        return Phase.FAILED
    are_initialized = all(runs[container["name"]].has_succeeded for container in inits)
    if not are_initialized or any(not run.has_started for run in mains):
        return Phase.PENDING
    if any(run.is_running for run in runs.values()) or _will_restart(spec, runs):
        return Phase.RUNNING
    return Phase.SUCCEEDED if all(run.has_succeeded for run in mains) else Phase.FAILED


def _has_failed_for_good(spec: Object, container: Object, run: ContainerRun) -> bool:
    exit_code = run.exit_code
    return bool(exit_code) and not should_restart(spec, container, exit_code or 0)


def _will_restart(spec: Object, runs: Mapping[str, ContainerRun]) -> bool:
    ends: Iterable[tuple[Object, int | None]] = (
        (container, runs[container["name"]].exit_code) for container in spec["containers"]
    )
    return any(code is not None and should_restart(spec, container, code) for container, code in ends)
