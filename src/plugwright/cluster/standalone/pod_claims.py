"""The ResourceClaims of the pods of `plugwright kubelet`: in an API server for one node, or none without --api."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from plugwright.apiserver.extra import check_installed
from plugwright.apiserver.one_node import OneNode
from plugwright.errors import ConfigError
from plugwright.kubelet import PodSpec

__all__ = ["PodClaims"]


class PodClaims:
    """Acts as the scheduler for claims, but does not allocate: the files contain the allocations.

    `api` is None without --api: the kubelet then reports claims as unreadable.
    """

    def __init__(self, node: str, *, served: bool) -> None:
        if served:
            check_installed("plugwright kubelet --api")
        self.api = OneNode(node) if served else None

    @asynccontextmanager
    async def served(self, directory: Path) -> AsyncIterator[Path | None]:
        """Serves drivers while inside; yields the path of their kubeconfig."""
        if self.api is None:
            yield None
            return
        async with self.api.served(directory) as kubeconfig:
            yield kubeconfig

    def put(self, claim: Mapping[str, Any]) -> None:
        """Stores a claim; raises `ConfigError` if the API server rejects it."""
        if self.api is None:
            raise ConfigError("ResourceClaims need --api, so that a driver can read them")
        self.api.put(claim)

    def remove(self, key: str) -> None:
        namespace, _, name = key.partition("/")
        if self.api is not None:
            self.api.remove(namespace, name)

    def unallocated(self, pod: PodSpec) -> str:
        """Why the pod has to wait for its claims, in a scheduler's words; empty if all are allocated."""
        if self.api is None:
            return ""
        for claim in pod.claims:
            if not claim.claim_name:
                return f"claim {claim.name} comes from a template, which needs a cluster (`plugwright up`)"
            stored = self.api.stored_claim(pod.namespace, claim.claim_name)
            if stored is None:
                return f"there is no ResourceClaim {pod.namespace}/{claim.claim_name}"
            if not (stored.get("status") or {}).get("allocation"):
                return f"ResourceClaim {pod.namespace}/{claim.claim_name} is not allocated"
        return ""

    async def until_allocated(self, pod: PodSpec, timeout: float) -> bool:
        """Whether the claims are allocated in time."""
        return self.api is None or await self.api.until(lambda: not self.unallocated(pod), timeout)

    def reserve(self, pod: PodSpec) -> None:
        """Reserves the claims, as the scheduler does for a bound pod."""
        if self.api is None:
            return
        for claim in pod.claims:
            self.api.reserve(pod.namespace, claim.claim_name, (pod.name, pod.uid))

    def release(self, pod: PodSpec) -> None:
        """Releases the claims after the pod; the allocation stays, because the file contains it."""
        if self.api is None:
            return
        for claim in pod.claims:
            self.api.release(pod.namespace, claim.claim_name, pod.uid)
