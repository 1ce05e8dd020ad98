"""The kinds that the API server serves: one strategy for each.

A kind with few special rules is a `Kind` in `simple`; one with many has a module, like `pods`, and an entry here.
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
from plugwright.apiserver.kinds.jobs import CRON_JOBS, JOBS
from plugwright.apiserver.kinds.kind import Kind
from plugwright.apiserver.kinds.nodes import NODES
from plugwright.apiserver.kinds.pods import PODS
from plugwright.apiserver.kinds.priority_classes import PRIORITY_CLASSES, SYSTEM_PRIORITY_CLASSES
from plugwright.apiserver.kinds.services import SERVICES
from plugwright.apiserver.kinds.simple import EVENTS, LEASES, NAMESPACES, SERVICE_ACCOUNTS, SIMPLE_KINDS
from plugwright.apiserver.kinds.without_effect import KINDS_WITHOUT_EFFECT
from plugwright.apiserver.kinds.workloads import DAEMON_SETS, DEPLOYMENTS, REPLICA_SETS

__all__ = [
    "CONFIG_MAPS",
    "CRON_JOBS",
    "DAEMON_SETS",
    "DEPLOYMENTS",
    "DEVICE_CLASSES",
    "DEVICE_TAINT_RULES",
    "EVENTS",
    "JOBS",
    "KINDS",
    "LEASES",
    "NAMESPACES",
    "NODES",
    "PODS",
    "PRIORITY_CLASSES",
    "REPLICA_SETS",
    "RESOURCE_CLAIMS",
    "RESOURCE_CLAIM_TEMPLATES",
    "RESOURCE_SLICES",
    "SECRETS",
    "SERVICES",
    "SERVICE_ACCOUNTS",
    "SYSTEM_PRIORITY_CLASSES",
    "Kind",
    "find",
]

KINDS = tuple(
    sorted(
        (
            *SIMPLE_KINDS, *DYNAMIC_RESOURCE_KINDS, *KINDS_WITHOUT_EFFECT, CONFIG_MAPS, CRON_JOBS, DAEMON_SETS,
            DEPLOYMENTS, EVENTS_V1, JOBS, NODES, PODS, PRIORITY_CLASSES, REPLICA_SETS, SECRETS, SERVICES,
        ),
        key=lambda kind: kind.plural,
    )
)  # fmt: skip


def find(group: str, version: str, plural: str) -> Kind | None:
    return next((kind for kind in KINDS if (kind.group, kind.version, kind.plural) == (group, version, plural)), None)
