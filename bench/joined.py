"""`python -m bench.joined`: hundreds of joined nodes on the real control plane, beside another program's nodes.

etcd, kube-apiserver, scheduler and controller-manager are the real ones (`tests/kubernetes`), new for every repeat, and
share the machine with what is measured. The scheduler and the controllers have no limit on their requests, so that
the machine decides. `plugwright join` brings the nodes; with `--peer`, that program in turn, to nodes of the same
shape which it finds in the API server. Requests are counted by the API server. CPU time is reported beside the time
that passed: on a machine that does other work too, only the former compares.

With `--claims` the devices are served by claims: a pod has a claim of a template, with one device. A peer's nodes get
their ResourceSlices from here, and nobody prepares its claims.
"""

import argparse
import json
import os
import re
import shlex
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from bench import table
from bench.cluster_process import PODS, SOURCE, ApiConnection
from bench.cluster_server import RESOURCE
from bench.processes import ProcessFailed, cpu_seconds, most_rss, started, tail
from bench.table import Bar, Row
from tests.kubernetes.control_plane import CONTEXT, ControlPlane, control_plane

__all__ = ["main"]

_DEVICES = 8
_CREATORS = 4
_TIMEOUT = 300.0
_LOOK = 1.0  # seconds
_SETTLED = 15.0  # seconds: every node has sent its first heartbeat
_OWN_LEASES = 0.1  # a second, that the API server writes for itself
_NO_LIMITS = ("--kube-api-qps=5000", "--kube-api-burst=10000")
_FLAGS = {
    "kube-scheduler": _NO_LIMITS,
    "kube-controller-manager": (*_NO_LIMITS, "--node-monitor-grace-period=40s", "--node-monitor-period=5s"),
}
_NAME = re.compile(rb'"metadata":\{"name":"([^"]+)"')
_REQUESTS = re.compile(r"apiserver_request_total\{([^}]*)\} (\S+)")
_TOLERATION = {"key": "plugwright.dev/emulated", "operator": "Exists"}
_DRIVER = "gpu.mock"  # of the resource, where it is served by claims
_SLICES = "/apis/resource.k8s.io/v1/resourceslices"


@dataclass(frozen=True, slots=True)
class _Size:
    nodes: int
    idle: float  # seconds
    claims: bool = False

    @property
    def batches(self) -> dict[str, int]:
        """Of pods: one for each device, and others without."""
        return {"device": self.nodes * _DEVICES, "plain": self.nodes * 2}


_FULL, _QUICK = _Size(500, 60.0), _Size(20, 10.0)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.joined", description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="twenty nodes, one repeat")
    parser.add_argument("--repeat", type=int, metavar="N", help="repeats (default 3, quick 1)")
    parser.add_argument(
        "--peer", metavar="COMMAND", help="brings nodes to life too; {kubeconfig} in it is filled in; in turn with ours"
    )
    parser.add_argument("--claims", action="store_true", help="devices are served by claims")
    options = parser.parse_args(arguments)
    size = replace(_QUICK if options.quick else _FULL, claims=options.claims)
    programs: dict[str, Program] = {"ours": _join}
    if options.peer:
        programs["peer"] = lambda plane, size, log: _peer(options.peer, plane, size, log)
    samples: dict[str, dict[str, list[float]]] = {name: {} for name in programs}
    for repeat in range(options.repeat or (1 if options.quick else 3)):
        for name, program in programs.items():
            print(f"repeat {repeat + 1}: {name}, load {os.getloadavg()[0]:.1f}", file=sys.stderr)
            measured = _measure(program, size)
            print(json.dumps(measured), file=sys.stderr)
            for key, value in measured.items():
                samples[name].setdefault(key, []).append(value)
    print(f"- load: {os.getloadavg()[0]:.1f}; cells: median (lowest-highest); peer: {options.peer or 'none'}\n")
    print(table.render(_rows(size), samples["ours"], samples.get("peer")))
    return 0


def _rows(size: _Size) -> list[Row]:
    nodes, rows = f"{size.nodes:,} nodes", []
    rows += [
        Row(f"{nodes}, {_DEVICES} devices each: start → all can be scheduled to", "up_s", "s"),
        Row(f"{nodes}: CPU time of the start", "up_cpu_s", "s"),
        Row(f"{nodes}: most memory after the start", "up_rss_mib", "MiB", digits=0),
        Row("idle, of a core", "idle_percent", "%"),
        Row("idle, the control plane, of a core", "idle_plane_percent", "%"),
        Row("leases written, a node and minute", "leases", "", Bar(6.1), 2),
        Row("node statuses written, a node and minute", "statuses", "", Bar(0.21), 2),
        Row("all other writes, a node and minute", "others", "", digits=2),
    ]
    for batch, label in (("device", "with a device each"), ("plain", "without devices")):
        pods = f"{size.batches[batch]:,} pods {label}"
        rows += [
            Row(f"{pods}: bound", f"{batch}_bound_rate", "/s", digits=0),
            Row(f"{pods}: Ready", f"{batch}_ready_rate", "/s", digits=0),
            Row(f"{pods}: the last is Ready after the last is bound", f"{batch}_lag_s", "s", digits=2),
            Row(f"{pods}: CPU time", f"{batch}_cpu_s", "s"),
            Row(f"{pods}: CPU time of the control plane", f"{batch}_plane_cpu_s", "s"),
            Row(f"{pods}: statuses written a pod", f"{batch}_statuses", "", digits=2),
            Row(f"{pods}: events written a pod", f"{batch}_events", "", digits=2),
        ]
    return [*rows, Row(f"{nodes}, {sum(size.batches.values()):,} pods: most memory", "pods_rss_mib", "MiB", digits=0)]


Program = Callable[[ControlPlane, _Size, Path], Any]  # a context manager with its pid


def _measure(program: Program, size: _Size) -> dict[str, float]:
    with tempfile.TemporaryDirectory(prefix="bench-") as directory:
        log = Path(directory, "log")
        with control_plane(Path(directory), _FLAGS) as plane:
            server, began = _Server(plane), time.perf_counter()
            with program(plane, size, log) as pid:
                try:
                    server.wait_for_nodes(size)
                    if size.claims:
                        server.create_template()
                    return _measure_nodes(server, pid, size, time.perf_counter() - began)
                except OSError as error:
                    raise SystemExit(f"bench: {error}\n{tail(log)}") from error


def _measure_nodes(server: "_Server", pid: int, size: _Size, up: float) -> dict[str, float]:
    """What could not be measured is said, and left out."""
    measured = {"up_s": up, "up_cpu_s": cpu_seconds(pid), "up_rss_mib": most_rss(pid)}
    time.sleep(_SETTLED)
    idle = _Used.between(server, pid, lambda: time.sleep(size.idle))
    measured["idle_percent"] = idle.cpu / idle.seconds * 100
    measured["idle_plane_percent"] = idle.plane_cpu / idle.seconds * 100
    node_minutes = size.nodes * idle.seconds / 60
    written = {"leases": idle.requests["leases"], "statuses": idle.requests["nodes/status"]}
    written["others"] = idle.requests.total() - sum(written.values())
    written["leases"] -= round(idle.seconds * _OWN_LEASES)
    measured |= {name: count / node_minutes for name, count in written.items()}
    for batch, pods in size.batches.items():
        try:
            measured |= _measure_pods(server, pid, pods, _Batch(batch, _pod_spec(batch, size.claims)))
        except ProcessFailed as error:
            print(f"note: {error}", file=sys.stderr)
            return measured
    return {**measured, "pods_rss_mib": most_rss(pid)}


def _pod_spec(batch: str, claims: bool) -> dict[str, object]:
    container: dict[str, object] = {"name": "main", "image": "busybox:1"}
    spec = {"containers": [container], "tolerations": [_TOLERATION]}
    if batch == "device" and claims:
        container["resources"] = {"claims": [{"name": "gpu"}]}
        return {**spec, "resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "one"}]}
    container["resources"] = {"limits": {RESOURCE: "1"} if batch == "device" else {}}
    return spec


@dataclass(frozen=True, slots=True)
class _Batch:
    name: str
    spec: dict[str, object]  # of its pods


def _measure_pods(server: "_Server", pid: int, pods: int, batch: _Batch) -> dict[str, float]:
    watched = _Watched(batch.name)
    watcher = threading.Thread(target=watched.watch, args=(server, pods), daemon=True)
    watcher.start()
    watched.began.wait(_TIMEOUT)

    def create(numbers: range) -> None:
        connection = server.connection()
        for number in numbers:
            connection.ask("POST", PODS, {"metadata": {"name": f"{batch.name}-{number}"}, "spec": batch.spec})

    def play() -> None:
        threads = [threading.Thread(target=create, args=(range(n, pods, _CREATORS),)) for n in range(_CREATORS)]
        for thread in threads:
            thread.start()
        for thread in (*threads, watcher):
            thread.join(_TIMEOUT)

    began = time.perf_counter()
    used = _Used.between(server, pid, play)
    if len(watched.ready) < pods:
        raise ProcessFailed(f"of {pods} pods {len(watched.bound)} were bound and {len(watched.ready)} Ready")
    bound, ready = max(watched.bound.values()), max(watched.ready.values())
    return {
        f"{batch.name}_bound_rate": pods / (bound - began),
        f"{batch.name}_ready_rate": pods / (ready - began),
        f"{batch.name}_lag_s": ready - bound,
        f"{batch.name}_cpu_s": used.cpu,
        f"{batch.name}_plane_cpu_s": used.plane_cpu,
        f"{batch.name}_statuses": used.requests["pods/status"] / pods,
        f"{batch.name}_events": used.requests["events"] / pods,
    }


@dataclass(slots=True)
class _Watched:
    """When each pod of a batch was seen bound and Ready."""

    batch: str
    began: threading.Event = field(default_factory=threading.Event)
    bound: dict[bytes, float] = field(default_factory=dict)
    ready: dict[bytes, float] = field(default_factory=dict)

    def watch(self, server: "_Server", pods: int) -> None:
        """Until all are Ready; a server ends the watch of a client that reads too slowly, and a new one begins."""
        end = time.monotonic() + _TIMEOUT
        while len(self.ready) < pods and time.monotonic() < end:
            with suppress(TimeoutError):
                for line in server.connection().lines(f"{PODS}?watch=1", self.began):
                    self._take(line)
                    if len(self.ready) == pods:
                        return

    def _take(self, line: bytes) -> None:
        found = _NAME.search(line)
        if found is None or not found[1].startswith(self.batch.encode()) or b'"nodeName":"' not in line:
            return
        self.bound.setdefault(found[1], time.perf_counter())
        if found[1] not in self.ready and b'"phase":"Running"' in line and _is_true(json.loads(line)["object"]):
            self.ready[found[1]] = time.perf_counter()


@dataclass(frozen=True, slots=True)
class _Used:
    """Seconds of CPU time, and the writes that the API server has answered, while something was done."""

    seconds: float
    cpu: float
    plane_cpu: float
    requests: Counter[str]

    @classmethod
    def between(cls, server: "_Server", pid: int, work: Callable[[], None]) -> "_Used":
        before, cpu, plane, began = server.writes(), cpu_seconds(pid), server.cpu(), time.perf_counter()
        work()
        seconds = time.perf_counter() - began
        return cls(seconds, cpu_seconds(pid) - cpu, server.cpu() - plane, server.writes() - before)


@dataclass(frozen=True, slots=True)
class _Server:
    plane: ControlPlane

    def connection(self) -> ApiConnection:
        return ApiConnection(self.plane.port, self.plane.certificate, self.plane.token)

    def cpu(self) -> float:
        return sum(map(cpu_seconds, self.plane.pids.values()))

    def writes(self) -> Counter[str]:
        """How many there were so far, by resource with its subresource."""
        counts: Counter[str] = Counter()
        for labels, value in _REQUESTS.findall(self.connection().ask("GET", "/metrics").decode()):
            label = dict(re.findall(r'(\w+)="([^"]*)"', labels))
            if label["verb"] in ("POST", "PUT", "PATCH", "APPLY", "DELETE"):
                counts["/".join(filter(None, (label["resource"], label["subresource"])))] += int(float(value))
        return counts

    def wait_for_nodes(self, size: _Size) -> None:
        end, connection = time.monotonic() + _TIMEOUT, self.connection()
        while time.monotonic() < end:
            nodes = json.loads(connection.ask("GET", "/api/v1/nodes"))["items"]
            usable = sum(_is_usable(node, size.claims) for node in nodes)
            slices = json.loads(connection.ask("GET", _SLICES))["items"] if size.claims else ()
            if usable == size.nodes and (not size.claims or len(slices) == size.nodes):
                return
            time.sleep(_LOOK)
        raise ProcessFailed(f"of {size.nodes} nodes {usable} are Ready with their devices")

    def create_template(self) -> None:
        """The class of the devices, and the template of the claims that ask for one."""
        connection, api = self.connection(), "/apis/resource.k8s.io/v1"
        selector = {"cel": {"expression": f"device.driver == '{_DRIVER}'"}}
        connection.ask(
            "POST", f"{api}/deviceclasses", {"metadata": {"name": _DRIVER}, "spec": {"selectors": [selector]}}
        )
        request = {"name": "gpu", "exactly": {"deviceClassName": _DRIVER}}
        template = {"metadata": {"name": "one"}, "spec": {"spec": {"devices": {"requests": [request]}}}}
        connection.ask("POST", f"{api}/namespaces/default/resourceclaimtemplates", template)


def _is_usable(node: Any, claims: bool) -> bool:
    taints = {taint["key"] for taint in node["spec"].get("taints") or ()}
    devices = node["status"].get("allocatable", {}).get(RESOURCE)
    return _is_true(node) and (claims or devices == str(_DEVICES)) and taints <= {_TOLERATION["key"]}


def _is_true(found: Any) -> bool:
    conditions = found["status"].get("conditions") or ()
    return any(condition["type"] == "Ready" and condition["status"] == "True" for condition in conditions)


@contextmanager
def _join(plane: ControlPlane, size: _Size, log: Path) -> Iterator[int]:
    nodes = log.with_name("nodes.yaml")
    serve = "dra" if size.claims else "device-plugin"
    resource = f"{{name: {RESOURCE}, mock: {{count: {_DEVICES}}}, serve: {serve}}}"
    nodes.write_text(f"nodes:\n  - {{name: bench, count: {size.nodes}, resources: [{resource}]}}\n")
    flags = ("--context", CONTEXT, "--kubeconfig", str(plane.kubeconfig), "-f", str(nodes))
    environment = {**os.environ, "PYTHONPATH": str(SOURCE)}
    with started([sys.executable, "-m", "plugwright", "join", *flags], log, env=environment) as process:
        yield process.pid
        process.terminate()
        process.wait(_TIMEOUT)  # it deletes its nodes and their pods


@contextmanager
def _peer(command: str, plane: ControlPlane, size: _Size, log: Path) -> Iterator[int]:
    """It gets nodes that somebody else has created."""
    argv = [word.replace("{kubeconfig}", str(plane.kubeconfig)) for word in shlex.split(command)]
    with started(argv, log) as process:
        connection = _Server(plane).connection()
        amounts = {"cpu": "16", "memory": "64Gi", "pods": "110", "ephemeral-storage": "100Gi"}
        amounts |= {} if size.claims else {RESOURCE: str(_DEVICES)}
        for number in range(size.nodes):
            name = f"bench-{number + 1}"
            metadata = {"name": name, "labels": {"kubernetes.io/hostname": name}}
            status = {"capacity": amounts, "allocatable": amounts}
            connection.ask("POST", "/api/v1/nodes", {"metadata": metadata, "status": status})
            if size.claims:
                devices = [{"name": f"mock-{device}"} for device in range(_DEVICES)]
                pool = {"name": name, "generation": 1, "resourceSliceCount": 1}
                spec = {"driver": _DRIVER, "nodeName": name, "pool": pool, "devices": devices}
                connection.ask("POST", _SLICES, {"metadata": {"name": name}, "spec": spec})
        yield process.pid


if __name__ == "__main__":
    sys.exit(main())
