"""Pods for tests, written as resource requests instead of manifests.

A separate module: tests with only the emulated kubelet load no SDK.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TypeAlias

from plugwright.kubelet.pods import ClaimUse, ContainerKind, ContainerSpec, PodSpec
from plugwright.testing.claim_requests import PodWithClaims, RequestedClaim, pod_claim_name

__all__ = ["ResourceRequests", "pod_requesting"]

ResourceRequests: TypeAlias = Mapping[str, int | str]  # resource to count, such as {"example.com/tape": 1}
_MAIN, _PREFIX = "main", "pod-"


def pod_requesting(
    requests: ResourceRequests | Mapping[str, ResourceRequests],
    *,
    init: Mapping[str, ResourceRequests] | None = None,
    sidecars: Mapping[str, ResourceRequests] | None = None,
    claims: Sequence[RequestedClaim] = (),
    name: str = _PREFIX,
) -> PodSpec:
    """A pod whose container `main` requests `requests`; or with several containers, `{"first": {…}, "second": {…}}`.

    Init containers come first, then `sidecars`; all have the devices of all `claims`, for the kubelet of `running`. A
    name ending in `-` gets a number when the pod is admitted, so the same pod can be admitted again.
    """
    containers = [
        *_containers(init or {}, ContainerKind.INIT),
        *_containers(sidecars or {}, ContainerKind.SIDECAR),
        *_containers(_by_container(requests), ContainerKind.MAIN),
    ]
    if not claims:
        return PodSpec(name, tuple(containers))
    uses = tuple(ClaimUse(pod_claim_name(number)) for number in range(len(claims)))
    containers = [replace(container, claims=uses) for container in containers]
    return PodWithClaims(name, tuple(containers), wanted=tuple(claims))


def _by_container(
    requests: ResourceRequests | Mapping[str, ResourceRequests],
) -> Mapping[str, ResourceRequests]:
    containers = {name: limits for name, limits in requests.items() if isinstance(limits, Mapping)}
    if containers and len(containers) < len(requests):
        raise TypeError("requests must be either resources with counts or containers with their resources, got both")
    return containers or {_MAIN: {name: count for name, count in requests.items() if not isinstance(count, Mapping)}}


def _containers(requests: Mapping[str, ResourceRequests], kind: ContainerKind) -> Iterator[ContainerSpec]:
    for name, limits in requests.items():
        yield ContainerSpec(name, limits={resource: str(count) for resource, count in limits.items()}, kind=kind)
