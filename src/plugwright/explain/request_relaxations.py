"""Relaxations of the requests in claims: selectors, constraints, tolerations, counts, capacities, classes."""

from collections.abc import Iterable, Iterator, Sequence
from decimal import Decimal
from difflib import get_close_matches
from typing import Any

from plugwright import quantity
from plugwright.allocator import largest_request
from plugwright.allocator.published_slices import SliceDevice
from plugwright.cluster.scheduling.pod_request import PodRequest
from plugwright.explain.counterfactual import Edit, FieldPath, Relaxation, Situation
from plugwright.explain.oracle import Oracle, taint_text
from plugwright.explain.world import ApiObject, allocation_of

__all__ = ["class_selectors", "request_relaxations", "subrequests"]

_MOST_COUNTS = 32
_MOST_TAINTS = 12
_MOST_AMOUNTS = 8


def request_relaxations(oracle: Oracle, situation: Situation, nodes: Sequence[str]) -> Iterator[Relaxation]:
    for number, source in enumerate(situation.sources):
        if source.claim is None or allocation_of(source.claim):
            continue
        devices = (source.claim.get("spec") or {}).get("devices") or {}
        for place, constraint in enumerate(devices.get("constraints") or ()):
            attribute = constraint.get("matchAttribute") or constraint.get("distinctAttribute") or ""
            kind = "matchAttribute" if constraint.get("matchAttribute") else "distinctAttribute"
            edit = Edit(("spec", "devices", "constraints", place), claim=number)
            yield Relaxation(
                kind="constraint", cost=5, text=f"without the constraint {kind} {attribute} of claim {source.name}",
                edits=(edit,), subject=f"{number}/{place}",
            )  # fmt: skip
        for place, name in _dispensable(situation.pod, source.entry, devices):
            edit = Edit(("spec", "devices", "requests", place), claim=number)
            text = f"without request {name} of {source.kind} {source.name}"
            yield Relaxation(kind="request", cost=5.2, text=text, edits=(edit,), subject=f"{number}/{name}")
        for path, name, request in subrequests(devices):
            about = f"request {name} of {source.kind} {source.name}"
            yield from _of_request(oracle, (number, path, about), request, nodes)


def _dispensable(pod: ApiObject, entry: str, devices: ApiObject) -> Iterator[tuple[int, str]]:
    """The place and name of each of several requests that no container, constraint or configuration names."""
    requests = devices.get("requests") or ()
    spec = pod.get("spec") or {}
    named = {
        str(claim.get("request"))
        for container in (*(spec.get("containers") or ()), *(spec.get("initContainers") or ()))
        for claim in (container.get("resources") or {}).get("claims") or ()
        if claim.get("name") == entry
    }
    for part in (*(devices.get("constraints") or ()), *(devices.get("config") or ())):
        named |= {str(name).partition("/")[0] for name in part.get("requests") or ()}
    for place, request in enumerate(requests if len(requests) > 1 else ()):
        if request["name"] not in named:
            yield place, request["name"]


def subrequests(devices: ApiObject) -> Iterator[tuple[FieldPath, str, ApiObject]]:
    """The path in the claim, the name and the content of each request and subrequest."""
    for place, request in enumerate(devices.get("requests") or ()):
        base: FieldPath = ("spec", "devices", "requests", place)
        if request.get("exactly"):
            yield (*base, "exactly"), request["name"], request["exactly"]
        for number, entry in enumerate(request.get("firstAvailable") or ()):
            yield (*base, "firstAvailable", number), f"{request['name']}/{entry['name']}", entry


_Subject = tuple[int, FieldPath, str]


def _of_request(oracle: Oracle, subject: _Subject, request: ApiObject, nodes: Sequence[str]) -> Iterator[Relaxation]:
    about = subject[2]
    for place, selector in enumerate(request.get("selectors") or ()):
        expression = " ".join(str((selector.get("cel") or {}).get("expression") or "").split())
        yield _one(subject, "selector", 5, f"without the selector {expression!r} of {about}", ("selectors", place))
    yield from _tolerations(oracle, subject, request, nodes)
    yield from _fewer(subject, request)
    yield from _less_capacity(oracle, subject, request, nodes)
    wanted = str(request.get("deviceClassName"))
    others = [name for name in oracle.allocator.classes if name != wanted]
    for name in get_close_matches(wanted, others, n=3, cutoff=0.4):
        text = f"with the DeviceClass {name} instead of {wanted} in {about}"
        cost = 4 if wanted in oracle.allocator.classes else 1
        yield _one(subject, "class", cost, text, ("deviceClassName",), name)


def _one(subject: _Subject, kind: str, cost: float, text: str, field: FieldPath, value: Any = None) -> Relaxation:
    number, path, _ = subject
    edit = Edit((*path, *field), claim=number) if value is None else Edit((*path, *field), value, number)
    parts = (number, *path, *field) if kind == "selector" else (number, *path, kind)
    return Relaxation(kind=kind, cost=cost, text=text, edits=(edit,), subject="/".join(map(str, parts)))


def _tolerations(oracle: Oracle, subject: _Subject, request: ApiObject, nodes: Sequence[str]) -> Iterator[Relaxation]:
    seen: dict[str, ApiObject] = {}
    for device in _devices(oracle, nodes):
        for taint in device.taints:
            seen.setdefault(taint_text(taint), taint)
    for name, taint in list(seen.items())[:_MOST_TAINTS]:
        toleration = {"key": taint["key"], "operator": "Exists", "effect": taint["effect"]}
        if toleration not in (request.get("tolerations") or ()):
            text = f"with a toleration of the device taint {name} in {subject[2]}"
            yield _one(subject, "toleration", 4, text, ("tolerations", -1), toleration)


def _fewer(subject: _Subject, request: ApiObject) -> Iterator[Relaxation]:
    if request.get("allocationMode") == "All":
        text = f"with one device instead of all in {subject[2]}"
        yield _one(subject, "allocation-mode", 4, text, ("allocationMode",), "ExactCount")
        return
    count = int(request.get("count") or 1)
    for fewer in range(count - 1, max(0, count - 1 - _MOST_COUNTS), -1):
        text = f"with {fewer} instead of {count} devices in {subject[2]}"
        yield _one(subject, "count", 3 + (count - fewer) / count, text, ("count",), fewer)


def _less_capacity(oracle: Oracle, subject: _Subject, request: ApiObject, nodes: Sequence[str]) -> Iterator[Relaxation]:
    """As much of each capacity as some device has left, or the capacity's correct name."""
    for name, text in (((request.get("capacity") or {}).get("requests")) or {}).items():
        wanted, left = quantity.zero_if_invalid(text), set[Decimal]()
        published: set[str] = set()
        for device in _devices(oracle, nodes):
            published |= device.capacity.keys()
            if name in device.capacity:
                used = oracle.allocator.allocated.capacity.get(device.id, {}).get(name, Decimal(0))
                left.add(largest_request(device.capacity[name], used))
        if name not in published:
            yield from _other_capacity(subject, name, str(text), sorted(published))
        for amount in sorted((value for value in left if 0 < value < wanted), reverse=True)[:_MOST_AMOUNTS]:
            written = quantity.written(amount, quantity.suffix_of(str(text)))
            words = f"with {name} {written} instead of {text} in {subject[2]}"
            cost = 3.5 + float((wanted - amount) / wanted) / 10
            yield _one(subject, "capacity", cost, words, ("capacity", "requests", name), written)


def _other_capacity(subject: _Subject, name: str, amount: str, published: Sequence[str]) -> Iterator[Relaxation]:
    """The request without a capacity that no device has, or with a similar name."""
    number, path, about = subject
    removed = Edit((*path, "capacity", "requests", name), claim=number)
    for other in get_close_matches(name, published, n=3, cutoff=0.5):
        edits = (removed, Edit((*path, "capacity", "requests", other), amount, number))
        text = f"with the capacity {other} instead of {name} in {about}"
        yield Relaxation(kind="capacity-name", cost=1, text=text, edits=edits, subject=f"{number}/{name}")
    text = f"without the capacity {name}, which no device has, in {about}"
    yield Relaxation(kind="capacity", cost=5, text=text, edits=(removed,), subject=f"{number}/{name}")


def class_selectors(oracle: Oracle, situation: Situation, nodes: Sequence[str]) -> Iterator[Relaxation]:
    """Classes without a selector that fails on a device, or that excludes every device."""
    names = [oracle.backed[name] for name in PodRequest.of(dict(situation.pod)).requests if name in oracle.backed]
    for claim in situation.claims:
        requests = subrequests((claim.get("spec") or {}).get("devices") or {})
        names += [str(request.get("deviceClassName")) for _, _, request in requests]
    devices = list(_devices(oracle, nodes))
    for name in dict.fromkeys(names):
        device_class = oracle.allocator.classes.get(name) or {}
        spec = device_class.get("spec") or {}
        selectors = list(spec.get("selectors") or ())
        expressions = [str((selector.get("cel") or {}).get("expression") or "") for selector in selectors]
        matches = [[device.matched(expression) for expression in expressions] for device in devices]
        selects_none = not any(all(results) for results in matches)
        for place, expression in enumerate(expressions):
            fails = any(results[place] is None and all(results[:place]) for results in matches)
            if selects_none or fails:
                left = [*selectors[:place], *selectors[place + 1 :]]
                shown = " ".join(expression.split())
                yield Relaxation(
                    kind="class-selector", cost=5.5, text=f"without the selector {shown!r} of DeviceClass {name}",
                    classes=({**device_class, "spec": {**spec, "selectors": left}},), subject=f"{name}/{place}",
                    commands=(f"kubectl edit deviceclass {name}",),
                )  # fmt: skip


def _devices(oracle: Oracle, nodes: Iterable[str]) -> Iterator[SliceDevice]:
    index = oracle.allocator.slices
    for slices in (*(index.on_node.get(node, ()) for node in nodes), index.elsewhere):
        for published in slices:
            yield from published.devices
