"""Proxies between a client and an API server: `proxy-url` of a kubeconfig, and client-go's variables.

http and https proxies open a tunnel by CONNECT, SOCKS5 proxies by their own handshake. The proxy resolves the
name of the API server.
"""

import base64
import io
import ipaddress
import socket
import ssl
from collections.abc import Callable, Mapping
from typing import Protocol, TypeVar
from urllib.parse import unquote, urlsplit

import msgspec

from plugwright.errors import ConfigError
from plugwright.kube.credentials import Credentials

__all__ = ["NestedTls", "Proxy", "from_environment"]

T = TypeVar("T")
_PORTS = {"http": 80, "https": 443, "socks5": 1080, "socks5h": 1080}
_ANSWER_LIMIT = 16 * 1024  # bytes of a proxy's answer to CONNECT
_SOCKS_ERRORS = ("", "general failure", "not allowed by its rules", "network unreachable", "host unreachable")


class Destination(Protocol):
    """Implemented by `access.ClusterAccess`."""

    is_tls: bool
    host: str
    port: int
    credentials: Credentials


class Proxy(msgspec.Struct, frozen=True):
    scheme: str
    host: str
    port: int
    user: str | None = None
    password: str = ""

    def __str__(self) -> str:
        return f"{self.scheme}://{self.host}:{self.port}"

    __repr__ = __str__  # no password in a traceback

    @classmethod
    def parse(cls, url: str) -> "Proxy":
        try:
            parts = urlsplit(url)
            host, port = parts.hostname, parts.port
        except ValueError:
            parts, host, port = urlsplit(""), None, None
        if parts.scheme not in _PORTS or not host:
            shown = url.rpartition("@")[2]  # without a password
            raise ConfigError(f"a proxy must look like http://HOST:PORT, https://… or socks5://…, got {shown!r}")
        user = None if parts.username is None else unquote(parts.username)
        return cls(parts.scheme, host, port or _PORTS[parts.scheme], user, unquote(parts.password or ""))

    @property
    def is_http(self) -> bool:
        return self.scheme in ("http", "https")

    def headers(self) -> list[tuple[str, str]]:
        """The authentication header for an http proxy."""
        if self.user is None:
            return []
        return [("Proxy-Authorization", f"Basic {base64.b64encode(f'{self.user}:{self.password}'.encode()).decode()}")]

    def connect(self, destination: Destination, timeout: float) -> socket.socket:
        """A connection to the destination, or to the proxy itself for requests without TLS."""
        connected = socket.create_connection((self.host, self.port), timeout)
        try:
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self.scheme == "https":
                # client-go accepts proxies of the cluster's own authority.
                context = destination.credentials.tls_context(with_system=True, with_certificate=False)
                connected = context.wrap_socket(connected, server_hostname=self.host)
            if not self.is_http:
                self._ask_socks(connected, destination)
            elif destination.is_tls:
                self._ask_tunnel(connected, destination)
        except BaseException:
            connected.close()
            raise
        return connected

    def _ask_tunnel(self, connected: socket.socket, destination: Destination) -> None:
        host = f"[{destination.host}]" if ":" in destination.host else destination.host
        lines = [f"CONNECT {host}:{destination.port} HTTP/1.1", f"Host: {host}:{destination.port}"]
        lines += [f"{name}: {text}" for name, text in self.headers()]
        connected.sendall("\r\n".join([*lines, "", ""]).encode())
        answer = b""
        while not answer.endswith(b"\r\n\r\n"):  # byte by byte: the following bytes belong to the API server
            received = connected.recv(1)
            if not received or len(answer) > _ANSWER_LIMIT:
                raise OSError(f"the proxy {self} did not answer CONNECT as a proxy does")
            answer += received
        words = answer.split(b"\r\n")[0].decode("latin-1").split(" ", 2)
        if len(words) < 2 or not words[0].startswith("HTTP/1.") or words[1] != "200":
            raise OSError(f"the proxy {self} refuses the connection: {' '.join(words[1:])!r:.100}")

    def _ask_socks(self, connected: socket.socket, destination: Destination) -> None:
        """RFC 1928, with user and password of RFC 1929."""
        methods = b"\x00" if self.user is None else b"\x00\x02"
        connected.sendall(bytes((5, len(methods))) + methods)
        version, method = self._received(connected, 2)
        if version != 5 or method not in methods:
            raise OSError(f"the proxy {self} must be SOCKS5 and accept these credentials")
        if method == 2:
            user, password = (self.user or "").encode()[:255], self.password.encode()[:255]
            connected.sendall(bytes((1, len(user))) + user + bytes((len(password),)) + password)
            if self._received(connected, 2)[1] != 0:
                raise OSError(f"the proxy {self} rejects its credentials")
        name = destination.host.encode("idna")
        connected.sendall(b"\x05\x01\x00\x03" + bytes((len(name),)) + name + destination.port.to_bytes(2, "big"))
        _, code, _, kind = self._received(connected, 4)
        if code != 0:
            reason = _SOCKS_ERRORS[code] if code < len(_SOCKS_ERRORS) else f"code {code}"
            raise OSError(f"the proxy {self} refuses the connection: {reason}")
        length = {1: 4, 4: 16}.get(kind) or self._received(connected, 1)[0]
        self._received(connected, length + 2)  # the proxy's own address

    def _received(self, connected: socket.socket, size: int) -> bytes:
        received = b""
        while len(received) < size:
            part = connected.recv(size - len(received))
            if not part:
                raise OSError(f"the proxy {self} has ended the connection")
            received += part
        return received


def from_environment(url: str, environment: Mapping[str, str]) -> str:
    """The URL of the proxy for a server, or empty: HTTPS_PROXY, HTTP_PROXY and NO_PROXY as Go reads them."""
    parts = urlsplit(url)
    host, port = (parts.hostname or "").lower(), parts.port or (443 if parts.scheme == "https" else 80)
    name = "HTTPS_PROXY" if parts.scheme == "https" else "HTTP_PROXY"
    proxy = environment.get(name) or environment.get(name.lower()) or ""
    excluded = environment.get("NO_PROXY") or environment.get("no_proxy") or ""
    if not proxy or host == "localhost" or _is_excluded(host, port, excluded):
        return ""
    return proxy if "://" in proxy else f"http://{proxy}"


def _is_excluded(host: str, port: int, excluded: str) -> bool:
    address = _address(host)
    if address is not None and address.is_loopback:
        return True
    return any(_matches(entry.strip().lower(), host, port, address) for entry in excluded.split(",") if entry.strip())


def _matches(entry: str, host: str, port: int, address: "ipaddress.IPv4Address | ipaddress.IPv6Address | None") -> bool:
    if entry == "*":
        return True
    if "/" in entry:
        try:
            return address is not None and address in ipaddress.ip_network(entry, strict=False)
        except ValueError:
            return False
    if _address(entry.strip("[]")) is None:
        entry, _, wanted = entry.partition(":") if entry.count(":") == 1 else _split_bracketed(entry)
        if wanted and wanted != str(port):
            return False
    named = _address(entry.strip("[]"))
    if named is not None:
        return named == address
    suffix = entry.removeprefix("*")
    return host == suffix or host.endswith(suffix if suffix.startswith(".") else f".{suffix}")


def _split_bracketed(entry: str) -> tuple[str, str, str]:
    """`[::1]:6443` as the address and the port."""
    address, separator, port = entry.partition("]:")
    return address, separator, port


def _address(host: str) -> "ipaddress.IPv4Address | ipaddress.IPv6Address | None":
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


class NestedTls:
    """The TLS session with the API server within the session with an https proxy: ssl cannot wrap an SSLSocket.

    It has the methods of a socket needed by http.client.
    """

    def __init__(self, outer: ssl.SSLSocket, context: ssl.SSLContext, server_name: str) -> None:
        self._outer, self._readers, self._is_closed = outer, 0, False
        self._received, self._to_send = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._session = context.wrap_bio(self._received, self._to_send, server_hostname=server_name)
        self._run(self._session.do_handshake)

    def sendall(self, content: bytes) -> None:
        view = memoryview(content)
        while view:
            view = view[self._run(lambda: self._session.write(view)) :]  # noqa: B023  called at once

    def receive_into(self, buffer: memoryview) -> int:
        try:
            return self._run(lambda: self._session.read(len(buffer), buffer))  # type: ignore[return-value]
        except ssl.SSLZeroReturnError:
            return 0

    def makefile(self, _mode: str) -> io.BufferedReader:
        self._readers += 1
        return io.BufferedReader(_Reader(self))

    def close(self) -> None:
        """http.client closes a connection while the answer is still to be read."""
        self._is_closed = True
        self._close_unread()

    def reader_closed(self) -> None:
        self._readers -= 1
        self._close_unread()

    def _close_unread(self) -> None:
        if self._is_closed and self._readers <= 0:
            self._outer.close()

    def _run(self, step: Callable[[], T]) -> T:
        while True:
            try:
                result = step()
            except ssl.SSLWantReadError:
                self._send()
                received = self._outer.recv(65536)
                if received:
                    self._received.write(received)
                else:
                    self._received.write_eof()
            else:
                self._send()
                return result

    def _send(self) -> None:
        if content := self._to_send.read():
            self._outer.sendall(content)


class _Reader(io.RawIOBase):
    def __init__(self, session: NestedTls) -> None:
        super().__init__()
        self._session = session

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: "memoryview") -> int:  # type: ignore[override]
        return self._session.receive_into(buffer)

    def close(self) -> None:
        if not self.closed:
            super().close()
            self._session.reader_closed()
