"""Who backs an extended resource of a node: one rule after the other, until one can tell.

A rule gives its verdict with the evidence in words, or None where it has nothing to say. The kubelet's side of it:
each status round it sets both counts of what a plugin serves, and 0 for what a plugin left more than five minutes ago;
for every other key it makes allocatable the same as capacity.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from plugwright.extended_resources.resources import (
    Backing,
    Holder,
    Key,
    Local,
    Node,
    Pod,
    Row,
    Setter,
    Verdict,
    World,
    is_extended,
)
from plugwright.model import natural_order

__all__ = ["row", "rows"]


@dataclass(frozen=True, slots=True)
class _Case:
    resource: str
    capacity: int
    allocatable: int
    setter: Setter | None
    silence: str
    classes: tuple[str, ...]
    local: Local | None

    @property
    def registered(self) -> bool | None:
        """Whether the kubelet knows a plugin of it; None where that cannot be seen."""
        return self.resource in self.local.registered if self.local else None

    @property
    def before_classes(self) -> str:
        """The scheduler uses a device class only on nodes that offer none of the resource themselves."""
        wins = self.classes and self.allocatable
        return f"; for pods here that goes before {self.class_names}" if wins else ""

    @property
    def class_names(self) -> str:
        return f"DeviceClass {', '.join(self.classes)}"


def rows(node: Node, pods: Iterable[Pod], world: World) -> list[Row]:
    """Every extended resource that the node lists or that one of its pods asks for."""
    pods = list(pods)
    asked = {name for pod in pods for name, number in pod.requests.items() if number and is_extended(name)}
    names = {*node.capacity, *node.allocatable, *asked}
    return [row(node, name, pods, world) for name in sorted(names, key=natural_order)]


def row(node: Node, resource: str, pods: Iterable[Pod], world: World) -> Row:
    counts = node.capacity.get(resource), node.allocatable.get(resource)
    return Row(node.name, resource, *counts, _holders(node, resource, pods, world), _judge(node, resource, world))


def _holders(node: Node, resource: str, pods: Iterable[Pod], world: World) -> tuple[Holder, ...]:
    """By pod: what its specification says, and what the kubelet has handed out, where that can be seen."""
    local = world.of(node)
    found = {(each.namespace, each.pod): each for each in (local.holders.get(resource, ()) if local else ())}
    for pod in pods:
        if pod.requests.get(resource):
            claim = resource in pod.claimed
            found[pod.namespace, pod.name] = Holder(pod.namespace, pod.name, pod.requests[resource], claim)
    return tuple(sorted(found.values()))


def _judge(node: Node, resource: str, world: World) -> Verdict:
    classes = world.classes.get(resource, ())
    if resource not in node.capacity:
        return _unlisted(resource in node.allocatable, classes)
    case = _Case(
        resource,
        node.capacity[resource],
        node.allocatable.get(resource, 0),
        node.setters.get(resource),
        node.silence,
        classes,
        world.of(node),
    )
    return next(verdict for rule in _RULES if (verdict := rule(case)))


def _unlisted(allocatable: bool, classes: tuple[str, ...]) -> Verdict:
    if allocatable:
        evidence = "it has no capacity; the kubelet takes allocatable away at its next status round"
        return Verdict(Backing.UNKNOWN, Key.FREE, evidence)
    if classes:
        return Verdict(
            Backing.DRA, Key.ABSENT, f"DeviceClass {', '.join(classes)}; such devices have no key on the node"
        )
    return Verdict(Backing.UNKNOWN, Key.ABSENT, "a pod here asks for it, but the node does not list it")


def _announced(case: _Case) -> Verdict | None:
    if case.local and case.resource in case.local.announced:
        return Verdict(Backing.PLUGIN, Key.SERVED, "a live socket in plugins_registry says that it serves it")
    return None


def _set_by_hand(case: _Case) -> Verdict | None:
    """Unless the kubelet has made another allocatable of it than a copy: then it counts devices."""
    setter = case.setter
    if not setter or setter.kubelet or case.registered:
        return None
    if setter.settled and case.allocatable != case.capacity and case.registered is None:
        return None
    when = f" at {setter.time:%Y-%m-%dT%H:%M:%SZ}" if setter.time else ""
    evidence = f"capacity was set by {setter.manager}{when}, not by the kubelet"
    return Verdict(Backing.MANUAL, Key.FREE, evidence + case.before_classes)


def _forgotten(case: _Case) -> Verdict | None:
    """Where the checkpoint can be read: the kubelet drops a resource from it when its five minutes are over."""
    if case.registered is not False or not (case.capacity == 0 or (case.setter and case.setter.kubelet)):
        return None
    if case.classes and case.capacity == 0:
        return Verdict(Backing.DRA, Key.FREE, f"{case.class_names}; the key here is what a plugin left")
    return Verdict(Backing.STALE, Key.FREE, "the kubelet's checkpoint does not name it any more")


def _silent(case: _Case) -> Verdict | None:
    if not case.silence:
        return None
    return Verdict(Backing.UNKNOWN, Key.UNCLEAR, f"the counts may be old: {case.silence}")


def _counted(case: _Case) -> Verdict | None:
    if not case.allocatable:
        return None
    if not case.setter and not case.registered and case.allocatable == case.capacity:
        return Verdict(Backing.UNKNOWN, Key.UNCLEAR, "the node does not record who set it")
    evidence = f"the kubelet counts {case.allocatable} of {case.capacity} devices healthy"
    return Verdict(Backing.PLUGIN, Key.SERVED, evidence + case.before_classes)


def _none_healthy(case: _Case) -> Verdict | None:
    if not case.capacity:
        return None
    if case.local and not case.local.listening:
        return Verdict(Backing.STALE, Key.FADING, f"{_NOBODY}; the plugin went less than five minutes ago")
    evidence = "either its plugin went less than five minutes ago, or it lives and no device is healthy"
    return Verdict(Backing.UNKNOWN, Key.FADING, evidence)


def _zero(case: _Case) -> Verdict:
    if case.classes:
        return Verdict(Backing.DRA, Key.FREE, f"{case.class_names}; the key here, with 0, is what a plugin left")
    if case.registered and case.local and case.local.listening:
        evidence = "either its plugin went less than five minutes ago, or it lives and lists no device"
        return Verdict(Backing.UNKNOWN, Key.FREE, evidence)
    if case.registered:
        return Verdict(Backing.STALE, Key.FREE, f"{_NOBODY}; the plugin went less than five minutes ago")
    return Verdict(
        Backing.STALE,
        Key.FREE,
        "the kubelet counts no device of it; only a plugin that lists none would look the same",
    )


_NOBODY = "nobody listens on a plugin socket"
_RULES = (_announced, _set_by_hand, _forgotten, _silent, _counted, _none_healthy, _zero)
