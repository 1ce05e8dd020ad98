"""Claims for tests, written as their requests.

A separate module: tests with only the emulated kubelet load no SDK.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from plugwright.kubelet.pods import PodSpec

__all__ = ["PodWithClaims", "RequestedClaim", "claim_requesting", "pod_claim_name"]

Wanted: TypeAlias = int | Sequence[str] | Mapping[str, str | int]
"""A number of devices; or their ids; or a share of one, such as `{"memory": "20Gi"}`."""


@dataclass(frozen=True, slots=True)
class RequestedClaim:
    """`requests` are by resource. With an empty `name`, each pod gets its own claim."""

    requests: Mapping[str, Wanted] = field(hash=False)
    name: str = ""
    admin_access: bool = False
    parameters: Mapping[str, object] = field(default_factory=dict, hash=False)


@dataclass(frozen=True, slots=True)
class PodWithClaims(PodSpec):
    """A pod whose claims are created and allocated when it is admitted."""

    wanted: tuple[RequestedClaim, ...] = ()


def claim_requesting(
    requests: Mapping[str, Wanted],
    *,
    name: str = "",
    admin_access: bool = False,
    parameters: Mapping[str, object] | None = None,
) -> RequestedClaim:
    """A claim for `{"example.com/tape": 1}`, for `{"example.com/tape": ["st1"]}`, or for a share of one device.

    Pods share a claim with a `name`. `parameters` are its opaque configuration. `admin_access` is for a monitor,
    which gets devices held by others.
    """
    if not requests:
        raise TypeError("a claim must request something, got nothing")
    return RequestedClaim(dict(requests), name, admin_access, dict(parameters or {}))


def pod_claim_name(number: int) -> str:
    """The name by which the containers of a pod refer to its claim."""
    return f"claim-{number}"
