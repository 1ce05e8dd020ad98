"""The view of the fleet: a cell for each device, grouped by node or model.

The cells of a node are a separate piece, which is recreated only when the devices of that node have changed.
"""

import heapq
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from html import escape
from typing import Any

import msgspec

from plugwright.explain.world import identity
from plugwright.fleet.claim_users import text_of
from plugwright.fleet.device_events import event_text
from plugwright.fleet.fleet_devices import STATE_LETTERS, Fleet, FleetDevice
from plugwright.model import some
from plugwright.web.live_fleet import LiveFleet
from plugwright.web.markup import Html, attribute, device_url, moment, node_link, table, text, url
from plugwright.web.rendering import Rendering

__all__ = ["FleetFilter", "FleetPage"]

_GROUPINGS = ("node", "model")
_MOST_EVENTS, _MOST_PODS = 10, 5


class FleetFilter(msgspec.Struct, frozen=True):
    """The part of the address that selects devices; empty strings select all."""

    by: str = "node"
    state: str = ""
    resource: str = ""
    q: str = ""  # in the name of the node, device, model, reason or a holder

    @classmethod
    def of(cls, query: Mapping[str, str]) -> "FleetFilter":
        by, state = query.get("by", ""), query.get("state", "")
        return cls(
            by=by if by in _GROUPINGS else "node",
            state=state if state in STATE_LETTERS else "",
            resource=query.get("resource", "")[:_LONGEST],
            q=query.get("q", "").strip()[:_LONGEST],
        )

    def matches(self, device: FleetDevice) -> bool:
        if self.state not in ("", device.state) or self.resource not in ("", device.resource):
            return False
        if not self.q:
            return True
        names = [holder.name for holder in device.holders]
        wanted = self.q.lower()
        return any(wanted in name.lower() for name in (device.node, device.id, device.model, device.reason, *names))


_LONGEST = 253


class _NodeCells(msgspec.Struct, frozen=True):
    """The display of one node: its cells by group, and the number of devices in each state."""

    cells: Mapping[str, Html]
    states: Counter[str]
    resources: frozenset[str]
    notes: tuple[str, ...]


class FleetPage:
    title = "Fleet"

    def __init__(self, query: Mapping[str, str]) -> None:
        self.filter = FleetFilter.of(query)
        self._made: dict[str, tuple[Fleet, _NodeCells]] = {}

    def render(self, fleet: LiveFleet) -> Rendering:
        nodes = {node: self._node(node, fleet.parts[node]) for node in fleet.nodes}
        self._made = {node: made for node, made in self._made.items() if node in nodes}
        states: Counter[str] = sum((made.states for made in nodes.values()), Counter())
        resources = sorted(frozenset().union(*(made.resources for made in nodes.values())))
        pieces = {
            "summary": self._summary(states, len(nodes)),
            "states": self._legend(),
            "events": self._events(fleet),
        }
        pieces["waiting"] = _waiting(fleet, has_events="<table" in pieces["events"])
        groups = self._by_node(nodes, pieces) if self.filter.by == "node" else self._by_model(nodes, pieces)
        body = "".join(groups) or '<p id="none">No device matches.</p>'
        form = self._form(resources)
        main = (
            f'<h1>Fleet</h1>{form}<div role="status">{pieces["summary"]}{pieces["waiting"]}</div>'
            f'{pieces["states"]}<div id="cells" class="groups">{body}</div>{pieces["events"]}'
        )
        return Rendering(main, pieces)

    def _node(self, node: str, part: Fleet) -> _NodeCells:
        known = self._made.get(node)
        if known is None or known[0] is not part:
            known = self._made[node] = part, self._made_node(part)
        return known[1]

    def _made_node(self, part: Fleet) -> _NodeCells:
        shown = [device for device in part.devices if self.filter.matches(device)]
        groups: dict[str, list[FleetDevice]] = {}
        for device in shown:
            name = device.resource if self.filter.by == "node" else device.model or "no model"
            groups.setdefault(name, []).append(device)
        return _NodeCells(
            cells={name: "".join(map(_cell, devices)) for name, devices in groups.items()},
            states=Counter(device.state for device in shown),
            resources=frozenset(device.resource for device in part.devices),
            notes=tuple(self._counts(part)),
        )

    def _counts(self, part: Fleet) -> Iterator[str]:
        """Devices without ids, which only the filter of the resource can select."""
        if self.filter.state or self.filter.q or self.filter.by != "node":
            return
        for count in part.unnamed:
            if self.filter.resource in ("", count.resource):
                held = "an unknown number" if count.requested is None else count.requested
                yield f"{count.resource}: {held} of {count.allocatable} requested, ids unknown"

    def _by_node(self, nodes: Mapping[str, _NodeCells], pieces: dict[str, Html]) -> Iterator[Html]:
        for number, (node, made) in enumerate(nodes.items()):
            if not made.cells and not made.notes:
                continue
            title = node_link(node) if node else "devices of no node"
            rows = "".join(
                f'<p class="row"><span class="of">{text(resource)}</span> <span>{cells}</span></p>'
                for resource, cells in made.cells.items()
            )
            rows += "".join(f'<p class="note">{text(note)}</p>' for note in made.notes)
            name = f"n{number}-{_slug(node)}"
            pieces[name] = f'<section class="group" id="{name}"><h2>{title}</h2>{rows}</section>'
            yield pieces[name]

    def _by_model(self, nodes: Mapping[str, _NodeCells], pieces: dict[str, Html]) -> Iterator[Html]:
        models = sorted({model for made in nodes.values() for model in made.cells})
        for place, model in enumerate(models):
            runs = []
            for number, (node, made) in enumerate(nodes.items()):
                if model in made.cells:
                    name = f"m{place}-{number}-{_slug(node)}"
                    pieces[name] = f'<span class="run" id="{name}">{made.cells[model]}</span>'
                    runs.append(pieces[name])
            yield f'<section class="group model"><h2>{text(model)}</h2><p class="row">{"".join(runs)}</p></section>'

    def _summary(self, states: Counter[str], nodes: int) -> Html:
        total = sum(states.values())
        parts = ", ".join(f"{states[state]:,} {state}" for state in STATE_LETTERS if states[state])
        devices, on = "device" if total == 1 else "devices", "node" if nodes == 1 else "nodes"
        return f'<p id="summary">{total:,} {devices} on {nodes:,} {on}{": " if parts else ""}{parts}</p>'

    def _legend(self) -> Html:
        chosen = msgspec.structs.asdict(self.filter)
        entries = "".join(
            f'<li><a href="{url("/", **{**chosen, "state": state})}"><span class="c s-{state}" aria-hidden="true">'
            f"{escape(letter)}</span> {state}</a></li>"
            for state, letter in STATE_LETTERS.items()
        )
        return f'<ul id="states" class="legend" aria-label="Show one state">{entries}</ul>'

    def _events(self, fleet: LiveFleet) -> Html:
        """The last events of the whole fleet; a filter leaves them out."""
        found: list[Mapping[str, Any]] = []
        if not (self.filter.state or self.filter.resource or self.filter.q):
            every = (event for part in fleet.parts.values() for event in part.events[-_MOST_EVENTS:])
            found = heapq.nlargest(_MOST_EVENTS, every, key=lambda event: text_of(event.get("time")))
        rows = [
            [moment(text_of(event.get("time"))), node_link(text_of(event.get("node"))), _event_device(event),
             text(event_text(event))]
            for event in found
        ]  # fmt: skip
        listed = table("Last events", ["Time", "Node", "Device", "Event"], rows, "") if rows else ""
        return f'<section id="events" aria-label="Last events">{listed}</section>'

    def _form(self, resources: Iterable[str]) -> Html:
        chosen = self.filter
        return (
            '<form class="filters" role="search" aria-label="Filter" action="/" method="get">'
            f"{_select('by', 'Group by', _GROUPINGS, chosen.by)}"
            f"{_select('state', 'State', ('', *STATE_LETTERS), chosen.state)}"
            f"{_select('resource', 'Resource', ('', *resources), chosen.resource)}"
            f'<label>Name <input id="q" name="q" type="search" value="{attribute(chosen.q)}"></label>'
            '<button type="submit">Show</button> <a href="/">all</a></form>'
        )


def _waiting(fleet: LiveFleet, *, has_events: bool) -> Html:
    pods = fleet.waiting_pods()
    count = (
        f"{len(pods):,} {'pod waits' if len(pods) == 1 else 'pods wait'} for devices"
        if pods
        else "No pod waits for devices"
    )
    names = sorted("/".join(identity(pod)) for pod in pods)
    listed = f'<a href="/waiting">{count}</a>: {text(some(names, _MOST_PODS))}' if pods else f"{count}."
    events = ' <a href="#events">Last events</a>' if has_events else ""
    return f'<p id="waiting">{listed}{events}</p>'


def _event_device(event: Mapping[str, Any]) -> Html:
    node, resource, device = (text_of(event.get(key)) for key in ("node", "resource", "device"))
    return f'<a href="{url("/device", node=node, resource=resource, id=device)}">{text(device)}</a>'


def _select(name: str, label: str, values: Iterable[str], chosen: str) -> Html:
    options = "".join(
        f'<option value="{attribute(value)}"{" selected" if value == chosen else ""}>'
        f"{attribute(value or 'any')}</option>"
        for value in values
    )
    return f'<label>{label} <select id="{name}" name="{name}">{options}</select></label>'


def _cell(device: FleetDevice) -> Html:
    holders = ", ".join(holder.name for holder in device.holders)
    index = f" (#{device.index})" if device.index else ""
    words = [f"{device.id}{index} of {device.resource} on {device.node}: {device.state}", holders, device.reason]
    label = attribute(", ".join(filter(None, words)))
    letter = escape(STATE_LETTERS[device.state])
    return f'<a class="c s-{device.state}" href="{device_url(device)}" aria-label="{label}">{letter}</a>'


def _slug(name: str) -> str:
    """A name usable in ids of the page; the number before equal slugs distinguishes them."""
    return "".join(character if character.isalnum() and character.isascii() else "-" for character in name)[:60]
