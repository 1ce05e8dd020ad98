"""Allocates the claims of tests: the first free devices in the order of the slices, or those that a claim names.

There is no scheduler behind it, and no CEL: the devices come from the ResourceSlices in the store.
"""

import re
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from plugwright.apiserver.kinds import RESOURCE_CLAIMS
from plugwright.apiserver.one_node import OneNode
from plugwright.quantity import parse
from plugwright.testing.claim_requests import RequestedClaim

__all__ = ["allocate", "release"]

_BLOCKING = ("NoSchedule", "NoExecute")


@dataclass(frozen=True, slots=True)
class _AllocatedResult:
    """A device that a claim was given: what the scheduler writes into its status."""

    resource: str
    driver: str
    pool: str
    device: str
    share_id: str = ""
    consumed: Mapping[str, str] = field(default_factory=dict, hash=False)


def allocate(api: OneNode, key: tuple[str, str], spec: RequestedClaim, drivers: Mapping[str, str]) -> str:
    """Makes the claim with its devices; why that is not possible, empty if it is. `drivers` are by resource."""
    if api.stored_claim(*key) is not None:
        return ""
    results: list[_AllocatedResult] = []
    for resource in spec.requests:
        if resource not in drivers:
            return f"{resource} is not served by claims"
        found, wanted = _fitting(api, resource, drivers[resource], spec)
        if len(found) < wanted:
            return f"{resource}: {wanted} wanted, {len(found)} free"
        results += found[:wanted]
    api.put(_claim_document(key, spec, results))
    return ""


def release(api: OneNode, namespace: str, name: str, pod_uid: str) -> None:
    """Deletes a claim that no pod uses any more, so that its devices are free."""
    api.release(namespace, name, pod_uid)
    claim = api.stored_claim(namespace, name)
    if claim is not None and not claim["status"].get("reservedFor"):
        api.remove(namespace, name)


def _fitting(api: OneNode, resource: str, driver: str, spec: RequestedClaim) -> tuple[list[_AllocatedResult], int]:
    """The devices that the claim can have, and how many it wants of them."""
    wanted = spec.requests[resource]
    held, found = _held(api, driver), []
    for pool, device in _devices(api, driver):
        shares, consumed = held.get(device["name"], []), {}
        if isinstance(wanted, Mapping):
            consumed = {name: str(amount) for name, amount in wanted.items()}
            has_room = _has_room(device.get("capacity") or {}, wanted, shares)
            if not device.get("allowMultipleAllocations") or not has_room:
                continue
        elif (shares and not spec.admin_access) or (isinstance(wanted, Sequence) and not _is_named(device, wanted)):
            continue
        if not spec.admin_access and any(taint["effect"] in _BLOCKING for taint in device.get("taints") or ()):
            continue
        share = str(uuid.uuid4()) if consumed else ""
        found.append(_AllocatedResult(resource, driver, pool, device["name"], share, consumed))
    return found, wanted if isinstance(wanted, int) else 1 if isinstance(wanted, Mapping) else len(wanted)


def _devices(api: OneNode, driver: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Of the complete pools at their latest generation."""
    slices = [found["spec"] for found in api.slices if found["spec"]["driver"] == driver]
    latest = max((spec["pool"]["generation"] for spec in slices), default=0)
    current = [spec for spec in slices if spec["pool"]["generation"] == latest]
    for spec in current if all(spec["pool"]["resourceSliceCount"] == len(current) for spec in current) else ():
        for device in spec.get("devices") or ():
            yield spec["pool"]["name"], device


def _held(api: OneNode, driver: str) -> dict[str, list[Mapping[str, str]]]:
    """The parts of each device that claims have; one that is held as a whole has an empty part."""
    held: dict[str, list[Mapping[str, str]]] = {}
    for claim in api.store.objects(RESOURCE_CLAIMS.qualified):
        for result in claim["status"]["allocation"]["devices"]["results"]:
            if result["driver"] == driver and not result.get("adminAccess"):
                held.setdefault(result["device"], []).append(result.get("consumedCapacity") or {})
    return held


def _is_named(device: Mapping[str, Any], ids: Sequence[str]) -> bool:
    known = ((device.get("attributes") or {}).get("id") or {}).get("string")
    return device["name"] in ids or known in ids


def _has_room(capacity: Mapping[str, Any], wanted: Mapping[str, str | int], taken: Sequence[Mapping[str, str]]) -> bool:
    """Whether a device has room for a share of `wanted` beside those that are `taken`."""
    for name, amount in wanted.items():
        if name not in capacity:
            return False
        used = sum(parse(str(share[name])) for share in taken if name in share)
        if used + parse(str(amount)) > parse(str(capacity[name]["value"])):
            return False
    return True


def _claim_document(key: tuple[str, str], spec: RequestedClaim, results: Sequence[_AllocatedResult]) -> dict[str, Any]:
    """The object of an allocated claim."""
    drivers = sorted({result.driver for result in results})
    config = [
        {"source": "FromClaim", "requests": [], "opaque": {"driver": driver, "parameters": dict(spec.parameters)}}
        for driver in drivers
        if spec.parameters
    ]
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"namespace": key[0], "name": key[1]},
        "spec": {"devices": {"requests": [_request(resource, spec) for resource in spec.requests]}},
        "status": {
            "allocation": {"devices": {"results": [_result(result, spec) for result in results], "config": config}},
        },
    }


def _request(resource: str, spec: RequestedClaim) -> dict[str, Any]:
    exactly: dict[str, Any] = {"deviceClassName": resource.replace("/", ".")}
    wanted = spec.requests[resource]
    if isinstance(wanted, Mapping):
        exactly["capacity"] = {"requests": {name: str(amount) for name, amount in wanted.items()}}
    else:
        exactly["count"] = wanted if isinstance(wanted, int) else len(wanted)
    return {"name": _request_name(resource), "exactly": exactly}


def _result(result: _AllocatedResult, spec: RequestedClaim) -> dict[str, Any]:
    document: dict[str, Any] = {
        "request": _request_name(result.resource),
        "driver": result.driver,
        "pool": result.pool,
        "device": result.device,
    }
    if result.share_id:
        document |= {"shareID": result.share_id, "consumedCapacity": dict(result.consumed)}
    if spec.admin_access:
        document["adminAccess"] = True
    return document


def _request_name(resource: str) -> str:
    """The request in the claim: `tape` for `example.com/tape`."""
    return re.sub("[^a-z0-9]+", "-", resource.rpartition("/")[2].lower()).strip("-")
