"""HTTP pages for probes and Prometheus: /healthz, /readyz and /metrics. Off unless an address is set.

A thread of their own serves them, so that a probe is answered, with the reason, while plugin code blocks the event
loop. wsgiref of the standard library is enough for three pages, and loads no dependency.
"""

import logging
import socket
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from socketserver import TCPServer, ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from plugwright.errors import ConfigError
from plugwright.sdk.control import is_ready
from plugwright.sdk.daemon import Daemon
from plugwright.sdk.registration import RegistrationState

__all__ = ["serve_probes"]

logger = logging.getLogger(__name__)

_REQUEST_LIMIT = 16  # answered at once; others are closed

Page = tuple[str, str]  # status line, text


@contextmanager
def serve_probes(daemon: Daemon, address: str) -> Iterator[None]:
    server = _bind(address, _application(daemon))
    stopping = threading.Event()

    def work() -> None:
        while not stopping.is_set():
            server.handle_request()  # waits without a time-out: no periodic wake-ups

    thread = threading.Thread(target=work, name="plugwright-probes", daemon=True)
    thread.start()
    logger.info("answering probes", extra={"address": "{}:{}".format(*server.server_address[:2])})
    try:
        yield
    finally:
        stopping.set()
        server.socket.shutdown(socket.SHUT_RDWR)  # wakes the thread, which sleeps in accept
        thread.join()
        server.server_close()


def _bind(address: str, application: Callable[..., Iterable[bytes]]) -> WSGIServer:
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65535:
        raise ConfigError(f"address to listen on must be HOST:PORT such as 127.0.0.1:9400, got {address!r}")
    try:
        kind = _ProbeServerIPv6 if ":" in host else _ProbeServer
        return make_server(host.strip("[]"), int(port), application, kind, _Quiet)
    except OSError as error:
        raise ConfigError(f"cannot listen on {address}: {error.strerror or error}") from error


class _ProbeServer(ThreadingMixIn, WSGIServer):
    daemon_threads = True
    block_on_close = False

    def server_bind(self) -> None:
        """Without a look-up of our own host name: on a node that boots it may take long."""
        TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])
        self._slots = threading.Semaphore(_REQUEST_LIMIT)
        self.setup_environ()

    def process_request(self, request: Any, client_address: Any) -> None:
        if self._slots.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._slots.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        logger.debug("probe not answered", extra={"error": str(sys.exc_info()[1])})


class _ProbeServerIPv6(_ProbeServer):
    address_family = socket.AF_INET6


class _Quiet(WSGIRequestHandler):
    timeout = 10

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        logger.debug("probe", extra={"request": format % args})


def _application(daemon: Daemon) -> Callable[..., Iterable[bytes]]:
    metrics = _metrics(daemon)
    pages: dict[str, Callable[[], Page]] = {
        "/healthz": lambda: _health(daemon),
        "/readyz": lambda: _readiness(daemon),
    }

    def answer(environ: dict[str, Any], start_response: Callable[..., object]) -> Iterable[bytes]:
        path = environ.get("PATH_INFO", "")
        if path == "/metrics" and metrics is not None:
            return metrics(environ, start_response)
        page = pages.get(path)
        status, text = page() if page else ("404 Not Found", _not_found(path))
        start_response(status, [("Content-Type", "text/plain; charset=utf-8")])
        return [text.encode() + b"\n"]

    return answer


def _metrics(daemon: Daemon) -> Callable[..., Iterable[bytes]] | None:
    try:
        from plugwright.sdk import prometheus
    except ImportError:
        return None
    return prometheus.application(daemon)


def _not_found(path: str) -> str:
    if path == "/metrics":
        return "metrics need the extra: pip install 'plugwright[metrics]'"
    return "pages: /healthz, /readyz, /metrics"


def _health(daemon: Daemon) -> Page:
    stalled = daemon.stalls.stalled
    return ("503 Service Unavailable", f"{stalled} blocks the event loop") if stalled else ("200 OK", "ok")


def _readiness(daemon: Daemon) -> Page:
    waiting = [] if daemon.serving else ["starting or stopping"]
    for name, runtime in sorted(daemon.resources.items()):
        if not is_ready(runtime):
            status = runtime.registration.status.value
            state = "no stream open" if status.state is RegistrationState.REGISTERED else status.state
            waiting.append(f"{name}: {state} {status.reason}".strip())
    config = daemon.config.value
    detail = list(config.problems()) if config is not None else []  # no reason to be taken out of service
    if waiting:
        return "503 Service Unavailable", "\n".join([*waiting, *detail])
    return "200 OK", "\n".join(["ok", *detail])
