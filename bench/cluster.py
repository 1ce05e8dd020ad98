"""`python -m bench.cluster`: the embedded cluster with a hundred nodes and a thousand pods, measured by its clients.

The cluster is a process of its own. Pods of one device are created over HTTPS one after the other, while a watcher on
another connection sees every pod added, bound and running. The time of a watch event is from sending the create request
to the watcher's receipt. The result is only reported, never a failure.
"""

import argparse
import asyncio
import http.client
import json
import signal
import ssl
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import quantiles

from bench import table
from bench.table import Bar, Row

__all__ = ["main"]

BIG, SMALL = (100, 1_000), (10, 100)  # nodes, pods
DEVICES = 8
_TOKEN = "bench"
_TIMEOUT = 120.0
_PODS = "/api/v1/namespaces/default/pods"
_RESOURCE = "mock/gpu"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.cluster", description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="one repeat")
    parser.add_argument("--repeat", type=int, metavar="N", help="repeats (default 3, quick 1)")
    parser.add_argument("--serve", nargs=2, metavar=("NODES", "DIRECTORY"), help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.serve:
        asyncio.run(_serve(int(options.serve[0]), Path(options.serve[1])))
        return 0
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
    began = time.perf_counter()
    with _cluster(nodes) as (client, process):
        up = time.perf_counter()
        _wait_for_devices(client, nodes)
        watched = _Watched()
        watcher = threading.Thread(target=_watch, args=(client, watched, pods), daemon=True)
        watcher.start()
        if not watched.began.wait(_TIMEOUT):
            raise SystemExit("bench: the watch did not begin")
        first = time.perf_counter()
        _create(client, pods)
        watcher.join(_TIMEOUT)
        if len(watched.running) < pods:
            raise SystemExit(f"bench: only {len(watched.running)} of {pods} pods ran")
        seconds = watched.last - first
        cuts = quantiles(watched.delays, n=100)
        return {
            f"up_ms_{nodes}": (up - began) * 1000,
            f"pod_ms_{nodes}": seconds / pods * 1000,
            f"rate_{nodes}": pods / seconds,
            f"watch_p50_ms_{nodes}": cuts[49] * 1000,
            f"watch_p99_ms_{nodes}": cuts[98] * 1000,
            f"rss_mib_{nodes}": _peak_mib(process.pid),
        }


@dataclass(slots=True)
class _Watched:
    """The watcher's observations; times are seconds."""

    began: threading.Event = field(default_factory=threading.Event)
    delays: list[float] = field(default_factory=list)
    running: set[str] = field(default_factory=set)
    last: float = 0.0


@dataclass(frozen=True, slots=True)
class _Client:
    port: int
    trust: ssl.SSLContext

    def connection(self) -> http.client.HTTPSConnection:
        return http.client.HTTPSConnection("127.0.0.1", self.port, context=self.trust, timeout=_TIMEOUT)

    def ask(self, connection: http.client.HTTPSConnection, method: str, path: str, body: object = None) -> bytes:
        headers = {"Authorization": f"Bearer {_TOKEN}", "Content-Type": "application/json"}
        connection.request(method, path, json.dumps(body) if body else None, headers)
        response = connection.getresponse()
        content = response.read()
        if response.status >= http.client.BAD_REQUEST:
            raise SystemExit(f"bench: {method} {path}: {content[:200]!r}")
        return content


def _wait_for_devices(client: _Client, nodes: int) -> None:
    connection, end = client.connection(), time.monotonic() + _TIMEOUT
    while time.monotonic() < end:
        listed = json.loads(client.ask(connection, "GET", "/api/v1/nodes"))["items"]
        ready = [node for node in listed if node["status"]["allocatable"].get(_RESOURCE) == str(DEVICES)]
        if len(ready) == nodes:
            return
        time.sleep(0.05)
    raise SystemExit("bench: the devices did not appear")


def _create(client: _Client, pods: int) -> None:
    connection = client.connection()
    container = {"name": "main", "image": "busybox:1", "resources": {"limits": {_RESOURCE: "1"}}}
    for number in range(pods):
        # There are eight devices for every ten pods: two of ten request none.
        chosen = container if number % 10 < DEVICES else {"name": "main", "image": "busybox:1"}
        annotations = {"bench/sent": repr(time.perf_counter())}
        pod = {"metadata": {"name": f"pod-{number}", "annotations": annotations}, "spec": {"containers": [chosen]}}
        client.ask(connection, "POST", _PODS, pod)


def _watch(client: _Client, watched: _Watched, pods: int) -> None:
    connection = client.connection()
    connection.request("GET", f"{_PODS}?watch=1&resourceVersion=1", headers={"Authorization": f"Bearer {_TOKEN}"})
    response = connection.getresponse()
    watched.began.set()
    while len(watched.running) < pods and (line := response.readline()):
        now = time.perf_counter()
        event = json.loads(line)
        metadata = event["object"]["metadata"]
        if event["type"] == "ADDED":
            watched.delays.append(now - float(metadata["annotations"]["bench/sent"]))
        elif event["object"]["status"].get("phase") == "Running":
            watched.running.add(metadata["name"])
            watched.last = now


@contextmanager
def _cluster(nodes: int) -> Iterator[tuple[_Client, "subprocess.Popen[str]"]]:
    with tempfile.TemporaryDirectory(prefix="bench-") as directory:
        command = [sys.executable, "-m", "bench.cluster", "--serve", str(nodes), directory]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        try:
            assert process.stdout is not None
            port = int(process.stdout.readline() or 0)
            yield _Client(port, ssl.create_default_context(cafile=str(Path(directory, "ca.crt")))), process
        finally:
            process.terminate()
            process.wait()


def _peak_mib(pid: int) -> float:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmHWM")).split()[1]) / 1024


async def _serve(nodes: int, directory: Path) -> None:
    import uvicorn

    from plugwright.cluster import tls
    from plugwright.cluster.embedded import ClusterOptions, EmbeddedCluster
    from plugwright.plugins.mock import Mock, MockOptions
    from plugwright.sdk.plugin import Plugin

    def plugins(node: str) -> list[Plugin]:
        return [Mock(_RESOURCE, MockOptions(count=DEVICES, seed=node))]

    certificates = tls.make(directory)
    async with EmbeddedCluster(ClusterOptions(nodes=nodes, plugins=plugins, token=_TOKEN)) as cluster:
        config = uvicorn.Config(cluster.application, port=0, log_level="error", lifespan="off")
        config.ssl_certfile, config.ssl_keyfile = str(certificates.certificate), str(certificates.key)
        server = uvicorn.Server(config)
        # Not `serve()`: its signal handling ends the process before the cluster has removed its directories.
        serving = asyncio.create_task(server._serve())
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, server.handle_exit, signal.SIGTERM, None)
        while not server.started:
            await asyncio.sleep(0.01)
        print(server.servers[0].sockets[0].getsockname()[1], flush=True)
        await serving


if __name__ == "__main__":
    sys.exit(main())
