"""Pod specs as a kubelet sees them: containers in the order of admission, and the devices they request.

`read` takes a Pod object as the API server would deliver it; `violations` lists the parts rejected by such a server.
`pod_table` holds the state of admitted pods.
"""

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from enum import StrEnum
from itertools import count

from plugwright import quantity
from plugwright.errors import InvalidPod, InvalidValue
from plugwright.kubelet.expansion import expand_references

__all__ = ["ClaimUse", "ContainerKind", "ContainerSpec", "PodClaim", "PodSpec", "read", "violations"]


class ContainerKind(StrEnum):
    INIT = "init"
    SIDECAR = "sidecar"  # an init container with restartPolicy Always
    MAIN = "main"


_STANDARD = ("cpu", "memory", "ephemeral-storage")  # the resources of containers that have no domain


@dataclass(frozen=True, slots=True)
class ClaimUse:
    """A claim of the pod, used by a container; `request` narrows it to the devices of one request."""

    name: str
    request: str = ""


@dataclass(frozen=True, slots=True)
class PodClaim:
    """A claim of a pod by its name in the containers; a claim from a template is `generated`, and named later.

    The scheduler's claim for extended resources has no name of its own.
    """

    name: str
    claim_name: str = ""
    generated: bool = False


@dataclass(frozen=True, slots=True)
class ContainerSpec:
    """`limits` and `requests` are quantities as they were written."""

    name: str
    limits: Mapping[str, str] = field(default_factory=dict, hash=False)
    requests: Mapping[str, str] = field(default_factory=dict, hash=False)
    kind: ContainerKind = ContainerKind.MAIN
    env: Mapping[str, str] = field(default_factory=dict, hash=False)
    command: tuple[str, ...] = ()
    claims: tuple[ClaimUse, ...] = ()

    def requested(self, resource: str) -> int:
        """The number of devices: the limit, rounded up to a whole number."""
        return quantity.whole(_quantity(self.limits.get(resource, "0")))


@dataclass(frozen=True, slots=True)
class PodSpec:
    """`containers` in the order of admission: init containers and sidecars as written, then the main containers.

    A name ending in `-` is completed with a number when the pod is admitted.
    """

    name: str
    containers: tuple[ContainerSpec, ...]
    namespace: str = "default"
    uid: str = ""
    claims: tuple[PodClaim, ...] = ()

    def __post_init__(self) -> None:
        if not self.uid:  # derived from the name, so that a pod has the same uid in every run
            object.__setattr__(self, "uid", _uid(self.key))

    @property
    def key(self) -> str:
        return f"{self.namespace}/{self.name}"

    def with_unused_uid(self, is_used: Callable[[str], bool]) -> "PodSpec":
        """The spec with a fresh uid for its name; a uid set by the caller stays."""
        if self.uid != _uid(self.key) or not is_used(self.uid):
            return self
        candidates = (_uid(f"{self.key}#{number}") for number in count(2))
        return replace(self, uid=next(uid for uid in candidates if not is_used(uid)))

    def requested(self, resource: str) -> int:
        """The effective request: the sum of the containers, or the peak of the init containers if larger."""
        requests = ((container.kind, {resource: container.requested(resource)}) for container in self.containers)
        return quantity.effective_requests(requests)[resource]

    @property
    def resources(self) -> list[str]:
        return sorted({resource for container in self.containers for resource in container.limits})


def _uid(text: str) -> str:
    digest = hashlib.sha256(text.encode()).hexdigest()
    return "-".join([digest[:8], digest[8:12], digest[12:16], digest[16:20], digest[20:32]])


def _quantity(text: str) -> Decimal:
    try:
        return quantity.parse(text)
    except InvalidValue as error:
        raise InvalidPod(str(error)) from error


def violations(pod: PodSpec) -> Iterator[tuple[str, str]]:
    """The field and the text of an API server's objection to the extended resources."""
    for container in pod.containers:
        for resource in sorted({*container.limits, *container.requests}):
            path = f"{container.name}.resources"
            if "/" in resource:
                yield from _resource_violations(path, resource, container)
            elif resource not in _STANDARD and not resource.startswith("hugepages-"):
                yield f"{path}.limits[{resource}]", "must be a standard resource for containers"


def _resource_violations(path: str, resource: str, container: ContainerSpec) -> Iterator[tuple[str, str]]:
    limit, request = container.limits.get(resource), container.requests.get(resource)
    # An extended resource needs a limit, and a request must equal it (10.4).
    if limit is None:
        yield f"{path}.limits", "Limit must be set for non overcommitable resources"
        return
    # The limit must be a whole number and not negative (10.3).
    if _quantity(limit) % 1 or _quantity(limit) < 0:
        yield f"{path}.limits[{resource}]", "must be an integer" if _quantity(limit) > 0 else "must not be negative"
    if request is not None and _quantity(request) != _quantity(limit):
        yield f"{path}.requests", f"must be equal to {resource} limit of {limit}"


def read(document: object) -> PodSpec:
    """The spec of a Pod object as written in YAML; raises `InvalidPod`."""
    pod = _mapping(document, "a pod")
    if pod.get("kind", "Pod") != "Pod":
        raise InvalidPod(f"kind must be Pod, got {pod.get('kind')!r}")
    metadata, spec = _mapping(pod.get("metadata"), "metadata"), _mapping(pod.get("spec"), "spec")
    inits, mains = _containers(spec, "initContainers"), _containers(spec, "containers")
    if not mains:
        raise InvalidPod("spec.containers must have at least one container")
    _check_names([*inits, *mains])
    prefix = _text(metadata, "generateName").rstrip("-")
    name = _text(metadata, "name") or (f"{prefix}-" if prefix else "")
    if not name:
        raise InvalidPod("metadata.name is missing")
    namespace = _text(metadata, "namespace") or "default"
    status = _mapping(pod.get("status"), "status")
    claims = tuple(_pod_claims(spec, status))
    _check_claims([*inits, *mains], claims)
    extended = _mapping(status.get("extendedResourceClaimStatus"), "status.extendedResourceClaimStatus")
    containers = tuple(_with_extended_claim(container, extended) for container in (*inits, *mains))
    if extended:
        claims += (PodClaim("", _text(extended, "resourceClaimName")),)
    return PodSpec(name, containers, namespace, _text(metadata, "uid"), claims)


def _with_extended_claim(container: ContainerSpec, extended: Mapping[str, object]) -> ContainerSpec:
    """Resources served by DRA become a use of their claim: the device manager skips them (3.9)."""
    mappings = map(_claim_mapping, _list(extended.get("requestMappings"), "requestMappings"))
    requests = [
        (_text(item, "resourceName"), _text(item, "requestName"))
        for item in mappings
        if _text(item, "containerName") == container.name
    ]
    if not requests:
        return container
    served = {resource for resource, _ in requests}
    limits, asked = (
        {name: text for name, text in amounts.items() if name not in served}
        for amounts in (container.limits, container.requests)
    )
    uses = tuple(ClaimUse("", request) for _, request in requests)
    return replace(container, limits=limits, requests=asked, claims=(*container.claims, *uses))


def _pod_claims(spec: Mapping[str, object], status: Mapping[str, object]) -> Iterator[PodClaim]:
    generated = {
        _text(item, "name"): _text(item, "resourceClaimName")
        for item in map(_claim_mapping, _list(status.get("resourceClaimStatuses"), "status.resourceClaimStatuses"))
    }
    for item in map(_claim_mapping, _list(spec.get("resourceClaims"), "spec.resourceClaims")):
        name, claim, template = (_text(item, key) for key in ("name", "resourceClaimName", "resourceClaimTemplateName"))
        if not name or bool(claim) == bool(template):
            raise InvalidPod(
                "every one of spec.resourceClaims must have a name and either resourceClaimName or "
                "resourceClaimTemplateName"
            )
        yield PodClaim(name, claim or generated.get(name, ""), generated=bool(template))


def _claim_mapping(value: object) -> Mapping[str, object]:
    return _mapping(value, "a claim")


def _check_claims(containers: Sequence[ContainerSpec], claims: Sequence[PodClaim]) -> None:
    names = {claim.name for claim in claims}
    for container in containers:
        for use in container.claims:
            if use.name not in names:
                raise InvalidPod(f"container {container.name} uses claim {use.name!r}, which the pod does not have")


def _containers(spec: Mapping[str, object], key: str) -> list[ContainerSpec]:
    containers = []
    for number, item in enumerate(_list(spec.get(key), f"spec.{key}")):
        try:
            containers.append(_container(item, init=key == "initContainers"))
        except InvalidPod as error:
            error.path = f"$.spec.{key}[{number}]{error.path.removeprefix('$')}"
            raise
    return containers


def _container(document: object, *, init: bool) -> ContainerSpec:
    container = _mapping(document, "a container")
    name = _text(container, "name")
    if not name:
        raise InvalidPod("every container must have a name")
    resources = _mapping(container.get("resources"), f"{name}.resources")
    always = container.get("restartPolicy") == "Always"
    return ContainerSpec(
        name=name,
        limits=_quantities(resources.get("limits"), f"{name}.resources.limits"),
        requests=_quantities(resources.get("requests"), f"{name}.resources.requests"),
        kind=(ContainerKind.SIDECAR if always else ContainerKind.INIT) if init else ContainerKind.MAIN,
        env=_env(container.get("env"), name),
        command=tuple(map(str, [*_list(container.get("command"), "command"), *_list(container.get("args"), "args")])),
        claims=tuple(
            ClaimUse(_text(item, "name"), _text(item, "request"))
            for item in map(_claim_mapping, _list(resources.get("claims"), f"{name}.resources.claims"))
        ),
    )


def _check_names(containers: Sequence[ContainerSpec]) -> None:
    names = [container.name for container in containers]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise InvalidPod(f"two containers are named {twice[0]!r}")


def _env(document: object, name: str) -> Mapping[str, str]:
    variables = [_mapping(item, f"an env of {name}") for item in _list(document, f"{name}.env")]
    environment: dict[str, str] = {}
    for variable in variables:
        # The value of a `valueFrom` is unknown here; without it the variable of a plugin stays visible.
        if not variable.get("valueFrom"):
            environment[_text(variable, "name")] = expand_references(_text(variable, "value"), environment)
    return environment


def _quantities(document: object, name: str) -> Mapping[str, str]:
    quantities = {str(key): str(value) for key, value in _mapping(document, name).items()}
    for resource, text in quantities.items():
        try:
            _quantity(text)
        except InvalidPod as error:
            path = name.partition(".")[2]
            raise InvalidPod(f"{name}[{resource}]: {error}", f"$.{path}", resource) from error
    return quantities


def _mapping(value: object, name: str) -> Mapping[str, object]:
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise InvalidPod(f"{name} must be an object, got {value!r:.60}")
    return value


def _list(value: object, name: str) -> Sequence[object]:
    if value is None:
        return []
    if not isinstance(value, list | tuple):
        raise InvalidPod(f"{name} must be a list, got {value!r:.60}")
    return value


def _text(document: Mapping[str, object], key: str) -> str:
    value = document.get(key)
    return "" if value is None else str(value)
