"""`plugwright history`: the events of a device, of the devices of a pod, or of all devices."""

import time
from collections.abc import Iterator, Mapping
from typing import Any

import click

from plugwright.cli.completing import complete_held
from plugwright.cli.control import ChosenDaemon, daemon_options
from plugwright.cli.fitting_table import fitting_lines
from plugwright.cli.fleet_options import pod_namespace
from plugwright.cli.options import duration
from plugwright.cli.output import Cell, document_printed, output_option, table_lines
from plugwright.errors import PeerGone, PlugwrightError
from plugwright.explain.world import identity
from plugwright.fleet.claim_users import claims_of_pod
from plugwright.fleet.daemons import CONTROL_SOCKET, DaemonChoice, cluster_access
from plugwright.fleet.device_events import event_text, seconds_of
from plugwright.fleet.device_names import devices_in_status
from plugwright.grammars import DNS_SUBDOMAIN
from plugwright.kube.api_client import BlockingClient
from plugwright.system import sockets
from plugwright.text import clean

__all__ = ["history"]

_COLUMNS = ["TIME", "NODE", "RESOURCE", "DEVICE", "EVENT"]
_WIDE = ["CLAIM", "API", "BY"]


@click.command(
    epilog="""\b
Examples:
  plugwright history mock-3 --since 12h
  kubectl plugwright history 3 --node worker-7
  kubectl plugwright history team-a/train-7 --all-nodes
"""
)
@click.argument("what", metavar="[DEVICE|POD|CLAIM]", default="", shell_complete=complete_held)
@click.option(
    "--since", type=duration, default="24h", metavar="TIME", show_default=True, help="How far back to show events."
)
@pod_namespace
@output_option()
@daemon_options(all_nodes=True)
def history(what: str, since: float, namespace: str, output: str, daemon: ChosenDaemon) -> None:
    """Show allocations, releases, health changes and cordons of DEVICE, the devices of POD or CLAIM, or all devices.

    Each daemon keeps the history of its node's devices across restarts, in a file of limited size. Without --node,
    shows the history of this machine's daemon, or of all nodes if no daemon runs here. DEVICE is an id, an id prefix,
    or with --node an index.
    """
    request = {"do": "history", "since": time.time() - since}
    choice = daemon.choice
    is_here = bool(choice.node or choice.socket or sockets.is_listening(CONTROL_SOCKET)) and not daemon.is_all
    answers = [("", daemon.ask(request), "")] if is_here else list(daemon.ask_all(request))
    silent = [f"{clean(node)}: {clean(reason)}" for node, _, reason in answers if reason]
    events = [{"node": node or choice.node, **event} for node, own, _ in answers for event in own or ()]
    events.sort(key=lambda event: str(event["time"]))
    ids = _ids_at(what, daemon) if is_here else frozenset()
    has_claims = bool(what) and any(event.get("claim") for event in events)
    claims = _claims_of(what, namespace, choice) if has_claims and not ids else frozenset()
    found = [
        event
        for event in events
        if _is_about(event, what, namespace, ids) or (event.get("namespace"), event.get("claim")) in claims
    ]
    if not document_printed(found, output):
        nothing = f"no event of {clean(what)!r} in that time" if what else "nothing happened"
        click.echo("\n".join(_lines(found, is_wide=output == "wide")) if found else nothing)
    if silent:
        raise PeerGone(f"the history of some nodes is unknown: {'; '.join(silent)}")


def _claims_of(pod: str, namespace: str, choice: DaemonChoice) -> frozenset[tuple[str, str]]:
    """Namespace and name of the claims that a pod uses: events of claims do not name it."""
    wanted, _, name = pod.rpartition("/")
    if not DNS_SUBDOMAIN.fullmatch(name):
        return frozenset()
    try:
        with BlockingClient(cluster_access(choice)) as client:
            pods = client.list("/api/v1/pods", fieldSelector=f"metadata.name={name}")
    except PlugwrightError:  # only the daemon can be read
        return frozenset()
    return frozenset(
        (identity(found)[0], claim)
        for found in pods
        if (wanted or namespace) in ("", identity(found)[0])
        for claim in claims_of_pod(found)
    )


def _ids_at(index: str, daemon: ChosenDaemon) -> frozenset[tuple[str, str]]:
    """The resource and id of each device with this index, which events do not contain."""
    if not index.isdecimal():
        return frozenset()
    listed = devices_in_status(daemon.ask({"do": "status"}))
    return frozenset((device.resource, device.id) for device in listed if device.index == index)


def _is_about(event: Mapping[str, Any], what: str, namespace: str, ids: frozenset[tuple[str, str]]) -> bool:
    if not what:
        return True
    if ids:
        return (event["resource"], event["device"]) in ids
    wanted, _, name = what.rpartition("/")
    is_user = name in (event.get("pod"), event.get("claim")) and (wanted or namespace) in ("", event.get("namespace"))
    return is_user or what == event["resource"] or str(event["device"]).startswith(what)


def _lines(events: list[dict[str, Any]], is_wide: bool) -> Iterator[str]:
    has_node = any(event["node"] for event in events)
    columns = [name for name in _COLUMNS if name != "NODE" or has_node] + (_WIDE if is_wide else [])
    rows: list[list[Cell]] = [
        [
            seconds_of(str(event["time"])),
            *([event["node"]] if has_node else []),
            event["resource"],
            event["device"],
            event_text(event),
            *([str(event.get(key) or "-") for key in ("claim", "api", "by")] if is_wide else []),
        ]
        for event in events
    ]
    yield from table_lines(columns, rows) if is_wide else fitting_lines(columns, rows, "DEVICE", ["RESOURCE"])
