"""`plugwright status`: the resources that the daemon serves, and the health of their devices."""

import json
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import click

from plugwright.cli.control import ask, control_socket, follow
from plugwright.cli.output import Cell, table_lines
from plugwright.sdk.status import DaemonStatus, DeviceStatus, ResourceStatus
from plugwright.text import clean

__all__ = ["status"]

_COLOURS = {"registered": "green", "Healthy": "green", "Unhealthy": "red", "refused": "red"}
_CLEAR_SCREEN = "\033[H\033[2J"


@click.command(
    epilog="Example:  plugwright status --output json | jq '.resources[].devices[] | select(.reason != \"\")'"
)
@control_socket
@click.option("-o", "--output", type=click.Choice(["text", "json"]), default="text", show_default=True)
@click.option("-w", "--watch", is_flag=True, help="Keep running, and print again after every change.")
def status(control_socket: Path, output: str, watch: bool) -> None:
    """Show resources, their registration with the kubelet, and each device with its health, reason and age."""
    if not watch:
        click.echo(_formatted(ask(control_socket, {"do": "status"}), output))
        return
    for report in follow(control_socket, {"do": "watch"}):
        clear = _CLEAR_SCREEN if output == "text" and sys.stdout.isatty() else ""
        click.echo(clear + _formatted(report, output))


def _formatted(report: DaemonStatus, output: str) -> str:
    return json.dumps(report) if output == "json" else "\n".join(_lines(report, time.time()))


def _lines(report: DaemonStatus, now: float) -> Iterator[str]:
    if report["stalled"]:
        yield click.style(clean(report["stalled"]), fg="red")
    if report["log_lines_dropped"]:
        yield f"{report['log_lines_dropped']} log lines dropped: nobody reads the log fast enough"
    if report["cordons_unreadable"]:
        yield clean(report["cordons_unreadable"])
    yield from _config_lines(report.get("config"), now)
    if not report["resources"]:
        yield "no resources are served"
    for number, resource in enumerate(report["resources"]):
        if number:
            yield ""
        yield from _resource_lines(resource, now)
    left = [cordon for cordon in report["cordons"] if not cordon["served"]]
    if left:
        yield ""
        yield "cordoned, but the resource is not served:"
        rows: list[list[Cell]] = [[cordon["resource"], cordon["id"], cordon["reason"]] for cordon in left]
        yield from (f"  {line}" for line in table_lines(["RESOURCE", "ID", "REASON"], rows))


def _config_lines(config: dict[str, Any] | None, now: float) -> Iterator[str]:
    if not config:
        return
    yield f"configuration {clean(config['path'])}  {config['sha256']}, read {_age(now - config['loaded'])} ago"
    if refused := config["refused"]:
        version = f"{refused['sha256'] or 'a new version'} {click.style('refused', fg='red')}"
        yield f"  {version} {_age(now - refused['since'])} ago: {clean(refused['error'])}"
    for name, reason in sorted(config["refused_names"].items()):
        yield f"  {clean(name)} {click.style('not served', fg='red')}: {clean(reason)}"
    yield ""


def _resource_lines(resource: ResourceStatus, now: float) -> Iterator[str]:
    devices = resource["devices"]
    counts = Counter(device["health"] for device in devices)
    state = click.style(resource["state"], fg=_COLOURS.get(resource["state"], "yellow"))
    watchers = f"{resource['streams']} watching" if resource["streams"] else "not watched"
    yield (
        f"{click.style(resource['name'], bold=True)}  {state} {_age(now - resource['since'])}, {watchers}, "
        f"{counts['Healthy']} of {len(devices)} healthy"
    )
    for key in ("reason", "fault", "discovery", "refused", "held"):
        if resource[key]:
            yield f"  {key}: {clean(resource[key])}"
    for method, count in sorted(resource["stuck"].items()):
        yield f"  stuck: {count} threads in {method}()"
    for key, title in (("sharing", "shared"), ("loader_cache", "loader cache in containers")):
        for text in sorted({str(device["attributes"].get(key, "")) for device in devices} - {""}):
            yield f"  {title}: {clean(text)}"
    if devices:
        yield from _device_table(devices, now)


def _device_table(devices: Sequence[DeviceStatus], now: float) -> Iterator[str]:
    shared = any("sharing" in device["attributes"] for device in devices)
    columns = ["ID", "HEALTH", "NUMA", *(["MEMORY"] if shared else []), "SINCE", "REASON"]
    rows = [_row(device, now, shared=shared) for device in devices]
    yield from (f"  {line}" for line in table_lines(columns, rows))


def _row(device: DeviceStatus, now: float, *, shared: bool) -> list[Cell]:
    memory = device["attributes"].get("memory")
    gibibytes = f"{memory / 2**30:.3g}Gi" if isinstance(memory, int) and memory else "-"
    return [
        device["id"],
        (device["health"], _COLOURS.get(device["health"], "")),
        ",".join(map(str, device["numa"])) or "-",
        *([gibibytes] if shared else []),
        _age(now - device["since"]),
        device["reason"],
    ]


def _age(seconds: float) -> str:
    """In the units of kubectl's AGE column."""
    whole = max(0, int(seconds))
    for unit, size in (("d", 86_400), ("h", 3_600), ("m", 60)):
        if whole >= 2 * size:
            return f"{whole // size}{unit}"
    return f"{whole}s"
