"""A small HTTP server that records requests, kubeconfigs that lead to it, and proxies in front of it."""

import base64
import json
import select
import socket
import ssl
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import trustme

from plugwright.kube.access import ClusterAccess
from plugwright.kube.api_client import BlockingClient

__all__ = ["NODE", "Recorded", "RecordingProxy", "kubeconfig", "proxying", "read_node", "recording", "write_authority"]

NODE = "/api/v1/nodes/node"


class Recorded:
    """The requests to the server: path, headers, and the common name of the client's certificate."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.paths: list[str] = []
        self.headers: list[list[tuple[str, str]]] = []
        self.clients: list[str] = []
        self.code = 200

    def values(self, name: str) -> list[str]:
        """The values of a header in the last request."""
        return [value for found, value in self.headers[-1] if found.lower() == name.lower()]


@contextmanager
def recording(context: ssl.SSLContext | None = None) -> Iterator[Recorded]:
    """A server of the one object `NODE`, by TLS if there is a context."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            recorded.paths.append(self.path)
            recorded.headers.append(list(self.headers.items()))
            certificate = self.connection.getpeercert() if isinstance(self.connection, ssl.SSLSocket) else None
            recorded.clients.append(str((certificate or {}).get("subjectAltName", "")))
            content = json.dumps({"kind": "Node", "metadata": {"name": "node"}}).encode()
            self.send_response(recorded.code)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    if context is not None:
        server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    recorded = Recorded(f"{'https' if context else 'http'}://127.0.0.1:{server.server_port}")
    with _serving(server):
        yield recorded


@contextmanager
def _serving(server: ThreadingHTTPServer) -> Iterator[None]:
    server.daemon_threads = False  # so that closing waits for the connections
    server.handle_error = lambda *_: None  # type: ignore[method-assign]  # clients that refuse the certificate
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class RecordingProxy:
    """`asked` are the destinations, with the credentials that came along; `refuses` them all if set."""

    def __init__(self, scheme: str, port: int) -> None:
        self.url, self.scheme = f"{scheme}://127.0.0.1:{port}", scheme
        self.asked: list[tuple[str, str]] = []
        self.refuses = False

    def with_user(self, user: str) -> str:
        return self.url.replace("://", f"://{user}@")


@contextmanager
def proxying(scheme: str, context: ssl.SSLContext | None = None) -> Iterator[RecordingProxy]:
    """A proxy for CONNECT (http, https) or SOCKS5, until the block ends."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        proxy = RecordingProxy(scheme, listening.getsockname()[1])
        threads: list[threading.Thread] = []
        listening.settimeout(0.02)
        ended = threading.Event()

        def accept() -> None:
            while not ended.is_set():
                with suppress(TimeoutError):
                    connection, _ = listening.accept()
                    threads.append(threading.Thread(target=_relayed, args=(proxy, connection, context)))
                    threads[-1].start()

        accepting = threading.Thread(target=accept)
        accepting.start()
        try:
            yield proxy
        finally:
            ended.set()
            for thread in (accepting, *threads):
                thread.join()


def _relayed(proxy: RecordingProxy, connection: socket.socket, context: ssl.SSLContext | None) -> None:
    with suppress(OSError, ValueError), connection:
        connection.settimeout(10)
        inner = context.wrap_socket(connection, server_side=True) if context is not None else connection
        with inner:
            ask = _socks if proxy.scheme == "socks5" else _connect
            destination = ask(proxy, inner)
            if destination is not None:
                with socket.create_connection(destination, 10) as server:
                    _relay(inner, server)


def _connect(proxy: RecordingProxy, connection: socket.socket) -> tuple[str, int] | None:
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        head += connection.recv(1) or b"\r\n\r\n"
    first, *lines = head.decode().split("\r\n")
    headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
    method, target, _ = first.split(" ")
    user = base64.b64decode(headers.get("proxy-authorization", "").removeprefix("Basic ")).decode()
    proxy.asked.append((f"{method} {target}", user))
    if method != "CONNECT" or proxy.refuses:
        connection.sendall(b"HTTP/1.1 403 Not here\r\n\r\n")
        return None
    connection.sendall(b"HTTP/1.1 200 OK\r\nX-Proxy: yes\r\n\r\n")
    host, _, port = target.rpartition(":")
    return host, int(port)


def _socks(proxy: RecordingProxy, connection: socket.socket) -> tuple[str, int] | None:
    _, count = connection.recv(2)
    user = ""
    if b"\x02" in connection.recv(count):
        connection.sendall(b"\x05\x02")
        size = connection.recv(2)[1]
        user = connection.recv(size).decode()
        user += ":" + connection.recv(connection.recv(1)[0]).decode()
        connection.sendall(b"\x01\x00")
    else:
        connection.sendall(b"\x05\x00")
    size = connection.recv(5)[4]
    host = connection.recv(size).decode()
    port = int.from_bytes(connection.recv(2), "big")
    proxy.asked.append((f"{host}:{port}", user))
    connection.sendall(bytes((5, 2 if proxy.refuses else 0, 0, 1, 127, 0, 0, 1, 0, 0)))
    return None if proxy.refuses else (host, port)


def _relay(client: socket.socket, server: socket.socket) -> None:
    while True:
        pending = isinstance(client, ssl.SSLSocket) and client.pending()
        ready = [client] if pending else select.select([client, server], [], [], 10)[0]
        for found in ready:
            content = found.recv(65536)
            if not content:
                return
            (server if found is client else client).sendall(content)


def kubeconfig(directory: Path, cluster: Mapping[str, Any], user: Mapping[str, Any]) -> Path:
    path = directory / "kubeconfig"
    document = {
        "current-context": "here",
        "contexts": [{"name": "here", "context": {"cluster": "one", "user": "me"}}],
        "clusters": [{"name": "one", "cluster": cluster}],
        "users": [{"name": "me", "user": user}],
    }
    path.write_text(json.dumps(document))
    return path


def read_node(path: Path, environment: Mapping[str, str] | None = None, times: int = 1) -> None:
    """Reads the node through one client of a kubeconfig, as often as asked."""
    access = ClusterAccess.of_kubeconfig(path, environment=environment or {})
    assert access is not None
    with BlockingClient(access) as client:
        for _ in range(times):
            assert client.get(NODE)["metadata"]["name"] == "node"


def write_authority(directory: Path, *names: str, ask: bool = False) -> tuple[trustme.CA, ssl.SSLContext]:
    """An authority, whose certificate is `ca.crt`, and the context of a server of these names, which may `ask` for
    a client's certificate.
    """
    authority, context = trustme.CA(), ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert(*(names or ("127.0.0.1",))).configure_cert(context)
    if ask:
        authority.configure_trust(context)
        context.verify_mode = ssl.CERT_REQUIRED
    authority.cert_pem.write_to_path(str(directory / "ca.crt"))
    return authority, context
