"""Small worlds: nodes, pods, claims and slices as the API server has them."""

from typing import Any

from plugwright.explain.world import ApiObject

__all__ = ["CLASS", "DRIVER", "claim", "device", "node", "pod", "published", "selected"]

DRIVER = "gpu.example.com"
CLASS = {"metadata": {"name": DRIVER}, "spec": {"selectors": [{"cel": {"expression": f'device.driver == "{DRIVER}"'}}]}}


def node(name: str, free: int = 0, capacity: int | None = None, **spec: Any) -> ApiObject:
    counts = {"cpu": "8", "memory": "8Gi", "pods": "110"}
    offered = {"example.com/gpu": str(free)} if free or capacity else {}
    had = {"example.com/gpu": str(free if capacity is None else capacity)} if free or capacity else {}
    ready = [{"type": "Ready", "status": "True"}]
    status = {"allocatable": counts | offered, "capacity": counts | had, "conditions": ready}
    return {"metadata": {"name": name, "labels": {"zone": name}}, "spec": spec, "status": status}


def pod(name: str, gpus: int = 0, on: str = "", claim: str = "", **spec: Any) -> ApiObject:
    limits = {"example.com/gpu": str(gpus)} if gpus else {}
    container = {"name": "c", "image": "x", "resources": {"limits": limits, "requests": limits}}
    claims = {"resourceClaims": [{"name": "dev", "resourceClaimName": claim}]} if claim else {}
    placed = {"nodeName": on} if on else {}
    metadata = {"namespace": "default", "name": name, "uid": name}
    return {"metadata": metadata, "spec": {"containers": [container]} | claims | placed | spec, "status": {}}


def claim(name: str, device: str = "", users: tuple[str, ...] = (), constraints: Any = (), **exactly: Any) -> ApiObject:
    request = {"name": "gpu", "exactly": {"deviceClassName": DRIVER} | exactly}
    status: dict[str, Any] = {}
    if device:
        result = {"request": "gpu", "driver": DRIVER, "pool": "n1", "device": device}
        reserved = [{"resource": "pods", "name": user, "uid": user} for user in users]
        status = {"allocation": {"devices": {"results": [result]}}, "reservedFor": reserved}
    devices = {"requests": [request], "constraints": list(constraints)}
    return {"metadata": {"namespace": "default", "name": name}, "spec": {"devices": devices}, "status": status}


def device(name: str, taint: str = "", **attributes: int) -> ApiObject:
    taints = {"taints": [{"key": taint, "effect": "NoSchedule"}]} if taint else {}
    return {"name": name, "attributes": {key: {"int": value} for key, value in attributes.items()}} | taints


def published(*devices: ApiObject, on: str = "n1", count: int = 1) -> ApiObject:
    pool = {"name": on, "generation": 1, "resourceSliceCount": count}
    spec = {"driver": DRIVER, "pool": pool, "nodeName": on, "devices": list(devices)}
    return {"metadata": {"name": f"slice-{on}"}, "spec": spec}


def selected(expression: str) -> list[ApiObject]:
    return [{"cel": {"expression": expression}}]
