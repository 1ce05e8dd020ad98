"""`plugwright cordon` and `uncordon`: take one device out of service, put it back, and list what is out."""

import json
import time
from pathlib import Path
from typing import Any

import click
import yaml

from plugwright.cli.control import ask, control_socket
from plugwright.cli.options import duration, moment
from plugwright.cli.output import Cell, Dumper, age, table_lines
from plugwright.sdk.status import CordonStatus, DaemonStatus
from plugwright.text import clean

__all__ = ["cordon", "uncordon"]

_COLUMNS = ["RESOURCE", "ID", "SINCE", "ENDS IN", "BY", "REASON"]
_EXAMPLES = """\b
Examples:
  plugwright cordon nvidia.com/gpu GPU-1c2d --reason 'fan replaced on Monday' --for 3d
  plugwright cordon list
"""
_by = click.option(
    "--by", metavar="NAME", envvar="SUDO_USER", show_envvar=True, help="Who asks, for the log and for `cordon list`."
)


@click.command(epilog=_EXAMPLES)
@click.argument("resource", required=False)
@click.argument("device_id", metavar="[ID]", required=False)
@click.option("--reason", help="Reason, shown by `status`.  [required]")
@click.option("--for", "seconds", type=duration, metavar="TIME", help="End it after this time, such as 90m, 2h or 3d.")
@click.option(
    "--until", type=moment, metavar="TIME", help="End it then, such as 2026-12-01T08:00 or 2026-12-01T08:00Z."
)
@_by
@click.option("--list", "listing", is_flag=True, hidden=True)  # its earlier name
@click.option("-o", "--output", type=click.Choice(["text", "json", "yaml"]), help="With `list`.  [default: text]")
@control_socket
def cordon(control_socket: Path, listing: bool, output: str | None, **options: Any) -> None:
    """Take one device out of service: it turns Unhealthy with this reason, and stays so over restarts.

    Pods that hold it keep it; no new pod gets it. A cordon with an end expires. `cordon list` shows all of them,
    those of the configuration too.
    """
    if options["resource"] == "list" and options["device_id"] is None:  # the name of a resource has a '/'
        listing, options["resource"] = True, None
    given = {name for name, value in options.items() if value is not None and name != "by"}
    if listing:
        if given:
            raise click.UsageError("`cordon list` takes no device")
        _show(ask(control_socket, {"do": "status"}), output or "text")
        return
    for name, shown in (
        ("resource", "argument 'RESOURCE'"),
        ("device_id", "argument 'ID'"),
        ("reason", "option '--reason'"),
    ):
        if name not in given:
            raise click.UsageError(f"Missing {shown}.")
    if {"seconds", "until"} <= given:
        raise click.UsageError("give --for or --until, not both")
    if output:
        raise click.UsageError("--output is for `cordon list`")
    keys = {
        "resource": "resource",
        "device_id": "id",
        "reason": "reason",
        "seconds": "for",
        "until": "until",
        "by": "by",
    }
    request = {key: options[name] for name, key in keys.items() if options[name] is not None}
    click.echo(clean(ask(control_socket, {"do": "cordon", **request})))


@click.command(epilog="Example:  plugwright uncordon nvidia.com/gpu GPU-1c2d")
@click.argument("resource")
@click.argument("device_id", metavar="ID")
@_by
@control_socket
def uncordon(resource: str, device_id: str, by: str | None, control_socket: Path) -> None:
    """Put a cordoned device back into service, with its own health; its resource need not be served any more."""
    request = {"do": "uncordon", "resource": resource, "id": device_id, **({"by": by} if by else {})}
    click.echo(clean(ask(control_socket, request)))


def _show(report: DaemonStatus, output: str) -> None:
    if output == "json":
        click.echo(json.dumps(report["cordons"]))
        return
    if output == "yaml":
        click.echo(yaml.dump(report["cordons"], Dumper=Dumper, sort_keys=False), nl=False)
        return
    if report["cordons_unreadable"]:
        click.echo(clean(report["cordons_unreadable"]))
    rows = [_row(cordon, time.time()) for cordon in report["cordons"]]
    click.echo("\n".join(table_lines(_COLUMNS, rows)) if rows else "no device is cordoned")


def _row(cordon: CordonStatus, now: float) -> list[Cell]:
    since, until = cordon["since"], cordon["until"]
    return [
        cordon["resource"],
        cordon["id"],
        "-" if since is None else age(now - since),
        "-" if until is None else age(until - now),
        "the configuration" if cordon["declared"] else cordon["by"] or "-",
        cordon["reason"] + ("" if cordon["served"] or cordon["declared"] else " (not served)"),
    ]
