"""Resources of containers and of pods: names and quantities, huge pages, requests beside limits, and claims."""

from collections.abc import Callable, Collection, Iterator
from decimal import Decimal

from plugwright import quantity
from plugwright.apiserver.store import Object
from plugwright.apiserver.validation import (
    FieldError,
    dns_label_errors,
    dns_subdomain_errors,
    duplicate,
    forbidden,
    invalid,
    invalid_for,
    is_extended_resource,
    qualified_name_errors,
    quantity_errors,
    required,
    unsupported,
)

__all__ = ["claim_errors", "overhead_errors", "pod_requirement_errors", "requirement_errors"]

_CONTAINER_RESOURCES = ("cpu", "ephemeral-storage", "memory")
_POD_RESOURCES = ("cpu", "hugepages-", "memory")
_HUGE_PAGES = "hugepages-"
_STANDARD_RESOURCES = frozenset(
    {"configmaps", "limits.cpu", "limits.ephemeral-storage", "limits.memory", "persistentvolumeclaims", "pods",
     "replicationcontrollers", "requests.cpu", "requests.ephemeral-storage", "requests.memory", "requests.storage",
     "resourcequotas", "secrets", "services", "services.loadbalancers", "services.nodeports", "storage"}
)  # fmt: skip


def requirement_errors(field: str, resources: Object, claims: Collection[str]) -> Iterator[FieldError]:
    """Errors of a container's resources; `claims` are the names of the pod's claims."""
    yield from _amount_errors(field, resources, _container_name_errors)
    yield from _claim_name_errors(f"{field}.claims", resources.get("claims") or [], claims)


def overhead_errors(field: str, overhead: Object) -> Iterator[FieldError]:
    yield from _amount_errors(field, {"limits": overhead}, _container_name_errors)


def pod_requirement_errors(spec: Object) -> Iterator[FieldError]:
    """Errors of the resources of the pod as a whole."""
    resources, field = spec.get("resources"), "spec.resources"
    if resources is None:
        return
    if (spec.get("os") or {}).get("name") == "windows":
        yield forbidden(field, "may not be set for a windows pod")
        return
    if resources.get("claims"):
        yield forbidden(f"{field}.claims", "claims may not be set for Resources at pod-level")
    yield from _amount_errors(field, resources, _pod_name_errors)
    for resource, amount in sorted((resources.get("requests") or {}).items()):
        total = _requested(spec, resource)
        if total > quantity.zero_if_invalid(amount):
            rule = "must be greater than or equal to aggregate container requests of"
            yield invalid(f"{field}.requests[{resource}]", amount, f"{rule} {quantity.as_text(total)}")
    for number, container in enumerate(spec.get("containers") or []):
        for resource, limit in sorted(((container.get("resources") or {}).get("limits") or {}).items()):
            most = (resources.get("limits") or {}).get(resource)
            if most is not None and quantity.zero_if_invalid(limit) > quantity.zero_if_invalid(most):
                place = f"{field}.containers[{number}][{resource}].limits"
                yield invalid(place, limit, f"must be less than or equal to pod limits of {most}")


def _requested(spec: Object, resource: str) -> Decimal:
    """The request of all containers together; of those that start the others, the largest."""

    def amounts(part: str) -> list[Decimal]:
        parts = ((container.get("resources") or {}).get("requests") or {} for container in spec.get(part) or [])
        return [quantity.zero_if_invalid(requests.get(resource, 0)) for requests in parts]

    return max([sum(amounts("containers"), Decimal(0)), *amounts("initContainers")])


def _amount_errors(
    field: str, resources: Object, name_errors: Callable[[str, str], Iterator[FieldError]]
) -> Iterator[FieldError]:
    limits, requests = resources.get("limits") or {}, resources.get("requests") or {}
    for part, amounts in (("limits", limits), ("requests", requests)):
        for resource, amount in sorted(amounts.items()):
            place = f"{field}.{part}[{resource}]"
            yield from name_errors(place, resource)
            yield from invalid_for(place, str(amount), quantity_errors(resource, str(amount)))
            yield from invalid_for(place, str(amount), _huge_page_errors(resource, str(amount)))
    yield from _overcommit_errors(field, limits, requests)
    names = {*limits, *requests}
    if any(name.startswith(_HUGE_PAGES) for name in names) and not names & {"cpu", "memory"}:
        yield forbidden(field, "HugePages require cpu or memory")


def _huge_page_errors(resource: str, amount: str) -> Iterator[str]:
    if not resource.startswith(_HUGE_PAGES):
        return
    size = quantity.zero_if_invalid(resource.removeprefix(_HUGE_PAGES))
    if size <= 0 or quantity.zero_if_invalid(amount) % size:
        yield f"{amount} is not positive integer multiple of {resource}"


def _overcommit_errors(field: str, limits: Object, requests: Object) -> Iterator[FieldError]:
    for resource, amount in sorted(requests.items()):
        is_exclusive = resource.startswith(_HUGE_PAGES) or ("/" in resource and "kubernetes.io/" not in resource)
        if resource not in limits:
            if is_exclusive:
                yield required(f"{field}.limits", "Limit must be set for non overcommitable resources")
            continue
        request, limit = quantity.zero_if_invalid(amount), quantity.zero_if_invalid(limits[resource])
        rule = "equal to" if is_exclusive else "less than or equal to"
        if (is_exclusive and request != limit) or request > limit:
            yield invalid(f"{field}.requests", str(amount), f"must be {rule} {resource} limit of {limits[resource]}")


def _container_name_errors(field: str, resource: str) -> Iterator[FieldError]:
    yield from _resource_name_errors(field, resource)
    if "/" not in resource:
        if resource not in _CONTAINER_RESOURCES and not resource.startswith(_HUGE_PAGES):
            yield invalid(field, resource, "must be a standard resource for containers")
    elif "kubernetes.io/" not in resource and not is_extended_resource(resource):
        yield invalid(field, resource, "doesn't follow extended resource name standard")


def _pod_name_errors(field: str, resource: str) -> Iterator[FieldError]:
    errors = list(_resource_name_errors(field, resource))
    yield from errors
    if not errors and resource not in ("cpu", "memory") and not resource.startswith(_HUGE_PAGES):
        yield from unsupported(field, resource, _POD_RESOURCES)


def _resource_name_errors(field: str, resource: str) -> Iterator[FieldError]:
    errors = list(qualified_name_errors(resource))
    yield from invalid_for(field, resource, errors)
    is_standard = resource in (*_CONTAINER_RESOURCES, *_STANDARD_RESOURCES) or resource.startswith(_HUGE_PAGES)
    if not errors and "/" not in resource and not is_standard:
        yield invalid(field, resource, "must be a standard resource type or fully qualified")


def _claim_name_errors(field: str, references: list[Object], claims: Collection[str]) -> Iterator[FieldError]:
    seen: set[str] = set()
    for number, reference in enumerate(references):
        place = f"{field}[{number}]"
        name, request = str(reference.get("name") or ""), str(reference.get("request") or "")
        if not name:
            yield required(place)
            continue
        if request:
            yield from invalid_for(f"{place}.request", request, dns_label_errors(request))
        key = f"{name}/{request}" if request else name
        if key in seen or name in seen or (not request and any(one.startswith(f"{name}/") for one in seen)):
            yield duplicate(place, name if name in seen or not request else key)
        seen.add(key)
        if name not in claims:
            choices = f": {', '.join(sorted(claims))}" if claims else " which is empty"
            text = f'Not found: "{name}": must be one of the names in pod.spec.resourceClaims{choices}'
            yield FieldError(place, text, "FieldValueNotFound")


def claim_errors(claims: list[Object]) -> Iterator[FieldError]:
    """The resource claims of a pod."""
    seen: set[str] = set()
    for number, claim in enumerate(claims):
        field, name = f"spec.resourceClaims[{number}]", str(claim.get("name") or "")
        if not name:
            yield required(f"{field}.name")
        elif name in seen:
            yield duplicate(f"{field}.name", name)
        else:
            yield from invalid_for(f"{field}.name", name, dns_label_errors(name))
        seen.add(name)
        sources = {part: claim.get(part) for part in ("resourceClaimName", "resourceClaimTemplateName")}
        given = [source for source in sources.values() if source is not None]
        shown = {"Name": name, **{f"{part[0].upper()}{part[1:]}": source for part, source in sources.items()}}
        if len(given) > 1:
            text = "at most one of `resourceClaimName` or `resourceClaimTemplateName` may be specified"
            yield invalid(field, shown, text)
        if not given:
            yield invalid(field, shown, "must specify one of: `resourceClaimName`, `resourceClaimTemplateName`")
        for part, source in sources.items():
            if source is not None:
                yield from invalid_for(f"{field}.{part}", source, dns_subdomain_errors(str(source)))
