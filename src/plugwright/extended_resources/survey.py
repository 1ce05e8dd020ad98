"""Surveys of a cluster's nodes: choosing nodes, listing their extended resources, finding stale ones."""

import asyncio
import re
from collections.abc import Callable, Collection, Sequence
from fnmatch import fnmatchcase

from plugwright.errors import ConfigError
from plugwright.extended_resources import backing, kubelet_dir
from plugwright.extended_resources.changes import ChangeOptions, ChangeTarget, NodesClient
from plugwright.extended_resources.removal import stale_targets
from plugwright.extended_resources.resources import BoundPod, ClusterContext, NodeResource, NodeSnapshot
from plugwright.grammars import DNS_SUBDOMAIN
from plugwright.protocol.paths import KubeletPaths

__all__ = [
    "check_pattern",
    "cluster_context",
    "find_stale",
    "list_resources",
    "nodes_named",
    "targets_named",
]

_NODE_NAME = re.compile(r"[a-z0-9](?:[-a-z0-9.]*[a-z0-9])?")


def nodes_named(api: NodesClient, names: Collection[str]) -> list[NodeSnapshot]:
    """The nodes with these names, or all nodes if `names` is empty."""
    if not names:
        return sorted(api.nodes(), key=lambda node: node.name)
    nodes = []
    for name in dict.fromkeys(names):
        node = api.find_node(name) if _NODE_NAME.fullmatch(name) else None
        if node is None:
            raise ConfigError(f"there is no node {name!r}")
        nodes.append(node)
    return nodes


def targets_named(node: NodeSnapshot, resources: Collection[str]) -> list[ChangeTarget]:
    listed = {*node.capacity, *node.allocatable}
    for resource in resources:
        if resource not in listed:
            others = ", ".join(sorted(listed)) or "none"
            raise ConfigError(f"node {node.name} has no extended resource {resource!r}; it has: {others}")
    return [ChangeTarget(node.name, resource) for resource in dict.fromkeys(resources)]


def cluster_context(
    api: NodesClient, nodes: Sequence[NodeSnapshot], paths: KubeletPaths | None = None
) -> Callable[[], ClusterContext]:
    """A function that returns the current context; `paths` are this machine's, and read again at every call."""
    classes = api.device_classes()
    if paths is None:
        return lambda: ClusterContext(classes)
    _check_this_machine(nodes, asyncio.run(kubelet_dir.read(paths)).boot_id)
    return lambda: ClusterContext(classes, asyncio.run(kubelet_dir.read(paths)))


def list_resources(api: NodesClient, nodes: Sequence[NodeSnapshot], context: ClusterContext) -> list[NodeResource]:
    pods: dict[str, list[BoundPod]] = {}
    for pod in api.pods(nodes[0].name if len(nodes) == 1 else None):
        pods.setdefault(pod.node, []).append(pod)
    return [resource for node in nodes for resource in backing.node_resources(node, pods.get(node.name, ()), context)]


def find_stale(
    nodes: Sequence[NodeSnapshot], context: ClusterContext, options: ChangeOptions, only: Collection[str] = ()
) -> list[ChangeTarget]:
    """The targets for `removal.remove`: among the resources named in `only`, or among all if it is empty.

    A name can be a pattern such as `nvidia.com/mig-*`.
    """
    resources = [resource for node in nodes for resource in backing.node_resources(node, (), context)]
    named = [resource for resource in resources if any(fnmatchcase(resource.resource, name) for name in only)]
    return stale_targets(named if only else resources, options)


def check_pattern(pattern: str) -> str:
    """The pattern, if it is limited to one vendor: wildcards are allowed only after the '/'."""
    vendor, _, kind = pattern.partition("/")
    if not DNS_SUBDOMAIN.fullmatch(vendor) or not re.fullmatch(r"[-A-Za-z0-9_.*?]+", kind):
        raise ConfigError(f"a pattern must name its vendor, as in nvidia.com/mig-*, got {pattern!r}")
    return pattern


def _check_this_machine(nodes: Sequence[NodeSnapshot], boot_id: str) -> None:
    here = [node.name for node in nodes if node.boot_id == boot_id]
    if not here:
        raise ConfigError("--kubelet-dir must belong to one of the chosen nodes, but none of them is this machine")
    if len(here) > 1:
        raise ConfigError(f"name the node that --kubelet-dir belongs to: {', '.join(here)} share this machine")
