"""Adds NodeReports to a world: of the nodes relevant for a pod, requested from their daemons."""

import os
from collections.abc import Iterable, Iterator, Mapping

from msgspec.structs import replace

from plugwright.errors import PlugwrightError
from plugwright.explain.world import ApiObject, World, identity, is_device_resource
from plugwright.fleet.cluster_view import node_source
from plugwright.fleet.daemons import DaemonChoice, ReachableDaemon, ask_all, find_at
from plugwright.kube.access import ClusterAccess
from plugwright.model import natural_order, some
from plugwright.text import clean

__all__ = ["with_node_reports"]

MOST_ASKED = 64  # daemons: each request is an exec
_REQUEST = {"do": "report"}


def with_node_reports(
    world: World, access: ClusterAccess, choice: DaemonChoice, pods: Iterable[ApiObject],
    environment: Mapping[str, str] = os.environ,
) -> World:  # fmt: skip
    """The world with the reports of nodes that offer a resource of the pods; existing reports stay.

    `unseen` lists the daemons that did not respond. Clusters without a daemon are common, so that is not reported.
    """
    wanted = _nodes(world, pods) - world.reports.keys()
    if not wanted:
        return world
    try:
        found = [daemon for daemon in find_at(access, choice, environment) if daemon.node in wanted]
    except PlugwrightError as error:
        return _with_unseen(world, f"NodeReports cannot be read: {clean(error)}")
    found.sort(key=lambda daemon: natural_order(daemon.node))
    asked, left = found[:MOST_ASKED], [daemon.node for daemon in found[MOST_ASKED:]]
    answered = _answers(asked)
    world = replace(
        world,
        reports={**world.reports, **{node: report for node, (_, report, _) in answered.items() if report}},
        sources={**world.sources, **{node: via for node, (via, report, _) in answered.items() if report}},
    )
    problems: dict[str, list[str]] = {}
    for node, (_, _, problem) in answered.items():
        if problem:
            problems.setdefault(problem, []).append(node)
    for problem, nodes in problems.items():
        world = _with_unseen(world, f"NodeReports of {some(nodes)} cannot be read: {problem}")
    if left:
        world = _with_unseen(world, f"daemons of {some(left)} are not asked for NodeReports: more than {MOST_ASKED}")
    return world


def _nodes(world: World, pods: Iterable[ApiObject]) -> set[str]:
    """The nodes with an extended resource of one of the pods. Nodes without a heartbeat would not respond."""
    resources = {name for pod in pods for name in _resources(pod) if is_device_resource(name)}
    return {
        identity(node)[1]
        for node in world.nodes
        if resources & ((node.get("status") or {}).get("capacity") or {}).keys() and _is_ready(node)
    }


def _resources(pod: ApiObject) -> Iterator[str]:
    spec = pod.get("spec") or {}
    for container in (*(spec.get("containers") or ()), *(spec.get("initContainers") or ())):
        for part in ("requests", "limits"):  # a pod in a file has no defaults yet
            yield from (container.get("resources") or {}).get(part) or ()


def _is_ready(node: ApiObject) -> bool:
    conditions = (node.get("status") or {}).get("conditions") or ()
    return all(entry.get("status") == "True" for entry in conditions if entry.get("type") == "Ready")


def _answers(daemons: list[ReachableDaemon]) -> dict[str, tuple[str, ApiObject, str]]:
    """By node: how the daemon was reached, its NodeReport, or why there is none."""
    answers: dict[str, tuple[str, ApiObject, str]] = {}
    for daemon, report, reason in ask_all(daemons, _REQUEST):
        problem = reason or node_source(daemon.node, daemon.via, report).problem
        answers[daemon.node] = daemon.via, {} if problem else report, problem
    return answers


def _with_unseen(world: World, text: str) -> World:
    return replace(world, unseen=(*world.unseen, text))
