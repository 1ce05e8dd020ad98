"""Looking at a cluster's nodes: which ones are meant, what they list, and what is stale among it."""

import asyncio
import re
from collections.abc import Callable, Collection, Sequence
from typing import Protocol

from plugwright.errors import ConfigError
from plugwright.extended_resources import backing, kubelet_dir
from plugwright.extended_resources.changes import NodeApi, Plan, Target
from plugwright.extended_resources.removal import stale_targets
from plugwright.extended_resources.resources import Node, Pod, Row, World
from plugwright.protocol.paths import KubeletPaths

__all__ = ["ClusterApi", "find_stale", "nodes_named", "survey", "targets_named", "worldly"]

_NODE_NAME = re.compile(r"[a-z0-9](?:[-a-z0-9.]*[a-z0-9])?")


class ClusterApi(NodeApi, Protocol):
    def nodes(self) -> Sequence[Node]: ...

    def device_classes(self) -> dict[str, tuple[str, ...]]: ...


def nodes_named(api: ClusterApi, names: Collection[str]) -> list[Node]:
    """Those nodes, or all where no name is given."""
    if not names:
        return sorted(api.nodes(), key=lambda node: node.name)
    return [_node_named(api, name) for name in dict.fromkeys(names)]


def worldly(api: ClusterApi, nodes: Sequence[Node], paths: KubeletPaths | None = None) -> Callable[[], World]:
    """What the nodes have around them. `paths` are of the node that we run on, and read again each time."""
    classes = api.device_classes()
    if paths is None:
        return lambda: World(classes)
    _check_this_machine(nodes, asyncio.run(kubelet_dir.read(paths)).boot_id)
    return lambda: World(classes, asyncio.run(kubelet_dir.read(paths)))


def survey(api: ClusterApi, nodes: Sequence[Node], world: World) -> list[Row]:
    pods: dict[str, list[Pod]] = {}
    for pod in api.pods(nodes[0].name if len(nodes) == 1 else None):
        pods.setdefault(pod.node, []).append(pod)
    return [row for node in nodes for row in backing.rows(node, pods.get(node.name, ()), world)]


def find_stale(nodes: Sequence[Node], world: World, plan: Plan, only: Collection[str] = ()) -> list[Target]:
    """What `removal.remove` is to look after: of the resources named in `only`, or of all."""
    rows = [row for node in nodes for row in backing.rows(node, (), world)]
    return stale_targets([row for row in rows if not only or row.resource in only], plan)


def targets_named(node: Node, resources: Collection[str]) -> list[Target]:
    listed = {*node.capacity, *node.allocatable}
    for resource in resources:
        if resource not in listed:
            others = ", ".join(sorted(listed)) or "none"
            raise ConfigError(f"node {node.name} has no extended resource {resource!r}; it has: {others}")
    return [Target(node.name, resource) for resource in dict.fromkeys(resources)]


def _node_named(api: ClusterApi, name: str) -> Node:
    node = api.find_node(name) if _NODE_NAME.fullmatch(name) else None
    if node is None:
        raise ConfigError(f"there is no node {name!r}")
    return node


def _check_this_machine(nodes: Sequence[Node], boot_id: str) -> None:
    here = [node.name for node in nodes if node.boot_id == boot_id]
    if not here:
        raise ConfigError("--kubelet-dir is for the node that this runs on, and that is none of those asked for")
    if len(here) > 1:
        raise ConfigError(f"name the node that --kubelet-dir belongs to: {', '.join(here)} share this machine")
