"""The state file of one resource's control daemons: written by the supervisor, read by the plugin.

The two run in different pods. The supervisor replaces the file at every probe: with an old file, no supervisor is
running. Times are of the machine's monotonic clock, which is the same in both pods and is never set.
"""

from collections.abc import Mapping, Sequence
from enum import StrEnum
from pathlib import Path

import msgspec

from plugwright.errors import PluginError, StateFileDamaged
from plugwright.plugins.nvidia.mps.plan import DaemonPlan
from plugwright.system.state_file import JsonFormat, StateFile, StateFileOptions
from plugwright.text import clean

__all__ = ["Condition", "DaemonState", "ResourceState", "read", "read_or_set_aside", "unusable_reason", "write"]

_VERSION = 2
# Not synced, because it is replaced at every probe and worthless after a reboot. The plugin's pod only reads it.
_OPTIONS = StateFileOptions(mode=0o644, sync=False, set_aside=False)


class Condition(StrEnum):
    STARTING = "starting"
    READY = "ready"
    FAULT = "fault"  # responds, but accepts no new clients
    DOWN = "down"
    STOPPED = "stopped"


class DaemonState(msgspec.Struct, frozen=True, kw_only=True):
    plan: DaemonPlan
    condition: Condition = Condition.STARTING
    reason: str = ""
    since: float = 0.0  # wall clock, for display
    restarts: int = 0
    corrections: int = 0  # how often its limits were reset after another program had changed them
    servers: tuple[int, ...] = ()


class ResourceState(msgspec.Struct, frozen=True, kw_only=True):
    """`beat`: the time of the last probe; the state is outdated `lasting` seconds later.

    `problem`: why there are no daemons.
    """

    resource: str
    problem: str = ""
    daemons: tuple[DaemonState, ...] = ()
    beat: float = 0.0
    lasting: float = 60.0
    modes: Mapping[str, str] = {}  # compute modes to restore at the end

    @property
    def valid_until(self) -> float:
        return self.beat + self.lasting


_FORM = JsonFormat(ResourceState, _VERSION)


def write(path: Path, state: ResourceState) -> None:
    StateFile(path, _FORM, _OPTIONS).write(state)


def read(path: Path, options: StateFileOptions = _OPTIONS) -> ResourceState | None:
    """The state; None if the file does not exist, PluginError if it is unusable."""
    try:
        return StateFile(path, _FORM, options).read()
    except (OSError, StateFileDamaged) as error:
        raise PluginError(clean(error)) from error


def read_or_set_aside(path: Path) -> ResourceState | None:
    """For the supervisor, which is about to write the file: an unreadable file is kept under another name."""
    return read(path, msgspec.structs.replace(_OPTIONS, set_aside=True))


def unusable_reason(state: ResourceState | None, plans: Sequence[DaemonPlan], gpu: str, now: float) -> str:
    """Why a container cannot use a share of this GPU now; empty if it can."""
    if state is None:
        return "no MPS daemon: `plugwright mps run` has not started one here"
    if now > state.valid_until:
        return f"no MPS supervisor has reported for {now - state.beat:.0f} s: is `plugwright mps run` running?"
    if state.problem:
        return f"no MPS daemon: {state.problem}"
    daemons = {daemon.plan.key: daemon for daemon in state.daemons}
    reasons = (_daemon_reason(daemons.get(plan.key), plan) for plan in plans if plan.gpu == gpu)
    return next(filter(None, reasons), "")


def _daemon_reason(daemon: DaemonState | None, plan: DaemonPlan) -> str:
    if daemon is None:
        return f"no MPS daemon for containers with {plan.size} of this GPU: restart `plugwright mps run`"
    if daemon.condition is not Condition.READY:
        return f"MPS daemon {daemon.condition}: {daemon.reason}" if daemon.reason else f"MPS daemon {daemon.condition}"
    if daemon.plan != plan:
        return "the MPS daemon has the limits of another configuration: restart `plugwright mps run`"
    return ""
