"""An API server that lists pods and carries out `exec` by WebSockets, as a process of this machine."""

import base64
import hashlib
import json
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import yaml

__all__ = ["ExecServer", "daemon_pod", "exec_server", "frame"]

_MAGIC = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"


def daemon_pod(name: str, node: str = "worker-1") -> dict[str, Any]:
    metadata = {"namespace": "devices", "name": name, "labels": {"app.kubernetes.io/name": "plugwright"}}
    spec = {"nodeName": node, "containers": [{"name": "plugwright"}]}
    return {"metadata": metadata, "spec": spec, "status": {"phase": "Running"}}


class ExecServer:
    """`sockets` are the control sockets of the pods' daemons, `requests` the paths with their queries."""

    def __init__(self, pods: Sequence[Mapping[str, Any]], sockets: Mapping[str, Path]) -> None:
        self.pods, self.sockets = pods, sockets
        self.requests: list[str] = []
        self.lists: dict[str, list[Mapping[str, Any]]] = {}  # other lists, by path
        self.objects: dict[str, Mapping[str, Any]] = {}  # by path
        self.proxied: dict[str, int] = {}  # ports of this machine that answer requests, by the beginning of their paths
        self.environment: dict[str, str] = {}  # of the pods' commands
        self.frames: list[bytes] | None = None  # sent instead of running a command
        self.url = ""

    def kubeconfig(self, path: Path) -> Path:
        context = {"name": "c", "context": {"cluster": "c", "user": "c"}}
        clusters, users = [{"name": "c", "cluster": {"server": self.url}}], [{"name": "c", "user": {"token": "t"}}]
        text = {"clusters": clusters, "users": users, "contexts": [context], "current-context": "c"}
        path.write_text(yaml.safe_dump({"apiVersion": "v1", "kind": "Config", **text}))
        return path

    def selected(self, query: Mapping[str, list[str]]) -> list[Mapping[str, Any]]:
        fields = dict(part.split("=") for part in query.get("fieldSelector", [""])[0].split(",") if part)
        node = fields.get("spec.nodeName")
        return [pod for pod in self.pods if node in (None, pod["spec"]["nodeName"])]


def frame(channel: int, content: bytes) -> bytes:
    """A frame of a server: unmasked, with its channel before the content."""
    payload = bytes([channel]) + content
    size = len(payload)
    if size < 126:
        return bytes([0x82, size]) + payload
    return (b"\x82\x7e" + struct.pack("!H", size) if size < 2**16 else b"\x82\x7f" + struct.pack("!Q", size)) + payload


def _frames_of(command: list[str], environment: Mapping[str, str]) -> Iterator[bytes]:
    with subprocess.Popen(
        [sys.executable, "-m", *command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env={**environment}
    ) as process:
        try:
            assert process.stdout is not None
            for line in process.stdout:
                for start in range(0, len(line), 1000):
                    yield frame(1, line[start : start + 1000])
            assert process.stderr is not None
            yield frame(2, process.stderr.read())
            code = process.wait()
        finally:
            process.kill()
    causes = [{"reason": "ExitCode", "message": str(code)}]
    failure = {"status": "Failure", "reason": "NonZeroExitCode", "message": "failed", "details": {"causes": causes}}
    yield frame(3, json.dumps({"status": "Success"} if code == 0 else failure).encode())


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    served: ExecServer

    def do_GET(self) -> None:
        self.served.requests.append(self.path)
        parts = urlsplit(self.path)
        query = parse_qs(parts.query)
        if parts.path.endswith("/exec"):
            self._exec(parts.path.split("/")[-2], query)
        elif parts.path.endswith("/pods"):
            self._answer({"kind": "PodList", "metadata": {}, "items": self.served.selected(query)})
        elif parts.path == "/version":
            self._answer({"gitVersion": "v1.36.4"})
        elif target := next((path for path in self.served.proxied if parts.path.startswith(path)), ""):
            self._pass_on(self.served.proxied[target], parts.path.removeprefix(target))
        elif parts.path in self.served.objects:
            self._answer(self.served.objects[parts.path])
        elif parts.path in self.served.lists:
            self._answer({"kind": "List", "metadata": {}, "items": self.served.lists[parts.path]})
        else:
            self._answer({"kind": "Status", "message": "no such path"}, 404)

    def _answer(self, document: object, code: int = 200) -> None:
        body = json.dumps(document).encode()
        self.send_response(code)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _pass_on(self, port: int, path: str) -> None:
        """Waits for the port as long as the port's process lives."""
        self.close_connection = True
        with socket.create_connection(("127.0.0.1", port)) as peer, suppress(OSError):
            peer.sendall(f"GET /{path} HTTP/1.0\r\n\r\n".encode())
            while octets := peer.recv(2**16):
                self.wfile.write(octets)

    def _exec(self, pod: str, query: Mapping[str, list[str]]) -> None:
        digest = hashlib.sha1((self.headers["Sec-WebSocket-Key"] + _MAGIC).encode()).digest()
        assert "v4.channel.k8s.io" in self.headers["Sec-WebSocket-Protocol"]
        self.send_response(101)
        for name, text in {
            "Upgrade": "websocket",
            "Connection": "Upgrade",
            "Sec-WebSocket-Accept": base64.b64encode(digest).decode(),
            "Sec-WebSocket-Protocol": "v5.channel.k8s.io",
        }.items():
            self.send_header(name, text)
        self.end_headers()
        self.close_connection = True
        control = {"PLUGWRIGHT_CONTROL_SOCKET": str(self.served.sockets.get(pod, "/nonexistent"))}
        environment = {**self.served.environment, **control}
        frames = self.served.frames
        try:
            for each in frames if frames is not None else _frames_of(query["command"], environment):
                self.wfile.write(each)
                self.wfile.flush()
            self.wfile.write(b"\x88\x02\x03\xe8")
        except OSError:
            pass  # the client has gone

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def exec_server(pods: Sequence[Mapping[str, Any]], sockets: Mapping[str, Path] | None = None) -> Iterator[ExecServer]:
    served = ExecServer(pods, sockets or {})
    handler = type("Handler", (_Handler,), {"served": served})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        served.url = f"http://127.0.0.1:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield served
        finally:
            server.shutdown()
            thread.join()
