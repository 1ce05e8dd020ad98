"""Classes of nodes that cannot differ in their answers: the search tests one node of each class.

A node's key contains everything that the pod's filters, counts and claims can distinguish, but no names: thousands of
nodes become as many classes as there are different situations.
"""

from collections.abc import Iterator, Mapping

import msgspec

from plugwright.allocator.cel import SelectorError
from plugwright.allocator.published_slices import PublishedSlice, SliceDevice
from plugwright.allocator.slice_pools import NodeView
from plugwright.cluster.scheduling.pod_request import PodRequest
from plugwright.errors import AllocationAborted
from plugwright.explain.counterfactual import Situation
from plugwright.explain.oracle import Oracle, hard_taints, taint_text
from plugwright.explain.request_relaxations import subrequests
from plugwright.explain.world import ObjectId, is_device_resource
from plugwright.model import natural_order

__all__ = ["node_classes", "selector_expressions"]


def node_classes(oracle: Oracle, situation: Situation) -> list[tuple[str, ...]]:
    """The nodes of each class, in natural order; larger classes first."""
    reader = _KeyReader(oracle, situation)
    classes: dict[object, list[str]] = {}
    for name in sorted(oracle.nodes, key=natural_order):
        classes.setdefault(reader.key(name), []).append(name)
    return sorted((tuple(names) for names in classes.values()), key=len, reverse=True)


class _KeyReader:
    def __init__(self, oracle: Oracle, situation: Situation) -> None:
        self._oracle, self._situation = oracle, situation
        self._request = PodRequest.of(dict(situation.pod))
        self._filters = oracle.filters(situation)
        self._resources = [name for name in self._request.requests if is_device_resource(name)]
        self._expressions = sorted(set(selector_expressions(oracle, situation, self._resources)))
        self._attributes = sorted(set(_constrained(situation)))
        self._has_claims = bool(situation.sources) or any(name in oracle.backed for name in self._resources)

    def key(self, name: str) -> object:
        info, oracle = self._oracle.info(name), self._oracle
        affinity = self._request.affinity
        selected = tuple(info.labels.get(label) == value for label, value in affinity.selector.items())
        filters = tuple(map(taint_text, hard_taints(self._request, info))), selected, self._filters[name]
        short = self._filters[name][0] in ("resources", "other")
        counts = tuple(
            (
                info.allocatable.get(resource, 0) - info.requested.get(resource, 0),
                info.allocatable.get(resource, 0),
                oracle.capacity(name, resource),
            )
            for resource in self._resources
        )
        alone = name if short or name in oracle.world.reports else ""
        terms = affinity.matches(name, info.labels)
        return filters, terms, counts, alone, self._holders(name), self._slices(name) if self._has_claims else ()

    def _holders(self, name: str) -> object:
        """The amount of each resource used by each pod of the node."""
        requests = self._oracle.holders.requests
        amounts = (
            tuple(requests[pod][1].requests.get(resource, 0) for resource in self._resources)
            for pod in self._oracle.holders.on_node.get(name, ())
        )
        return tuple(sorted(entry for entry in amounts if any(entry)))

    def _slices(self, name: str) -> object:
        index = self._oracle.allocator.slices
        numbers: dict[object, int] = {}  # values that matter only by equality within a node
        local = tuple(self._slice(entry, numbers) for entry in index.on_node.get(name, ()))
        view = NodeView(self._oracle.nodes[name])
        try:
            shared = tuple(entry.name for entry in index.elsewhere if view.reaches(entry))
        except AllocationAborted:
            shared = (name,)
        return local, shared

    def _slice(self, entry: PublishedSlice, numbers: dict[object, int]) -> object:
        def number(value: object) -> int:
            return numbers.setdefault(value, len(numbers))

        pool = self._oracle.allocator.slices.by_pool[entry.driver, entry.pool]
        state = entry.driver, number(("pool", entry.pool)), entry.generation, entry.count, len(pool)
        counters = _encoded(entry.spec.get("sharedCounters"))
        flags = entry.per_device, entry.skips_node_operations, entry.unknown
        return state, counters, flags, tuple(self._device(device, numbers) for device in entry.devices)

    def _device(self, device: SliceDevice, numbers: dict[object, int]) -> object:
        allocated = self._oracle.allocator.allocated
        values = []
        for attribute in self._attributes:
            value = device.attribute(attribute)
            values.append(None if value is None else numbers.setdefault(_encoded(value), len(numbers)))
        claims = self._oracle.holders.of_device(device.id)
        holders = tuple(numbers.setdefault(("claim", claim), len(numbers)) for claim in claims)
        users = tuple(
            numbers.setdefault(("pod", user), len(numbers)) for claim in claims for user in self._users(claim)
        )
        used = tuple(sorted((name, str(value)) for name, value in allocated.capacity.get(device.id, {}).items()))
        published = device.published
        fields = (published.get(name) for name in ("consumesCounters", "capacity", "taints", "bindingConditions"))
        return (
            tuple(_matches(device, expression) for expression in self._expressions), tuple(values), holders, users,
            used, device.id in allocated.devices, device.allows_multiple, *map(_encoded, fields),
        )  # fmt: skip

    def _users(self, claim: ObjectId) -> tuple[ObjectId, ...]:
        return self._oracle.holders.users[claim]


def _encoded(value: object) -> bytes:
    return msgspec.json.encode(value, order="deterministic") if value else b""


def _matches(device: SliceDevice, expression: str) -> bool | str:
    try:
        return device.matches(expression)
    except SelectorError as error:
        return str(error)


def selector_expressions(oracle: Oracle, situation: Situation, resources: list[str]) -> Iterator[str]:
    """The selectors of the pod's claims and their classes; `resources` are its extended resources."""
    classes = oracle.allocator.classes
    names = [oracle.backed[resource] for resource in resources if resource in oracle.backed]
    for claim in situation.claims:
        for _, _, request in subrequests((claim.get("spec") or {}).get("devices") or {}):
            yield from _texts(request)
            names.append(str(request.get("deviceClassName")))
    for source in situation.sources:
        names += [] if source.claim is not None else list(classes)
    unknown = any(name not in classes for name in names)
    for name in classes if unknown else names:
        yield from _texts(classes[name].get("spec") or {})


def _texts(owner: Mapping[str, object]) -> Iterator[str]:
    selectors = owner.get("selectors") or ()
    assert isinstance(selectors, list | tuple)
    for selector in selectors:
        if expression := (selector.get("cel") or {}).get("expression"):
            yield expression


def _constrained(situation: Situation) -> Iterator[str]:
    for claim in situation.claims:
        for constraint in ((claim.get("spec") or {}).get("devices") or {}).get("constraints") or ():
            attribute = constraint.get("matchAttribute") or constraint.get("distinctAttribute")
            if attribute:
                yield attribute
