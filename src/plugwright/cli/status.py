"""`plugwright status`: what the daemon serves, and how each device is."""

import json
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import click

from plugwright.cli.control import ask, control_socket, follow
from plugwright.sdk.status import DaemonStatus, DeviceStatus, ResourceStatus

__all__ = ["status"]

_COLOURS = {"registered": "green", "Healthy": "green", "Unhealthy": "red", "refused": "red"}
_CLEAR = "\033[H\033[2J"


@click.command(
    epilog="Example:  plugwright status --output json | jq '.resources[].devices[] | select(.reason != \"\")'"
)
@control_socket
@click.option("-o", "--output", type=click.Choice(["text", "json"]), default="text", show_default=True)
@click.option("-w", "--watch", is_flag=True, help="Go on, and print again whenever something changes.")
def status(control_socket: Path, output: str, watch: bool) -> None:
    """Show resources, how they stand with the kubelet, and each device with its health, reason and since when."""
    if not watch:
        click.echo(_shown(ask(control_socket, {"do": "status"}), output))
        return
    for report in follow(control_socket, {"do": "watch"}):
        screen = _CLEAR if output == "text" and sys.stdout.isatty() else ""
        click.echo(screen + _shown(report, output))


def _shown(report: DaemonStatus, output: str) -> str:
    return json.dumps(report) if output == "json" else "\n".join(_lines(report, time.time()))


def _lines(report: DaemonStatus, now: float) -> Iterator[str]:
    if report["stalled"]:
        yield f"{report['stalled']} blocks the event loop"
    if not report["resources"]:
        yield "no resources are served"
    for number, resource in enumerate(report["resources"]):
        if number:
            yield ""
        yield from _resource(resource, now)


def _resource(resource: ResourceStatus, now: float) -> Iterator[str]:
    counts = Counter(device["health"] for device in resource["devices"])
    state = click.style(resource["state"], fg=_COLOURS.get(resource["state"], "yellow"))
    watched = f"{resource['streams']} watching" if resource["streams"] else "nobody watches"
    yield (
        f"{click.style(resource['name'], bold=True)}  {state} {_age(now - resource['since'])}, {watched}, "
        f"{counts['Healthy']} of {len(resource['devices'])} healthy"
    )
    for what in ("reason", "discovery", "refused"):
        if resource[what]:
            yield f"  {what}: {resource[what]}"
    for sharing in sorted({str(each["attributes"].get("sharing", "")) for each in resource["devices"]} - {""}):
        yield f"  shared: {sharing}"
    yield from _table(resource["devices"], now)


def _table(devices: Sequence[DeviceStatus], now: float) -> Iterator[str]:
    if not devices:
        return
    shares = any("sharing" in each["attributes"] for each in devices)
    head = ["ID", "HEALTH", "NUMA", *(["MEMORY"] if shares else []), "SINCE", "REASON"]
    rows = [[*_cells(each, shares), _age(now - each["since"]), each["reason"]] for each in devices]
    widths = [max(len(row[column]) for row in (head, *rows)) for column in range(len(head) - 1)]
    for row in (head, *rows):
        padded = [f"{cell:<{width}}" for cell, width in zip(row, widths, strict=False)]
        if row[1] in _COLOURS:
            padded[1] = click.style(padded[1], fg=_COLOURS[row[1]])
        yield f"  {'  '.join([*padded, row[-1]])}".rstrip()


def _cells(device: DeviceStatus, shares: bool) -> list[str]:
    memory = device["attributes"].get("memory")
    shown = f"{memory / 2**30:.3g}Gi" if isinstance(memory, int) and memory else "-"
    numa = ",".join(map(str, device["numa"])) or "-"
    return [device["id"], device["health"], numa, *([shown] if shares else [])]


def _age(seconds: float) -> str:
    """As kubectl writes it."""
    whole = max(0, int(seconds))
    for unit, size in (("d", 86_400), ("h", 3_600), ("m", 60)):
        if whole >= 2 * size:
            return f"{whole // size}{unit}"
    return f"{whole}s"
