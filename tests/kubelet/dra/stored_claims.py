"""The API server of a kubelet under test, with claims as a kubelet reads them."""

from typing import Any

from plugwright.apiserver.kinds import RESOURCE_CLAIMS
from plugwright.apiserver.one_node import OneNode
from plugwright.apiserver.registry import ResourcePath
from plugwright.kubelet.dra.resource_api import ResourceClaim

__all__ = ["StoredClaims"]


class StoredClaims(OneNode):
    def __init__(self) -> None:
        super().__init__("node")
        self.wiped: list[str] = []  # the drivers whose slices the kubelet deleted, empty for all of the node

    def add(self, claim: ResourceClaim) -> None:
        """With the uid that it has; instead of an earlier claim of this name."""
        key = ResourcePath(RESOURCE_CLAIMS, claim.namespace, claim.name).key
        self.remove(claim.namespace, claim.name)
        self.store.create(key, _document(claim))

    async def delete_slices(self, driver: str = "") -> None:
        self.wiped.append(driver)
        await super().delete_slices(driver)


def _document(claim: ResourceClaim) -> dict[str, Any]:
    owners = [{"kind": "Pod", "uid": claim.owner, "controller": True}] if claim.owner else []
    status: dict[str, Any] = {"reservedFor": [{"resource": "pods", "uid": uid} for uid in sorted(claim.reserved_for)]}
    if claim.drivers is not None:
        status["allocation"] = {"devices": {"results": [{"driver": driver} for driver in claim.drivers]}}
    metadata = {"namespace": claim.namespace, "name": claim.name, "uid": claim.uid, "ownerReferences": owners}
    return {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": metadata, "status": status}
