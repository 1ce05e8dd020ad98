"""`plugwright handover`: moves the devices of a node from one API to the other while its pods run.

On the node the request uses the daemon's control socket, for another node exec into the daemon's pod there: users who
can exec into it can do this, and no further rights are needed, especially not by the daemon.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from plugwright.cli.completing import complete_node
from plugwright.cli.control import ChosenDaemon, control_socket, device_id
from plugwright.cli.options import duration
from plugwright.cli.output import Cell, document_printed, output_option, table_lines
from plugwright.errors import ConfigError, PlugwrightError
from plugwright.fleet.daemons import SELECTOR, DaemonChoice
from plugwright.model import natural_order, some
from plugwright.sdk.serve_settings import ServeMode
from plugwright.text import clean

__all__ = ["handover"]

_EXAMPLES = """\b
Examples:
  plugwright handover worker-1 --to dra
  plugwright handover worker-1 --status
  plugwright handover --to dra --resource example.com/tape --device st1
"""
_COLUMNS = ["RESOURCE", "DEVICE", "INDEX", "API", "MOVES TO", "HELD BY", "WAITS FOR"]

_POLL = 1.0  # seconds

_Moves = list[dict[str, Any]]  # by device: resource, device, index, api, target, pods, claims, waits


@click.command(epilog=_EXAMPLES)
@click.argument("node", metavar="[NODE]", default="", shell_complete=complete_node)
@click.option(
    "--to",
    type=click.Choice([ServeMode.DRA.value, ServeMode.DEVICE_PLUGIN.value, ServeMode.BOTH.value]),
    help="Move all devices there; `both`: as the operator's file splits them.",
)
@click.option("--status", is_flag=True, help="Only show which API offers each device, and why devices wait.")
@click.option(
    "--resource",
    "resources",
    multiple=True,
    metavar="RESOURCE",
    help="Only this resource.  [default: all with `serve: both`]",
)
@click.option("--device", metavar="ID", help="Only this device, of one --resource: id, unique prefix or index.")
@click.option("--wait", is_flag=True, help="Return when nothing is left to move.")
@click.option("--timeout", type=duration, default="1h", metavar="TIME", show_default=True, help="Time limit of --wait.")
@output_option()
@click.option(
    "--daemon-namespace",
    "--namespace",
    "namespace",
    metavar="NAME",
    help="Namespace of the daemon's pod on NODE.  [default: any]",
)
@click.option("--selector", metavar="LABELS", default=SELECTOR, show_default=True, help="Labels of the daemon's pod.")
@click.option("--kubeconfig", type=click.Path(path_type=Path), help="Kubeconfig, with NODE.  [default: as kubectl]")
@click.option("--context", help="Context of the kubeconfig.")
@control_socket
def handover(
    node: str, to: str | None, status: bool, resources: Sequence[str], device: str | None, output: str, **options: Any
) -> None:
    """Move a node's devices from one API to the other while its pods run.

    Free devices move immediately, held ones when their pod or claim ends; nothing is drained. Without NODE it acts on
    this machine, with NODE by exec into the daemon's pod on that node.
    """
    if status == (to is not None):
        raise click.UsageError("give --to or --status")
    if device is not None and (len(resources) != 1 or to in (None, ServeMode.BOTH)):
        raise click.UsageError("--device needs one --resource, and --to dra or device-plugin")
    timeout = options.pop("timeout")
    wait = timeout if options.pop("wait") else None
    socket = options.pop("control_socket")
    daemon = ChosenDaemon(DaemonChoice(socket))
    if node and not _serves(daemon, node):
        daemon = ChosenDaemon(DaemonChoice(node=node, **options))
    if to is not None:
        _request(daemon, to, resources, device and device_id(daemon, device, *resources))
    moves = _waited(daemon, resources, wait) if wait is not None else _moves(daemon.ask({"do": "status"}), resources)
    if not document_printed({"devices": moves}, output):
        click.echo("\n".join(_lines(moves)))


def _serves(daemon: ChosenDaemon, node: str) -> bool:
    """Whether the daemon on this machine serves that node."""
    try:
        report = daemon.ask({"do": "status"})
    except PlugwrightError:
        return False
    return any((resource.get("driver") or {}).get("node") == node for resource in report["resources"])


def _request(daemon: ChosenDaemon, to: str, resources: Sequence[str], device: str | None) -> None:
    report = daemon.ask({"do": "status"})
    served = [resource["name"] for resource in report["resources"] if resource.get("serve") == ServeMode.BOTH]
    _check_served(report, resources)
    if not resources and not served:
        raise ConfigError("no resource is served by both APIs here: nothing can move (serve: both in plugwright.yaml)")
    for resource in resources or served:
        request = {"do": "driver", "resource": resource, "name": "move" if device else "handover"}
        daemon.ask({**request, "arguments": {"to": to, **({"device": device} if device else {})}})


def _check_served(report: Mapping[str, Any], resources: Sequence[str]) -> None:
    names = sorted(resource["name"] for resource in report["resources"])
    for name in resources:
        if name not in names:
            raise ConfigError(f"no resource {name!r} is served here (served: {some(names)})")


def _waited(daemon: ChosenDaemon, resources: Sequence[str], seconds: float) -> _Moves:
    """The devices, once none of them is moving."""
    end = time.monotonic() + seconds
    while True:
        moves = _moves(daemon.ask({"do": "status"}), resources)
        waits = list(_waits(moves))
        if not waits:
            return moves
        if time.monotonic() >= end:
            raise ConfigError(f"still moving after {seconds:g} s: {'; '.join(waits)}")
        time.sleep(_POLL)


def _moves(report: Mapping[str, Any], resources: Sequence[str]) -> _Moves:
    _check_served(report, resources)
    moves = []
    for resource in report["resources"]:
        if resource["name"] in resources or (not resources and resource.get("driver")):
            placements = (resource.get("driver") or {}).get("devices") or {}
            for device in sorted(resource["devices"], key=_place):
                placement = placements.get(device["id"], {})
                moves.append(
                    {
                        "resource": resource["name"],
                        "device": device["id"],
                        "index": _index(device),
                        "api": placement.get("api", ""),
                        "target": placement.get("target", ""),
                        "pods": device["pods"],
                        "claims": list(placement.get("claims", ())),
                        "waits": placement.get("waits", ""),
                    }
                )
    return moves


def _index(device: Mapping[str, Any]) -> str:
    return str(device["attributes"].get("index", ""))


def _place(device: Mapping[str, Any]) -> tuple[object, object]:
    return natural_order(_index(device)), natural_order(device["id"])


def _lines(moves: _Moves) -> Iterator[str]:
    if not moves:
        yield "no resource is served by claims here"
        return
    columns, rows = list(_COLUMNS), [_row(move) for move in moves]
    if not any(move["index"] for move in moves):
        place = columns.index("INDEX")
        columns, rows = [*columns[:place], *columns[place + 1 :]], [[*row[:place], *row[place + 1 :]] for row in rows]
    yield from table_lines(columns, rows)
    waiting = len(list(_waits(moves)))
    offered = [move["api"] for move in moves]
    yield ""
    yield f"{offered.count('device-plugin')} device-plugin, {offered.count('dra')} dra, {waiting} moving"


def _waits(moves: _Moves) -> Iterator[str]:
    return (clean(f"{move['device']}: {move['waits']}") for move in moves if move["waits"])


def _row(move: Mapping[str, Any]) -> list[Cell]:
    holders = [*(f"pod {pod}" for pod in move["pods"]), *(f"claim {claim}" for claim in move["claims"])]
    target = move["target"] if move["target"] != move["api"] else "-"
    cells = [
        move["resource"],
        move["device"],
        move["index"],
        move["api"] or "neither",
        target,
        ", ".join(holders) or "-",
    ]
    return [*cells, move["waits"] or "-"]
