"""What plugwright costs on a real node: how pods start with and without it, and what churn does to its memory.

    python -m tests.kubernetes.measuring [PODS]

Prints a table; nothing is asserted. Pods with a device and pods without take turns, so that both see the same machine.
"""

import os
import statistics
import sys
import time
from pathlib import Path

from tests.kubernetes import building, machine
from tests.kubernetes.cluster import Cluster
from tests.kubernetes.node import Node
from tests.kubernetes.pods import Pods
from tests.kubernetes.serving import Plugins

__all__ = ["main"]

_RESOURCE = "mock/churn"


def main(count: int) -> None:
    version = building.DEFAULT_VERSION
    machine.install_packages()
    with Cluster(version) as cluster:
        plugins, pods = Plugins(cluster), Pods(cluster.kubectl)
        daemon = plugins.run({_RESOURCE: {"count": 32}})
        Node(cluster).shows(_RESOURCE, capacity=32, allocatable=32)
        before = _rss(daemon.process.pid)
        times = _churn(pods, count)
        after = _rss(daemon.process.pid)
        asked = len(daemon.logged("allocated", resource=_RESOURCE))
        plugins.end()
    _show(version, times, f"{before:.1f} MiB before, {after:.1f} MiB after {asked} allocations")


def _churn(pods: Pods, count: int) -> dict[str, list[float]]:
    times: dict[str, list[float]] = {"without": [], "with": []}
    for number in range(count):
        for kind, wants in (("without", {}), ("with", {_RESOURCE: 1})):
            name = f"{kind}-{number}"
            began = time.monotonic()
            pods.create(name, wants).runs()
            times[kind].append(time.monotonic() - began)
            pods.delete(name)
    return times


def _rss(pid: int) -> float:
    line = next(each for each in Path(f"/proc/{pid}/status").read_text().splitlines() if each.startswith("VmRSS"))
    return int(line.split()[1]) / 1024


def _show(version: str, times: dict[str, list[float]], memory: str) -> None:
    print(f"Kubernetes {version}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}\n")
    print("| pod created → running | pods | median | lowest | highest |\n|---|---|---|---|---|")
    for kind, seconds in times.items():
        shown = " | ".join(f"{value:.2f} s" for value in (statistics.median(seconds), min(seconds), max(seconds)))
        print(f"| {kind} a device | {len(seconds)} | {shown} |")
    print(f"\nmemory of the daemon: {memory}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if sys.argv[1:] else 100)
