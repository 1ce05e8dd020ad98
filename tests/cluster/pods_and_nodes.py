"""Pods and nodes as a client writes them."""

from collections.abc import Mapping

from plugwright.apiserver.store import Object

__all__ = ["node_object", "pod_object"]

OFFER = {"cpu": "4", "memory": "8Gi", "pods": "110", "mock/gpu": "2"}


def node_object(name: str, allocatable: Mapping[str, str] | None = None, **more: object) -> Object:
    """`labels` and `ready` are set apart; everything else goes into its spec."""
    offer = dict(OFFER if allocatable is None else allocatable)
    labels, ready = more.pop("labels", {}), more.pop("ready", "True")
    return {
        "metadata": {"name": name, "labels": labels},
        "spec": more,
        "status": {"capacity": offer, "allocatable": offer, "conditions": [{"type": "Ready", "status": ready}]},
    }


def pod_object(name: str, limits: Mapping[str, str] | None = None, **spec: object) -> Object:
    container = {"name": "main", "image": "busybox:1", "resources": {"limits": dict(limits or {})}}
    return {"metadata": {"name": name}, "spec": {"containers": [container], **spec}}
