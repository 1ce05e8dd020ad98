"""The API server as a pod sees it, with the token of its service account, for programs that may wait for answers.

What runs in the daemon's image after an uninstall makes a few requests, and must not need another image for them. The
requests themselves are `api_server`.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from plugwright.kube.api_server import SERVICE_ACCOUNT, ApiServer, next_page, refusal

__all__ = ["InClusterClient"]

_CHUNK = 500
_TIMEOUT = 30.0  # seconds


class InClusterClient:
    """Requests to the API server of the cluster that this pod is in; `permission` is what an error says was refused."""

    def __init__(self, server: ApiServer) -> None:
        self._server = server

    @classmethod
    def find(cls, environment: Mapping[str, str], service_account: Path = SERVICE_ACCOUNT) -> "InClusterClient | None":
        """None outside of a pod, and in a pod without a token."""
        server = ApiServer.in_cluster(environment, service_account)
        return cls(server) if server is not None else None

    def get(self, permission: str, path: str) -> Any:
        return self._request(permission, "GET", path)

    def list(self, permission: str, path: str, **query: str) -> Iterator[Any]:
        """Every object, in as many requests as it takes."""
        more: dict[str, str] = {}
        while True:
            page = self._request(permission, "GET", f"{path}?{urlencode({**query, 'limit': str(_CHUNK), **more})}")
            yield from page.get("items") or ()
            if not (more := next_page(page)):
                return

    def patch(self, permission: str, path: str, body: object, kind: str) -> Any:
        """`kind` is `json-patch` or `merge-patch`."""
        return self._request(permission, "PATCH", path, body, kind)

    def delete(self, permission: str, path: str, propagation: str) -> Any:
        body = {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": propagation}
        return self._request(permission, "DELETE", path, body)

    def _request(self, permission: str, method: str, path: str, body: object = None, kind: str = "") -> Any:
        connection = self._server.connection(_TIMEOUT)
        try:
            code, text = self._server.request(connection, method, path, body, kind)
        finally:
            connection.close()
        if code >= 300:
            raise refusal(code, text.decode(errors="replace"), permission)
        return self._server.decoded(text)
