"""Reads a cluster: the API server's objects, and the NodeReport of every reachable daemon."""

import os
from collections.abc import Iterator, Mapping, Sequence

import msgspec
from msgspec.structs import replace

from plugwright.errors import ConfigError, PlugwrightError
from plugwright.explain.reading import read_world
from plugwright.explain.world import World, identity
from plugwright.fleet.daemons import DaemonChoice, ReachableDaemon, ask_all, cluster_access, find_all
from plugwright.fleet.fleet_devices import Fleet, NodeSource, make_fleet
from plugwright.kube.api_client import BlockingClient
from plugwright.model import natural_order, some
from plugwright.sdk.node_report import NodeReport
from plugwright.text import clean

__all__ = ["node_source", "read_fleet", "read_sources"]

_REQUEST = {"do": "report"}


def read_fleet(
    choice: DaemonChoice, namespace: str = "default", environment: Mapping[str, str] = os.environ
) -> tuple[Fleet, World]:
    """The devices of the chosen cluster, or of one of its nodes; and the objects from which they were read."""
    access = cluster_access(choice, environment)
    sources = read_sources(choice, environment)  # before the pods, so that they include the pod of each holder
    with BlockingClient(access) as client:
        world = read_world(client, namespace)
    fleet = make_fleet(world, sources)
    if not choice.node:
        return fleet, world
    names = {identity(node)[1] for node in world.nodes}
    if choice.node not in names | {source.node for source in sources if source.via} and "nodes" not in world.hidden:
        raise ConfigError(f"no Node is named {choice.node!r} (there are: {some(sorted(names, key=natural_order))})")
    return _of_node(fleet, choice.node), world


def read_sources(choice: DaemonChoice, environment: Mapping[str, str] = os.environ) -> list[NodeSource]:
    """The NodeReport of each daemon, or why it cannot be read."""
    try:
        found = [daemon for daemon in find_all(choice, environment) if choice.node in ("", daemon.node)]
    except PlugwrightError as error:
        return [NodeSource(node=choice.node or "every node", problem=f"no daemon can be found: {clean(error)}")]
    return list(_sources(found))


def _sources(daemons: Sequence[ReachableDaemon]) -> Iterator[NodeSource]:
    for daemon, report, reason in ask_all(daemons, _REQUEST):
        yield (
            NodeSource(node=daemon.node, via=daemon.via, problem=reason)
            if reason
            else node_source(daemon.node, daemon.via, report)
        )


def node_source(node: str, via: str, report: object) -> NodeSource:
    """A daemon's answer, checked."""
    try:
        msgspec.convert(report, NodeReport)
    except msgspec.ValidationError as error:
        return NodeSource(node=node, via=via, problem=f"the answer is not a NodeReport: {clean(error)}")
    assert isinstance(report, dict)
    return NodeSource(node=node, via=via, report=report)


def _of_node(fleet: Fleet, node: str) -> Fleet:
    others = {count.node for count in fleet.unnamed} - {node}
    return replace(
        fleet,
        devices=tuple(device for device in fleet.devices if device.node == node),
        unnamed=tuple(count for count in fleet.unnamed if count.node == node),
        events=tuple(event for event in fleet.events if event["node"] == node),
        unseen=tuple(entry for entry in fleet.unseen if entry.partition(":")[0] not in others),
    )
