"""Allocates the claims of tests with the allocator of the embedded cluster, from the ResourceSlices in the store."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from plugwright.allocator import AllocatedState, AllocationOutcome, ClaimAllocator, features_of
from plugwright.apiserver import KUBERNETES_VERSION
from plugwright.apiserver.kinds import RESOURCE_CLAIMS
from plugwright.apiserver.one_node import OneNode
from plugwright.errors import AllocationAborted
from plugwright.testing.claim_requests import RequestedClaim

__all__ = ["allocate", "release"]

_Allocate = Callable[[Iterable[Mapping[str, Any]]], AllocationOutcome]


def allocate(api: OneNode, key: tuple[str, str], spec: RequestedClaim, drivers: Mapping[str, str]) -> str:
    """Makes the claim with its devices; returns the reason of a failure, or empty. `drivers` are by resource."""
    if api.stored_claim(*key) is not None:
        return ""
    for resource in spec.requests:
        if resource not in drivers:
            return f"{resource} is not served by claims"
    claim = _claim(api, key, spec, drivers)
    held = AllocatedState.of_claims(api.store.objects(RESOURCE_CLAIMS.qualified))
    classes = map(_device_class, sorted(set(drivers.values())))
    pending = partial(ClaimAllocator(features_of(KUBERNETES_VERSION), api.slices, classes, held).allocate, _node(api))
    try:
        outcome = pending([claim])
        if not outcome.results:
            return _shortage(
                claim, dict(zip(spec.requests, claim["spec"]["devices"]["requests"], strict=True)), pending
            )
    except AllocationAborted as error:
        return str(error)
    api.put({**claim, "status": {"allocation": outcome.results[0]}})
    return ""


def _node(api: OneNode) -> dict[str, Any]:
    return {"metadata": {"name": api.node}}


def _shortage(claim: Mapping[str, Any], requests: Mapping[str, Any], allocate: _Allocate) -> str:
    """The first request with too few free devices, and the number available."""
    for resource, request in requests.items():
        wanted, free = request["exactly"]["count"], 0
        for count in range(1, wanted + 1):
            fewer = {**request, "exactly": {**request["exactly"], "count": count}}
            if not allocate([{**claim, "spec": {"devices": {"requests": [fewer]}}}]).results:
                break
            free = count
        if free < wanted:
            return f"{resource}: {wanted} wanted, {free} free"
    return "the requests do not fit together"


def release(api: OneNode, namespace: str, name: str, pod_uid: str) -> None:
    """Deletes an unused claim, which frees its devices."""
    api.release(namespace, name, pod_uid)
    claim = api.stored_claim(namespace, name)
    if claim is not None and not claim["status"].get("reservedFor"):
        api.remove(namespace, name)


def _device_class(driver: str) -> dict[str, Any]:
    selector = {"cel": {"expression": f'device.driver == "{driver}"'}}
    return {"metadata": {"name": driver}, "spec": {"selectors": [selector]}}


def _claim(api: OneNode, key: tuple[str, str], spec: RequestedClaim, drivers: Mapping[str, str]) -> dict[str, Any]:
    config = [
        {"opaque": {"driver": driver, "parameters": dict(spec.parameters)}}
        for driver in sorted({drivers[resource] for resource in spec.requests})
        if spec.parameters
    ]
    requests = [_request(api, resource, drivers[resource], spec) for resource in spec.requests]
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"namespace": key[0], "name": key[1]},
        "spec": {"devices": {"requests": requests, **({"config": config} if config else {})}},
    }


def _request(api: OneNode, resource: str, driver: str, spec: RequestedClaim) -> dict[str, Any]:
    wanted = spec.requests[resource]
    exactly: dict[str, Any] = {"deviceClassName": driver, "allocationMode": "ExactCount", "count": 1}
    if isinstance(wanted, Mapping):
        exactly["capacity"] = {"requests": {name: str(amount) for name, amount in wanted.items()}}
        exactly["selectors"] = [{"cel": {"expression": "device.allowMultipleAllocations"}}]
    elif isinstance(wanted, int):
        exactly["count"] = wanted
    else:
        exactly["count"] = len(wanted)
        exactly["selectors"] = [{"cel": {"expression": _named(driver, _ids(api, driver, wanted))}}]
    if spec.admin_access:
        exactly |= {"adminAccess": True, "tolerations": [{"operator": "Exists"}]}
    return {"name": _request_name(resource), "exactly": exactly}


def _named(driver: str, ids: Sequence[str]) -> str:
    listed = ", ".join(f'"{device_id}"' for device_id in ids)
    return f'device.attributes["{driver}"].?id.orValue("") in [{listed}]'


def _ids(api: OneNode, driver: str, wanted: Sequence[str]) -> list[str]:
    """The ids of devices, named in a test by id or by their name in the slice."""
    ids = dict(_published_ids(api, driver))
    return [ids.get(name, name) for name in wanted]


def _published_ids(api: OneNode, driver: str) -> Iterator[tuple[str, str]]:
    for found in api.slices:
        for device in found["spec"].get("devices") or () if found["spec"]["driver"] == driver else ():
            if known := ((device.get("attributes") or {}).get("id") or {}).get("string"):
                yield device["name"], known


def _request_name(resource: str) -> str:
    """The name of the request in the claim: `tape` for `example.com/tape`."""
    return re.sub("[^a-z0-9]+", "-", resource.rpartition("/")[2].lower()).strip("-")
