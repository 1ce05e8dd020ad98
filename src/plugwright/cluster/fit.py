"""Which node a pod goes to, and why it goes to none: decided over values alone.

`wish` reads a pod once, `Room` is a node with what is left of it; the rules, their order and their words are the real
scheduler's. Keeping the rooms up to date is `scheduler`'s work, and nothing is written here.

What a kubelet checks of a pod that is bound to it, beside its devices: CPU, memory, the count of pods, labels. Pure.

A scheduler has looked at all that before; pods that name their node themselves have been looked at by nobody.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from plugwright import quantity
from plugwright.cluster import affinity
from plugwright.cluster.affinity import Preference, Term
from plugwright.cluster.store import Object
from plugwright.model import natural_order

__all__ = ["NO_NODES", "Refusal", "Rejection", "Room", "Wish", "best", "refusal", "rejection", "unschedulable", "wish"]

NO_NODES = "no nodes available to schedule pods"
_CPU, _MEMORY, _PODS = "cpu", "memory", "pods"
_UNNAMED_CPU, _UNNAMED_MEMORY = 100, 200 * 2**20  # what a container that asks for nothing is taken to need
_UNSCHEDULABLE = {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}
_NOT_READY = {"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"}
_HARD = ("NoSchedule", "NoExecute")
_TAINT_WEIGHT, _AFFINITY_WEIGHT = 3, 2

Amounts = dict[str, int]


@dataclass(frozen=True, slots=True)
class Wish:
    """What a pod asks of a node. `requests` has CPU in thousandths and everything else in whole units."""

    requests: Mapping[str, int]
    weight: tuple[int, int]  # CPU and memory that it counts for when nodes are compared
    selector: Mapping[str, str]
    terms: tuple[Term, ...] | None  # one of them must match; None if there are none
    names: frozenset[str] | None  # the only nodes there can be, where the terms name nodes
    preferences: tuple[Preference, ...]
    tolerations: tuple[Object, ...]


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a node does not take a pod; `hopeless` if it would not even without its other pods."""

    reasons: tuple[str, ...]
    hopeless: bool = True


@dataclass(slots=True)
class Room:
    """One node: what it offers, and what its pods have been given."""

    name: str
    labels: Mapping[str, str]
    taints: tuple[Object, ...]
    allocatable: Mapping[str, int]
    used: Amounts = field(default_factory=dict)
    pods: int = 0
    weight: tuple[int, int] = (0, 0)
    order: tuple[tuple[int, int, str], ...] = ()  # of names, where nodes are equally good

    @classmethod
    def of(cls, node: Object) -> "Room":
        spec, status = node.get("spec") or {}, node.get("status") or {}
        name, labels = node["metadata"]["name"], dict(node["metadata"].get("labels") or {})
        allocatable = _amounts(status.get("allocatable") or {})
        return cls(name, labels, _taints(spec, status), allocatable, order=natural_order(name))

    def take(self, asked: Wish, sign: int = 1) -> None:
        """A pod comes, or with `sign` -1 goes."""
        for resource, amount in asked.requests.items():
            self.used[resource] = self.used.get(resource, 0) + sign * amount
        self.pods += sign
        self.weight = (self.weight[0] + sign * asked.weight[0], self.weight[1] + sign * asked.weight[1])


def wish(pod: Object) -> Wish:
    spec = pod["spec"]
    requests = _requests(spec)
    found = affinity.read(spec)
    return Wish(
        {resource: amount for resource, amount in requests.items() if amount},
        _weight(spec),
        dict(spec.get("nodeSelector") or {}),
        found.terms,
        found.names,
        found.preferences,
        tuple(dict(each) for each in spec.get("tolerations") or ()),
    )


def refusal(asked: Wish, room: Room) -> Refusal | None:
    """The first rule that is broken, in the real order; None if the pod fits."""
    for taint in room.taints:
        if taint["effect"] in _HARD and not affinity.tolerates(asked.tolerations, taint):
            if taint["key"] == _UNSCHEDULABLE["key"]:
                return Refusal(("node(s) were unschedulable",))
            return Refusal(("node(s) had untolerated taint(s)",))
    if asked.names is not None and room.name not in asked.names:
        return Refusal(("node(s) didn't satisfy plugin(s) [NodeAffinity]",))
    if not affinity.matches(asked.selector, asked.terms, room.name, room.labels):
        return Refusal(("node(s) didn't match Pod's node affinity/selector",))
    return _too_little(asked, room)


def _too_little(asked: Wish, room: Room) -> Refusal | None:
    allocatable, used = room.allocatable, room.used
    missing = [name for name, want in asked.requests.items() if want > allocatable.get(name, 0) - used.get(name, 0)]
    full = room.pods + 1 > allocatable.get(_PODS, 0)
    if not missing and not full:
        return None
    reasons = ["Too many pods"] if full else []
    hopeless = any(asked.requests[name] > allocatable.get(name, 0) for name in missing)
    return Refusal((*reasons, *(f"Insufficient {name}" for name in missing)), hopeless)


def best(asked: Wish, rooms: Iterable[Room]) -> tuple[Room | None, list[Refusal]]:
    """The node to take, and why the others do not; refusals only if there is none."""
    refused, fitting = [], []
    for room in rooms:
        found = refusal(asked, room)
        if found is None:
            fitting.append(room)
        else:
            refused.append(found)
    if not fitting:
        return None, refused
    return _highest(asked, fitting), []


def _highest(asked: Wish, rooms: list[Room]) -> Room:
    """Taints to avoid, wishes for labels, then whoever has the most left; of equals the first by name."""
    avoided = [sum(_is_avoided(asked, taint) for taint in room.taints) for room in rooms]
    wished = [affinity.preferred(asked.preferences, room.name, room.labels) for room in rooms]
    most_avoided, most_wished = max(avoided), max(wished)
    top = -1.0
    chosen: list[Room] = []
    for room, bad, good in zip(rooms, avoided, wished, strict=True):
        score = _left(asked, room)
        score += _TAINT_WEIGHT * 100 * (1 - bad / most_avoided) if most_avoided else 0
        score += _AFFINITY_WEIGHT * 100 * good / most_wished if most_wished else 0
        if score > top:
            top, chosen = score, [room]
        elif score == top:
            chosen.append(room)
    return min(chosen, key=lambda room: room.order)


def _is_avoided(asked: Wish, taint: Object) -> bool:
    return taint["effect"] == "PreferNoSchedule" and not affinity.tolerates(asked.tolerations, taint)


def _left(asked: Wish, room: Room) -> float:
    """The share of CPU and memory, in hundredths, that would be left."""
    shares = 0.0
    for index, resource in enumerate((_CPU, _MEMORY)):
        offered = room.allocatable.get(resource, 0)
        if offered:
            shares += max(0.0, (offered - room.weight[index] - asked.weight[index]) * 50 / offered)
    return shares


def unschedulable(refusals: Iterable[Refusal]) -> str:
    """The words of `FailedScheduling`, as the real scheduler puts them together."""
    refusals = list(refusals)
    if not refusals:
        return NO_NODES
    reasons = Counter(reason for each in refusals for reason in each.reasons)
    helpless = sum(each.hopeless for each in refusals)
    preemption = Counter(
        {
            "Preemption is not helpful for scheduling": helpless,
            "No preemption victims found for incoming pod": len(refusals) - helpless,
        }
    )
    available = f"0/{len(refusals)} nodes are available:"
    return (
        f"{available} {_histogram(reasons)}. "
        f"no new claims to deallocate, preemption: {available} {_histogram(+preemption)}."
    )


def _histogram(counts: Mapping[str, int]) -> str:
    return ", ".join(sorted(f"{count} {reason}" for reason, count in counts.items()))


def _taints(spec: Object, status: Object) -> tuple[Object, ...]:
    """With what only the conditions say: a node that is not ready gets its taint from a controller, a little later."""
    taints = [{**each, "key": str(each["key"]), "effect": each["effect"]} for each in spec.get("taints") or ()]
    keys = {taint["key"] for taint in taints}
    ready = next((each["status"] for each in status.get("conditions") or () if each["type"] == "Ready"), "Unknown")
    if ready != "True" and not keys & {_NOT_READY["key"], "node.kubernetes.io/unreachable"}:
        taints.append(_NOT_READY)
    # Looked at before every other taint, and told apart from them.
    first = [_UNSCHEDULABLE] if spec.get("unschedulable") else []
    return (*first, *(taint for taint in taints if taint["key"] != _UNSCHEDULABLE["key"] or not first))


def _amounts(quantity_texts: Mapping[str, object]) -> Amounts:
    return {resource: _amount(resource, text) for resource, text in quantity_texts.items()}


def _amount(resource: str, text: object) -> int:
    given = str(text)
    if given.isdecimal():
        return int(given) * (1000 if resource == _CPU else 1)
    value = quantity.zero_if_invalid(given) * (1000 if resource == _CPU else 1)
    return quantity.whole(value)


def _requests(spec: Object) -> Amounts:
    total = quantity.effective_requests(_containers(spec))
    for resource, amount in _amounts(spec.get("overhead") or {}).items():
        total[resource] = total.get(resource, 0) + amount
    return total


def _containers(spec: Object) -> Iterator[tuple[str, Amounts]]:
    for container in spec.get("initContainers") or ():
        yield "sidecar" if container.get("restartPolicy") == "Always" else "init", _asked(container)
    for container in spec.get("containers") or ():
        yield "main", _asked(container)


def _asked(container: Object) -> Amounts:
    return _amounts((container.get("resources") or {}).get("requests") or {})


def _weight(spec: Object) -> tuple[int, int]:
    asked = [_asked(container) for container in spec.get("containers") or ()]
    return (
        sum(each.get(_CPU) or _UNNAMED_CPU for each in asked),
        sum(each.get(_MEMORY) or _UNNAMED_MEMORY for each in asked),
    )


Rejection = tuple[str, str]  # reason and message, as in the pod's status
_FIRST = ("cpu", "memory", "ephemeral-storage")


def rejection(asked: Wish, room: Room, served: Collection[str]) -> Rejection | None:
    """`served` are the resources of plugins, counted by the kubelet itself; what nobody has is not looked at (3.63)."""
    if room.pods + 1 > room.allocatable.get("pods", 0):
        return _lacking("pods", 1, room.pods, room.allocatable.get("pods", 0))
    for resource in sorted(asked.requests, key=lambda name: (name not in _FIRST, name)):
        capacity = room.allocatable.get(resource)
        if capacity is None or resource in served:
            continue
        requested, used = asked.requests[resource], room.used.get(resource, 0)
        if requested > capacity - used:
            return _lacking(resource, requested, used, capacity)
    if not affinity.matches(asked.selector, asked.terms, room.name, room.labels):
        text = "Predicate NodeAffinity failed: node(s) didn't match Pod's node affinity/selector"
        return "NodeAffinity", f"Pod was rejected: {text}"
    return None


def _lacking(resource: str, requested: int, used: int, capacity: int) -> Rejection:
    counts = f"requested: {requested}, used: {used}, capacity: {capacity}"
    return f"OutOf{resource}", f"Pod was rejected: Node didn't have enough resource: {resource}, {counts}"
