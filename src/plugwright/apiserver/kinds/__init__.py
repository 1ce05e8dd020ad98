"""The kinds that the API server serves: one strategy for each.

A kind with few rules of its own is a `Kind` in `simple`; one with many has a module, like `pods`, and an entry here.
"""

from plugwright.apiserver.kinds.config_maps import CONFIG_MAPS, SECRETS
from plugwright.apiserver.kinds.dynamic_resources import (
    DEVICE_CLASSES,
    DEVICE_TAINT_RULES,
    DYNAMIC_RESOURCE_KINDS,
    RESOURCE_CLAIM_TEMPLATES,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
)
from plugwright.apiserver.kinds.events_v1 import EVENTS_V1
from plugwright.apiserver.kinds.kind import Kind
from plugwright.apiserver.kinds.nodes import NODES
from plugwright.apiserver.kinds.pods import PODS
from plugwright.apiserver.kinds.priority_classes import PRIORITY_CLASSES, SYSTEM_PRIORITY_CLASSES
from plugwright.apiserver.kinds.simple import EVENTS, LEASES, NAMESPACES, SERVICE_ACCOUNTS, SIMPLE_KINDS

__all__ = [
    "CONFIG_MAPS",
    "DEVICE_CLASSES",
    "DEVICE_TAINT_RULES",
    "EVENTS",
    "KINDS",
    "LEASES",
    "NAMESPACES",
    "NODES",
    "PODS",
    "PRIORITY_CLASSES",
    "RESOURCE_CLAIMS",
    "RESOURCE_CLAIM_TEMPLATES",
    "RESOURCE_SLICES",
    "SECRETS",
    "SERVICE_ACCOUNTS",
    "SYSTEM_PRIORITY_CLASSES",
    "Kind",
    "find",
]

KINDS = tuple(
    sorted(
        (*SIMPLE_KINDS, *DYNAMIC_RESOURCE_KINDS, CONFIG_MAPS, EVENTS_V1, NODES, PODS, PRIORITY_CLASSES, SECRETS),
        key=lambda kind: kind.plural,
    )
)


def find(group: str, version: str, plural: str) -> Kind | None:
    return next((kind for kind in KINDS if (kind.group, kind.version, kind.plural) == (group, version, plural)), None)
