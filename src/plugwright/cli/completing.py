"""Completion of names: pods, claims, nodes, namespaces, resources and devices of the cluster, and rules of `verify`.

A shell waits for the result, so nothing is offered if the cluster does not respond within a few seconds. Names come
from the cluster that the flags on the line choose, or from this machine's daemon. Drivers name their devices, so ids
that a shell would not take literally are not offered.
"""

import os
import re
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import click

__all__ = [
    "complete_device_id", "complete_held", "complete_joined_node", "complete_namespace", "complete_node",
    "complete_node_of_up", "complete_resource", "complete_rule", "complete_why",
]  # fmt: skip

LIMIT = 5.0  # seconds
_PLAIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/@+-]*")
_CLAIMS = "/apis/resource.k8s.io/v1/{}resourceclaims"

_Names: TypeAlias = Iterable[tuple[str, str]]  # each with a note, such as the node of a pod


def _completer(read: Callable[[click.Context], _Names]) -> Callable[[click.Context, click.Parameter, str], list[Any]]:
    def complete(context: click.Context, _parameter: click.Parameter, begin: str) -> list[Any]:
        from click.shell_completion import CompletionItem

        from plugwright.errors import PlugwrightError
        from plugwright.system.blocking import call_within

        try:
            found = call_within("completion", LIMIT, lambda: dict(read(context)))
        except (PlugwrightError, OSError, LookupError, TypeError, ValueError, click.ClickException):
            return []  # the command itself reports the problem
        names = sorted(name for name in found if name.startswith(begin) and _PLAIN.fullmatch(name))
        return [CompletionItem(name, help=found[name] or None) for name in names]

    return complete


def _path(context: click.Context) -> Path | None:
    given = context.params.get("kubeconfig")
    return Path(given) if given else None


def _listed(context: click.Context, path: str) -> list[Any]:
    """Objects of the cluster that kubectl would use, or of the one that the fleet commands find."""
    from plugwright.fleet.daemons import DaemonChoice, cluster_access
    from plugwright.kube.access import ClusterAccess
    from plugwright.kube.api_client import BlockingClient

    as_kubectl = context.command.name in ("why", "fit", "lint")
    wanted = _path(context), context.params.get("context")
    access = ClusterAccess.choose(*wanted) if as_kubectl else cluster_access(DaemonChoice(None, "", *wanted))
    with BlockingClient(access) as client:
        return list(client.list(path))


def _namespace(context: click.Context) -> str:
    from plugwright.cli.cluster_question import wanted_namespace

    return wanted_namespace(context.params.get("namespace") or None, _path(context), context.params.get("context"))


def _objects_in(context: click.Context) -> _Names:
    """Pods that have not finished, followed by claims, in the notation of `why`."""
    scope = f"namespaces/{_namespace(context)}/"
    for pod in _listed(context, f"/api/v1/{scope}pods"):
        phase = str((pod.get("status") or {}).get("phase") or "")
        if phase != "Succeeded":
            yield pod["metadata"]["name"], phase
    for claim in _listed(context, _CLAIMS.format(scope)):
        yield f"claim/{claim['metadata']['name']}", "ResourceClaim"


def _named(path: str, context: click.Context) -> _Names:
    return ((entry["metadata"]["name"], "") for entry in _listed(context, path))


def _devices(context: click.Context) -> Any:
    from plugwright.fleet.cluster_view import read_fleet
    from plugwright.fleet.daemons import SELECTOR, DaemonChoice

    given = context.params
    choice = DaemonChoice(
        None, given.get("node") or "", _path(context), given.get("context"), given.get("selector") or SELECTOR,
        given.get("daemon_namespace"),
    )  # fmt: skip
    return read_fleet(choice)[0]


def _resources_here(context: click.Context) -> list[Any] | None:
    """The resources in the status of a daemon on this machine; None if another one is chosen, or none listens."""
    from plugwright.fleet.daemons import CONTROL_SOCKET, DaemonChoice, LocalDaemon, find_daemon
    from plugwright.system import sockets

    given = context.params
    socket = given.get("control_socket")
    if given.get("node") or given.get("all_nodes") or not (socket or sockets.is_listening(CONTROL_SOCKET)):
        return None
    daemon = find_daemon(DaemonChoice(Path(socket) if socket else None))
    return list(daemon.ask({"do": "status"})["resources"]) if isinstance(daemon, LocalDaemon) else None


def _device_ids(context: click.Context) -> _Names:
    resource = context.params.get("resource") or ""
    if (here := _resources_here(context)) is not None:
        for entry in here:
            if resource in ("", entry["name"]):
                yield from ((str(device["id"]), f"{entry['name']}, {device['health']}") for device in entry["devices"])
        return
    for device in _devices(context).devices:
        if resource in ("", device.resource):
            yield device.id, f"{device.resource} on {device.node}, {device.state}"


def _resources(context: click.Context) -> _Names:
    if context.command.name == "cordon":
        yield "list", "the devices out of service"
    if (here := _resources_here(context)) is not None:
        yield from ((str(entry["name"]), "") for entry in here)
        return
    fleet = _devices(context)
    yield from ((entry.resource, "") for entry in (*fleet.devices, *fleet.unnamed))


def _held(context: click.Context) -> _Names:
    """Everything accepted by `who` and `history`: resources, devices, and pods that hold some."""
    for device in _devices(context).devices:
        yield device.resource, "resource"
        yield device.id, f"{device.resource} on {device.node}, {device.state}"
        for holder in device.holders:
            if holder.pod:
                yield f"{holder.namespace}/{holder.pod}", f"holds {device.resource}"


def _nodes_of_up(context: click.Context) -> _Names:
    from plugwright.cluster.up.state_directory import state_directory

    state = context.params.get("state")
    up = state_directory(Path(state) if state else None, os.environ).running_cluster()
    return ((str(name), "") for name in up["nodes"])


def _joined_nodes(context: click.Context) -> _Names:
    from plugwright.cluster.joined.join_state import JoinState

    return ((str(name), "") for name in JoinState(Path(context.params["state"])).running()["nodes"])


def _rules(_context: click.Context) -> _Names:
    from plugwright.conformance.catalogue import DRIVER_RULES, RULES

    return ((rule.id, rule.title) for rule in (*RULES, *DRIVER_RULES))


complete_why = _completer(_objects_in)
complete_namespace = _completer(partial(_named, "/api/v1/namespaces"))
complete_node = _completer(partial(_named, "/api/v1/nodes"))
complete_device_id = _completer(_device_ids)
complete_resource = _completer(_resources)
complete_held = _completer(_held)
complete_node_of_up = _completer(_nodes_of_up)
complete_joined_node = _completer(_joined_nodes)
complete_rule = _completer(_rules)
