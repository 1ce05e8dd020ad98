"""One API server and the credentials for it: connections, requests, and what its refusals mean.

By the standard library alone: the daemon's image has no Kubernetes client. All of it blocks; `api_client` calls it in
threads, `in_cluster` is for programs that may wait.
"""

import base64
import http.client
import json
import os
import re
import ssl
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from plugwright.errors import ConfigError, MalformedMessage, PeerGone, PeerRefused

__all__ = ["SERVICE_ACCOUNT", "ApiServer", "Credentials", "next_page", "refusal"]

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_NESTING = re.compile(rb'"(?:[^"\\]|\\.)*"|[][{}]', re.DOTALL)  # whole strings, so that none in them counts
_DEPTH_LIMIT = 300  # Python's own limit is below 1000
_USER_AGENT = "plugwright"  # and so the name of our writes in managedFields


@dataclass(frozen=True, slots=True)
class Credentials:
    """Files, which are read again when they change, or what would be in them; None without.

    `token` may be what gives one, `authority` None is that of the system, `certificate` is the client's own and has its
    `key`.
    """

    token: Path | str | Callable[[], str] | None = field(default=None, repr=False)
    authority: Path | bytes | None = None
    certificate: Path | bytes | None = None
    key: Path | bytes | None = field(default=None, repr=False)
    insecure: bool = False
    server_name: str = ""

    def versions(self) -> tuple[object, ...]:
        """Other than before when one of the files for TLS has been replaced."""
        paths = [path for path in (self.authority, self.certificate, self.key) if isinstance(path, Path)]
        return tuple((found.st_ino, found.st_mtime_ns, found.st_size) for found in map(os.stat, paths))


class ApiServer:
    """An API server at `url`; its methods may be called in any thread."""

    def __init__(self, url: str, credentials: Credentials) -> None:
        parts = urlsplit(url)
        try:
            host, port = parts.hostname, parts.port
        except ValueError:
            host, port = None, None
        if parts.scheme not in ("http", "https") or not host:
            raise ConfigError(f"the address of an API server must look like https://HOST:PORT, got {url!r}")
        self.url, self._host, self._prefix = url.rstrip("/"), host, parts.path.rstrip("/")
        self._port = port or (443 if parts.scheme == "https" else 80)
        self._is_tls, self._credentials = parts.scheme == "https", credentials
        self._context: tuple[tuple[object, ...], ssl.SSLContext] | None = None
        self._changing = threading.Lock()

    @classmethod
    def in_cluster(cls, environment: Mapping[str, str], service_account: Path = SERVICE_ACCOUNT) -> "ApiServer | None":
        """That of the cluster that this pod is in; None outside of a pod, and in a pod without a token."""
        host = environment.get("KUBERNETES_SERVICE_HOST")
        if not host or not service_account.is_dir():
            return None
        port = environment.get("KUBERNETES_SERVICE_PORT", "443")
        address = f"[{host}]" if ":" in host else host
        return cls(f"https://{address}:{port}", Credentials(service_account / "token", service_account / "ca.crt"))

    @classmethod
    def of_kubeconfig(cls, document: Mapping[str, Any]) -> "ApiServer":
        """That of a document of `kubeconfig.select_context`."""
        cluster, user = document["clusters"][0]["cluster"], document["users"][0]["user"]
        if unknown := sorted({"auth-provider", "username"} & user.keys()):
            raise ConfigError(f"the kubeconfig must have a token or a client certificate, got {', '.join(unknown)}")
        if "proxy-url" in cluster:
            raise ConfigError("the kubeconfig has a proxy-url, which is not supported here")
        credentials = Credentials(
            token=_token(user),
            authority=_file_or_data(cluster, "certificate-authority"),
            certificate=_file_or_data(user, "client-certificate"),
            key=_file_or_data(user, "client-key"),
            insecure=cluster.get("insecure-skip-tls-verify") is True,
            server_name=str(cluster.get("tls-server-name") or ""),
        )
        return cls(str(cluster.get("server") or ""), credentials)

    def connection(self, timeout: float) -> http.client.HTTPConnection:
        """A connection that connects with its first request."""
        if not self._is_tls:
            return http.client.HTTPConnection(self._host, self._port, timeout=timeout)
        try:
            context = self._tls()
        except (OSError, ValueError) as error:  # a file that is not there, or is no certificate
            raise PeerGone(f"cannot read the certificates for {self.url}: {error}") from error
        return _TlsConnection(self._host, self._port, timeout, context, self._credentials.server_name)

    def send(
        self, connection: http.client.HTTPConnection, method: str, path: str, body: object = None, kind: str = ""
    ) -> http.client.HTTPResponse:
        """The answer, whose body is not read yet; raises PeerGone."""
        try:
            # Read again each time: the kubelet replaces the token before it expires.
            headers = {**self._authorization(), "Accept": "application/json", "User-Agent": _USER_AGENT}
            # JSON is YAML, and an API server knows no apply patch by the name of JSON.
            encoding = "yaml" if kind == "apply-patch" else "json"
            headers["Content-Type"] = f"application/{kind}+{encoding}" if kind else "application/json"
            content = None if body is None else json.dumps(body, separators=(",", ":")).encode()
            connection.request(method, self._prefix + path, content, headers)
            return connection.getresponse()
        except (OSError, http.client.HTTPException) as error:
            raise self.gone(error) from error

    def request(
        self, connection: http.client.HTTPConnection, method: str, path: str, body: object = None, kind: str = ""
    ) -> tuple[int, bytes]:
        """The status code and the body of the answer."""
        answer = self.send(connection, method, path, body, kind)
        try:
            return answer.status, answer.read()
        except (OSError, http.client.HTTPException) as error:
            raise self.gone(error) from error

    def decoded(self, text: bytes) -> Any:
        """The document; one object in it that is nested absurdly deep must not cost a whole list."""
        try:
            try:
                return json.loads(text)
            except RecursionError:
                return json.loads(_without_depths(text))
        except (ValueError, RecursionError) as error:
            raise MalformedMessage(f"unreadable answer of {self.url}: {error!r}") from error

    def gone(self, error: Exception) -> PeerGone:
        return PeerGone(f"cannot reach {self.url}: {str(error) or type(error).__name__}")

    def _authorization(self) -> dict[str, str]:
        token = self._credentials.token
        if isinstance(token, Path):
            token = token.read_text().strip()
        text = token() if callable(token) else token
        if text and not (text.isascii() and text.isprintable()):  # http.client's own error would show it
            raise ConfigError(f"the token for {self.url} must be one line of ASCII")
        return {"Authorization": f"Bearer {text}"} if text else {}

    def _tls(self) -> ssl.SSLContext:
        with self._changing:
            versions = self._credentials.versions()
            if self._context is None or self._context[0] != versions:
                self._context = versions, _tls_context(self._credentials)
            return self._context[1]


class _TlsConnection(http.client.HTTPSConnection):
    """`server_name` is the name in the server's certificate where it is not the host's."""

    def __init__(self, host: str, port: int, timeout: float, context: ssl.SSLContext, server_name: str) -> None:
        super().__init__(host, port, timeout=timeout, context=context)
        self._tls, self._server_name = context, server_name or host

    def connect(self) -> None:
        http.client.HTTPConnection.connect(self)
        self.sock = self._tls.wrap_socket(self.sock, server_hostname=self._server_name)


def _tls_context(credentials: Credentials) -> ssl.SSLContext:
    authority = credentials.authority
    if isinstance(authority, bytes):
        context = ssl.create_default_context(cadata=authority.decode("ascii"))
    else:
        context = ssl.create_default_context(cafile=authority)
    # Python 3.13 refuses certificates without key identifiers, which many a cluster's authority leaves out.
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    if credentials.insecure:
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    if credentials.certificate is not None:
        _load_certificate(context, credentials.certificate, credentials.key)
    return context


def _load_certificate(context: ssl.SSLContext, certificate: Path | bytes, key: Path | bytes | None) -> None:
    parts = [part.read_bytes() if isinstance(part, Path) else part for part in (certificate, key) if part is not None]
    # OpenSSL loads keys from files alone; this one is never on a disk.
    descriptor = os.memfd_create("client-certificate", os.MFD_CLOEXEC)
    try:
        with open(descriptor, "wb", closefd=False) as file:
            file.write(b"\n".join(parts))
        context.load_cert_chain(f"/proc/self/fd/{descriptor}")
    finally:
        os.close(descriptor)


def refusal(code: int, text: str, permission: str = "") -> PeerRefused | PeerGone:
    """Most refusals are a Status with a reason; proxies and a server in trouble answer with plain text.

    `permission` is what an operator of `plugwright node` was refused.
    """
    status = _status(text)
    message = str(status.get("message") or "") or text.strip()[:200] or http.client.responses.get(code, str(code))
    if code == 429 or code >= 500:
        return PeerGone(f"the API server cannot answer now: {message}")
    if code == 403:
        if permission:
            message = f"not allowed to {permission}: {message}; --rbac prints the ClusterRole needed"
        return PeerRefused("Forbidden", message)
    if code == 401:
        return PeerRefused("Unauthorized", "the API server rejects these credentials; the token may have expired")
    if code == 404:
        return PeerRefused("NotFound", message)
    return PeerRefused(str(status.get("reason") or code), message)


def _without_depths(text: bytes) -> bytes:
    """The document with null for what is nested too deep: a claim's parameters may be, as deep as 10 KiB go."""
    parts, depth, begin, kept = [], 0, 0, 0
    for token in _NESTING.finditer(text):
        match token[0]:
            case b"[" | b"{":
                depth += 1
                begin = token.start() if depth == _DEPTH_LIMIT + 1 else begin
            case b"]" | b"}":
                depth -= 1
                if depth == _DEPTH_LIMIT:
                    parts += [text[kept:begin], b"null"]
                    kept = token.end()
    return b"".join((*parts, text[kept:]))


def _status(text: str) -> Mapping[str, object]:
    try:
        status = json.loads(text)
    except ValueError:
        return {}
    return status if isinstance(status, dict) else {}


def _token(user: Mapping[str, Any]) -> Path | str | Callable[[], str] | None:
    if "exec" in user:
        from plugwright.kube.credential_command import CredentialCommand  # subprocess, which few kubeconfigs need

        return CredentialCommand(user["exec"]).token
    if "tokenFile" in user:
        return Path(str(user["tokenFile"]))
    return str(user["token"]) if "token" in user else None


def _file_or_data(entry: Mapping[str, object], name: str) -> Path | bytes | None:
    """kubectl prefers the data to the file."""
    if f"{name}-data" in entry:
        try:
            return base64.b64decode(str(entry[f"{name}-data"]), validate=True)
        except ValueError as error:
            raise ConfigError(f"{name}-data of the kubeconfig must be base64: {error}") from error
    return Path(str(entry[name])) if name in entry else None


def next_page(page: Mapping[str, Any]) -> dict[str, str]:
    """What the query of a LIST must have besides for the objects after this page; empty after the last one."""
    metadata = page.get("metadata")
    token = metadata.get("continue") if isinstance(metadata, Mapping) else None
    return {"continue": str(token)} if token else {}
