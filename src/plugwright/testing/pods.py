"""Pods to ask a kubelet for devices with."""

from collections.abc import Iterator, Mapping
from typing import TypeAlias

from plugwright.kubelet.pods import ContainerKind, ContainerSpec, PodSpec

__all__ = ["Wishes", "pod_requesting"]

Wishes: TypeAlias = Mapping[str, int | str]  # resource to how many, such as {"example.com/tape": 1}
_MAIN, _PREFIX = "main", "pod-"


def pod_requesting(
    wishes: Wishes | Mapping[str, Wishes],
    *,
    init: Mapping[str, Wishes] | None = None,
    sidecars: Mapping[str, Wishes] | None = None,
    name: str = _PREFIX,
) -> PodSpec:
    """A pod whose container `main` asks for `wishes`; or one with several, `{"first": {…}, "second": {…}}`.

    Init containers come first, then `sidecars`. A name that ends in `-` is completed with a number when the pod is
    admitted, so that the same pod can be asked for again.
    """
    containers = [
        *_containers(init or {}, ContainerKind.INIT),
        *_containers(sidecars or {}, ContainerKind.SIDECAR),
        *_containers(_by_container(wishes), ContainerKind.MAIN),
    ]
    return PodSpec(name, tuple(containers))


def _by_container(wishes: Wishes | Mapping[str, Wishes]) -> Mapping[str, Wishes]:
    several = {name: each for name, each in wishes.items() if isinstance(each, Mapping)}
    if several and len(several) < len(wishes):
        raise TypeError("either resources with numbers or containers with their resources, not both")
    return several or {_MAIN: {name: each for name, each in wishes.items() if not isinstance(each, Mapping)}}


def _containers(wishes: Mapping[str, Wishes], kind: ContainerKind) -> Iterator[ContainerSpec]:
    for name, limits in wishes.items():
        yield ContainerSpec(name, limits={resource: str(count) for resource, count in limits.items()}, kind=kind)
