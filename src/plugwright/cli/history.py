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
from plugwright.errors import PeerGone
from plugwright.fleet.daemons import CONTROL_SOCKET
from plugwright.fleet.device_events import event_text, seconds_of
from plugwright.text import clean

__all__ = ["history"]

_COLUMNS = ["TIME", "NODE", "RESOURCE", "DEVICE", "EVENT"]
_WIDE = ["CLAIM", "API", "BY"]


@click.command(
    epilog="""\b
Examples:
  plugwright history mock-3 --since 12h
  kubectl plugwright history team-a/train-7 --all-nodes
"""
)
@click.argument("what", metavar="[DEVICE|POD]", default="", shell_complete=complete_held)
@click.option(
    "--since", type=duration, default="24h", metavar="TIME", show_default=True, help="How far back to show events."
)
@pod_namespace
@output_option()
@daemon_options(all_nodes=True)
def history(what: str, since: float, namespace: str, output: str, daemon: ChosenDaemon) -> None:
    """Show allocations, releases, changes of health and cordons: of DEVICE, of POD's devices, or of all.

    Each daemon keeps the history of its node's devices, over restarts, in a bounded file. Without --node the command
    shows that of this machine's daemon, or if none runs here, that of all nodes.
    """
    request = {"do": "history", "since": time.time() - since}
    choice, silent = daemon.choice, []
    found: list[dict[str, Any]] = []
    is_here = bool(choice.node or choice.socket or CONTROL_SOCKET.exists())
    for node, events, reason in (
        [("", daemon.ask(request), "")] if is_here and not daemon.is_all else daemon.ask_all(request)
    ):
        silent += [f"{clean(node)}: {clean(reason)}"] if reason else []
        found += [{"node": node or choice.node, **event} for event in events or () if _is_about(event, what, namespace)]
    found.sort(key=lambda event: str(event["time"]))
    if not document_printed(found, output):
        click.echo("\n".join(_lines(found, is_wide=output == "wide")))
    if silent:
        raise PeerGone(f"the history of some nodes is unknown: {'; '.join(silent)}")


def _is_about(event: Mapping[str, Any], what: str, namespace: str) -> bool:
    if not what:
        return True
    wanted, _, name = what.rpartition("/")
    is_pod = event.get("pod") == name and (wanted or namespace) in ("", event.get("namespace"))
    return is_pod or what == event["resource"] or str(event["device"]).startswith(what)


def _lines(events: list[dict[str, Any]], is_wide: bool) -> Iterator[str]:
    if not events:
        yield "nothing happened"
        return
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
