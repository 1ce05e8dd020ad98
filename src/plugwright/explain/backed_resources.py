"""Extended resources that DRA drivers back: the class of a resource name, and the claim that the scheduler makes."""

from collections.abc import Iterable

from plugwright.explain.world import Object, identity

__all__ = ["claim_for", "classes_by_resource"]

_IMPLICIT = "deviceclass.resource.kubernetes.io/"


def classes_by_resource(classes: Iterable[Object]) -> dict[str, str]:
    """DeviceClass names by the resource names that pods may request instead of a claim.

    Of several classes with one name the newest counts, and of equally old ones the first by name.
    """
    named: dict[str, tuple[str, str]] = {}
    for entry in sorted(classes, key=lambda entry: identity(entry)[1], reverse=True):
        name, created = identity(entry)[1], str((entry.get("metadata") or {}).get("creationTimestamp") or "")
        resource = (entry.get("spec") or {}).get("extendedResourceName")
        if resource and created >= named.get(resource, ("", ""))[0]:
            named[resource] = created, name
        named[f"{_IMPLICIT}{name}"] = created, name
    return {resource: name for resource, (_, name) in named.items()}


def claim_for(pod: Object, resource: str, class_name: str) -> Object:
    """A claim with one request for each container that asks for the resource."""
    spec = pod.get("spec") or {}
    requests = []
    for number, container in enumerate((*(spec.get("initContainers") or ()), *(spec.get("containers") or ()))):
        resources = container.get("resources") or {}
        count = int({**(resources.get("limits") or {}), **(resources.get("requests") or {})}.get(resource) or 0)
        if count:
            exactly = {"deviceClassName": class_name, "allocationMode": "ExactCount", "count": count}
            requests.append({"name": f"container-{number}-request-0", "exactly": exactly})
    namespace, name = identity(pod)
    metadata = {"namespace": namespace, "name": f"{name}-extended-resources"}
    return {"metadata": metadata, "spec": {"devices": {"requests": requests}}}
