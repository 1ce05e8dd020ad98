"""`python -m bench.cluster`: the embedded cluster with a hundred nodes and a thousand pods, measured by its clients.

The cluster is a process of its own. Pods of one device are created over HTTPS one after the other, while a watcher on
another connection sees every pod added, bound and running. The time of a watch event is from sending the create request
to the watcher's receipt. The result is only reported, never a failure.
"""

import argparse
import json
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import quantiles

from bench import table
from bench.cluster_process import PODS, ApiConnection, running_cluster
from bench.cluster_server import RESOURCE
from bench.table import Bar, Row

__all__ = ["main"]

BIG, SMALL = (100, 1_000), (10, 100)  # nodes, pods
DEVICES = 8
_TIMEOUT = 120.0


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.cluster", description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="one repeat")
    parser.add_argument("--repeat", type=int, metavar="N", help="repeats (default 3, quick 1)")
    options = parser.parse_args(arguments)
    samples: dict[str, list[float]] = {}
    for _ in range(options.repeat or (1 if options.quick else 3)):
        for size in (SMALL, BIG):
            for key, value in _measure(*size).items():
                samples.setdefault(key, []).append(value)
        pair = samples[f"pod_ms_{BIG[0]}"][-1], samples[f"pod_ms_{SMALL[0]}"][-1]
        samples.setdefault("growth", []).append(pair[0] / pair[1])
    print(table.render(_rows(), samples, None))
    return 0


def _rows() -> list[Row]:
    rows = []
    for nodes, pods in (SMALL, BIG):
        label = f"{nodes} nodes x {DEVICES} devices, {pods:,} pods"
        big = nodes == BIG[0]
        rows += [
            Row(f"{label}: up", f"up_ms_{nodes}", "ms", digits=0),
            Row(f"{label}: a pod scheduled and running", f"pod_ms_{nodes}", "ms", Bar(10) if big else None, 2),
            Row(f"{label}: pods/s", f"rate_{nodes}", "/s", digits=0),
            Row(f"{label}: watch event p50", f"watch_p50_ms_{nodes}", "ms"),
            Row(f"{label}: watch event p99", f"watch_p99_ms_{nodes}", "ms", Bar(100) if big else None),
            Row(f"{label}: most RSS", f"rss_mib_{nodes}", "MiB", Bar(300) if big else None),
        ]
    return [*rows, Row("a pod's cost, ten times as many of both", "growth", "x", Bar(1.5), 2)]


def _measure(nodes: int, pods: int) -> dict[str, float]:
    with running_cluster(nodes, DEVICES) as cluster:
        watched = _Watched()
        watcher = threading.Thread(target=_watch, args=(cluster.connection(), watched, pods), daemon=True)
        watcher.start()
        if not watched.began.wait(_TIMEOUT):
            raise SystemExit("bench: the watch did not begin")
        first = time.perf_counter()
        _create(cluster.connection(), pods)
        watcher.join(_TIMEOUT)
        if len(watched.running) < pods:
            raise SystemExit(f"bench: only {len(watched.running)} of {pods} pods ran")
        seconds = watched.last - first
        cuts = quantiles(watched.delays, n=100)
        return {
            f"up_ms_{nodes}": cluster.up * 1000,
            f"pod_ms_{nodes}": seconds / pods * 1000,
            f"rate_{nodes}": pods / seconds,
            f"watch_p50_ms_{nodes}": cuts[49] * 1000,
            f"watch_p99_ms_{nodes}": cuts[98] * 1000,
            f"rss_mib_{nodes}": cluster.most_rss(),
        }


@dataclass(slots=True)
class _Watched:
    """The watcher's observations; times are seconds."""

    began: threading.Event = field(default_factory=threading.Event)
    delays: list[float] = field(default_factory=list)
    running: set[str] = field(default_factory=set)
    last: float = 0.0


def _create(connection: ApiConnection, pods: int) -> None:
    container = {"name": "main", "image": "busybox:1", "resources": {"limits": {RESOURCE: "1"}}}
    for number in range(pods):
        # There are eight devices for every ten pods: two of ten request none.
        chosen = container if number % 10 < DEVICES else {"name": "main", "image": "busybox:1"}
        annotations = {"bench/sent": repr(time.perf_counter())}
        pod = {"metadata": {"name": f"pod-{number}", "annotations": annotations}, "spec": {"containers": [chosen]}}
        connection.ask("POST", PODS, pod)


def _watch(connection: ApiConnection, watched: _Watched, pods: int) -> None:
    for line in connection.lines(f"{PODS}?watch=1&resourceVersion=1", watched.began):
        now = time.perf_counter()
        event = json.loads(line)
        metadata = event["object"]["metadata"]
        if event["type"] == "ADDED":
            watched.delays.append(now - float(metadata["annotations"]["bench/sent"]))
        elif event["object"]["status"].get("phase") == "Running":
            watched.running.add(metadata["name"])
            watched.last = now
        if len(watched.running) == pods:
            return


if __name__ == "__main__":
    sys.exit(main())
