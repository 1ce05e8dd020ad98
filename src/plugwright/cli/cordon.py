"""`plugwright cordon` and `uncordon`: take one device out of service, put it back, and list what is out."""

import time
from typing import Any

import click

from plugwright.cli.completing import complete_device_id, complete_resource
from plugwright.cli.control import ChosenDaemon, daemon_options, device_id
from plugwright.cli.options import duration, moment
from plugwright.cli.output import Cell, age, document_printed, output_option, table_lines
from plugwright.errors import PeerGone
from plugwright.fleet.device_names import NamedDevice, complete_device
from plugwright.sdk.status import CordonStatus, DaemonStatus
from plugwright.text import clean

__all__ = ["cordon", "uncordon"]

_COLUMNS = ["RESOURCE", "ID", "SINCE", "ENDS IN", "BY", "REASON"]
_EXAMPLES = """\b
Examples:
  plugwright cordon nvidia.com/gpu GPU-1c2d --reason 'new fan' --for 3d
  plugwright cordon nvidia.com/gpu 3 --node worker-7 --reason 'Xid 79 twice'
  plugwright cordon list --all-nodes
"""
_by = click.option(
    "--by", metavar="NAME", envvar="SUDO_USER", show_envvar=True, help="Author, for the log and for `cordon list`."
)


@click.command(epilog=_EXAMPLES)
@click.argument("resource", required=False, shell_complete=complete_resource)
@click.argument("device_id", metavar="[ID]", required=False, shell_complete=complete_device_id)
@click.option("--reason", help="Reason, shown by `status`.  [required]")
@click.option(
    "--for", "seconds", type=duration, metavar="TIME", help="End the cordon after this time, such as 90m, 2h or 3d."
)
@click.option(
    "--until",
    type=moment,
    metavar="TIME",
    help="End the cordon at this time, such as 2026-12-01T08:00 or 2026-12-01T08:00Z.",
)
@_by
@click.option("--list", "listing", is_flag=True, hidden=True)  # its earlier name
@output_option("With `list`.", default=None)
@daemon_options(all_nodes=True)
def cordon(daemon: ChosenDaemon, listing: bool, output: str | None, **options: Any) -> None:
    """Take one device out of service: it becomes Unhealthy with this reason, and stays Unhealthy across restarts.

    ID is the device's id, an id prefix, or its index. Pods that hold it keep it; no new pod gets it. A cordon with an
    end expires. `cordon list` shows all of them, including those in the configuration.
    """
    if options["resource"] == "list" and options["device_id"] is None:  # the name of a resource has a '/'
        listing, options["resource"] = True, None
    given = {name for name, value in options.items() if value is not None and name != "by"}
    if listing:
        if given:
            raise click.UsageError("`cordon list` takes no device")
        _show_all(daemon, output or "text") if daemon.is_all else _show(daemon.ask({"do": "status"}), output or "text")
        return
    if daemon.is_all:
        raise click.UsageError("--all-nodes is for `cordon list`: a device is on one node")
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
    request["id"] = device_id(daemon, request["id"], request["resource"])
    click.echo(clean(daemon.ask({"do": "cordon", **request})))


@click.command(epilog="Example:  plugwright uncordon nvidia.com/gpu GPU-1c2d")
@click.argument("resource", shell_complete=complete_resource)
@click.argument("given_id", metavar="ID", shell_complete=complete_device_id)
@_by
@daemon_options()
def uncordon(resource: str, given_id: str, by: str | None, daemon: ChosenDaemon) -> None:
    """Put a cordoned device back into service, with its own health, even if its resource is no longer served."""
    listed = [NamedDevice(resource, cordon["id"]) for cordon in _cordons(daemon, resource)]
    found = complete_device(given_id, listed)
    named = found[0].id if found else device_id(daemon, given_id, resource)
    request = {"do": "uncordon", "resource": resource, "id": named, **({"by": by} if by else {})}
    click.echo(clean(daemon.ask(request)))


def _cordons(daemon: ChosenDaemon, resource: str) -> list[CordonStatus]:
    cordons = daemon.ask({"do": "status"})["cordons"]
    return [cordon for cordon in cordons if cordon["resource"] == resource and not cordon["declared"]]


def _show_all(daemon: ChosenDaemon, output: str) -> None:
    """Shows the cordons of every node, and the nodes that did not answer."""
    found, silent = [], []
    for node, report, reason in daemon.ask_all({"do": "status"}):
        if reason:
            silent.append(f"{clean(node)}: {clean(reason)}")
        else:
            found += [(node, cordon) for cordon in report["cordons"]]
    if not document_printed([{"node": node, **cordon} for node, cordon in found], output):
        rows: list[list[Cell]] = [[node, *_row(cordon, time.time())] for node, cordon in found]
        click.echo("\n".join(table_lines(["NODE", *_COLUMNS], rows)) if rows else "no device is cordoned")
    if silent:
        raise PeerGone(f"cordons of some nodes are unknown: {'; '.join(silent)}")


def _show(report: DaemonStatus, output: str) -> None:
    if document_printed(report["cordons"], output):
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
