"""Extended resources served by a DeviceClass: the scheduler's claim for a pod's requests. Pure.

A class serves the resource of its `extendedResourceName`, and `deviceclass.resource.kubernetes.io/` with its name. A
node with a device plugin for the resource continues to serve it; on all other nodes the scheduler allocates one claim
per pod, with one request for each container and resource. Init containers use the devices of later containers.
"""

from collections.abc import Collection, Mapping
from typing import Any

from msgspec import Struct

from plugwright.apiserver.store import Object
from plugwright.cluster.scheduling.pod_request import amounts, is_sidecar
from plugwright.grammars import CLASS_PREFIX

__all__ = ["CLAIM_ANNOTATION", "ExtendedRequests", "classes_of_resources", "new_claim", "requests_of"]

CLAIM_ANNOTATION = "resource.kubernetes.io/extended-resource-claim"

_IN_MEMORY = "<extended-resources>"  # kube-scheduler's name for a claim that does not exist yet


class ExtendedRequests(Struct, frozen=True):
    """The requests of the claim, and the containers of each request, as in the pod's status."""

    requests: tuple[Object, ...]
    mappings: tuple[Object, ...]


def classes_of_resources(classes: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """The name of the DeviceClass by extended resource; of several classes, the newest, then the first by name."""
    found: dict[str, str] = {}
    for name in sorted(sorted(classes, reverse=True), key=lambda name: _created(classes[name])):
        resource = (classes[name].get("spec") or {}).get("extendedResourceName")
        found |= {f"{CLASS_PREFIX}{name}": name} | ({str(resource): name} if resource else {})
    return found


def new_claim(pod: Object) -> Object:
    """The claim of a pod's extended resources, without requests."""
    metadata = pod["metadata"]
    owner = {"apiVersion": "v1", "kind": "Pod", "name": metadata["name"], "uid": metadata["uid"], "controller": True}
    return {
        "metadata": {
            "name": _IN_MEMORY,
            "namespace": metadata["namespace"],
            "generateName": f"{metadata['name']}-extended-resources-",
            "annotations": {CLAIM_ANNOTATION: "true"},
            "ownerReferences": [owner],
        },
        "spec": {},
    }


def requests_of(pod: Object, classes: Mapping[str, str], resources: Collection[str]) -> ExtendedRequests:
    """The requests of a claim for the `resources` missing on a node."""
    containers = [*(pod["spec"].get("initContainers") or ()), *(pod["spec"].get("containers") or ())]
    last_init = len(pod["spec"].get("initContainers") or ())
    short_lived = {
        place for place, container in enumerate(containers) if place < last_init and not is_sidecar(container)
    }
    requests: list[Object] = []
    mappings: list[Object] = []
    for resource in sorted(resources):
        of_resource = _ResourceRequests(containers, resource, classes[resource])
        found = of_resource.all(short_lived)
        requests += found.requests
        mappings += found.mappings
    return ExtendedRequests(tuple(sorted(requests, key=lambda request: str(request["name"]))), tuple(mappings))


class _ResourceRequests:
    """The requests for one resource."""

    def __init__(self, containers: list[Object], resource: str, device_class: str) -> None:
        self._containers, self._resource, self._class = containers, resource, device_class

    def all(self, short_lived: Collection[int]) -> ExtendedRequests:
        """Long-lived containers have their own devices; short-lived containers share those and one further request."""
        own: dict[int, Object] = {}
        mappings: list[Object] = []
        for place in range(len(self._containers)):
            if place not in short_lived and (count := self._count(place)):
                own[place] = self._request(place, count)
                mappings.append(self._mapping(place, own[place]))
        further: list[Object] = []
        of_short_lived: list[tuple[int, Object]] = []
        for place in sorted(short_lived):
            reused, missing = self._reused(place, own)
            of_short_lived += [(place, request) for request in reused]
            if missing:
                further.append(self._request(place, missing))
                of_short_lived.append((place, further[-1]))
        largest = max(further, key=lambda request: int(request["exactly"]["count"]), default=None)
        for place, request in of_short_lived:
            mappings.append(self._mapping(place, largest if largest and request in further else request))
        return ExtendedRequests((*([largest] if largest else ()), *own.values()), tuple(mappings))

    def _reused(self, place: int, own: Mapping[int, Object]) -> tuple[list[Object], int]:
        """The requests of later containers used by an init container, and how many further devices it needs."""
        missing, reused = self._count(place), []
        for later, request in sorted(own.items()):
            if later > place and missing > 0:
                reused.append(request)
                missing -= int(request["exactly"]["count"])
        return reused, max(0, missing)

    def _count(self, place: int) -> int:
        return self._amounts(place).get(self._resource, 0)

    def _amounts(self, place: int) -> Mapping[str, int]:
        return amounts((self._containers[place].get("resources") or {}).get("requests") or {})

    def _request(self, place: int, count: int) -> Object:
        """A request, named after the container and the position of the resource among all of its requests."""
        number = sorted(self._amounts(place)).index(self._resource)
        exactly = {"deviceClassName": self._class, "allocationMode": "ExactCount", "count": count}
        return {"name": f"container-{place}-request-{number}", "exactly": exactly}

    def _mapping(self, place: int, request: Object) -> Object:
        return {
            "containerName": self._containers[place]["name"],
            "resourceName": self._resource,
            "requestName": request["name"],
        }


def _created(device_class: Mapping[str, Any]) -> str:
    return str(device_class["metadata"].get("creationTimestamp") or "")
