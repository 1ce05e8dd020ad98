"""Claims for tests, written as what they request; and their objects as the API server has them.

A module of its own, so that a test with the emulated kubelet alone loads no SDK.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from plugwright.kubelet.pods import PodSpec
from plugwright.quantity import parse

__all__ = [
    "AllocatedResult",
    "PodWithClaims",
    "RequestedClaim",
    "claim_document",
    "claim_requesting",
    "is_satisfied",
    "pod_claim_name",
    "request_name",
]

Wanted: TypeAlias = int | Sequence[str] | Mapping[str, str | int]
"""So many devices; or those with these ids; or a share of one, as `{"memory": "20Gi"}`."""


@dataclass(frozen=True, slots=True)
class RequestedClaim:
    """`requests` are by resource. An empty `name`: each pod gets a claim of its own."""

    requests: Mapping[str, Wanted] = field(hash=False)
    name: str = ""
    admin_access: bool = False
    parameters: Mapping[str, object] = field(default_factory=dict, hash=False)


@dataclass(frozen=True, slots=True)
class AllocatedResult:
    """A device that a claim was given: what the scheduler writes into its status."""

    resource: str
    driver: str
    pool: str
    device: str
    share_id: str = ""
    consumed: Mapping[str, str] = field(default_factory=dict, hash=False)


@dataclass(frozen=True, slots=True)
class PodWithClaims(PodSpec):
    """A pod whose claims are made and allocated when it is admitted."""

    wanted: tuple[RequestedClaim, ...] = ()


def claim_requesting(
    requests: Mapping[str, Wanted],
    *,
    name: str = "",
    admin_access: bool = False,
    parameters: Mapping[str, object] | None = None,
) -> RequestedClaim:
    """A claim for `{"example.com/tape": 1}`, for `{"example.com/tape": ["st1"]}`, or for a share of one device.

    Pods share a claim that has a `name`. `parameters` are its opaque configuration. `admin_access` is that of a
    monitor, which gets devices that others hold.
    """
    if not requests:
        raise TypeError("a claim must request something, got nothing")
    return RequestedClaim(dict(requests), name, admin_access, dict(parameters or {}))


def pod_claim_name(number: int) -> str:
    """By which the containers of a pod name its claim."""
    return f"claim-{number}"


def is_satisfied(
    capacity: Mapping[str, Any], wanted: Mapping[str, str | int], taken: Sequence[Mapping[str, str]]
) -> bool:
    """Whether a device has room for a share of `wanted` beside those that are `taken`."""
    for name, amount in wanted.items():
        if name not in capacity:
            return False
        used = sum(parse(str(share[name])) for share in taken if name in share)
        if used + parse(str(amount)) > parse(str(capacity[name]["value"])):
            return False
    return True


def claim_document(
    key: tuple[str, str], uid: str, spec: RequestedClaim, results: Sequence[AllocatedResult]
) -> dict[str, Any]:
    """The object of an allocated claim."""
    drivers = sorted({result.driver for result in results})
    config = [
        {"source": "FromClaim", "requests": [], "opaque": {"driver": driver, "parameters": dict(spec.parameters)}}
        for driver in drivers
        if spec.parameters
    ]
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"namespace": key[0], "name": key[1], "uid": uid},
        "spec": {"devices": {"requests": [_request(resource, spec) for resource in spec.requests]}},
        "status": {
            "allocation": {"devices": {"results": [_result(result, spec) for result in results], "config": config}},
            "reservedFor": [],
        },
    }


def _request(resource: str, spec: RequestedClaim) -> dict[str, Any]:
    exactly: dict[str, Any] = {"deviceClassName": resource.replace("/", ".")}
    wanted = spec.requests[resource]
    if isinstance(wanted, Mapping):
        exactly["capacity"] = {"requests": {name: str(amount) for name, amount in wanted.items()}}
    else:
        exactly["count"] = wanted if isinstance(wanted, int) else len(wanted)
    return {"name": request_name(resource), "exactly": exactly}


def _result(result: AllocatedResult, spec: RequestedClaim) -> dict[str, Any]:
    document: dict[str, Any] = {
        "request": request_name(result.resource),
        "driver": result.driver,
        "pool": result.pool,
        "device": result.device,
    }
    if result.share_id:
        document |= {"shareID": result.share_id, "consumedCapacity": dict(result.consumed)}
    if spec.admin_access:
        document["adminAccess"] = True
    return document


def request_name(resource: str) -> str:
    """The request in the claim: `tape` for `example.com/tape`."""
    return re.sub("[^a-z0-9]+", "-", resource.rpartition("/")[2].lower()).strip("-")
