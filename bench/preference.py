"""`python -m bench.preference`: the time and the quality of the choice of GPUs, beside NVIDIA's own rule.

Ours is timed as for the first request, with nothing remembered but the machine. The rule is `rule/`, a program in Go
written from its description; it reads no driver and allocates nothing, which the real one does on every call. Times of
the rule depend on the numbers of GPUs alone, so they are pooled over the machines.
"""

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations
from random import Random
from statistics import median

from bench import table
from bench.client import ROOT, build, find_go
from bench.processes import ProcessFailed

from plugwright.plugins.nvidia import simulated_machines
from plugwright.plugins.nvidia.topology.chooser import Chooser
from plugwright.plugins.nvidia.topology.scores import pair_scores

__all__ = ["main"]

RULE_SOURCE, RULE_PROGRAM = ROOT / "bench" / "rule", ROOT / "build" / "bench-rule"
BARS = {8: 1.0, 16: 10.0}  # ms
QUICK_SIZES = {2, 8, 12}  # of sixteen: those where the rule takes no second
Scores = list[list[int]]


@dataclass(frozen=True, slots=True)
class Rule:
    """The choice of NVIDIA's rule, and its times."""

    ms: list[float]
    partition: int
    chosen: list[int]


@dataclass(frozen=True, slots=True)
class Case:
    machine: str
    count: int
    size: int

    @property
    def key(self) -> str:
        return f"{self.count}/{self.size}"


def tree(*levels: tuple[int, int]) -> Scores:
    """`(4, 50), (16, 10)`: four GPUs with 50 between them at a switch, sixteen in all with 10 between switches."""

    def score(one: int, other: int) -> int:
        return next(points for size, points in levels if one // size == other // size)

    gpus = range(levels[-1][0])
    return [[0 if one == other else score(one, other) for other in gpus] for one in gpus]


def machine(name: str) -> Scores:
    snapshot = simulated_machines.load(name)
    return pair_scores([gpu.uuid for gpu in snapshot.gpus], snapshot.links)


MACHINES: dict[str, Callable[[], Scores]] = {
    "dgx-1": lambda: machine("dgx-1"),
    "dgx-a100": lambda: machine("dgx-a100"),
    "hgx-h100": lambda: machine("hgx-h100"),
    "4 pairs": lambda: tree((2, 50), (4, 20), (8, 10)),
    "dgx-2": lambda: machine("dgx-2"),
    "4 switches of 4": lambda: tree((4, 50), (16, 10)),
    "8 boards of 2": lambda: tree((2, 60), (8, 20), (16, 10)),
}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.preference", description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="a few sizes on two machines, to see that it works")
    options = parser.parse_args(arguments)
    try:
        _report(quick=options.quick)
    except ProcessFailed as failure:
        print(f"bench: {failure}", file=sys.stderr)
        return 1
    return 0


def _report(*, quick: bool) -> None:
    go = find_go()
    if go:
        build(go, RULE_SOURCE, RULE_PROGRAM)
    names = ["dgx-1", "dgx-2"] if quick else list(MACHINES)
    machines = {name: MACHINES[name]() for name in names}
    cases = [Case(name, len(scores), size) for name, scores in machines.items() for size in range(1, len(scores))]
    if quick:
        cases = [case for case in cases if case.size in QUICK_SIZES]
    ours = {case: _ours(machines[case.machine], case.size, 3 if quick else 15) for case in cases}
    rules = {case: _rule(machines[case.machine], case.size) for case in cases if go and case.size > 1}
    print("\npreferred allocation, everything free, nothing remembered; beside it the rule of NVIDIA's plugin in Go\n")
    print(_table(ours, rules))
    print(_random_requests(machines, 20 if quick else 200))
    print(_quality(machines, rules) if go else "the rule was left out: no Go tool chain")


def _ours(scores: Scores, size: int, repeats: int) -> list[float]:
    """Milliseconds."""
    return [_timed(Chooser(scores), range(len(scores)), [], size) for _ in range(repeats)]


def _timed(chooser: Chooser, free: Sequence[int], required: Sequence[int], size: int) -> float:
    began = time.perf_counter()
    chooser.choose(free, required, size)
    return (time.perf_counter() - began) * 1000


def _rule(scores: Scores, size: int) -> Rule:
    command = [str(RULE_PROGRAM), "-size", str(size), "-seconds", "0.2"]
    done = subprocess.run(command, input=json.dumps(scores), capture_output=True, text=True, check=False)
    if done.returncode:
        raise ProcessFailed(f"the rule failed: {done.stderr.rstrip()}")
    answer = json.loads(done.stdout)
    return Rule([microseconds / 1000 for microseconds in answer["microseconds"]], answer["best"], answer["chosen"])


def _table(ours: dict[Case, list[float]], rules: dict[Case, Rule]) -> str:
    """A row for each size, from the machine on which ours takes longest."""
    slowest: dict[str, Case] = {}
    for case in sorted(ours, key=lambda case: median(ours[case])):
        slowest[case.key] = case
    shown = sorted(slowest.values(), key=lambda case: (case.count, case.size))
    rows = [
        table.Row(f"{case.size} of {case.count}, {case.machine}", case.key, "ms", table.Bar(BARS[case.count]), 3)
        for case in shown
    ]
    times: dict[str, list[float]] = {}
    for case, rule in rules.items():
        times.setdefault(case.key, []).extend(rule.ms)
    return table.render(rows, {case.key: ours[case] for case in shown}, times or None)


def _random_requests(machines: dict[str, Scores], count: int) -> str:
    """Any GPUs free, any of them required, any size: with a new chooser each, then with one that remembers."""
    lines = []
    for name, scores in machines.items():
        requests, daemon = _generate(len(scores), 2 * count), Chooser(scores)
        first = sorted(_timed(Chooser(scores), *request) for request in requests[count:])
        later = sorted([_timed(daemon, *request) for request in requests][count:])
        lines.append(f"- {name}: {_percentiles(first)}; remembering: {_percentiles(later)}")
    return f"\n{count} random requests on each machine, ms p50 / p99 / slowest:\n" + "\n".join(lines)


def _generate(count: int, number: int) -> list[tuple[list[int], list[int], int]]:
    chance, requests = Random(1), []
    for _ in range(number):
        free = chance.sample(range(count), chance.randint(2, count))
        size = chance.randint(1, len(free))
        requests.append((free, free[: min(size, chance.choice((0, 0, 1, 2)))], size))
    return requests


def _percentiles(times: list[float]) -> str:
    return f"{median(times):.3f} / {times[int(len(times) * 0.99) - 1]:.3f} / {times[-1]:.3f}"


def _quality(machines: dict[str, Scores], rules: dict[Case, Rule]) -> str:
    """The score of the choice, and of the partition that the rule optimises."""
    lower, higher = [], 0
    for case, rule in rules.items():
        scores = machines[case.machine]
        chosen, partition = _allocate_all(scores, case.size)
        if _together(scores, chosen) < _together(scores, rule.chosen) or partition < rule.partition:
            lower.append(f"{case.size} of {case.machine}")
        higher += _together(scores, chosen) > _together(scores, rule.chosen)
    comparison = f"lower for {', '.join(lower)}" if lower else "never lower"
    return f"\nscore beside the rule's, in {len(rules)} cases: {comparison}, higher in {higher}"


def _allocate_all(scores: Scores, size: int) -> tuple[tuple[int, ...], int]:
    """The first group, and the score of all groups of successive requests until no GPU is free."""
    chooser, free, groups = Chooser(scores), set(range(len(scores))), []
    while free:
        groups.append(chooser.choose(free, [], size))
        free -= set(groups[-1])
    return groups[0], sum(_together(scores, group) for group in groups)


def _together(scores: Scores, group: Sequence[int]) -> int:
    return sum(scores[one][other] for one, other in combinations(group, 2))


if __name__ == "__main__":
    sys.exit(main())
