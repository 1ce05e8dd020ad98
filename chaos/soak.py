"""The soak: one daemon, and every fault that can be made in it, one after another at random, for as long as asked."""

import asyncio
import random
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from chaos.experiment import Cell, Experiment, Fault, Row, lost_cell, observe
from chaos.rig import Baseline, Rig, emulated_rig

__all__ = ["TITLE", "experiment"]

TITLE = "all of it at random, in one daemon"
_SHORTEST, _LONGEST = 0.5, 8.0  # seconds of a fault
_SETTLED = 10.0  # seconds
_RSS_LIMIT = 24.0  # MiB more than at the beginning


@dataclass(slots=True)
class _Seen:
    """What all faults together have shown."""

    faults: int = 0
    allocations: int = 0
    latest_truth: float = 0.0
    longest_recovery: float = 0.0
    broken: Counter[str] = field(default_factory=Counter)

    def add(self, row: Row) -> None:
        self.faults += 1
        words = row.served.text.split()
        self.allocations += int(words[0]) if words[0].isdigit() else 0
        self.latest_truth = max(self.latest_truth, _seconds(row.truthful))
        self.longest_recovery = max(self.longest_recovery, _seconds(row.recovered))
        self.broken.update(f"{row.name}: {cell.text}" for cell in row.cells if not cell.holds)


def experiment(faults: Sequence[Fault], seconds: float) -> Experiment:
    return Experiment("soak", TITLE, lambda plan: _soak(faults, seconds, plan.seed), limit=seconds + 900)


async def _soak(faults: Sequence[Fault], seconds: float, seed: int) -> Row:
    """Every fault once, then any of them until the time is over."""
    chance, seen = random.Random(seed), _Seen()
    usable = [fault for fault in faults if fault.in_soak and not fault.missing()]
    async with emulated_rig() as rig:
        await asyncio.sleep(_SETTLED)
        # Once for all: a part that is still being started again would be missing in a later look.
        before, ends = replace(await rig.baseline(), rss_limit=_RSS_LIMIT), time.monotonic() + seconds
        for fault in usable:
            await _one(rig, fault, seen, before)
        while time.monotonic() < ends:
            await _one(rig, chance.choice(usable), seen, before, chance.uniform(_SHORTEST, _LONGEST))
        rig.broken.clear()
        rig.notes[:] = [f"{rig.daemon.footprint().rss_mib - before.footprint.rss_mib:+.1f} MiB"]
        lost = await lost_cell(rig, before)
    return _row(seen, lost, f"{seconds:.0f} s, {seen.faults} faults, seed {seed}")


async def _one(rig: Rig, fault: Fault, seen: _Seen, before: Baseline, seconds: float = _SHORTEST) -> None:
    row = await observe(fault, rig, seconds, before=before)
    seen.add(row)
    if not row.holds:
        print(f"soak: {fault.name}: {[cell.text for cell in row.cells if not cell.holds]}", file=sys.stderr, flush=True)
    if not rig.daemon.alive:
        await rig.daemon.stop()
        rig.daemon.start()
    await rig.recovery(60)


def _row(seen: _Seen, lost: Cell, what: str) -> Row:
    broken = [f"{count} x {text}" for text, count in seen.broken.most_common(5)]
    return Row(
        "soak",
        TITLE,
        Cell(f"{seen.allocations:,} Allocates answered", holds=True),
        Cell(f"{seen.latest_truth:.1f} s at the latest"),
        Cell(f"{seen.longest_recovery:.1f} s at the longest; {what}"),
        Cell("; ".join([*broken, lost.text]) if broken else lost.text, lost.holds and not broken),
    )


def _seconds(cell: Cell) -> float:
    first = cell.text.split(" ", 1)[0]
    return float(first) if first.replace(".", "", 1).isdigit() else 0.0
