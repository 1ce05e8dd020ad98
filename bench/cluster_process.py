"""An embedded cluster as a process of its own, `cluster_server`, which a benchmark measures from outside."""

import http.client
import json
import os
import resource
import signal
import ssl
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench import processes
from bench.cluster_server import RESOURCE

__all__ = ["PODS", "SOURCE", "ApiConnection", "ClusterProcess", "running_cluster"]

PODS = "/api/v1/namespaces/default/pods"
SOURCE = Path(__file__).parent.parent / "src"
_TIMEOUT = 120.0
_LOOK = 0.1  # seconds


class ApiConnection:
    """A connection to an API server, used by one thread."""

    def __init__(self, port: int, certificate: Path, token: str) -> None:
        trust = ssl.create_default_context(cafile=str(certificate))
        self._connection = http.client.HTTPSConnection("127.0.0.1", port, context=trust, timeout=_TIMEOUT)
        self._authorization = {"Authorization": f"Bearer {token}"}

    @classmethod
    def embedded(cls, port: int, state: Path) -> "ApiConnection":
        """To the API server of an embedded cluster with this state directory."""
        return cls(port, state / "ca.crt", json.loads((state / "access.json").read_text())["token"])

    def ask(self, method: str, path: str, body: object = None) -> bytes:
        headers = {**self._authorization, "Content-Type": "application/json"}
        self._connection.request(method, path, json.dumps(body) if body else None, headers)
        response = self._connection.getresponse()
        content = response.read()
        if response.status >= http.client.BAD_REQUEST:
            raise SystemExit(f"bench: {method} {path}: {content[:200]!r}")
        return content

    def lines(self, path: str, began: threading.Event) -> Iterator[bytes]:
        """The lines of an answer that does not end; `began` is set when it has begun."""
        self._connection.request("GET", path, headers=self._authorization)
        response = self._connection.getresponse()
        began.set()
        while line := response.readline():
            yield line


@dataclass(frozen=True, slots=True)
class ClusterProcess:
    state: Path
    pid: int
    port: int
    up: float  # seconds from the start of the process until every node listed its devices

    def connection(self) -> ApiConnection:
        return ApiConnection.embedded(self.port, self.state)

    def cpu(self) -> float:
        """Seconds of user and system time that the process has used."""
        return processes.cpu_seconds(self.pid)

    def most_rss(self) -> float:
        """MiB."""
        return processes.most_rss(self.pid)

    def count(self, kind: str) -> int:
        """The entries of a directory of the process in /proc, as `fd` and `task`."""
        return len(list(Path(f"/proc/{self.pid}", kind).iterdir()))

    def measure_pauses(self) -> None:
        os.kill(self.pid, signal.SIGUSR1)

    def longest_pause(self) -> tuple[float, float]:
        """Since `measure_pauses`: in seconds that passed, and in seconds of CPU time."""
        os.kill(self.pid, signal.SIGUSR1)
        written = self.state.with_suffix(".pauses")
        while not written.exists():
            time.sleep(0.01)
        passed, cpu = json.loads(written.read_text())
        return passed, cpu


@contextmanager
def running_cluster(nodes: int, devices: int, source: Path = SOURCE) -> Iterator[ClusterProcess]:
    """`source` is the directory of the package that it is started from."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))  # for versions that do not do it themselves
    with tempfile.TemporaryDirectory(prefix="bench-") as directory:
        state = Path(directory, "state")
        command = [sys.executable, "-m", "bench.cluster_server", str(nodes), str(devices), str(state)]
        environment = {**os.environ, "PYTHONPATH": f"{source}{os.pathsep}{SOURCE.parent}"}
        began = time.perf_counter()
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
        try:
            assert process.stdout is not None
            port = int(process.stdout.readline() or 0)
            _wait_for_devices(ApiConnection.embedded(port, state), nodes, devices)
            yield ClusterProcess(state, process.pid, port, time.perf_counter() - began)
        finally:
            process.terminate()
            process.wait()


def _wait_for_devices(connection: ApiConnection, nodes: int, devices: int) -> None:
    end = time.monotonic() + _TIMEOUT
    while time.monotonic() < end:
        listed = json.loads(connection.ask("GET", "/api/v1/nodes"))["items"]
        if sum(_is_ready(node, devices) for node in listed) == nodes:
            return
        time.sleep(_LOOK)
    raise SystemExit("bench: the devices did not appear")


def _is_ready(node: Any, devices: int) -> bool:
    ready = {condition["type"]: condition["status"] for condition in node["status"]["conditions"]}["Ready"]
    return bool(ready == "True" and node["status"]["allocatable"].get(RESOURCE) == str(devices))
