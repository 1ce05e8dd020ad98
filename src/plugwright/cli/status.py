"""`plugwright status`: the resources that the daemon serves, and the health of their devices."""

import json
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from typing import Any

import click

from plugwright.cli.completing import complete_resource
from plugwright.cli.control import ChosenDaemon, daemon_options
from plugwright.cli.devices_table import age_of
from plugwright.cli.output import Cell, document_printed, output_option, table_lines
from plugwright.cli.output import age as _age
from plugwright.errors import ConfigError, PeerGone
from plugwright.fleet.daemons import LocalDaemon
from plugwright.fleet.device_events import event_text
from plugwright.model import natural_order, some
from plugwright.sdk.status import DaemonStatus, DeviceStatus, ResourceStatus
from plugwright.text import clean

__all__ = ["status"]

_COLOURS = {"registered": "green", "idle": "green", "Healthy": "green", "Unhealthy": "red", "refused": "red"}
_PAUSE, _REMOTE_PAUSE = 1.0, 3.0  # seconds between two updates; on another node each is an exec
_MOST_EVENTS = 5


@click.command(epilog="Example:  plugwright status -o json | jq '.resources[].devices[].id'")
@click.argument("names", metavar="[RESOURCE]...", nargs=-1, shell_complete=complete_resource)
@output_option("json and yaml are a NodeReport: docs/node-report.md.")
@click.option(
    "-w", "--watch", is_flag=True, help="Keep running: redraw in place, or in a pipe print after every change."
)
@daemon_options(all_nodes=True)
def status(daemon: ChosenDaemon, names: tuple[str, ...], output: str, watch: bool) -> None:
    """Show resources, their registration with the kubelet, and each device with its health, pod, reason and age.

    With RESOURCE, show only the named resources.
    """
    daemon = _Selection(daemon, names) if names else daemon
    once, always = ("report", "watch reports") if output in ("json", "yaml") else ("status", "watch")
    if daemon.is_all:
        if watch:
            raise click.UsageError("--watch shows one node: give --node")
        _show_all(daemon, once, output)
        return
    if not watch:
        _print(daemon.ask({"do": once}), output)
        return
    if output in ("text", "wide") and sys.stdout.isatty():
        _watch(daemon)
        return
    for report in daemon.follow({"do": always}):
        _print(report, output, is_stream=True)


class _Selection(ChosenDaemon):
    """A daemon whose reports are reduced to some resources."""

    def __init__(self, daemon: ChosenDaemon, names: Sequence[str]) -> None:
        super().__init__(daemon.choice, is_all=daemon.is_all)
        self._names = names

    def ask(self, request: Mapping[str, object]) -> Any:
        return self._selected(super().ask(request))

    def follow(self, request: Mapping[str, object]) -> Iterator[Any]:
        return map(self._selected, super().follow(request))

    def ask_all(self, request: Mapping[str, object]) -> Iterator[tuple[str, Any, str]]:
        for node, report, reason in super().ask_all(request):
            yield node, report if reason else self._selected(report, is_one_of_many=True), reason

    def _selected(self, report: dict[str, Any], is_one_of_many: bool = False) -> dict[str, Any]:
        served = sorted(resource["name"] for resource in report["resources"])
        for name in () if is_one_of_many else self._names:
            if name not in served:
                hint = "".join(f"; did you mean {close!r}?" for close in get_close_matches(name, served, n=1))
                raise ConfigError(f"no resource {name!r} is served here (served: {some(served)}){hint}")
        shown = [resource for resource in report["resources"] if resource["name"] in self._names]
        return {**report, "resources": shown}


def _watch(daemon: ChosenDaemon) -> None:
    """Polls, because each time the daemon reads who holds devices, which the kubelet does not report."""
    from plugwright.cli.live import show_live

    def view() -> tuple[object, Sequence[str]]:
        report = daemon.ask({"do": "status"})
        history = daemon.ask({"do": "report"})["history"][-_MOST_EVENTS:]
        events = [
            f"{age_of(event['time'], time.time())} ago  {clean(event['device'])}  {clean(event_text(event))}"
            for event in history
        ]
        return None, [*_lines(report, time.time()), *(["", "last events:", *events] if events else [])]

    show_live(view, _PAUSE if isinstance(daemon.reached, LocalDaemon) else _REMOTE_PAUSE)


def _show_all(daemon: ChosenDaemon, request: str, output: str) -> None:
    """Prints the nodes one after another; as JSON one line each, except for nodes whose daemon does not answer."""
    silent = []
    for number, (node, report, reason) in enumerate(daemon.ask_all({"do": request})):
        if reason:
            silent.append(f"{clean(node)}: {clean(reason)}")
        elif output in ("json", "yaml"):
            _print(report, output, is_stream=True)
        else:
            gap = "\n" if number else ""
            indented = (f"  {line}".rstrip() for line in _lines(report, time.time()))
            click.echo("\n".join([f"{gap}{click.style(clean(node), bold=True)}", *indented]))
    if silent:
        raise PeerGone(f"no answer of some nodes: {'; '.join(silent)}")


def _print(report: DaemonStatus, output: str, *, is_stream: bool = False) -> None:
    """Prints a report; in a stream, JSON documents are one line each, and YAML documents start with `---`."""
    if is_stream and output == "json":
        click.echo(json.dumps(report))
        return
    if is_stream and output == "yaml":
        click.echo("---")
    if not document_printed(report, output):
        click.echo("\n".join(_lines(report, time.time())))


def _lines(report: DaemonStatus, now: float) -> Iterator[str]:
    yield from _daemon_lines(report, now)
    yield from _config_lines(report.get("config"), now)
    for name, reason in sorted(report.get("waiting", {}).items()):
        yield f"{clean(name)}: devices wait: {clean(reason)}"
    if report["pods_unreadable"] and any(resource["devices"] for resource in report["resources"]):
        yield f"pods that hold devices are not known: {clean(report['pods_unreadable'])}"
        yield ""
    if not report["resources"]:
        yield "no resources are served"
    for number, resource in enumerate(report["resources"]):
        if number:
            yield ""
        yield from _resource_lines(resource, now, pods=not report["pods_unreadable"])
    left = [cordon for cordon in report["cordons"] if not cordon["served"] and not cordon["declared"]]
    if left:
        yield ""
        yield "cordoned, but the resource is not served:"
        rows: list[list[Cell]] = [[cordon["resource"], cordon["id"], cordon["reason"]] for cordon in left]
        yield from (f"  {line}" for line in table_lines(["RESOURCE", "ID", "REASON"], rows))


def _daemon_lines(report: DaemonStatus, now: float) -> Iterator[str]:
    if report["stalled"]:
        yield click.style(clean(report["stalled"]), fg="red")
    for call in report.get("hung", []):
        yield f"hung for {_age(now - call['since'])}: {clean(call['name'])}, in {clean(call['line'])}"
    if report["log_lines_dropped"]:
        yield f"{report['log_lines_dropped']} log lines dropped: they are not read fast enough"
    if report["cordons_unreadable"]:
        yield clean(report["cordons_unreadable"])


def _config_lines(config: dict[str, Any] | None, now: float) -> Iterator[str]:
    if not config:
        return
    kept = f"{click.style('last good version', fg='red')}, " if config["restored"] else ""
    yield f"configuration {clean(config['path'])}  {config['sha256']}, {kept}read {_age(now - config['loaded'])} ago"
    if refused := config["refused"]:
        version = f"{refused['sha256'] or 'a new version'} {click.style('refused', fg='red')}"
        yield f"  {version} {_age(now - refused['since'])} ago: {clean(refused['error'])}"
    for name, reason in sorted(config["refused_names"].items()):
        yield f"  {clean(name)} {click.style('not served', fg='red')}: {clean(reason)}"
    for name in config["unnamed"]:
        yield f"  {clean(name)} idle: no device to make a name of"
    yield ""


def _resource_lines(resource: ResourceStatus, now: float, *, pods: bool) -> Iterator[str]:
    devices = resource["devices"]
    counts = Counter(device["health"] for device in devices)
    state = click.style(resource["state"], fg=_COLOURS.get(resource["state"], "yellow"))
    watchers = f"{resource['streams']} watching" if resource["streams"] else "not watched"
    served = "" if resource["state"] == "idle" else f", {watchers}, {counts['Healthy']} of {len(devices)} healthy"
    yield f"{click.style(resource['name'], bold=True)}  {state} {_age(now - resource['since'])}{served}"
    if resource.get("shortfall"):
        yield f"  {click.style('devices', fg='red')}: {clean(resource['shortfall'])}"
    for key in ("reason", "rival", "fault", "discovery", "empty", "refused", "held"):
        if resource[key]:
            yield f"  {key}: {clean(resource[key])}"
    for incident in resource.get("exceeded", ()):
        yield f"  {click.style('share', fg='red')}: {clean(incident)}"
    for claim in (resource["driver"] or {}).get("leaving") or ():  # type: ignore[attr-defined]
        yield f"  waits for: ResourceClaim {clean(claim)}; driver {clean(resource['driver']['reason'])}"  # type: ignore[index]
    for method, count in sorted(resource["stuck"].items()):
        yield f"  stuck: {count} threads in {method}()"
    for method, (_, reason) in sorted(resource.get("failures", {}).items()):
        yield f"  {click.style('failed', fg='red')}: latest {method}: {clean(reason)}"
    for title, text in sorted({note for device in devices for note in _notes(device)}):
        yield f"  {clean(title)}: {clean(text)}"
    if devices:
        yield from _device_table(devices, now, pods=pods)


def _device_table(devices: Sequence[DeviceStatus], now: float, *, pods: bool) -> Iterator[str]:
    """A table by index if devices have one, otherwise by id; columns without any value are omitted."""
    columns: dict[str, Callable[[DeviceStatus], Cell]] = {
        "ID": lambda device: device["id"],
        "INDEX": lambda device: _attribute(device, "index"),
        "MODEL": lambda device: _attribute(device, "model"),
        "HEALTH": lambda device: (device["health"], _COLOURS.get(device["health"], "")),
        "NUMA": lambda device: ",".join(map(str, device["numa"])) or "-",
        "MEMORY": _limit,
        "API": lambda device: device["api"] or "moving",
        "POD": lambda device: " ".join(device["pods"]) or "-",
        "CLAIM": lambda device: " ".join(device["claims"]) or "-",
        "SINCE": lambda device: _age(now - device["since"]),
        "REASON": lambda device: device["reason"],
    }
    optional = {"INDEX", "MODEL", "MEMORY", "API", "CLAIM"} | (set() if pods else {"POD"})
    usual = ("-", "device-plugin")
    shown = [
        name
        for name, cell in columns.items()
        if name not in optional or any(cell(device) not in usual for device in devices)
    ]
    ordered = sorted(
        devices, key=lambda device: (natural_order(_attribute(device, "index")), natural_order(device["id"]))
    )
    rows = [[columns[name](device) for name in shown] for device in ordered]
    yield from (f"  {line}" for line in table_lines(shown, rows))


def _attribute(device: DeviceStatus, name: str) -> str:
    value = device["attributes"].get(name)
    return str(value) if isinstance(value, str | int) and value != "" else "-"


def _notes(device: DeviceStatus) -> Iterator[tuple[str, str]]:
    """A plugin's notes on its devices, by title."""
    notes = device["attributes"].get("notes")
    if isinstance(notes, Mapping):
        yield from ((str(title), str(text)) for title, text in notes.items())


def _limit(device: DeviceStatus) -> str:
    """The memory limit of a share; whole devices and time-sliced shares have none."""
    percent = device["attributes"].get("percent")
    memory = device["attributes"].get("memory", device.get("capacity", {}).get("memory"))
    return f"{memory / 2**30:.3g}Gi" if percent and isinstance(memory, int) and memory else "-"
