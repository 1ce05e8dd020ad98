"""`python -m bench.run`: the daemon measured against the project's bars, and beside a peer.

It only reports: the exit status is 0 even if a bar is missed, and 1 if a measurement failed.
`scenarios` contains the measurements, `table` the bars, and `client` the kubelet's part.
"""

import argparse
import json
import os
import platform
import shlex
import signal
import sys
from collections.abc import Sequence
from datetime import date
from pathlib import Path
from types import FrameType

from bench import table
from bench.client import Client, choose
from bench.processes import ProcessFailed
from bench.scenarios import OURS, Plan, Program, parse_program, scenarios

__all__ = ["main"]

FULL = Plan(calls=2000, restarts=50, restart_seconds=30, idle_seconds=10, lists=(10, 1_000, 60_000), resources=20)
QUICK = Plan(calls=200, restarts=5, restart_seconds=10, idle_seconds=2, lists=(10, 1_000), resources=20)
FULL_REPEATS, QUICK_REPEATS = 5, 1

EPILOG = """\
These placeholders of a COMMAND are replaced for each run. No shell interprets it, but quoting works as in a shell:
  {dir}          the device-plugins directory
  {kubelet-dir}  the directory above it
  {count}        the number of devices
  {config}       a plugwright configuration with {count} mock devices
A command with neither {count} nor {config} is omitted from the lists of devices.

Each repeat starts every program again, ours and the peer in turn. A cell is the median of the repeats
(lowest-highest). A p99 is computed within a repeat, so of 50 restarts it is the slowest. The restarts of a
slow plugin end after 30 s (quick: 10 s); the table shows how many were timed.

Memory, threads and context switches include the processes started by a program.

The exit status is 0 even if bars are missed, and 1 if a measurement failed.

examples:
  python -m bench.run --quick
  python -m bench.run --peer 'my-plugin --plugin-directory {dir} --count {count}' --json build/bench.json
"""


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _stop)
    try:
        return _run(options)
    except ProcessFailed as failure:
        print(f"bench: {failure}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("bench: stopped", file=sys.stderr)
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m bench.run",
        description="Measure the plugwright daemon: Allocate, memory, idle wake-ups, registration, long lists.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--peer", metavar="COMMAND", help="another plugin, measured in the same run, in turn with ours")
    parser.add_argument(
        "--ours", metavar="COMMAND", help="measure this instead of `plugwright run`, such as another build"
    )
    parser.add_argument("--quick", action="store_true", help="one short repeat: does it work, not how fast is it")
    parser.add_argument(
        "--repeat", type=_positive, metavar="N", help=f"repeats (default {FULL_REPEATS}, quick {QUICK_REPEATS})"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the numbers of every repeat there too")
    parser.add_argument(
        "--client",
        choices=("auto", "go", "python"),
        default="auto",
        help="who plays the kubelet (default: Go if there is one)",
    )
    return parser


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return value


def _stop(_signal: int, _frame: FrameType | None) -> None:
    # A second Ctrl-C must not cut the cleaning up short; each process has only seconds to end.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    raise KeyboardInterrupt


def _run(options: argparse.Namespace) -> int:
    plan = QUICK if options.quick else FULL
    repeats: int = options.repeat or (QUICK_REPEATS if options.quick else FULL_REPEATS)
    programs = [parse_program("ours", options.ours) if options.ours else OURS]
    if options.peer:
        programs.append(parse_program("peer", options.peer))
    facts = _machine()
    client = choose(options.client)
    samples = _measure(plan, programs, client, repeats)
    rows = table.rows_for(plan.restarts, plan.idle_seconds, plan.lists, plan.resources)
    peer = samples.get("peer")
    print(_heading(facts, client, programs, repeats))
    print(table.render(rows, samples["ours"], peer))
    if options.json:
        report = {
            "machine": facts,
            "client": client.label,
            "repeats": repeats,
            "samples": samples,
            "commands": {program.name: list(program.argv) for program in programs},
            "rows": table.records(rows, samples["ours"], peer),
        }
        options.json.write_text(json.dumps(report, indent=2, ensure_ascii=False) + "\n")
    return 0


def _measure(
    plan: Plan, programs: Sequence[Program], client: Client, repeats: int
) -> dict[str, dict[str, list[float]]]:
    """Every scenario of every program, the programs taking turns within each."""
    samples: dict[str, dict[str, list[float]]] = {program.name: {} for program in programs}
    by_program = {program.name: scenarios(plan, program) for program in programs}
    names = dict.fromkeys(name for found in by_program.values() for name in found)
    for repeat in range(1, repeats + 1):
        for name in names:
            for program, found in by_program.items():
                if name not in found:
                    continue
                print(f"repeat {repeat} of {repeats}: {program}, {name}", file=sys.stderr)
                for key, value in found[name](client).items():
                    samples[program].setdefault(key, []).append(value)
    return samples


def _machine() -> dict[str, str]:
    return {
        "date": date.today().isoformat(),
        "CPU": _cpu_model(),
        "cores": str(len(os.sched_getaffinity(0))),
        "kernel": f"{platform.system()} {platform.release()}",
        "Python": platform.python_version(),
        "load before": f"{os.getloadavg()[0]:.2f}",
    }


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _heading(facts: dict[str, str], client: Client, programs: Sequence[Program], repeats: int) -> str:
    lines = ["; ".join(f"{name}: {value}" for name, value in facts.items())]
    lines.append(f"client: {client.label}; repeats: {repeats}; cells: median (lowest-highest)")
    lines += [f"{program.name}: {shlex.join(program.argv)}" for program in programs]
    return "\n".join(f"- {line}" for line in lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
