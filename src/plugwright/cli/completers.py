"""What a shell completes for arguments: devices, resources, nodes and rules, of the daemon that the flags choose.

The shell waits for it on every TAB. A daemon is asked on this machine alone, and anything that fails completes nothing.
"""

import os
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import click
from click.shell_completion import CompletionItem

from plugwright.errors import PlugwrightError

__all__ = [
    "offer_devices",
    "offer_joined_nodes",
    "offer_nodes",
    "offer_nodes_of_up",
    "offer_resources",
    "offer_rules",
]

_TO_LIST = "list"  # the word for `cordon list`, which has the place of a resource


def _offered(candidates: Callable[[click.Context], Iterable[tuple[str, str]]]) -> Any:
    """A completer that offers those candidates that begin as written; each with a text about it."""

    def complete(context: click.Context, parameter: click.Parameter, begin: str) -> list[CompletionItem]:
        with suppress(PlugwrightError, OSError, LookupError, TypeError):
            found = dict(candidates(context))
            return [CompletionItem(word, help=text) for word, text in found.items() if word.startswith(begin)]
        return []

    return complete


def _choice(context: click.Context) -> Any:
    from plugwright.fleet.daemons import SELECTOR, DaemonChoice

    given = context.params
    socket, file = given.get("control_socket"), given.get("kubeconfig")
    node = given.get("node") or ""
    paths = [Path(path) if path else None for path in (socket, file)]
    return DaemonChoice(paths[0], node, paths[1], given.get("context"), given.get("selector") or SELECTOR)


def _status(context: click.Context) -> Mapping[str, Any]:
    """Of a daemon of this machine; to ask another node takes an exec in its pod."""
    from plugwright.fleet.daemons import LocalDaemon, find_daemon

    daemon = find_daemon(_choice(context))
    found: Mapping[str, Any] = daemon.ask({"do": "status"}) if isinstance(daemon, LocalDaemon) else {"resources": []}
    return found


def _devices(context: click.Context) -> Iterable[tuple[str, str]]:
    wanted = context.params.get("resource") or ""
    for resource in _status(context)["resources"]:
        if wanted in ("", resource["name"]):
            for device in resource["devices"]:
                yield str(device["id"]), f"{resource['name']} {device['health']}"


def _resources(context: click.Context) -> Iterable[tuple[str, str]]:
    for resource in _status(context)["resources"]:
        yield str(resource["name"]), f"{len(resource['devices'])} devices"
    if context.info_name == "cordon":
        yield _TO_LIST, "every cordoned device"


def _nodes(context: click.Context) -> Iterable[tuple[str, str]]:
    from plugwright.fleet.daemons import find_all

    for daemon in find_all(_choice(context)):
        yield daemon.node, ""


def _nodes_of_up(context: click.Context) -> Iterable[tuple[str, str]]:
    from plugwright.cluster.up.state_directory import state_directory

    state = context.params.get("state")
    for name in state_directory(Path(state) if state else None, os.environ).running_cluster()["nodes"]:
        yield str(name), ""


def _joined_nodes(context: click.Context) -> Iterable[tuple[str, str]]:
    from plugwright.cluster.joined.join_state import JoinState

    for name in JoinState(Path(context.params["state"])).running()["nodes"]:
        yield str(name), ""


def _rules(context: click.Context) -> Iterable[tuple[str, str]]:
    from plugwright.conformance.catalogue import DRIVER_RULES, RULES

    for rule in (*RULES, *DRIVER_RULES):
        yield rule.id, rule.title


offer_devices = _offered(_devices)
offer_resources = _offered(_resources)
offer_nodes = _offered(_nodes)
offer_nodes_of_up = _offered(_nodes_of_up)
offer_joined_nodes = _offered(_joined_nodes)
offer_rules = _offered(_rules)
