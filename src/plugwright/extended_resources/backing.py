"""The component that backs an extended resource of a node: ordered rules, of which the first applicable one decides.

A rule returns its assessment with the evidence as text, or None if it does not apply. The rules rely on the kubelet's
behaviour: at each status update it sets both counts of a resource that a plugin serves, and 0 for one whose plugin
stopped longer than the grace period ago; for every other key it copies capacity to allocatable.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from plugwright.extended_resources.resources import (
    GRACE_MINUTES,
    Assessment,
    Backing,
    BoundPod,
    CapacityOwner,
    ClusterContext,
    Holder,
    KeyState,
    KubeletDirectory,
    NodeResource,
    NodeSnapshot,
    is_extended,
)
from plugwright.model import natural_order

__all__ = ["assess", "node_resources"]

_STOPPED = f"the plugin stopped less than {GRACE_MINUTES} ago"
_NO_LISTENER = "no plugin socket has a live server"


@dataclass(frozen=True, slots=True)
class _Case:
    """The facts about one capacity key."""

    resource: str
    capacity: int
    allocatable: int
    owner: CapacityOwner | None
    silence: str
    classes: tuple[str, ...]
    kubelet_dir: KubeletDirectory | None

    @property
    def registered(self) -> bool | None:
        """Whether the kubelet's checkpoint names the resource; None if it cannot be read."""
        return self.resource in self.kubelet_dir.registered if self.kubelet_dir else None

    @property
    def precedence(self) -> str:
        """The scheduler uses a device class only on nodes that offer none of the resource themselves."""
        if not self.classes or not self.allocatable:
            return ""
        return f"; for pods on this node that takes precedence over {self.class_names}"

    @property
    def class_names(self) -> str:
        return f"DeviceClass {', '.join(self.classes)}"


def node_resources(node: NodeSnapshot, pods: Iterable[BoundPod], context: ClusterContext) -> list[NodeResource]:
    """Every extended resource that the node lists or that one of its pods requests."""
    pods = list(pods)
    requested = {name for pod in pods for name, number in pod.requests.items() if number and is_extended(name)}
    names = {*node.capacity, *node.allocatable, *requested}
    return [assess(node, name, pods, context) for name in sorted(names, key=natural_order)]


def assess(node: NodeSnapshot, resource: str, pods: Iterable[BoundPod], context: ClusterContext) -> NodeResource:
    return NodeResource(
        node.name,
        resource,
        node.capacity.get(resource),
        node.allocatable.get(resource),
        _holders(resource, pods),
        _assessment(node, resource, context),
    )


def _holders(resource: str, pods: Iterable[BoundPod]) -> tuple[Holder, ...]:
    """One holder per pod, with the number of devices that it requests."""
    return tuple(
        sorted(
            Holder(pod.namespace, pod.name, pod.requests[resource], resource in pod.claimed)
            for pod in pods
            if pod.requests.get(resource)
        )
    )


def _assessment(node: NodeSnapshot, resource: str, context: ClusterContext) -> Assessment:
    classes = context.classes.get(resource, ())
    if resource not in node.capacity:
        return _without_capacity(resource in node.allocatable, classes)
    case = _Case(
        resource,
        node.capacity[resource],
        node.allocatable.get(resource, 0),
        node.owners.get(resource),
        node.silence,
        classes,
        context.kubelet_dir_of(node),
    )
    return next(assessment for rule in _RULES if (assessment := rule(case)))


def _without_capacity(allocatable: bool, classes: tuple[str, ...]) -> Assessment:
    if allocatable:
        evidence = "it has no capacity; the kubelet removes allocatable at its next status update"
        return Assessment(Backing.UNKNOWN, KeyState.FREE, evidence)
    if classes:
        evidence = f"DeviceClass {', '.join(classes)}; such devices have no key on the node"
        return Assessment(Backing.DRA, KeyState.ABSENT, evidence)
    return Assessment(Backing.UNKNOWN, KeyState.ABSENT, "a pod on this node requests it, but the node does not list it")


def _announced(case: _Case) -> Assessment | None:
    if case.kubelet_dir and case.resource in case.kubelet_dir.announced:
        return Assessment(Backing.PLUGIN, KeyState.SERVED, "a live socket in plugins_registry serves it")
    return None


def _set_by_hand(case: _Case) -> Assessment | None:
    """Does not apply if allocatable differs from capacity: then the kubelet counts devices of a plugin."""
    owner = case.owner
    if not owner or owner.kubelet or case.registered:
        return None
    if owner.settled and case.allocatable != case.capacity and case.registered is None:
        return None
    when = f" at {owner.time:%Y-%m-%dT%H:%M:%SZ}" if owner.time else ""
    evidence = f"capacity was set by {owner.manager}{when}, not by the kubelet"
    return Assessment(Backing.MANUAL, KeyState.FREE, evidence + case.precedence)


def _not_in_checkpoint(case: _Case) -> Assessment | None:
    """The kubelet drops a resource from its checkpoint when the grace period is over (2.18)."""
    if case.registered is not False or not (case.capacity == 0 or (case.owner and case.owner.kubelet)):
        return None
    if case.classes and case.capacity == 0:
        return Assessment(Backing.DRA, KeyState.FREE, f"{case.class_names}; the key was left behind by a plugin")
    return Assessment(Backing.STALE, KeyState.FREE, "the kubelet's checkpoint no longer names it")


def _kubelet_silent(case: _Case) -> Assessment | None:
    if not case.silence:
        return None
    return Assessment(Backing.UNKNOWN, KeyState.UNCLEAR, f"the counts may be old: {case.silence}")


def _some_allocatable(case: _Case) -> Assessment | None:
    if not case.allocatable:
        return None
    if not case.owner and not case.registered and case.allocatable == case.capacity:
        return Assessment(Backing.UNKNOWN, KeyState.UNCLEAR, "the node does not record which manager set it")
    evidence = f"the kubelet counts {case.allocatable} of {case.capacity} devices healthy"
    return Assessment(Backing.PLUGIN, KeyState.SERVED, evidence + case.precedence)


def _none_allocatable(case: _Case) -> Assessment | None:
    if not case.capacity:
        return None
    if case.kubelet_dir and not case.kubelet_dir.listening:
        return Assessment(Backing.STALE, KeyState.GRACE_PERIOD, f"{_NO_LISTENER}; {_STOPPED}")
    evidence = f"either {_STOPPED}, or it runs and no device is healthy"
    return Assessment(Backing.UNKNOWN, KeyState.GRACE_PERIOD, evidence)


def _zero_capacity(case: _Case) -> Assessment:
    if case.classes:
        evidence = f"{case.class_names}; the key with 0 was left behind by a plugin"
        return Assessment(Backing.DRA, KeyState.FREE, evidence)
    if case.registered and case.kubelet_dir and case.kubelet_dir.listening:
        return Assessment(Backing.UNKNOWN, KeyState.FREE, f"either {_STOPPED}, or it runs and lists no device")
    if case.registered:
        return Assessment(Backing.STALE, KeyState.FREE, f"{_NO_LISTENER}; {_STOPPED}")
    evidence = "the kubelet counts no device of it: either its plugin is gone, or it runs and lists no device"
    return Assessment(Backing.UNKNOWN, KeyState.FREE, evidence)


_RULES = (
    _announced,
    _set_by_hand,
    _not_in_checkpoint,
    _kubelet_silent,
    _some_allocatable,
    _none_allocatable,
    _zero_capacity,
)
