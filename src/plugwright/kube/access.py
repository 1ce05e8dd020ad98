"""Access to one API server: its address, the credentials for it, a proxy, and connections.

The daemon's image has no Kubernetes client, so this is http.client and ssl. All of it blocks; `ApiClient` calls it in
threads.
"""

import http.client
import json
import os
import socket
import ssl
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from plugwright.errors import ConfigError, PeerGone, PeerSilent
from plugwright.kube.credentials import Credentials

__all__ = ["SERVICE_ACCOUNT", "ClusterAccess", "HttpConnection"]

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_USER_AGENT = "plugwright"  # and so the name of our writes in managedFields
_PROXY_VARIABLES = ("HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy")


class ClusterAccess:
    """An API server at `url`, reached through the proxy of this URL if there is one; for use in any thread."""

    def __init__(self, url: str, credentials: Credentials, proxy: str = "") -> None:
        try:
            parts = urlsplit(url)
            host, port = parts.hostname, parts.port
        except ValueError:
            parts, host, port = urlsplit(""), None, None
        if parts.scheme not in ("http", "https") or not host:
            raise ConfigError(f"the address of an API server must look like https://HOST:PORT, got {url!r}")
        self.is_tls, self.host = parts.scheme == "https", host
        self.port = port or (443 if self.is_tls else 80)
        self.url, self._prefix = url.rstrip("/"), parts.path.rstrip("/")
        self.credentials, self.proxy = credentials, None
        if proxy:
            from plugwright.kube.proxies import Proxy  # which few clusters need

            self.proxy = Proxy.parse(proxy)
        self._context: tuple[tuple[object, ...], ssl.SSLContext] | None = None
        self._changing = threading.Lock()

    @classmethod
    def in_cluster(
        cls, environment: Mapping[str, str], service_account: Path = SERVICE_ACCOUNT
    ) -> "ClusterAccess | None":
        """The cluster of this pod; None outside of a pod, and in a pod without a token."""
        host = environment.get("KUBERNETES_SERVICE_HOST")
        if not host or not service_account.is_dir():
            return None
        port = environment.get("KUBERNETES_SERVICE_PORT", "443")
        url = f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"
        credentials = Credentials(service_account / "token", service_account / "ca.crt")
        return cls(url, credentials, _environment_proxy(url, environment))

    @classmethod
    def of_kubeconfig(
        cls, path: Path | None, context: str | None = None, environment: Mapping[str, str] = os.environ
    ) -> "ClusterAccess | None":
        """The cluster of a kubeconfig, by default of kubectl's; None if there is none."""
        from plugwright.kube import kubeconfig  # yaml, which a pod does not need

        files = kubeconfig.find_files(path, environment, Path(environment.get("HOME") or "/"))
        if not files:
            return None
        selected = kubeconfig.select_context(kubeconfig.load(files), context)
        url, credentials = cls(selected.cluster.server, Credentials()).url, selected.credentials()
        access = cls(url, credentials, selected.cluster.proxy_url or _environment_proxy(url, environment))
        if access.is_tls and credentials.issuer is None:
            try:
                credentials.tls_context()
            except (OSError, ValueError) as error:
                raise ConfigError(f"the kubeconfig cannot be used: its certificates or keys: {error}") from error
        return access

    @classmethod
    def find(
        cls, environment: Mapping[str, str] = os.environ, service_account: Path = SERVICE_ACCOUNT
    ) -> "ClusterAccess":
        """For daemons: the pod's cluster, otherwise the kubeconfig's."""
        access = cls.in_cluster(environment, service_account) or cls.of_kubeconfig(None, environment=environment)
        if access is None:
            raise ConfigError("no API server: no service account of a pod, no KUBECONFIG and no ~/.kube/config")
        return access

    @classmethod
    def choose(
        cls, kubeconfig: Path | None, context: str | None = None, environment: Mapping[str, str] = os.environ
    ) -> "ClusterAccess":
        """For commands, as kubectl does: the kubeconfig's cluster, otherwise the pod's."""
        access = cls.of_kubeconfig(kubeconfig, context, environment) or cls.in_cluster(environment)
        if access is None:
            raise ConfigError(
                "no cluster: no --kubeconfig, no KUBECONFIG, no ~/.kube/config, and no service account of a pod"
            )
        return access

    @property
    def needs_login(self) -> bool:
        """Whether `login` must run a credential plugin before the next request."""
        return self.credentials.issuer is not None and not self.credentials.issuer.is_fresh()

    def login(self) -> None:
        """Runs the credential plugin if there is one and its last credentials are about to expire."""
        if self.credentials.issuer is not None:
            self.credentials.issuer.login()

    def rejected(self) -> None:
        """The server has rejected the credentials."""
        if self.credentials.issuer is not None:
            self.credentials.issuer.reject()

    def tls_context(self) -> ssl.SSLContext | None:
        """The same context until a certificate is replaced; None without TLS."""
        if not self.is_tls:
            return None
        try:
            with self._changing:
                version = self.credentials.tls_version()
                if self._context is None or self._context[0] != version:
                    self._context = version, self.credentials.tls_context()
                return self._context[1]
        except (OSError, ValueError) as error:
            raise PeerGone(f"cannot read the certificates for {self.url}: {error}") from error

    def send(
        self, connection: "HttpConnection", method: str, path: str, body: object = None, kind: str = ""
    ) -> http.client.HTTPResponse:
        """The answer, whose body is not read yet; raises `PeerGone`."""
        content = None if body is None else json.dumps(body, separators=(",", ":")).encode()
        # JSON is YAML, and older API servers know an apply patch only by the name of YAML.
        encoding = "yaml" if kind == "apply-patch" else "json"
        try:
            headers = [*self.credentials.headers(), ("Accept", "application/json"), ("User-Agent", _USER_AGENT)]
            if content is not None:
                media = f"application/{kind}+{encoding}" if kind else "application/json"
                headers += [("Content-Type", media), ("Content-Length", str(len(content)))]
            return self._answered(connection, method, path, headers, content)
        except (OSError, http.client.HTTPException) as error:
            raise self.gone(error) from error

    def upgrade(
        self, connection: "HttpConnection", path: str, headers: Sequence[tuple[str, str]]
    ) -> http.client.HTTPResponse:
        """The answer to a GET for another protocol on this connection; raises `PeerGone`."""
        try:
            ours = [*self.credentials.headers(), ("User-Agent", _USER_AGENT), ("Connection", "Upgrade")]
            return self._answered(connection, "GET", path, [*ours, *headers], None)
        except (OSError, http.client.HTTPException) as error:
            raise self.gone(error) from error

    def _answered(
        self,
        connection: "HttpConnection",
        method: str,
        path: str,
        headers: Sequence[tuple[str, str]],
        content: bytes | None,
    ) -> http.client.HTTPResponse:
        target, every = self._prefix + path, list(headers)
        if self.proxy is not None and not self.is_tls and self.proxy.is_http:
            target = f"http://{_bracketed(self.host)}:{self.port}{target}"
            every += self.proxy.headers()
        connection.putrequest(method, target)  # it asks for an answer that is not compressed
        for name, text in every:
            connection.putheader(name, text)
        connection.endheaders(content)
        return connection.getresponse()

    def gone(self, error: Exception) -> PeerGone:
        through = f" through {self.proxy}" if self.proxy is not None else ""
        kind = PeerSilent if isinstance(error, TimeoutError) else PeerGone
        return kind(f"cannot reach {self.url}{through}: {str(error) or type(error).__name__}")


class HttpConnection(http.client.HTTPConnection):
    """A connection to the API server, opened by `connect` through the proxy if there is one."""

    def __init__(self, access: ClusterAccess, timeout: float) -> None:
        super().__init__(access.host, access.port, timeout=timeout)
        self.default_port = 443 if access.is_tls else 80  # which the Host header leaves out
        self._access, self._limit = access, timeout
        self.context = access.tls_context()
        self.transport: socket.socket | None = None  # the socket below TLS, which another thread can shut down

    def connect(self) -> None:
        access = self._access
        if access.proxy is None:
            transport = socket.create_connection((access.host, access.port), self._limit)
            transport.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        else:
            transport = access.proxy.connect(access, self._limit)
        try:
            self.sock, self.transport = self._secured(transport)
        except BaseException:
            transport.close()
            raise

    def _secured(self, transport: socket.socket) -> tuple[Any, socket.socket]:
        if self.context is None:
            return transport, transport
        name = self._access.credentials.server_name or self._access.host
        if isinstance(transport, ssl.SSLSocket):
            from plugwright.kube.proxies import NestedTls  # for https proxies alone

            return NestedTls(transport, self.context, name), transport
        secured = self.context.wrap_socket(transport, server_hostname=name)
        return secured, secured


def _environment_proxy(url: str, environment: Mapping[str, str]) -> str:
    if not any(environment.get(name) for name in _PROXY_VARIABLES):
        return ""
    from plugwright.kube import proxies

    return proxies.from_environment(url, environment)


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host
