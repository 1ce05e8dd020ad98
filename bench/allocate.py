"""`python -m bench.allocate`: Allocate by kind of device, each beside the same peer in the same run.

Path devices are the fair comparison: both programs hand out the same node. GPUs are simulated unless `--real` is given;
only real ones with the strategy device-nodes have the mounts of the driver's libraries.
"""

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from bench.client import Client, choose
from bench.processes import ProcessFailed
from bench.scenarios import OURS, Program, allocate_times, parse_program

__all__ = ["KINDS", "Kind", "main", "render"]

Times = dict[str, list[float]]  # p50 and p99 of each repeat, in µs


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of device: its entry in the configuration, and what its p50 and p99 may be of the peer's."""

    entry: str
    p50: float
    p99: float | None = None


_VGPU = "share: {by: vgpu, replicas: 10, vgpu: {builtin: '{root}/limiter', root: '{root}/vgpu'}}"


def _gpu(strategy: str, share: str = "") -> str:
    keys = [f"strategy: {strategy}", "cdi: {dir: '{root}/cdi'}", *([share] if share else []), "SIMULATE"]
    return f"nvidia: {{{', '.join(keys)}}}"


KINDS = {
    "paths": Kind("paths: [/dev/null], count: 10", 1.3, 1.2),
    "mock": Kind("mock: {count: 10}", 1.2, 1.1),
    "envvar": Kind(_gpu("envvar"), 1.6),
    "cdi-cri": Kind(_gpu("cdi-cri"), 1.6),
    "device-nodes": Kind(_gpu("device-nodes"), 3.5),
    "vgpu by cdi-cri": Kind(_gpu("cdi-cri", _VGPU), 5),
}


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    kinds = options.kinds or list(KINDS)
    try:
        times = _measure(kinds, options, choose("auto"))
    except ProcessFailed as failure:
        print(f"bench: {failure}", file=sys.stderr)
        return 1
    print(render(kinds, times))
    return 0


def render(kinds: Sequence[str], times: Mapping[str, Times]) -> str:
    """A Markdown table: medians of the repeats with the lowest and highest, and the medians of the repeats' ratios."""
    lines = ["| devices | p50 | p99 | ratio p50 | ratio p99 | bar | verdict |", "|---|---|---|---|---|---|---|"]
    peer = times.get("peer")
    if peer is not None:
        lines.append(f"| peer | {_spread(peer['p50'])} µs | {_spread(peer['p99'])} µs | | | | |")
    for name in kinds:
        ours, kind = times[name], KINDS[name]
        cells = [f"{_spread(ours['p50'])} µs", f"{_spread(ours['p99'])} µs", "-", "-", _bar(kind), ""]
        if peer is not None:
            ratios = {rank: _ratios(ours[rank], peer[rank]) for rank in ("p50", "p99")}
            reached = median(ratios["p50"]) <= kind.p50 and (kind.p99 is None or median(ratios["p99"]) <= kind.p99)
            cells[2:4] = [_spread(ratios["p50"], 2), _spread(ratios["p99"], 2)]
            cells[5] = "reached" if reached else "missed"
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m bench.allocate", description="Time Allocate by kind of device, in turn with another plugin."
    )
    parser.add_argument("--peer", metavar="COMMAND", help="another plugin; {dir} is the device-plugins directory")
    parser.add_argument("--repeat", type=int, default=5, metavar="N", help="repeats (default 5)")
    parser.add_argument("--calls", type=int, default=2000, metavar="N", help="calls of each repeat (default 2000)")
    parser.add_argument("--real", action="store_true", help="use this machine's GPUs instead of simulated ones")
    parser.add_argument("kinds", nargs="*", metavar="KIND", help=f"of {', '.join(KINDS)} (default: all)")
    return parser


def _measure(kinds: Sequence[str], options: argparse.Namespace, client: Client) -> dict[str, Times]:
    simulate = "driver: {root: /}" if options.real else "simulate: hgx-h100"
    programs = {"peer": parse_program("peer", options.peer)} if options.peer else {}
    for name in kinds:
        config = "resources: [{name: bench/device, " + KINDS[name].entry.replace("SIMULATE", simulate) + "}]\n"
        programs[name] = Program(name, OURS.argv, config)
    times: dict[str, Times] = {name: {"p50": [], "p99": []} for name in programs}
    for repeat in range(1, options.repeat + 1):
        for name, program in programs.items():
            print(f"repeat {repeat} of {options.repeat}: {name}", file=sys.stderr)
            sample = allocate_times(program, client, options.calls)
            for rank, measured in times[name].items():
                measured.append(sample[f"allocate_{rank}_us"])
    return times


def _ratios(ours: Sequence[float], peer: Sequence[float]) -> list[float]:
    """Of each repeat: both programs then had the same neighbours."""
    return [mine / theirs for mine, theirs in zip(ours, peer, strict=True)]


def _spread(values: Sequence[float], digits: int = 0) -> str:
    return f"{median(values):.{digits}f} ({min(values):.{digits}f}-{max(values):.{digits}f})"


def _bar(kind: Kind) -> str:
    return f"≤ {kind.p50:g}" if kind.p99 is None else f"≤ {kind.p50:g} / {kind.p99:g}"


if __name__ == "__main__":
    sys.exit(main())
