"""Numbers of devices: those that a Node counts without ids, and the sums that `free` shows."""

from collections.abc import Iterator, Mapping
from typing import Any

from plugwright.errors import InvalidValue
from plugwright.explain.world import ApiObject, World, identity, is_device_resource, is_finished
from plugwright.fleet.claim_users import FleetValue, text_of
from plugwright.quantity import effective_requests, parse, whole

__all__ = ["FreeCount", "UnnamedDevices", "count_unnamed", "device_requests"]


class UnnamedDevices(FleetValue, frozen=True, kw_only=True):
    """The devices of a resource on a node without a NodeReport, as counted by the Node. `requested` null: unknown."""

    node: str
    resource: str
    capacity: int
    allocatable: int
    requested: int | None


class FreeCount(FleetValue, frozen=True, kw_only=True):
    """Devices of a resource, grouped by node, model or NUMA node if requested. `unknown` ones could be free."""

    resource: str
    by: str = ""
    total: int = 0
    free: int = 0
    held: int = 0
    unhealthy: int = 0  # including cordoned and tainted ones
    unknown: int = 0


def count_unnamed(world: World, served: set[tuple[str, str]]) -> Iterator[UnnamedDevices]:
    """The counts of resources without a report in `served`, by node and resource."""
    requested: dict[tuple[str, str], int] = {}
    for pod in world.pods:
        node = text_of((pod.get("spec") or {}).get("nodeName"))
        if node and not is_finished(pod):
            for resource, count in device_requests(pod).items():
                requested[node, resource] = requested.get((node, resource), 0) + count
    is_known = not any(entry.startswith("pods") for entry in world.unseen)
    for entry in world.nodes:
        name, status = identity(entry)[1], entry.get("status") or {}
        for resource, amount in sorted((status.get("capacity") or {}).items()):
            capacity, allocatable = _count(amount), _count((status.get("allocatable") or {}).get(resource, 0))
            if is_device_resource(resource) and (name, resource) not in served and capacity:
                held = requested.get((name, resource), 0) if is_known else None
                yield UnnamedDevices(
                    node=name, resource=resource, capacity=capacity, allocatable=allocatable, requested=held
                )


def device_requests(pod: ApiObject) -> dict[str, int]:
    """A pod's requests of extended resources, as counted by the scheduler."""
    spec = pod.get("spec") or {}
    containers = [("main", _limits(container)) for container in spec.get("containers") or ()]
    first = [
        ("sidecar" if container.get("restartPolicy") == "Always" else "init", _limits(container))
        for container in spec.get("initContainers") or ()
    ]
    return effective_requests([*first, *containers])


def _limits(container: Mapping[str, Any]) -> dict[str, int]:
    resources = container.get("resources") or {}
    amounts = {**(resources.get("limits") or {}), **(resources.get("requests") or {})}
    return {resource: _count(amount) for resource, amount in amounts.items() if is_device_resource(resource)}


def _count(amount: object) -> int:
    try:
        return whole(parse(str(amount)))
    except InvalidValue:
        return 0
