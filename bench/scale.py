"""`python -m bench.scale`: the embedded cluster with a thousand nodes and ten thousand pods, beside another checkout.

The cluster is a process of its own. Its CPU time is reported beside the time that passed: on a machine that does other
work too, only the former compares. Pods of one device each are created over HTTPS, on four connections, and a fifth
watches them. A pause is the longest time between two turns of the event loop, in the same two clocks.
"""

import argparse
import json
import os
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import quantiles

from bench import table
from bench.cluster_process import PODS, SOURCE, ApiConnection, ClusterProcess, running_cluster
from bench.cluster_server import RESOURCE
from bench.table import Bar, Row

__all__ = ["main"]

_CREATORS = 4
_TIMEOUT = 900.0
_SETTLED = 12.0  # seconds after a start: every node has sent its first heartbeat


@dataclass(frozen=True, slots=True)
class _Size:
    nodes: int
    pods: int
    idle: float  # seconds


_FULL, _QUICK = _Size(1_000, 10_000, 60.0), _Size(50, 500, 5.0)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.scale", description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="fifty nodes, one repeat")
    parser.add_argument("--repeat", type=int, metavar="N", help="repeats (default 3, quick 1)")
    parser.add_argument("--beside", type=Path, metavar="CHECKOUT", help="another checkout, measured in turn with ours")
    options = parser.parse_args(arguments)
    size = _QUICK if options.quick else _FULL
    sources = {"ours": SOURCE, **({"peer": options.beside / "src"} if options.beside else {})}
    samples: dict[str, dict[str, list[float]]] = {name: {} for name in sources}
    for repeat in range(options.repeat or (1 if options.quick else 3)):
        for name, source in sources.items():
            print(f"repeat {repeat + 1}: {name}", file=sys.stderr)
            for key, value in _measure(source, size).items():
                samples[name].setdefault(key, []).append(value)
    print(f"- load: {os.getloadavg()[0]:.1f}; cells: median (lowest-highest); peer: {options.beside or 'none'}\n")
    print(table.render(_rows(size), samples["ours"], samples.get("peer")))
    return 0


def _rows(size: _Size) -> list[Row]:
    nodes, pods = f"{size.nodes:,} nodes", f"{size.pods:,} pods"
    return [
        Row("one node: start → its devices listed", "one_ms", "ms", Bar(900), 0),
        Row("one node: CPU time of the start", "one_cpu_ms", "ms", digits=0),
        Row("one node: RSS", "one_rss_mib", "MiB", Bar(53 * 1e6 / 2**20)),
        Row(f"{nodes}, 8 devices each: start → listed", "up_s", "s", Bar(15)),
        Row(f"{nodes}: CPU time of the start", "up_cpu_s", "s"),
        Row(f"{nodes}: most RSS", "up_rss_mib", "MiB", Bar(250 * 1e6 / 2**20), 0),
        Row(f"{nodes}: descriptors", "descriptors", "", digits=0),
        Row(f"{nodes}: threads", "threads", "", digits=0),
        Row(f"{nodes}: idle", "idle_percent", "% of a core", Bar(5)),
        Row(f"{pods}: time until all run", "pods_s", "s", Bar(size.pods / 150)),
        Row(f"{pods}: pods/s", "rate", "/s", digits=0),
        Row(f"{pods}: CPU time of the cluster", "pods_cpu_s", "s"),
        Row(f"{pods}: create request p50", "post_p50_ms", "ms"),
        Row(f"{pods}: create request p99", "post_p99_ms", "ms"),
        Row(f"{pods}: longest pause", "pause_ms", "ms", Bar(300), 0),
        Row(f"{pods}: longest pause, CPU time", "pause_cpu_ms", "ms", Bar(300), 0),
        Row(f"{pods}: most RSS", "pods_rss_mib", "MiB", Bar(500 * 1e6 / 2**20), 0),
    ]


def _measure(source: Path, size: _Size) -> dict[str, float]:
    with running_cluster(1, 8, source) as one:
        measured = {"one_ms": one.up * 1000, "one_cpu_ms": one.cpu() * 1000, "one_rss_mib": one.most_rss()}
    with running_cluster(size.nodes, 8, source) as many:
        measured |= {"up_s": many.up, "up_cpu_s": many.cpu(), "up_rss_mib": many.most_rss()}
        measured |= {"descriptors": many.count("fd"), "threads": many.count("task")}
        time.sleep(_SETTLED)
        before = many.cpu()
        time.sleep(size.idle)
        measured["idle_percent"] = (many.cpu() - before) / size.idle * 100
    with running_cluster(size.nodes, 10, source) as full:  # a device for each of ten pods on every node
        return measured | _measure_pods(full, size.pods)


def _measure_pods(cluster: ClusterProcess, pods: int) -> dict[str, float]:
    watching, durations = threading.Event(), list[float]()
    watcher = threading.Thread(target=_watch, args=(cluster.connection(), pods, watching), daemon=True)
    watcher.start()
    watching.wait(_TIMEOUT)
    cluster.measure_pauses()
    cpu, began = cluster.cpu(), time.perf_counter()
    creators = [
        threading.Thread(target=_create, args=(cluster.connection(), range(first, pods, _CREATORS), durations))
        for first in range(_CREATORS)
    ]
    for creator in creators:
        creator.start()
    for thread in (*creators, watcher):
        thread.join(_TIMEOUT)
    if watcher.is_alive():
        raise SystemExit("bench: not all pods ran")
    seconds, used = time.perf_counter() - began, cluster.cpu() - cpu
    cuts, (pause, pause_cpu) = quantiles(durations, n=100), cluster.longest_pause()
    return {
        "pods_s": seconds,
        "rate": pods / seconds,
        "pods_cpu_s": used,
        "post_p50_ms": cuts[49] * 1000,
        "post_p99_ms": cuts[98] * 1000,
        "pause_ms": pause * 1000,
        "pause_cpu_ms": pause_cpu * 1000,
        "pods_rss_mib": cluster.most_rss(),
    }


def _create(connection: ApiConnection, numbers: range, durations: list[float]) -> None:
    container = {"name": "main", "image": "busybox:1", "resources": {"limits": {RESOURCE: "1"}}}
    for number in numbers:
        pod = {"metadata": {"name": f"pod-{number}"}, "spec": {"containers": [container]}}
        began = time.perf_counter()
        connection.ask("POST", PODS, pod)
        durations.append(time.perf_counter() - began)


def _watch(connection: ApiConnection, pods: int, began: threading.Event) -> None:
    running = set()
    for line in connection.lines(f"{PODS}?watch=1", began):
        if b'"Running"' not in line:
            continue
        found = json.loads(line)["object"]
        if found["status"]["phase"] == "Running":
            running.add(found["metadata"]["name"])
        if len(running) == pods:
            return


if __name__ == "__main__":
    sys.exit(main())
