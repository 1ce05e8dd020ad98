"""How the control daemons of one resource are, in a file: written by whoever supervises them, read by the plugin.

They live in two pods. The file is replaced whole, and again at every probe: a file that has grown old means that nobody
looks any more. Times are of the machine's monotonic clock, which both pods share and nobody sets.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path

from plugwright.errors import PluginError
from plugwright.plugins.nvidia.mps.plan import DaemonPlan
from plugwright.system import files

__all__ = ["Condition", "DaemonState", "ResourceState", "read", "why_unusable", "write"]

_VERSION = 1


class Condition(StrEnum):
    STARTING = "starting"
    READY = "ready"
    FAULT = "fault"  # it answers, but takes no new clients
    DOWN = "down"
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True, kw_only=True)
class DaemonState:
    plan: DaemonPlan
    condition: Condition = Condition.STARTING
    reason: str = ""
    since: float = 0.0  # on the wall clock, for people
    restarts: int = 0
    corrections: int = 0  # how often its limits had been changed from outside, and were set again
    servers: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceState:
    """`beat`: when it was last known to be so; nobody looks any more `lasting` seconds later.

    `problem`: why there are no daemons at all.
    """

    resource: str
    problem: str = ""
    daemons: tuple[DaemonState, ...] = ()
    beat: float = 0.0
    lasting: float = 60.0
    modes: Mapping[str, str] = field(default_factory=dict, hash=False)  # compute modes to put back at the end


def write(path: Path, state: ResourceState) -> None:
    document = json.dumps({"version": _VERSION, **asdict(state)}, indent=2, default=list)
    files.write_atomically(path, document + "\n", sync=False)


def read(path: Path) -> ResourceState | None:
    """None when there is none; PluginError when it is no such file."""
    try:
        content = json.loads(path.read_bytes())
        if content.pop("version") != _VERSION:
            raise PluginError(f"{path} was written by another version of plugwright")
        content["daemons"] = tuple(map(_daemon, content["daemons"]))
        return ResourceState(**content)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise PluginError(f"{path} cannot be read: {error}") from error


def why_unusable(state: ResourceState | None, wanted: Sequence[DaemonPlan], gpu: str, now: float) -> str:
    """Why a share of this GPU cannot be given to a container now; empty if it can."""
    if state is None:
        return "no MPS daemon: `plugwright mps run` has not started one here"
    if now > state.beat + state.lasting:
        return f"nobody has looked after the MPS daemon for {now - state.beat:.0f} s: is `plugwright mps run` running?"
    if state.problem:
        return f"no MPS daemon: {state.problem}"
    found = {each.plan.size: each for each in state.daemons}
    for plan in wanted:
        reason = _why_not_this_one(found.get(plan.size), plan, gpu)
        if reason:
            return reason
    return ""


def _why_not_this_one(found: DaemonState | None, plan: DaemonPlan, gpu: str) -> str:
    if found is None or gpu not in found.plan.gpus:
        return f"no MPS daemon for containers with {plan.size} of this GPU: restart `plugwright mps run`"
    if found.condition is not Condition.READY:
        return f"MPS daemon {found.condition}: {found.reason}" if found.reason else f"MPS daemon {found.condition}"
    if (found.plan.percent, dict(found.plan.memory)[gpu]) != (plan.percent, dict(plan.memory)[gpu]):
        return "the MPS daemon has the limits of another configuration: restart `plugwright mps run`"
    return ""


def _daemon(content: dict[str, object]) -> DaemonState:
    plan = content.pop("plan")
    if not isinstance(plan, dict):
        raise TypeError("a daemon has a plan")
    memory = tuple((str(uuid), int(size)) for uuid, size in plan.pop("memory"))
    condition = Condition(str(content.pop("condition")))
    servers = content.pop("servers")
    numbers = tuple(servers) if isinstance(servers, list) else ()
    return DaemonState(plan=DaemonPlan(memory=memory, **plan), condition=condition, servers=numbers, **content)  # type: ignore[arg-type]
