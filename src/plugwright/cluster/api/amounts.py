"""What containers may ask for: names of resources, and how much of them; in the real server's words. Pure."""

from collections.abc import Iterator

from plugwright.cluster import quantities
from plugwright.cluster.api.errors import Cause
from plugwright.cluster.api.names import unqualified
from plugwright.cluster.store import Object

__all__ = ["is_extended", "violations"]

_OF_CONTAINERS = ("cpu", "memory", "ephemeral-storage")
_HUGE = "hugepages-"
_STANDARD = frozenset(
    {"configmaps", "persistentvolumeclaims", "pods", "replicationcontrollers", "resourcequotas", "secrets", "services",
     "storage"}
)  # fmt: skip


def is_extended(resource: str) -> bool:
    """Of a domain that is not Kubernetes' own, and fit to be limited by a quota."""
    foreign = "/" in resource and "kubernetes.io/" not in resource
    return foreign and not resource.startswith("requests.") and not any(unqualified(f"requests.{resource}"))


def violations(place: str, resources: Object) -> Iterator[Cause]:
    """`place` is where the container's resources are."""
    for part in ("limits", "requests"):
        for resource, value in sorted((resources.get(part) or {}).items()):
            at = f"{place}.{part}[{resource}]"
            yield from (Cause(at, f'Invalid value: "{resource}": {why}') for why in _name(resource))
            yield from (Cause(at, f'Invalid value: "{value}": {why}') for why in _amount(resource, str(value)))
    yield from _overcommitted(place, resources)


def _name(resource: str) -> Iterator[str]:
    wrong = list(unqualified(resource))
    yield from wrong
    if "/" not in resource:
        if resource.startswith((*_OF_CONTAINERS, _HUGE)):
            return
        if not wrong and resource not in _STANDARD:
            yield "must be a standard resource type or fully qualified"
        yield "must be a standard resource for containers"
    elif "kubernetes.io/" not in resource and not is_extended(resource):
        yield "doesn't follow extended resource name standard"


def _amount(resource: str, text: str) -> Iterator[str]:
    if quantities.parse(text) < 0:
        yield "must be greater than or equal to 0"
    if is_extended(resource) and quantities.parse(text) % 1:
        yield "must be an integer"


def _overcommitted(place: str, resources: Object) -> Iterator[Cause]:
    limits, requests = resources.get("limits") or {}, resources.get("requests") or {}
    for resource, value in sorted(requests.items()):
        whole = is_extended(resource) or resource.startswith(_HUGE)  # what cannot be promised twice
        if resource not in limits:
            if whole:
                text = "Required value: Limit must be set for non overcommitable resources"
                yield Cause(f"{place}.limits", text, "FieldValueRequired")
            continue
        request, limit = quantities.parse(value), quantities.parse(limits[resource])
        if whole and request != limit:
            text = f'Invalid value: "{value}": must be equal to {resource} limit of {limits[resource]}'
            yield Cause(f"{place}.requests", text)
        elif request > limit:
            text = f'Invalid value: "{value}": must be less than or equal to {resource} limit of {limits[resource]}'
            yield Cause(f"{place}.requests", text)
