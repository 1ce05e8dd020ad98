"""The runs of a container as a process: number, start, and the ends of this run and the previous. Values.

They are read from a pod's status when its node restarts, and written there by `pod_status`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from plugwright.apiserver.store import Object

__all__ = ["ContainerRun", "Termination", "exit_reason", "lost_runs", "run_of_status"]

_KILLED = 137
_LOST = "The container could not be located when the pod was deleted.  The container used to be Running"


@dataclass(frozen=True, slots=True)
class Termination:
    """Times have the format of the API; `attempt` is the ended run."""

    exit_code: int
    started_at: str
    finished_at: str
    attempt: int
    reason: str = ""
    message: str = ""


@dataclass(frozen=True, slots=True)
class ContainerRun:
    """`attempt` is the number of the newest run, -1 before the first; a waiting container has a `reason`."""

    attempt: int = -1
    started_at: str = ""
    termination: Termination | None = None  # of the newest run, once it has ended
    previous: Termination | None = None  # of the run before
    reason: str = ""
    message: str = ""

    @property
    def has_started(self) -> bool:
        return self.attempt >= 0

    @property
    def is_running(self) -> bool:
        return self.has_started and self.termination is None

    @property
    def exit_code(self) -> int | None:
        """Exit code of the newest run; None while it runs, and before the first."""
        return self.termination.exit_code if self.termination else None

    @property
    def has_succeeded(self) -> bool:
        return self.exit_code == 0

    def started(self, now: str) -> "ContainerRun":
        return ContainerRun(self.attempt + 1, now, None, self.termination or self.previous)

    def waiting(self, reason: str, message: str) -> "ContainerRun":
        return replace(self, reason=reason, message=message)

    def ended(self, exit_code: int, now: str, message: str = "") -> "ContainerRun":
        termination = Termination(exit_code, self.started_at, now, self.attempt, exit_reason(exit_code), message)
        return replace(self, termination=termination, reason="", message="")


def exit_reason(exit_code: int) -> str:
    return "Error" if exit_code else "Completed"


def lost_runs(runs: Mapping[str, ContainerRun], now: str) -> dict[str, ContainerRun]:
    """The runs after the node was down: running containers have ended, with unknown results."""
    return {name: _lost(run, now) if run.is_running else run for name, run in runs.items()}


def _lost(run: ContainerRun, now: str) -> ContainerRun:
    end = Termination(_KILLED, run.started_at, now, run.attempt, "ContainerStatusUnknown", _LOST)
    return replace(run, termination=end, reason="", message="")


def run_of_status(shown: Object) -> ContainerRun:
    """The run described by a container's status."""
    state, last, count = shown.get("state") or {}, shown.get("lastState") or {}, int(shown.get("restartCount") or 0)
    if "running" in state:
        started_at = str((state["running"] or {}).get("startedAt") or "")
        return ContainerRun(count, started_at, None, _termination(last, count - 1))
    if ended := _termination(state, count):
        return ContainerRun(count, ended.started_at, ended, _termination(last, count - 1))
    if ended := _termination(last, count):
        reason = str((state.get("waiting") or {}).get("reason") or "")
        return ContainerRun(count, ended.started_at, ended, None, reason)
    return ContainerRun()


def _termination(state: Object, attempt: int) -> Termination | None:
    ended = state.get("terminated")
    if not ended:
        return None
    started, finished = str(ended.get("startedAt") or ""), str(ended.get("finishedAt") or "")
    reason, message = str(ended.get("reason") or ""), str(ended.get("message") or "")
    return Termination(int(ended["exitCode"]), started, finished, attempt, reason, message)
