"""A kubelet's requests to its API server for ResourceClaims and ResourceSlices."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from plugwright.errors import KubeletError

__all__ = ["KubeClient", "ResourceClaim"]


@dataclass(frozen=True, slots=True)
class ResourceClaim:
    """A claim as far as a kubelet reads it; `drivers` are those of its allocation, None while it has none."""

    namespace: str
    name: str
    uid: str
    owner: str = ""  # the uid of the pod it was generated for
    reserved_for: frozenset[str] = field(default_factory=frozenset)  # the uids of pods
    drivers: tuple[str, ...] | None = None

    @classmethod
    def read(cls, document: Mapping[str, Any]) -> "ResourceClaim":
        """The claim in an object of `resource.k8s.io/v1`."""
        metadata, status = document["metadata"], document.get("status") or {}
        owners = (owner for owner in metadata.get("ownerReferences") or () if owner.get("controller"))
        results = ((status.get("allocation") or {}).get("devices") or {}).get("results") or ()
        consumers = status.get("reservedFor") or ()
        return cls(
            metadata["namespace"],
            metadata["name"],
            metadata["uid"],
            next((owner["uid"] for owner in owners if owner.get("kind") == "Pod"), ""),
            frozenset(consumer["uid"] for consumer in consumers if consumer.get("resource") == "pods"),
            None if status.get("allocation") is None else tuple(sorted({result["driver"] for result in results})),
        )

    def check_usable(self, pod_uid: str, pod_name: str, *, generated: bool) -> None:
        """Raises, in the kubelet's words, if this pod must not use the claim (11.12)."""
        if generated and self.owner != pod_uid:
            raise KubeletError(
                f"ResourceClaim {self.namespace}/{self.name} was not created for Pod {self.namespace}/{pod_name} "
                "(Pod is not owner)"
            )
        if pod_uid not in self.reserved_for:
            raise KubeletError(
                f"pod {pod_name} ({pod_uid}) is not allowed to use ResourceClaim {self.name} ({self.uid})"
            )
        if self.drivers is None:
            raise KubeletError(f"ResourceClaim {self.name}: not allocated")


class KubeClient(Protocol):
    async def claim(self, namespace: str, name: str) -> Mapping[str, Any]:
        """The ResourceClaim; raises `KubeletError` if there is none, or the API server does not answer."""
        ...

    async def delete_slices(self, driver: str = "") -> None:
        """Deletes the ResourceSlices of the node, of one driver or of all."""
        ...
