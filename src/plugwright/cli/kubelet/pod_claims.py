"""The ResourceClaims of the pods of `plugwright kubelet`: none by default, with --api those of `driver_api`."""

from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any, Protocol

from plugwright.cli.cluster_extra import load_with_extra
from plugwright.conformance.dra.session_api import SessionApi
from plugwright.errors import ConfigError
from plugwright.kubelet import PodSpec
from plugwright.kubelet.dra.resource_api import ResourceApi

__all__ = ["NoClaims", "PodClaims", "observed_api", "pod_claims"]


class PodClaims(Protocol):
    """What the node around a kubelet does about claims, in place of a scheduler and an API server."""

    @property
    def resource_api(self) -> ResourceApi | None: ...

    def served(self, directory: Path) -> AbstractAsyncContextManager[Path | None]:
        """Serves drivers while inside; the path of their kubeconfig."""
        ...

    def put(self, claim: Mapping[str, Any]) -> None:
        """Raises `ConfigError` for a claim that an API server refuses."""
        ...

    def remove(self, key: str) -> None: ...

    def unallocated(self, pod: PodSpec) -> str:
        """Why the pod has to wait for its claims; empty if it has them all."""
        ...

    async def until_allocated(self, pod: PodSpec, timeout: float) -> bool:
        """Whether its claims are allocated in time."""
        ...

    def reserve(self, pod: PodSpec) -> None: ...

    def release(self, pod: PodSpec) -> None: ...


class NoClaims:
    """Without an API server: the kubelet says of every claim that it cannot be read."""

    resource_api = None

    @asynccontextmanager
    async def served(self, _directory: Path) -> AsyncIterator[None]:
        yield None

    def put(self, _claim: Mapping[str, Any]) -> None:
        raise ConfigError("ResourceClaims need --api, so that a driver can read them")

    def remove(self, _key: str) -> None:
        pass

    def unallocated(self, _pod: PodSpec) -> str:
        return ""

    async def until_allocated(self, _pod: PodSpec, _timeout: float) -> bool:
        return True

    def reserve(self, _pod: PodSpec) -> None:
        pass

    def release(self, _pod: PodSpec) -> None:
        pass


def pod_claims(node: str) -> PodClaims:
    """Those of an API server for the node of this name; loads all it needs, or says what is not installed."""
    claims: PodClaims = load_with_extra(f"{__package__}.driver_api", "plugwright kubelet --api").DriverApi(node)
    return claims


def observed_api(node: str) -> SessionApi:
    """The API server of `plugwright verify --dra`, likewise."""
    api: SessionApi = load_with_extra(f"{__package__}.observed_api", "plugwright verify --dra").ObservedApi(node)
    return api
