"""A pod's requirements for its node, from its spec: amounts, ports, affinity, tolerations, priority. Pure.

`fit` compares them with a node, `pod_filters` with the pods of all nodes.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from plugwright import quantity
from plugwright.apiserver import pod_fields
from plugwright.apiserver.store import Object
from plugwright.cluster.scheduling.affinity import NodeAffinity
from plugwright.cluster.scheduling.pod_affinity import PodAffinity

__all__ = ["CPU", "MEMORY", "Amounts", "HostPort", "PodRequest", "amounts", "is_sidecar"]

CPU, MEMORY = "cpu", "memory"

_DEFAULT_CPU, _DEFAULT_MEMORY = 100, 200 * 2**20  # assumed in scores for a container without a request
_ANY_ADDRESS = "0.0.0.0"
_HUGE_PAGES = "hugepages-"

Amounts = dict[str, int]


@dataclass(frozen=True, slots=True)
class HostPort:
    """A port of the node, needed exclusively by a container."""

    address: str
    protocol: str
    port: int

    def conflicts(self, other: "HostPort") -> bool:
        is_same = (self.protocol, self.port) == (other.protocol, other.port)
        return is_same and (_ANY_ADDRESS in (self.address, other.address) or self.address == other.address)


@dataclass(frozen=True, slots=True)
class PodRequest:
    """`requests` contains CPU in thousandths and everything else in whole units."""

    requests: Mapping[str, int]
    scored: tuple[int, int]  # CPU and memory in a node's score, with a default for containers without a request
    affinity: NodeAffinity
    tolerations: tuple[Object, ...]
    pods: PodAffinity  # about other pods
    ports: tuple[HostPort, ...] = ()
    volume_claims: tuple[str, ...] = ()  # PersistentVolumeClaims
    has_claims: bool = False  # ResourceClaims, which restrict its nodes
    priority: int = 0
    preempts: bool = True
    system: str = ""  # linux or windows
    not_emulated: str = ""  # the message for a pod that no emulated node can run correctly
    claims: frozenset[str] = frozenset()  # its named ResourceClaims, without generated ones
    by_claims: frozenset[str] = frozenset()  # extended resources that a claim serves if the node does not offer them

    @classmethod
    def of(cls, pod: Object) -> "PodRequest":
        spec = pod["spec"]
        return cls(
            {resource: amount for resource, amount in _effective_requests(spec).items() if amount},
            _scored_requests(spec),
            NodeAffinity.of(spec),
            tuple(dict(toleration) for toleration in spec.get("tolerations") or ()),
            PodAffinity.of(pod),
            tuple(_host_ports(spec)),
            tuple(_volume_claims(spec)),
            bool(spec.get("resourceClaims")),
            int(spec.get("priority") or 0),
            spec.get("preemptionPolicy") != "Never",
            str((spec.get("os") or {}).get("name") or ""),
            pod_fields.not_emulated(spec),
            frozenset(str(entry.get("resourceClaimName") or "") for entry in spec.get("resourceClaims") or ()),
            _served_by_claim(pod),
        )

    @property
    def uses_claims(self) -> bool:
        return self.has_claims or bool(self.by_claims)

    @property
    def has_extended_resources(self) -> bool:
        return any("/" in resource for resource in self.requests)


def amounts(quantities: Mapping[str, object]) -> Amounts:
    return {resource: _amount(resource, str(text)) for resource, text in quantities.items()}


def _amount(resource: str, text: str) -> int:
    scale = 1000 if resource == CPU else 1
    if text.isdecimal():
        return int(text) * scale
    return quantity.whole(quantity.zero_if_invalid(text) * scale)


def _served_by_claim(pod: Object) -> frozenset[str]:
    """The resources of the scheduler's claim for the pod."""
    status = (pod.get("status") or {}).get("extendedResourceClaimStatus") or {}
    return frozenset(str(mapping["resourceName"]) for mapping in status.get("requestMappings") or ())


def _effective_requests(spec: Object) -> Amounts:
    """The requests; a pod's own resources override those of its containers."""
    total = {**quantity.effective_requests(_container_requests(spec))}
    total |= _pod_level_requests(spec, total)
    for resource, amount in amounts(spec.get("overhead") or {}).items():
        total[resource] = total.get(resource, 0) + amount
    return total


def _pod_level_requests(spec: Object, of_containers: Mapping[str, int]) -> Amounts:
    """The API server's defaults: a limit is a request too, unless containers request the resource."""
    resources = spec.get("resources") or {}
    limits, requests = amounts(resources.get("limits") or {}), amounts(resources.get("requests") or {})
    implied = {name: limit for name, limit in limits.items() if not of_containers.get(name)}
    return {
        name: amount
        for name, amount in {**implied, **requests}.items()
        if name in (CPU, MEMORY) or name.startswith(_HUGE_PAGES)
    }


def _container_requests(spec: Object) -> Iterator[tuple[str, Amounts]]:
    for container in spec.get("initContainers") or ():
        yield "sidecar" if is_sidecar(container) else "init", _requests(container)
    for container in spec.get("containers") or ():
        yield "main", _requests(container)


def is_sidecar(container: Object) -> bool:
    return container.get("restartPolicy") == "Always"


def _requests(container: Object) -> Amounts:
    return amounts((container.get("resources") or {}).get("requests") or {})


def _scored_requests(spec: Object) -> tuple[int, int]:
    requests = [_requests(container) for container in spec.get("containers") or ()]
    of_pod = _pod_level_requests(spec, {})
    return (
        of_pod.get(CPU) or sum(amounts.get(CPU) or _DEFAULT_CPU for amounts in requests),
        of_pod.get(MEMORY) or sum(amounts.get(MEMORY) or _DEFAULT_MEMORY for amounts in requests),
    )


def _host_ports(spec: Object) -> Iterator[HostPort]:
    """Ports of containers with the pod's lifetime."""
    sidecars = [container for container in spec.get("initContainers") or () if is_sidecar(container)]
    for container in (*sidecars, *(spec.get("containers") or ())):
        for port in container.get("ports") or ():
            number = port.get("hostPort") or (port.get("containerPort") if spec.get("hostNetwork") else 0)
            if number:
                yield HostPort(port.get("hostIP") or _ANY_ADDRESS, port.get("protocol") or "TCP", int(number))


def _volume_claims(spec: Object) -> Iterator[str]:
    for volume in spec.get("volumes") or ():
        if claim := volume.get("persistentVolumeClaim"):
            yield str(claim["claimName"])
