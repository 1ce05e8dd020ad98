"""Reads a `World` from an API server, and records what could not be read."""

from collections.abc import Mapping, Sequence
from typing import Protocol

from msgspec.structs import replace

from plugwright.errors import PeerRefused
from plugwright.explain.pool_counts import PoolCount, read_counts
from plugwright.explain.world import ApiObject, World

__all__ = ["PATHS", "RULE_PATHS", "UNREADABLE", "Lister", "read_world"]

_RESOURCE = "/apis/resource.k8s.io/v1"
PATHS = {
    "nodes": "/api/v1/nodes",
    "pods": "/api/v1/pods",
    "namespaces": "/api/v1/namespaces",
    "slices": f"{_RESOURCE}/resourceslices",
    "classes": f"{_RESOURCE}/deviceclasses",
    "claims": f"{_RESOURCE}/resourceclaims",
}
RULE_PATHS = tuple(f"/apis/resource.k8s.io/{version}/devicetaintrules" for version in ("v1", "v1beta2", "v1alpha3"))
_POOL_STATUS = "/apis/resource.k8s.io/v1alpha3/resourcepoolstatusrequests"  # alpha: few API servers serve it
UNREADABLE = {
    "claims": "claims of other namespaces cannot be read: devices that they hold count as free",
    "pods": "pods of other namespaces cannot be read: what they hold counts as free",
    "namespaces": "namespaces cannot be read: rules about other pods may be judged wrongly",
    "nodes": "nodes cannot be read",
    "slices": "ResourceSlices cannot be read",
    "classes": "DeviceClasses cannot be read",
    "templates": "ResourceClaimTemplates cannot be read",
}


class Lister(Protocol):
    """`BlockingClient`, or a compatible reader."""

    def get(self, path: str) -> Mapping[str, object]: ...

    def list(self, path: str, **query: str) -> Sequence[ApiObject]: ...


def read_world(
    client: Lister, namespace: str, reports: Mapping[str, ApiObject] | None = None, subject: ApiObject | None = None
) -> World:
    """Everything that the account can read; `unseen` names the rest. Objects of `namespace` are always read.

    Templates and quotas are those of the namespace, or of all without one. Events are those of the subject, a pod or
    claim.
    """
    unseen: dict[str, str] = {}
    found = {kind: _listed(client, kind, path, namespace, unseen) for kind, path in PATHS.items()}
    scope = f"/namespaces/{namespace}" if namespace else ""
    templates = _listed(client, "templates", f"{_RESOURCE}{scope}/resourceclaimtemplates", "", unseen)
    refused: set[str] = set()
    quotas = _optional(client, "quotas", f"/api/v1{scope}/resourcequotas", refused)
    rules = next((rules for path in RULE_PATHS if (rules := _optional(client, "taint_rules", path, refused))), ())
    uid = str(((subject or {}).get("metadata") or {}).get("uid") or "")
    path = f"/api/v1/namespaces/{namespace}/events"
    events = _optional(client, "events", path, refused, fieldSelector=f"involvedObject.uid={uid}") if uid else ()
    refused -= {"taint_rules"} if rules else set()
    counts = _pool_counts(client) if "claims" in unseen else None
    version = str(client.get("/version").get("gitVersion") or "1.37")
    world = World(
        templates=templates, quotas=quotas, taint_rules=rules, events=events, reports=reports or {}, version=version,
        pool_counts=counts, unseen=tuple(unseen.values()), hidden=frozenset({*unseen, *refused}),
    )  # fmt: skip
    return replace(world, **found)


def _pool_counts(client: Lister) -> tuple[PoolCount, ...] | None:
    """The devices that the API server has counted with the claims of every namespace; None if there are no counts."""
    try:
        return read_counts(client.list(_POOL_STATUS))
    except PeerRefused as error:
        if error.code not in ("NotFound", "Forbidden"):
            raise
        return None


def _listed(client: Lister, kind: str, path: str, namespace: str, unseen: dict[str, str]) -> tuple[ApiObject, ...]:
    try:
        return tuple(client.list(path))
    except PeerRefused as error:
        if error.code == "NotFound":
            return ()
        if error.code != "Forbidden":
            raise
    unseen[kind] = UNREADABLE[kind]
    if kind not in ("pods", "claims") or not namespace:
        return ()
    base, _, plural = path.rpartition("/")
    try:
        return tuple(client.list(f"{base}/namespaces/{namespace}/{plural}"))
    except PeerRefused as error:
        if error.code != "Forbidden":
            raise
    unseen[f"own {kind}"] = f"{kind} of namespace {namespace} cannot be read"
    return ()


def _optional(client: Lister, kind: str, path: str, refused: set[str], **query: str) -> tuple[ApiObject, ...]:
    """Objects that a cluster can lack, or not show to everyone: then the kind is added to `refused`."""
    try:
        return tuple(client.list(path, **query))
    except PeerRefused as error:
        if error.code not in ("NotFound", "Forbidden"):
            raise
        if error.code == "Forbidden":
            refused.add(kind)
        return ()
