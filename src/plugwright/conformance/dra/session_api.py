"""What a session with a DRA driver needs of an API server: slices, claims, and a record of what was asked of it."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from plugwright.kubelet.dra.resource_api import ResourceApi

__all__ = ["SLICES", "ApiRequest", "Document", "SessionApi"]

Document = dict[str, Any]
SLICES = "/apis/resource.k8s.io/v1/resourceslices"


@dataclass(frozen=True, slots=True)
class ApiRequest:
    """A request that was answered; `text` is the reason of a refusal."""

    method: str
    path: str
    query: str
    code: int
    text: str = ""

    @property
    def writes_slice(self) -> bool:
        return self.method in ("POST", "PUT", "PATCH") and "/resourceslices" in self.path

    def __str__(self) -> str:
        asked = f"{self.method} {self.path}{f'?{self.query}' if self.query else ''}"
        return f"{asked} was answered {self.code}{f': {self.text}' if self.text else ''}"


class SessionApi(Protocol):
    """One node is in it, and whatever drivers and rules put there."""

    @property
    def resource_api(self) -> ResourceApi: ...

    @property
    def requests(self) -> Sequence[ApiRequest]: ...

    @property
    def node_uid(self) -> str: ...

    def served(self, directory: Path) -> AbstractAsyncContextManager[Path]:
        """Serves drivers while inside; the path of their kubeconfig, in the directory."""
        ...

    def slices(self) -> list[Document]: ...

    def change_slice(self, name: str, spec: Mapping[str, object] | None) -> None:
        """As somebody else would: gives the slice another spec, or deletes it."""
        ...

    def put(self, claim: Mapping[str, Any]) -> None:
        """Stores a claim with its allocation."""
        ...

    def claim_uid(self, namespace: str, name: str) -> str: ...

    def remove(self, key: str) -> None: ...

    async def until(self, condition: Callable[[], bool], timeout: float) -> bool:
        """Whether the condition holds after some change, in time."""
        ...
