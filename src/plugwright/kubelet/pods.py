"""Pods as a kubelet sees them: containers in the order they start, and what they ask for.

`read` takes an object as the API server would hand it over, and says what that server would have refused. Where a
pod runs and what it got is `table`'s.
"""

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from enum import StrEnum
from itertools import count

from plugwright import quantity
from plugwright.errors import InvalidPod, InvalidValue

__all__ = ["ContainerKind", "ContainerSpec", "PodSpec", "read", "violations"]


class ContainerKind(StrEnum):
    INIT = "init"
    SIDECAR = "sidecar"  # an init container that is always restarted
    MAIN = "main"


@dataclass(frozen=True, slots=True)
class ContainerSpec:
    """One container; `limits` and `requests` are quantities as they were written."""

    name: str
    limits: Mapping[str, str] = field(default_factory=dict, hash=False)
    requests: Mapping[str, str] = field(default_factory=dict, hash=False)
    kind: ContainerKind = ContainerKind.MAIN
    env: Mapping[str, str] = field(default_factory=dict, hash=False)
    command: tuple[str, ...] = ()

    def wanted(self, resource: str) -> int:
        """How many devices: the limit, rounded up to a whole number."""
        return quantity.whole(_quantity(self.limits.get(resource, "0")))


@dataclass(frozen=True, slots=True)
class PodSpec:
    """`containers` in the order they are admitted: init containers and sidecars as written, then the others.

    A name that ends in `-` is completed with a number when the pod is admitted.
    """

    name: str
    containers: tuple[ContainerSpec, ...]
    namespace: str = "default"
    uid: str = ""

    def __post_init__(self) -> None:
        if not self.uid:  # the same pod has the same id in every run
            object.__setattr__(self, "uid", _uid(self.key))

    @property
    def key(self) -> str:
        return f"{self.namespace}/{self.name}"

    def anew(self, is_taken: Callable[[str], bool]) -> "PodSpec":
        """With an id of its own, as every new pod has: not that of an earlier one of its name. A given id stays."""
        if self.uid != _uid(self.key) or not is_taken(self.uid):
            return self
        others = (_uid(f"{self.key}#{number}") for number in count(2))
        return replace(self, uid=next(uid for uid in others if not is_taken(uid)))

    def total(self, resource: str) -> int:
        """What the fit check counts: the containers together, or an init container's moment if that is more."""
        return quantity.effective_requests((each.kind, {resource: each.wanted(resource)}) for each in self.containers)[
            resource
        ]

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
    """What an API server would have refused in the extended resources: the place, and its words."""
    for container in pod.containers:
        for resource in sorted({*container.limits, *container.requests}):
            if "/" in resource:
                yield from _violations(f"{container.name}.resources", resource, container)


def _violations(place: str, resource: str, container: ContainerSpec) -> Iterator[tuple[str, str]]:
    limit, request = container.limits.get(resource), container.requests.get(resource)
    if limit is None:
        yield f"{place}.limits", "Limit must be set for non overcommitable resources"  # 10.4
        return
    if _quantity(limit) % 1 or _quantity(limit) < 0:
        yield (
            f"{place}.limits[{resource}]",
            "must be an integer" if _quantity(limit) > 0 else "must not be negative",
        )  # 10.3
    if request is not None and _quantity(request) != _quantity(limit):
        yield f"{place}.requests", f"must be equal to {resource} limit of {limit}"  # 10.4


def read(document: object) -> PodSpec:
    """A Pod object, as written in YAML; raises `InvalidPod` for what is none."""
    pod = _mapping(document, "a pod")
    if pod.get("kind", "Pod") != "Pod":
        raise InvalidPod(f"kind is Pod, not {pod.get('kind')!r}")
    metadata, spec = _mapping(pod.get("metadata"), "metadata"), _mapping(pod.get("spec"), "spec")
    inits = [_container(each, init=True) for each in _list(spec.get("initContainers"), "spec.initContainers")]
    mains = [_container(each, init=False) for each in _list(spec.get("containers"), "spec.containers")]
    if not mains:
        raise InvalidPod("spec.containers has no container")
    _check_names([*inits, *mains])
    prefix = _text(metadata, "generateName").rstrip("-")
    name = _text(metadata, "name") or (f"{prefix}-" if prefix else "")
    if not name:
        raise InvalidPod("metadata.name is missing")
    namespace = _text(metadata, "namespace") or "default"
    return PodSpec(name, (*inits, *mains), namespace, _text(metadata, "uid"))


def _container(document: object, *, init: bool) -> ContainerSpec:
    container = _mapping(document, "a container")
    name = _text(container, "name")
    if not name:
        raise InvalidPod("a container has no name")
    resources = _mapping(container.get("resources"), f"{name}.resources")
    always = container.get("restartPolicy") == "Always"
    return ContainerSpec(
        name=name,
        limits=_quantities(resources.get("limits"), f"{name}.resources.limits"),
        requests=_quantities(resources.get("requests"), f"{name}.resources.requests"),
        kind=(ContainerKind.SIDECAR if always else ContainerKind.INIT) if init else ContainerKind.MAIN,
        env=_env(container.get("env"), name),
        command=tuple(map(str, [*_list(container.get("command"), "command"), *_list(container.get("args"), "args")])),
    )


def _check_names(containers: Sequence[ContainerSpec]) -> None:
    names = [container.name for container in containers]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise InvalidPod(f"two containers are named {twice[0]!r}")


def _env(document: object, name: str) -> Mapping[str, str]:
    entries = [_mapping(each, f"an env of {name}") for each in _list(document, f"{name}.env")]
    # What comes from elsewhere (valueFrom) is not known here, and hides nothing that a plugin sets.
    return {_text(each, "name"): _text(each, "value") for each in entries if not each.get("valueFrom")}


def _quantities(document: object, name: str) -> Mapping[str, str]:
    quantities = {str(key): str(value) for key, value in _mapping(document, name).items()}
    for resource, text in quantities.items():
        try:
            _quantity(text)
        except InvalidPod as error:
            raise InvalidPod(f"{name}[{resource}]: {error}") from error
    return quantities


def _mapping(value: object, name: str) -> Mapping[str, object]:
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise InvalidPod(f"{name} is an object, not {value!r:.60}")
    return value


def _list(value: object, name: str) -> Sequence[object]:
    if value is None:
        return []
    if not isinstance(value, list | tuple):
        raise InvalidPod(f"{name} is a list, not {value!r:.60}")
    return value


def _text(document: Mapping[str, object], key: str) -> str:
    value = document.get(key)
    return "" if value is None else str(value)
