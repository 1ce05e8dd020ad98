"""A claim's `status.allocation` as the API has it: devices, configuration, and the nodes that can use them."""

import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from plugwright.allocator.allocation_attempt import ChosenDevice
from plugwright.allocator.device_requests import ClaimRequests, DeviceRequest
from plugwright.allocator.features import Features
from plugwright.allocator.published_slices import device_name
from plugwright.errors import AllocationAborted

__all__ = ["allocation_result"]

_SHARES = uuid.UUID("6f1b8a3e-7c52-5d0e-9d3f-2f3f0c1f7a55")
_Object = dict[str, Any]


def allocation_result(
    claim: ClaimRequests, chosen: Sequence[ChosenDevice], selected: Mapping[int, int], node: str, features: Features
) -> _Object:
    """`selected` are the alternatives of requests with subrequests, by number."""
    requests = [request.alternatives[selected.get(number, 0)] for number, request in enumerate(claim.requests)]
    devices: _Object = {}
    if chosen:
        devices["results"] = [_device(claim, number, choice) for number, choice in enumerate(chosen)]
    config = _class_config(requests) + _claim_config(claim, requests, features)
    if not features.repeats_configuration:
        names = [{request.name, request.base} for request in requests]
        for entry in config:
            if all(known & set(entry.get("requests", ())) for known in names):
                entry.pop("requests", None)
    if config:
        devices["config"] = config
    result: _Object = {"devices": devices}
    selector = _node_selector(claim, chosen, node)
    if selector:
        result["nodeSelector"] = selector
    return result


def _device(claim: ClaimRequests, number: int, choice: ChosenDevice) -> _Object:
    driver, pool, device = choice.device.id
    result: _Object = {"request": choice.request.name, "driver": driver, "pool": pool, "device": device}
    if choice.request.admin_access:
        result["adminAccess"] = True
    if choice.request.tolerations:
        result["tolerations"] = list(choice.request.tolerations)
    if choice.shared:
        # From the claim, not from chance: the same question has the same answer.
        result["shareID"] = str(
            uuid.uuid5(_SHARES, f"{claim.uid}/{claim.name}/{number}/{device_name(choice.device.id)}")
        )
        if choice.consumed:
            result["consumedCapacity"] = {name: str(consumed) for name, consumed in choice.consumed.items()}
    return result


def _class_config(requests: Sequence[DeviceRequest]) -> list[_Object]:
    """The configuration of each class once, with the requests that use the class."""
    config: list[_Object] = []
    by_class: dict[str, list[_Object]] = {}
    for request in requests:
        name = (request.device_class.get("metadata") or {}).get("name", "")
        if name not in by_class:
            entries = (request.device_class.get("spec") or {}).get("config") or ()
            by_class[name] = [{"source": "FromClass", "requests": [], **entry} for entry in entries]
            config += by_class[name]
        for entry in by_class[name]:
            entry["requests"].append(request.name)
    return config


def _claim_config(claim: ClaimRequests, requests: Sequence[DeviceRequest], features: Features) -> list[_Object]:
    config: list[_Object] = []
    for entry in ((claim.claim.get("spec") or {}).get("devices") or {}).get("config") or ():
        named = entry.get("requests") or []
        uses = sum(request.name in named or request.base in named for request in requests) if named else 1
        copies = uses if features.repeats_configuration else min(uses, 1)
        config += [_from_claim(entry, named) for _ in range(copies)]
    return config


def _from_claim(entry: Mapping[str, Any], named: Sequence[str]) -> _Object:
    rest = {key: value for key, value in entry.items() if key != "requests"}
    return {"source": "FromClaim", **({"requests": list(named)} if named else {}), **rest}


def _node_selector(claim: ClaimRequests, chosen: Sequence[ChosenDevice], node: str) -> _Object | None:
    """The nodes that can use all devices; None for every node."""
    fields: list[_Object] = []
    expressions: list[_Object] = []
    for choice in chosen:
        slice_ = choice.device.slice
        place = choice.device.published if slice_.per_device else slice_.spec
        if place.get("nodeName") is not None or choice.device.published.get("bindsToNode"):
            requirement = {"key": "metadata.name", "operator": "In", "values": [node]}
            return {"nodeSelectorTerms": [{"matchFields": [requirement]}]}
        terms = (place.get("nodeSelector") or {}).get("nodeSelectorTerms") or ()
        if len(terms) > 1:
            text = f"unsupported ResourceSlice.NodeSelector with {len(terms)} terms"
            raise AllocationAborted(f"create NodeSelector for claim {claim.name}: {text}")
        for term in terms:
            _merge(fields, term.get("matchFields") or ())
            _merge(expressions, term.get("matchExpressions") or ())
    term = {"matchExpressions": expressions, "matchFields": fields}
    return {"nodeSelectorTerms": [{key: value for key, value in term.items() if value}]} if any(term.values()) else None


def _merge(requirements: list[_Object], added: Sequence[Mapping[str, Any]]) -> None:
    for requirement in added:
        if not any(_same(requirement, known) for known in requirements):
            requirements.append(dict(requirement))


def _same(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    alike = one.get("key") == other.get("key") and one.get("operator") == other.get("operator")
    return alike and set(one.get("values") or ()) == set(other.get("values") or ())
