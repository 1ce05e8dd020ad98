"""Access control of a joined node's kubelet API: the cluster's API server decides, as for real kubelets.

A client certificate must be signed by the authority for clients of the cluster, which the TLS layer has checked; a
bearer token is checked by TokenReview, and the user's right to read the path's subresource of nodes by
SubjectAccessReview. Results are cached as long as in a kubelet by default; if the API server does not respond, the
request is refused.
"""

import hashlib
import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from starlette.requests import Request

from plugwright.apiserver.store import Object
from plugwright.cluster.joined.rights import CLIENT_AUTHORITY
from plugwright.errors import MalformedMessage, PeerGone, PeerRefused, StatusError
from plugwright.kube.api_client import ApiClient

__all__ = ["KubeletAccess", "KubeletUser", "client_authority"]

logger = logging.getLogger(__name__)

K = TypeVar("K")
V = TypeVar("V")
_TOKEN_REVIEWS = "/apis/authentication.k8s.io/v1/tokenreviews"  # noqa: S105  a path
_ACCESS_REVIEWS = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
_ALLOWED_FOR, _DENIED_FOR = 300.0, 30.0  # seconds, a kubelet's defaults
_AUTHENTICATED_FOR = 120.0
_REMEMBERED = 1024


@dataclass(frozen=True, slots=True)
class KubeletUser:
    name: str
    uid: str = ""
    groups: tuple[str, ...] = ()


async def client_authority(api: ApiClient) -> str:
    """The authority for the cluster's clients, as found by every extension of the API server; or empty."""
    namespace, name = CLIENT_AUTHORITY
    try:
        found = await api.get(f"/api/v1/namespaces/{namespace}/configmaps/{name}")
    except PeerRefused as error:
        if error.code == "NotFound":
            return ""
        raise
    return str((found.get("data") or {}).get("client-ca-file") or "")


class KubeletAccess:
    def __init__(self, api: ApiClient, now: Callable[[], float] = time.monotonic) -> None:
        self._api, self._now = api, now
        self._users: OrderedDict[str, tuple[float, KubeletUser | None]] = OrderedDict()
        self._decisions: OrderedDict[tuple[KubeletUser, str, str], tuple[float, bool]] = OrderedDict()

    async def check(self, request: Request, node: str, subresource: str) -> None:
        """Raises `StatusError` unless the client is allowed to read this part of the node."""
        try:
            user = await self._user(request)
            if user is None:
                raise StatusError(401, "Unauthorized", "Unauthorized")
            if not await self._is_allowed(user, node, subresource):
                text = f"Forbidden (user={user.name}, verb=get, resource=nodes, subresource={subresource})"
                raise StatusError(403, "Forbidden", text)
        except (PeerGone, PeerRefused, MalformedMessage) as error:
            logger.info("kubelet API request cannot be authorized", extra={"node": node, "error": str(error)})
            text = "the API server cannot be asked whether this is allowed"
            raise StatusError(503, "ServiceUnavailable", text) from error

    async def _user(self, request: Request) -> KubeletUser | None:
        certificate = getattr(request.state, "peercert", None)
        if certificate:
            return _certified_user(certificate)
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not token.strip():
            return None
        return await self._reviewed_user(token.strip())

    async def _reviewed_user(self, token: str) -> KubeletUser | None:
        key = hashlib.sha256(token.encode()).hexdigest()
        until, user = self._users.get(key, (0.0, None))
        if self._now() < until:
            return user
        body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": {"token": token}}
        status = (await self._api.create(_TOKEN_REVIEWS, body)).get("status") or {}
        user = _reviewed(status) if status.get("authenticated") else None
        _remember(self._users, key, (self._now() + _AUTHENTICATED_FOR, user))
        return user

    async def _is_allowed(self, user: KubeletUser, node: str, subresource: str) -> bool:
        key = (user, node, subresource)
        until, allowed = self._decisions.get(key, (0.0, False))
        if self._now() < until:
            return allowed
        allowed = await self._review(user, node, subresource)
        if not allowed and subresource in ("healthz", "pods"):
            allowed = await self._review(user, node, "proxy")  # the subresource that included them before 1.33
        _remember(self._decisions, key, (self._now() + (_ALLOWED_FOR if allowed else _DENIED_FOR), allowed))
        return allowed

    async def _review(self, user: KubeletUser, node: str, subresource: str) -> bool:
        attributes = {"verb": "get", "version": "v1", "resource": "nodes", "subresource": subresource, "name": node}
        spec = {"user": user.name, "uid": user.uid, "groups": list(user.groups), "resourceAttributes": attributes}
        body = {"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "spec": spec}
        answer = await self._api.create(_ACCESS_REVIEWS, body)
        return bool((answer.get("status") or {}).get("allowed"))


def _certified_user(certificate: Mapping[str, object]) -> KubeletUser | None:
    """The user is the common name; each organization is a group."""
    subject = certificate.get("subject")
    names = [pair for part in subject for pair in part] if isinstance(subject, tuple) else []
    user = next((value for name, value in names if name == "commonName"), "")
    groups = tuple(value for name, value in names if name == "organizationName")
    return KubeletUser(user, groups=(*groups, "system:authenticated")) if user else None


def _reviewed(status: Object) -> KubeletUser:
    user = status.get("user") or {}
    return KubeletUser(str(user.get("username") or ""), str(user.get("uid") or ""), tuple(user.get("groups") or ()))


def _remember(known: "OrderedDict[K, V]", key: K, value: V) -> None:
    known[key] = value
    if len(known) > _REMEMBERED:
        known.popitem(last=False)
