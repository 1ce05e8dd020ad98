"""An imitated cluster behind real HTTP, and the kubeconfig that leads to it."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

from tests.extended_resources.imitation import Cluster, Json, Refusal

__all__ = ["TOKEN", "serving"]

TOKEN = "good"


@contextmanager
def serving(cluster: Cluster, directory: Path) -> Iterator[Path]:
    """Serves the cluster while inside; the path is that of a kubeconfig."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(cluster))
    server.daemon_threads = False  # so that closing waits for the connections
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield _kubeconfig(directory, f"http://127.0.0.1:{server.server_port}")
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
            assert self.headers["Content-Type"] == "application/json-patch+json"
            self._reply("patch", json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

        def _reply(self, verb: str, body: list[Json]) -> None:
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
