"""A fault, what is promised while it lasts and after it, and the row of the table that its observation becomes.

A fault is a context manager: it lasts while inside. So the same fault is tried alone, beside a real kubelet, and among
others in the soak. What needs another shape, such as a daemon that is killed at every write, is an `Experiment` itself.
"""

import asyncio
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field

from chaos.daemon import Launch
from chaos.rig import ANSWER_LIMIT, Baseline, Rig, Serving, emulated_rig

from plugwright.errors import PlugwrightError

__all__ = ["NOT_ASKED", "Cell", "Experiment", "Fault", "Plan", "Row", "always", "experiment", "lost_cell", "observe"]

_STOP_LIMIT = 1.0  # seconds from SIGTERM to the end
_BUSY_STOP_LIMIT = 5.0  # where only the programme itself is tried, perhaps beside other tests
_SHOWN_LINES = 15
_PATIENCE = 6.0  # how long the truth is waited for, beyond what is promised: to say how late it was


@dataclass(frozen=True, slots=True)
class Cell:
    """What was seen of one promise, and whether it holds."""

    text: str
    holds: bool = True


NOT_ASKED = Cell("n/a")


@dataclass(frozen=True, slots=True)
class Row:
    """One fault and what was seen of each promise. `skipped` says why nothing was."""

    name: str
    title: str
    served: Cell = NOT_ASKED
    truthful: Cell = NOT_ASKED
    recovered: Cell = NOT_ASKED
    lost: Cell = NOT_ASKED
    skipped: str = ""

    @property
    def cells(self) -> tuple[Cell, Cell, Cell, Cell]:
        return self.served, self.truthful, self.recovered, self.lost

    @property
    def holds(self) -> bool:
        return all(cell.holds for cell in self.cells)


@dataclass(frozen=True, slots=True)
class Plan:
    """`quick` tries whether it works, not whether it holds for long."""

    quick: bool = False
    seed: int = 0

    def choose(self, full: int, quick: int) -> int:
        return quick if self.quick else full


def always() -> str:
    """Nothing is needed that a machine might lack."""
    return ""


@dataclass(frozen=True, slots=True)
class Fault:
    """`inject` makes the fault, which lasts while inside.

    `serves`: other resources are promised to be served meanwhile, `truthful`: health is. `affects` is the resource
    whose devices must turn Unhealthy. `recovers` is the promised number of seconds from its end until all is well.
    """

    name: str
    title: str
    inject: Callable[[Rig], AbstractAsyncContextManager[None]]
    seconds: float = 5.0
    quick_seconds: float = 1.0
    serves: bool = True
    truthful: bool = True
    affects: str = ""
    recovers: float = 5.0
    missing: Callable[[], str] = always
    launch: Launch = field(default_factory=Launch)
    in_soak: bool = True
    on_real_kubelet: bool = True


@dataclass(frozen=True, slots=True)
class Experiment:
    """`missing` says what this machine lacks for it."""

    name: str
    title: str
    run: Callable[[Plan], Awaitable[Row]]
    missing: Callable[[], str] = always
    limit: float = 240.0  # seconds: one that hangs is a failure, not a wait


def experiment(fault: Fault) -> Experiment:
    """The fault alone, with a daemon of its own beside the emulated kubelet."""

    async def run(plan: Plan) -> Row:
        async with emulated_rig(fault.launch) as rig:
            seconds = fault.quick_seconds if plan.quick else fault.seconds
            row = await observe(fault, rig, seconds)
            lost = await _with_stop(rig, row.lost, _BUSY_STOP_LIMIT if plan.quick else _STOP_LIMIT)
            if not (row.holds and lost.holds):
                print(*(f"    | {line}" for line in rig.daemon.lines()[-_SHOWN_LINES:]), sep="\n", file=sys.stderr)
        return Row(row.name, row.title, row.served, row.truthful, row.recovered, lost)

    return Experiment(fault.name, fault.title, run, fault.missing)


async def observe(
    fault: Fault, rig: Rig, seconds: float, *, recovers: float = 0.0, before: Baseline | None = None
) -> Row:
    """The fault for about so many seconds, and its end.

    `recovers` is for a kubelet that takes longer by itself. `before` is what nothing may be more than; by default, what
    there is when the fault begins.
    """
    promised = max(fault.recovers, recovers)
    before = before or await rig.baseline()
    rig.broken.clear()
    rig.notes.clear()
    ends = time.monotonic() + seconds
    async with rig.serving() as serving, fault.inject(rig):
        truthful = await _truth(fault, rig)
        await asyncio.sleep(max(0.0, ends - time.monotonic()))
    taken, complaint = await rig.recovery(max(promised, _PATIENCE))
    recovered = Cell(complaint, holds=False) if complaint else Cell(f"{taken:.1f} s", taken <= promised)
    lost = await lost_cell(rig, before)
    return Row(fault.name, fault.title, _served(fault, serving), truthful, recovered, lost)


def _served(fault: Fault, serving: Serving) -> Cell:
    if not fault.serves:
        return NOT_ASKED
    if serving.failures:
        text = "; ".join(f"{count} x {reason}" for reason, count in serving.failures.items())
        return Cell(f"no: {text}", holds=False)
    return Cell(f"{serving.answered} of {serving.answered}, slowest {serving.slowest * 1000:.0f} ms")


async def _truth(fault: Fault, rig: Rig) -> Cell:
    if not fault.truthful:
        return NOT_ASKED
    if fault.affects:
        seconds = await rig.seconds_until_unhealthy(fault.affects, _PATIENCE)
    else:
        seconds = await rig.truth(_PATIENCE)
    if seconds is None:
        return Cell(f"not within {_PATIENCE:g} s", holds=False)
    return Cell(f"{seconds:.1f} s", seconds <= ANSWER_LIMIT)


async def lost_cell(rig: Rig, before: Baseline) -> Cell:
    """What was lost, leaked, given twice, or seen to be wrong by the fault itself."""
    problems = list(rig.broken)
    if rig.daemon.alive:
        problems += await rig.leaks(before)
        grown = rig.daemon.footprint().rss_mib - before.footprint.rss_mib
        if grown > before.rss_limit:
            problems.append(f"{grown:.0f} MiB more memory")
    if twice := await rig.given_twice():
        problems.append(f"given twice: {', '.join(twice)}")
    if missing := await rig.no_longer_held(before):
        problems.append(f"pods lost {', '.join(missing)}")
    if not problems and (refused := await _arrival(rig)):
        problems.append(f"a new pod is refused: {refused}")
    return Cell("; ".join(problems or ["nothing", *rig.notes]), not problems)


async def _arrival(rig: Rig) -> str:
    """A pod that comes afterwards; empty where it is given a device."""
    try:
        async with asyncio.timeout(_PATIENCE):
            return await rig.kubelet.pass_through()
    except TimeoutError:
        return "no answer"
    except PlugwrightError as error:
        return str(error)


async def _with_stop(rig: Rig, lost: Cell, limit: float) -> Cell:
    """SIGTERM at the end: exit 0 in under a second, and no socket left."""
    if not rig.daemon.alive:
        return lost
    taken = await rig.daemon.stop()
    problems = [f"SIGTERM took {taken:.1f} s"] if taken > limit else []
    problems += [f"exit code {rig.daemon.code}"] if rig.daemon.code else []
    problems += [f"left {name}" for name in sorted(rig.node.files()) if name.endswith(".sock")]
    return Cell("; ".join([lost.text, *problems] if not lost.holds else problems), holds=False) if problems else lost
