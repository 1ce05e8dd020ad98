"""Pods and ResourceClaims added and removed while a standalone kubelet runs."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from plugwright.kubelet import PodSpec

__all__ = ["Claim", "PodChanges", "PodSource"]

Claim = Mapping[str, Any]  # a ResourceClaim as written


@dataclass(frozen=True, slots=True)
class PodChanges:
    """Pods and claims by key, namespace/name; a changed pod is both removed and added. `problems` are by file."""

    removed: tuple[str, ...] = ()
    added: Mapping[str, PodSpec] = field(default_factory=dict)
    removed_claims: tuple[str, ...] = ()
    claims: Mapping[str, Claim] = field(default_factory=dict)  # new and changed ones
    problems: Mapping[str, str] = field(default_factory=dict)


class PodSource(Protocol):
    """A directory of pods."""

    path: Path

    def scan(self) -> PodChanges:
        """The changes since the last scan."""
        ...
