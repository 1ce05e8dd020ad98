"""HTTP pages for probes and Prometheus: /healthz, /readyz and /metrics. Off unless an address is set.

`listen_report` adds the pages of `report_pages`.

A separate thread answers, so a probe gets its response, with the reason, while the event loop is blocked.
`system.http_server` keeps the port usable whoever else connects to it.

With a certificate the whole port uses TLS: a kubelet's probe of scheme HTTPS does not check certificates. The files are
read again after changes, for example of a mounted Secret.
"""

import hmac
import logging
import socket
import stat
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

from plugwright.errors import ConfigError
from plugwright.sdk import prometheus
from plugwright.sdk.daemon import Daemon
from plugwright.sdk.daemon_status import unready
from plugwright.sdk.settings import Settings
from plugwright.system import files
from plugwright.system.http_server import HttpAnswer, HttpRequest, HttpServer
from plugwright.text import clean

__all__ = ["is_own_node", "serve_probes"]

logger = logging.getLogger(__name__)

_GATEWAY = "gateway"
_TOKEN_LIMIT = 4096  # bytes
_LOOPBACK = bytes(15) + b"\1"  # ::1
_MAPPED = bytes(10) + b"\xff\xff"  # prefix of an IPv4-mapped IPv6 address

Page = tuple[str, str]  # status line, text


@contextmanager
def serve_probes(daemon: Daemon) -> Iterator[None]:
    settings = daemon.settings
    address = settings.listen
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65535:
        raise ConfigError(f"address to listen on must be HOST:PORT such as 127.0.0.1:9400, got {address!r}")
    host = host.strip("[]")
    server = HttpServer(
        page=_pages(daemon),
        slow={"/healthz": lambda: _text(_health(daemon)), **_reports(daemon)},
        is_own=is_own_node(host, settings.node_addresses),
        tls=_tls(settings),
    )
    with ExitStack() as stack:
        try:
            bound = stack.enter_context(server.serving(host, int(port)))
        except (OSError, RuntimeError) as error:  # RuntimeError: no thread available
            raise ConfigError(f"cannot listen on {address}: {getattr(error, 'strerror', '') or error}") from error
        logger.info("answering probes", extra={"address": "{}:{}".format(*bound)})
        yield


def _reports(daemon: Daemon) -> Mapping[str, Callable[[], HttpAnswer]]:
    if not daemon.settings.listen_report:
        return {}
    from plugwright.sdk.report_pages import report_pages  # few daemons have them

    return report_pages(daemon)


def is_own_node(host: str, node_addresses: Iterable[str], proc: Path = Path("/proc")) -> Callable[[str], bool]:
    """Recognises connections of this node: from loopback, from the listening address, from `node_addresses`.

    The kubelet reaches a pod from the node's address (Calico, cloud networks) or from the pod's default gateway, a
    bridge or router (bridge, ptp, Cilium): the word `gateway` stands for the latter.
    """
    words = set(node_addresses)
    named = {_packed(address) for address in {host, *words} - {_GATEWAY}}
    if _GATEWAY in words:
        named |= set(_gateways(proc))
    own = named - {None, bytes(4), bytes(16)}

    def check(address: str) -> bool:
        packed = _packed(address)
        return packed is not None and (packed in own or packed == _LOOPBACK or (packed[0] == 127 and len(packed) == 4))

    return check


def _packed(address: str) -> bytes | None:
    """The bytes of an address, those of IPv4 for an IPv4-mapped address; None for a name."""
    for family in (socket.AF_INET, socket.AF_INET6):
        try:
            packed = socket.inet_pton(family, address.partition("%")[0])
        except OSError:
            continue
        return packed[12:] if packed.startswith(_MAPPED) else packed
    return None


def _gateways(proc: Path) -> Iterator[bytes]:
    """The default gateways of this network namespace."""
    for line in _lines(proc / "net" / "route")[1:]:
        _, destination, gateway, *_ = line.split()
        if int(destination, 16) == 0:
            yield int(gateway, 16).to_bytes(4, sys.byteorder)
    for line in _lines(proc / "net" / "ipv6_route"):
        destination, length, _, _, gateway, *_ = line.split()
        if int(destination, 16) == int(length, 16) == 0:
            yield bytes.fromhex(gateway)


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except OSError:
        return []


def _pages(daemon: Daemon) -> Callable[[HttpRequest], HttpAnswer]:
    metrics = prometheus.page(daemon)
    token_file = daemon.settings.metrics_token_file
    names = ", ".join(("/healthz", "/readyz", "/metrics", *_reports(daemon)))

    def page(request: HttpRequest) -> HttpAnswer:
        if request.path == "/readyz":
            return _text(_readiness(daemon))
        if request.path != "/metrics":
            return _text(("404 Not Found", f"pages: {names}"))
        if token_file is not None and not _is_allowed(request.authorization, token_file):
            return HttpAnswer("401 Unauthorized", b"metrics need the token\n", ("WWW-Authenticate: Bearer",))
        kind, body = metrics()
        return HttpAnswer("200 OK", body, (f"Content-Type: {kind}",))

    return page


def _is_allowed(authorization: str, token_file: Path) -> bool:
    """Compares with the current file; without a readable token, no request is allowed."""
    try:
        token = files.read(token_file, _TOKEN_LIMIT).strip()
    except (OSError, ValueError) as error:
        logger.warning("metrics token not readable", extra={"path": str(token_file), "error": str(error)})
        return False
    scheme, _, given = authorization.partition(" ")
    right = hmac.compare_digest(given.strip().encode(), token)
    return right and scheme.lower() == "bearer" and bool(token)


def _tls(settings: Settings) -> Callable[[socket.socket], socket.socket] | None:
    certificate, key = settings.tls_cert, settings.tls_key
    if certificate is None and key is None:
        return None
    if certificate is None or key is None:
        raise ConfigError("TLS needs both a certificate and its key")
    return _TlsFiles(certificate, key).wrap


class _TlsFiles:
    """Certificate and key, read again when either has changed."""

    def __init__(self, certificate: Path, key: Path) -> None:
        import ssl  # 4 MiB

        self._paths = (certificate, key)
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.minimum_version = ssl.TLSVersion.TLSv1_2
        try:
            self._version = self._versions()
            self._context.load_cert_chain(certificate, key, password=_no_password)
        except (OSError, ValueError) as error:
            raise ConfigError(f"cannot use the certificate {certificate} with the key {key}: {error}") from error

    def wrap(self, accepted: socket.socket) -> socket.socket:
        self._renew()
        return self._context.wrap_socket(accepted, server_side=True, do_handshake_on_connect=False)

    def _renew(self) -> None:
        try:
            version = self._versions()
            if version != self._version:
                self._version = version  # once for each version, even if it is unusable
                self._context.load_cert_chain(*self._paths, password=_no_password)
                logger.info("certificate read again", extra={"path": str(self._paths[0])})
        except (OSError, ValueError) as error:
            logger.warning("new certificate rejected, the previous one stays", extra={"error": str(error)})

    def _versions(self) -> list[tuple[int, int]]:
        """ValueError for a pipe or a device: OpenSSL would wait for its end."""
        found = [(path, path.stat()) for path in self._paths]
        for path, status in found:
            if not stat.S_ISREG(status.st_mode):
                raise ValueError(f"{path} must be a regular file")
        return [(status.st_ino, status.st_mtime_ns) for _, status in found]


def _no_password() -> str:
    raise ValueError("the key must not be encrypted")


def _text(page: Page) -> HttpAnswer:
    status, text = page
    return HttpAnswer(status, text.encode(errors="backslashreplace") + b"\n")


def _health(daemon: Daemon) -> Page:
    blocked = daemon.heartbeat.check(daemon.settings.limits.heartbeat)
    return ("503 Service Unavailable", blocked) if blocked else ("200 OK", "ok")


def _readiness(daemon: Daemon) -> Page:
    waiting = unready(daemon)
    detail = []  # of resources that do not make the daemon unready
    for name, runtime in sorted(dict(daemon.resources).items()):
        if runtime.is_idle:
            detail.append(clean(f"{name}: idle: {runtime.discovery.idle.value}"))
        if (shortfall := runtime.expected.shortfall.value) is not None and not shortfall.is_blocking:
            detail.append(clean(f"{name}: {shortfall.reason}"))
        if rival := daemon.rivals.found.value.get(name):
            detail.append(clean(f"{name}: another plugin serves it too: {rival}"))
        if runtime.discovery.empty.value:
            detail.append(clean(f"{name}: no devices: {runtime.discovery.empty.value}"))
    config = daemon.config.value
    if config is not None and not config.restored:
        detail += [clean(problem) for problem in config.problems()]
    if waiting:
        return "503 Service Unavailable", "\n".join([*waiting, *detail])
    return "200 OK", "\n".join(["ok", *detail])
