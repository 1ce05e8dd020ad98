"""The API server as a pod sees it, with the token of its service account: by the standard library alone.

The daemon's image has no Kubernetes client. What runs in it after an uninstall makes a few requests, and must not need
another image for them.
"""

import http.client
import json
import ssl
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from plugwright.errors import MalformedMessage, PeerGone, PeerRefused

__all__ = ["SERVICE_ACCOUNT", "InClusterClient", "refusal"]

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_CHUNK = 500
_TIMEOUT = 30.0  # seconds


class InClusterClient:
    """Requests to the API server of the cluster that this pod is in; `permission` is what an error says was refused."""

    def __init__(self, host: str, port: int, service_account: Path = SERVICE_ACCOUNT) -> None:
        self._address, self._directory = (host, port), service_account

    @classmethod
    def find(cls, environment: Mapping[str, str], service_account: Path = SERVICE_ACCOUNT) -> "InClusterClient | None":
        """None outside of a pod, and in a pod without a token."""
        host = environment.get("KUBERNETES_SERVICE_HOST")
        if not host or not service_account.is_dir():
            return None
        return cls(host, int(environment.get("KUBERNETES_SERVICE_PORT", "443")), service_account)

    def get(self, permission: str, path: str) -> Any:
        return self._request(permission, "GET", path)

    def list(self, permission: str, path: str, **query: str) -> Iterator[Any]:
        """Every object, in as many requests as it takes."""
        more: dict[str, str] = {}
        while True:
            page = self._request(permission, "GET", f"{path}?{urlencode({**query, 'limit': str(_CHUNK), **more})}")
            yield from page.get("items") or ()
            token = (page.get("metadata") or {}).get("continue")
            if not token:
                return
            more = {"continue": token}

    def patch(self, permission: str, path: str, body: object, kind: str) -> Any:
        """`kind` is `json-patch` or `merge-patch`."""
        return self._request(permission, "PATCH", path, body, f"application/{kind}+json")

    def delete(self, permission: str, path: str, propagation: str) -> Any:
        body = {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": propagation}
        return self._request(permission, "DELETE", path, body)

    def _request(self, permission: str, method: str, path: str, body: object = None, kind: str = "") -> Any:
        server = "https://{}:{}".format(*self._address)
        try:
            # Read again each time: the kubelet replaces the token before it expires.
            token = (self._directory / "token").read_text().strip()
            context = ssl.create_default_context(cafile=str(self._directory / "ca.crt"))
            # Python 3.13 refuses certificates without key identifiers, which many a cluster's authority leaves out.
            context.verify_flags &= ~ssl.VERIFY_X509_STRICT
            connection = http.client.HTTPSConnection(*self._address, timeout=_TIMEOUT, context=context)
            headers = {"Authorization": f"Bearer {token}", "Content-Type": kind or "application/json"}
            content = None if body is None else json.dumps(body)
            try:
                connection.request(method, path, content, {**headers, "Accept": "application/json"})
                answer = connection.getresponse()
                code, text = answer.status, answer.read()
            finally:
                connection.close()
        except (OSError, http.client.HTTPException) as error:
            raise PeerGone(f"cannot reach {server}: {str(error) or type(error).__name__}") from error
        if code >= 300:
            raise refusal(permission, code, text.decode(errors="replace"))
        try:
            return json.loads(text)
        except ValueError as error:
            raise MalformedMessage(f"unreadable answer of {server}: {error!r}") from error


def refusal(permission: str, code: int, text: str) -> PeerRefused | PeerGone:
    """Most refusals are a Status with a reason; proxies and a server in trouble answer with plain text."""
    status = _status(text)
    message = str(status.get("message") or "") or text.strip()[:200] or http.client.responses.get(code, str(code))
    if code == 429 or code >= 500:
        return PeerGone(f"the API server cannot answer now: {message}")
    if code == 403:
        return PeerRefused("Forbidden", f"not allowed to {permission}: {message}; --rbac prints the ClusterRole needed")
    if code == 401:
        return PeerRefused("Unauthorized", "the API server rejects these credentials; the token may have expired")
    if code == 404:
        return PeerRefused("NotFound", message)
    return PeerRefused(str(status.get("reason") or code), message)


def _status(text: str) -> Mapping[str, object]:
    try:
        status = json.loads(text)
    except ValueError:
        return {}
    return status if isinstance(status, dict) else {}
