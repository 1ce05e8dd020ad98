"""`python -m chaos.run`: faults against a running daemon, and the table of what was seen.

The exit status is 0 if every promise holds, 1 if one does not, whichever faults were tried; a fault that this machine
cannot make is left out with the reason. The faults are in `catalogue`, their shape in `experiment`.
"""

import argparse
import asyncio
import ctypes
import json
import os
import platform
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Sequence
from dataclasses import asdict
from datetime import date
from pathlib import Path

from chaos.experiment import Cell, Experiment, Plan, Row

from chaos import catalogue, kubernetes, soak, table

__all__ = ["main", "parser", "report", "try_all"]

_NEW_MOUNTS = 0x00020000  # CLONE_NEWNS


def main(arguments: Sequence[str] | None = None) -> int:
    options = parser().parse_args(arguments)
    if options.list:
        print(*(f"{found.name:18} {found.title}" for found in _experiments(options)), sep="\n")
        return 0
    if options.kubernetes:
        _end_in_order()
        return report(options, asyncio.run(_beside_kubernetes(options)))
    chosen = [found for found in _experiments(options) if not options.only or found.name in options.only]
    if options.only and len(chosen) < len(set(options.only)):
        unknown = set(options.only) - {found.name for found in chosen}
        print(f"chaos: no fault is called {', '.join(sorted(unknown))}; --list names them", file=sys.stderr)
        return 2
    _leave_mounts_of_others_alone()
    _end_in_order()
    return report(options, asyncio.run(try_all(chosen, Plan(options.quick, options.seed))))


def report(options: argparse.Namespace, rows: list[Row]) -> int:
    print(_heading(options))
    print(table.render(rows))
    if options.write:
        order = [*(found.title for found in catalogue.EXPERIMENTS), *kubernetes.TITLES, soak.TITLE]
        table.write(options.write, rows, order, _heading(options))
    if options.json:
        options.json.write_text(json.dumps([asdict(row) for row in rows], indent=2, ensure_ascii=False) + "\n")
    return 0 if all(row.holds for row in rows) else 1


async def try_all(experiments: Sequence[Experiment], plan: Plan) -> list[Row]:
    """Each by itself, one after another; what an experiment raises is its row."""
    rows = []
    for number, found in enumerate(experiments, 1):
        print(f"{number} of {len(experiments)}: {found.name}: {found.title}", file=sys.stderr, flush=True)
        began = time.monotonic()
        row = await _try(found, plan)
        verdict = f"not tried: {row.skipped}" if row.skipped else "holds" if row.holds else "BROKEN"
        print(f"    {verdict}, {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
        for cell in row.cells:
            if not cell.holds:
                print(f"    {cell.text}", file=sys.stderr, flush=True)
        rows.append(row)
    return rows


async def _try(found: Experiment, plan: Plan) -> Row:
    if missing := found.missing():
        return Row(found.name, found.title, skipped=missing)
    try:
        async with asyncio.timeout(found.limit):
            return await found.run(plan)
    except Exception as error:  # noqa: BLE001  one experiment must not take the others with it
        traceback.print_exc()
        return Row(found.name, found.title, recovered=Cell(f"{type(error).__name__}: {error}", holds=False))


def _experiments(options: argparse.Namespace) -> list[Experiment]:
    if options.soak:
        return [soak.experiment(catalogue.FAULTS, options.soak)]
    return list(catalogue.EXPERIMENTS)


async def _beside_kubernetes(options: argparse.Namespace) -> list[Row]:
    return await kubernetes.try_all(options.kubernetes, Plan(options.quick, options.seed), options.only or ())


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m chaos.run", description="Inject faults into a running daemon and say what was seen."
    )
    parser.add_argument("--only", action="append", metavar="NAME", help="this fault alone; may be given again")
    parser.add_argument("--list", action="store_true", help="name the faults")
    parser.add_argument(
        "--quick", action="store_true", help="each one shortly: does it work, not does it hold for long"
    )
    parser.add_argument("--soak", type=float, metavar="SECONDS", help="instead: all faults at random in one daemon")
    parser.add_argument(
        "--kubernetes", metavar="VERSION", help="instead: beside the real kubelet of this version (root)"
    )
    parser.add_argument("--seed", type=int, default=1, help="of everything random (default 1)")
    parser.add_argument("--write", type=Path, metavar="PAGE", help="put the rows into the table of this page")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the rows there too")
    return parser


def _end_in_order() -> None:
    """By either signal, and also where a shell's `&` has us ignore one: the daemon is ended with us."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)


def _leave_mounts_of_others_alone() -> None:
    """As root, in a mount namespace of our own: what a fault mounts is gone with this process, however it ends."""
    if os.getuid() == 0 and ctypes.CDLL(None, use_errno=True).unshare(_NEW_MOUNTS) == 0:
        subprocess.run(["mount", "--make-rprivate", "/"], check=True)


def _heading(options: argparse.Namespace) -> str:
    facts = {
        "Seen": date.today().isoformat(),
        "Python": platform.python_version(),
        "cores": str(len(os.sched_getaffinity(0))),
        "kernel": f"{platform.system()} {platform.release().split('-')[0]}",
        "seed": str(options.seed),
    }
    return "; ".join(f"{name}: {value}" for name, value in facts.items()) + "."


if __name__ == "__main__":
    sys.exit(main())
