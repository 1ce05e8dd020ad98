"""The view of one device: its properties, health and holders, and a timeline of its events."""

import json
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from plugwright.errors import PlugwrightError
from plugwright.fleet.claim_users import text_of
from plugwright.fleet.device_events import event_text
from plugwright.fleet.fleet_devices import FleetDevice
from plugwright.text import clean
from plugwright.web.live_fleet import LiveFleet
from plugwright.web.markup import Html, command, holder_link, moment, node_link, table, text
from plugwright.web.node_page import state_badge
from plugwright.web.rendering import Rendering
from plugwright.web.simulation_buttons import device_forms

__all__ = ["DevicePage"]

_PAST = 7 * 86_400.0  # seconds of requested history
_MOST_EVENTS = 200
_SHOWN = ("index", "model")  # attributes with their own lines
_NO_HISTORY = "The node's daemon keeps no history, so only the present state is shown."


class DevicePage:
    title = "Device"

    def __init__(self, query: Mapping[str, str]) -> None:
        self.node, self.resource, self.id = (query.get(key, "") for key in ("node", "resource", "id"))
        self._past: list[Mapping[str, Any]] = []
        self._note = ""

    async def prepare(self, fleet: LiveFleet) -> None:
        """Requests the part of the history that the daemon's report omits."""
        daemon = fleet.reports.daemon(self.node)
        if daemon is None:
            self._note = "No daemon of the node is known, and so no history."
            return
        try:
            events = await fleet.reports.ask(daemon, {"do": "history", "since": time.time() - _PAST})
        except PlugwrightError as error:
            self._note = _NO_HISTORY if "keeps no history" in str(error) else f"The history is unknown: {clean(error)}"
            return
        self._past = [event for event in events if self._is_own(event)]

    def render(self, fleet: LiveFleet) -> Rendering:
        part = fleet.parts.get(self.node)
        found = [device for device in (part.devices if part is not None else ()) if self._is_this(device)]
        title = f"<h1>Device {text(self.id)}</h1>"
        if not found:
            gone = f"<p>No such device is on {node_link(self.node)} now.</p>"
            return Rendering(f"{title}{gone}{self._history(fleet, None)}")
        device, report = found[0], fleet.report(self.node)
        reported = _reported(device, report)
        index = f" {text(f'#{device.index}')}" if device.index else ""
        rows = [
            [holder_link(holder), moment(holder.since), text(holder.api), text(holder.claim or "-")]
            for holder in device.holders
        ]
        holders = table("Holders", ["Holder", "Since", "API", "Claim"], rows, "No holder is known.")
        commands = "".join(f"<li>{line}</li>" for line in _commands(device))
        return Rendering(
            f"{title}<p>{state_badge(device)} {text(device.resource)}{index} on {node_link(device.node)}</p>"
            f"{_listed(_facts(device, reported))}{holders}{self._history(fleet, device)}{device_forms(device, report)}"
            f'<h2>Commands</h2><ul class="commands">{commands}</ul>'
            f"<h2>Attributes</h2>{_listed(_attributes(device, reported))}"
        )

    def _is_this(self, device: FleetDevice) -> bool:
        return (device.resource, device.id) == (self.resource, self.id)

    def _is_own(self, event: Mapping[str, Any]) -> bool:
        return (event.get("resource"), event.get("device")) == (self.resource, self.id)

    def _history(self, fleet: LiveFleet, device: FleetDevice | None) -> Html:
        part = fleet.parts.get(self.node)
        latest = [event for event in (part.events if part is not None else ()) if self._is_own(event)]
        known = {json.dumps(event, sort_keys=True): event for event in map(_without_node, [*self._past, *latest])}
        events = sorted(known.values(), key=lambda event: text_of(event.get("time")), reverse=True)
        lines = [_event(event) for event in events[:_MOST_EVENTS]] or list(_now(device))
        note = f"<p>{text(self._note)}</p>" if self._note and not events else ""
        listed = f'<ol class="timeline" reversed>{"".join(lines)}</ol>' if lines else "<p>Nothing is known.</p>"
        return f"<h2>Time line</h2>{note}{listed}"


def _without_node(event: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in event.items() if key != "node"}


def _event(event: Mapping[str, Any]) -> Html:
    kind = text_of(event.get("kind"))
    is_bad = event.get("health") == "Unhealthy" or kind == "cordoned"
    mark = "bad" if is_bad else "took" if kind == "allocated" else ""
    return _line(mark, text_of(event.get("time")), event_text(event))


def _now(device: FleetDevice | None) -> Iterator[Html]:
    if device is None:
        return
    for holder in device.holders:
        yield _line("took", holder.since, f"held by {holder.name} through {holder.api}")
    if device.since:
        reason = f": {device.reason}" if device.reason else ""
        yield _line("bad" if device.health == "Unhealthy" else "", device.since, f"{device.health}{reason}")


def _line(mark: str, time: str, words: str) -> Html:
    return f'<li class="{mark}">{moment(time)} {text(words)}</li>'


def _reported(device: FleetDevice, report: Mapping[str, Any]) -> Mapping[str, Any]:
    for resource in report.get("resources") or ():
        if resource.get("name") == device.resource:
            return next((entry for entry in resource.get("devices") or () if entry.get("id") == device.id), {})
    return {}


def _facts(device: FleetDevice, reported: Mapping[str, Any]) -> Iterator[tuple[str, Html]]:
    health = ": ".join(filter(None, [device.health, device.reason])) + (f" ({device.code})" if device.code else "")
    until = f" until {device.cordoned_until}" if device.cordoned_until else ""
    cordon = f"by {device.cordoned_by or 'an unknown author'}{until}"
    facts = {
        "Model": text(device.model),
        "Health": text(health) + (f", since {moment(device.since)}" if device.since else ""),
        "Cordoned": text(cordon) if device.state == "cordoned" else "",
        "NUMA node": text(", ".join(map(str, device.numa))),
        "Offered by": text(device.api),
        "Share": text(device.share),
        "Taints": text(", ".join(device.taints)),
        "Kept back": text(text_of(reported.get("closed"))),
    }
    yield from ((name, value) for name, value in facts.items() if value not in ("", text("")))


def _attributes(device: FleetDevice, reported: Mapping[str, Any]) -> Iterator[tuple[str, Html]]:
    yield "Hardware", text(", ".join(device.physical) or "-")
    for name, value in (reported.get("attributes") or {}).items():
        if name not in _SHOWN and value not in ("", {}, []):
            yield text(clean(name, 60)), text(str(value))
    for name, value in (reported.get("capacity") or {}).items():
        yield text(f"{clean(name, 60)} (capacity)"), text(_amount(value))
    yield "Known by", text(device.source)


def _amount(value: object) -> str:
    if isinstance(value, int) and value >= 2**30:
        return f"{value} ({value / 2**30:.4g}Gi)"
    return str(value)


def _listed(facts: Iterable[tuple[str, Html]]) -> Html:
    return f"<dl>{''.join(f'<dt>{key}</dt><dd>{value}</dd>' for key, value in facts)}</dl>"


def _commands(device: FleetDevice) -> Iterator[Html]:
    plugwright = "kubectl", "plugwright"
    yield command(*plugwright, "who", device.id, "--node", device.node)
    yield command(*plugwright, "history", device.id, "--node", device.node)
    yield command("kubectl", "describe", "node", device.node)
    for holder in device.holders:
        if holder.pod:
            yield command("kubectl", "-n", holder.namespace, "describe", "pod", holder.pod)
        if holder.claim:
            yield command("kubectl", "-n", holder.namespace, "get", "resourceclaim", holder.claim, "-o", "yaml")
    if device.source == "node-report":
        cordon = *plugwright, "cordon", device.resource, device.id, "--node", device.node
        yield command(*cordon, "--reason", "to be examined")
