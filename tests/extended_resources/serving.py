"""An imitated cluster behind real HTTP, and the kubeconfig that leads to it."""

import json
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import trustme
from tests.extended_resources.imitation import Cluster, Refusal

from plugwright.kube.access import ClusterAccess
from plugwright.kube.api_client import BlockingClient

__all__ = ["TOKEN", "serving", "serving_a_pod"]

TOKEN = "good"


@contextmanager
def serving(cluster: Cluster, directory: Path) -> Iterator[Path]:
    """Serves the cluster while inside; the path is that of a kubeconfig."""
    with _serving(_handler(cluster)) as server:
        yield _kubeconfig(directory, f"http://127.0.0.1:{server.server_port}")


@contextmanager
def serving_a_pod(cluster: Cluster, service_account: Path) -> Iterator[BlockingClient]:
    """Serves the cluster by TLS while inside, as a pod finds it: files of a service account, and an address."""
    authority, context = trustme.CA(), ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    service_account.mkdir()
    authority.cert_pem.write_to_path(str(service_account / "ca.crt"))
    (service_account / "token").write_text(TOKEN)
    with _serving(_handler(cluster), context) as server:
        environment = {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": str(server.server_port)}
        access = ClusterAccess.in_cluster(environment, service_account)
        assert access is not None
        with BlockingClient(access) as client:
            yield client


@contextmanager
def _serving(
    handler: type[BaseHTTPRequestHandler], context: ssl.SSLContext | None = None
) -> Iterator[ThreadingHTTPServer]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    if context is not None:
        server.socket = context.wrap_socket(server.socket, server_side=True)
    server.daemon_threads = False  # so that closing waits for the connections
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def _kubeconfig(directory: Path, server: str) -> Path:
    path = directory / "kubeconfig"
    document = {
        "current-context": "here",
        "contexts": [{"name": "here", "context": {"cluster": "one", "user": "me"}}],
        "clusters": [{"name": "one", "cluster": {"server": server}}],
        "users": [{"name": "me", "user": {"token": TOKEN}}],
    }
    path.write_text(json.dumps(document))
    return path


def _handler(cluster: Cluster) -> type[BaseHTTPRequestHandler]:
    lock = threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._reply("get", [])

        def do_PATCH(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            kind = "json-patch" if isinstance(body, list) else "merge-patch"
            assert self.headers["Content-Type"] == f"application/{kind}+json"
            self._reply("patch", body)

        def do_DELETE(self) -> None:
            self._reply("delete", json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

        def _reply(self, verb: str, body: Any) -> None:
            url = urlsplit(self.path)
            query = {name: values[0] for name, values in parse_qs(url.query).items()}
            try:
                if self.headers["Authorization"] != f"Bearer {TOKEN}":
                    raise Refusal(401, "Unauthorized", "Unauthorized")
                with lock:
                    code, answer = 200, json.dumps(cluster.answer(verb, url.path, query, body))
            except Refusal as refusal:
                code, answer = refusal.status["code"], json.dumps(refusal.status)  # type: ignore[assignment]
            self.send_response(code)
            self.send_header("Content-Type", "application/json")
            self.end_headers()
            self.wfile.write(answer.encode())

        def log_message(self, *_: object) -> None:
            pass

    return Handler
