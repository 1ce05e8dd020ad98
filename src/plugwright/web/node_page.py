"""The view of one node: its devices by their positions on the board, with their links and holders."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from plugwright.fleet.claim_users import text_of
from plugwright.fleet.fleet_devices import STATE_LETTERS, FleetDevice
from plugwright.model import natural_order
from plugwright.web.live_fleet import LiveFleet
from plugwright.web.markup import Html, attribute, command, device_link, holder_link, table, text, url
from plugwright.web.rendering import Rendering
from plugwright.web.simulation_buttons import add_forms

__all__ = ["NodePage", "state_badge"]

_PCIE_ROOT = "resource.kubernetes.io/pcieRoot"


class NodePage:
    title = "Node"

    def __init__(self, query: Mapping[str, str]) -> None:
        self.name = query.get("name", "")

    def render(self, fleet: LiveFleet) -> Rendering:
        part, stored = fleet.parts.get(self.name), fleet.objects.of("nodes").get(("", self.name))
        title = f"<h1>Node {text(self.name)}</h1>"
        if part is None and stored is None:
            return Rendering(f"{title}<p>No such node is known.</p>")
        devices = part.devices if part is not None else ()
        report = fleet.report(self.name)
        facts = _Board(report)
        rows = [[*_row(device), facts.links_of(device)] for device in devices]
        columns = ["Device", "Resource", "State", "Holder", "NUMA", "PCIe root", "Links"]
        for row, device in zip(rows, devices, strict=True):
            row.insert(5, text(facts.pcie_root(device) or "-"))
        counts = [
            [text(count.resource), text(count.capacity), text(count.allocatable), text(_requested(count.requested))]
            for count in (part.unnamed if part is not None else ())
        ]
        unnamed = table("Devices without ids", ["Resource", "Capacity", "Allocatable", "Requested"], counts, "")
        return Rendering(
            f"{title}{_facts(stored, fleet, self.name)}<h2>Topology</h2>{facts.drawn(devices)}"
            f"{table('Devices of the node', columns, rows, 'No device of this node has an id.')}"
            f"{unnamed if counts else ''}{add_forms(self.name, report)}"
            f"<h2>Commands</h2><ul class=commands><li>{command('kubectl', 'describe', 'node', self.name)}</li>"
            f"<li>{command('kubectl', 'plugwright', 'devices', self.name, '-o', 'wide')}</li>"
            f"<li>{command('kubectl', 'plugwright', 'status', '--node', self.name)}</li></ul>"
        )


def state_badge(device: FleetDevice) -> Html:
    letter = STATE_LETTERS[device.state]
    return f'<span class="state s-{device.state}"><span aria-hidden="true">{letter}</span> {device.state}</span>'


class _Board:
    """The positions of devices: NUMA nodes and PCIe roots from the NodeReport, and the links between devices."""

    def __init__(self, report: Mapping[str, Any]) -> None:
        self._known: dict[tuple[str, str], Mapping[str, Any]] = {}
        for resource in report.get("resources") or ():
            for device in resource.get("devices") or ():
                self._known[text_of(resource.get("name")), text_of(device.get("id"))] = device

    def pcie_root(self, device: FleetDevice) -> str:
        return text_of((self._of(device).get("attributes") or {}).get(_PCIE_ROOT))

    def links_of(self, device: FleetDevice) -> Html:
        links = self._of(device).get("links") or {}
        return "<br>".join(f"{text(other)} {text(_link(link))}" for other, link in sorted(links.items())[:16]) or "-"

    def drawn(self, devices: Iterable[FleetDevice]) -> Html:
        """Nested boxes: NUMA nodes contain PCIe roots, which contain devices; devices list their links."""
        places: dict[str, dict[str, list[FleetDevice]]] = {}
        for device in devices:
            numa = ", ".join(map(str, device.numa))
            places.setdefault(numa, {}).setdefault(self.pcie_root(device), []).append(device)
        boxes = [
            f'<section class="numa" aria-label="{attribute(name)}"><h3>{text(name)}</h3>'
            f"{self._roots(places[numa])}</section>"
            for numa in sorted(places, key=natural_order)
            for name in [f"NUMA node {numa}" if numa else "NUMA node unknown"]
        ]
        return f'<div class="topology">{"".join(boxes)}</div>' if boxes else "<p>No device with an id.</p>"

    def _roots(self, roots: Mapping[str, list[FleetDevice]]) -> Html:
        boxes = []
        for root in sorted(roots, key=natural_order):
            drawn = "".join(self._box(device) for device in roots[root])
            board = f'<div class="board">{drawn}</div>'
            boxes.append(f'<div class="pcie"><h4>PCIe root {text(root)}</h4>{board}</div>' if root else board)
        return "".join(boxes)

    def _box(self, device: FleetDevice) -> Html:
        holders = "<br>".join(map(holder_link, device.holders))
        linked = [
            f"{_link(link)} to {other[:20]}"
            for other, link in sorted((self._of(device).get("links") or {}).items())
            if _link(link).startswith("NV")
        ]
        more = f" and {len(linked) - 2} more" if len(linked) > 2 else ""
        links = f"<p>{text(', '.join(linked[:2]) + more)}</p>" if linked else ""
        index = f" {text(f'#{device.index}')}" if device.index else ""
        model = f"<p>{text(device.model)}</p>" if device.model else ""
        reason = f"<p>{text(device.reason)}</p>" if device.reason else ""
        return (
            f'<div class="device">{state_badge(device)}{index} {device_link(device)}'
            f"{model}<p>{holders}</p>{reason}{links}</div>"
        )

    def _of(self, device: FleetDevice) -> Mapping[str, Any]:
        return self._known.get((device.resource, device.id)) or {}


def _link(link: object) -> str:
    """`NV12`, or the PCIe path with the name of `nvidia-smi topo -m`."""
    if isinstance(link, Mapping):
        nvlinks = link.get("nvlinks")
        return f"NV{nvlinks}" if nvlinks else text_of(link.get("pcie")).upper()
    return text_of(link)


def _row(device: FleetDevice) -> list[Html]:
    holders = "<br>".join(map(holder_link, device.holders)) or "-"
    numa = ", ".join(map(str, device.numa)) or "-"
    return [device_link(device), text(device.resource), state_badge(device), holders, text(numa)]


def _requested(count: int | None) -> object:
    return "unknown" if count is None else count


def _facts(stored: Mapping[str, Any] | None, fleet: LiveFleet, name: str) -> Html:
    return f"<dl>{''.join(f'<dt>{key}</dt><dd>{value}</dd>' for key, value in _known(stored, fleet, name))}</dl>"


def _known(stored: Mapping[str, Any] | None, fleet: LiveFleet, name: str) -> Iterator[tuple[str, Html]]:
    status = (stored or {}).get("status") or {}
    ready: Mapping[str, Any] = next(
        (entry for entry in status.get("conditions") or () if entry.get("type") == "Ready"), {}
    )
    if stored is not None:
        yield "Ready", text(f"{ready.get('status', 'Unknown')} {ready.get('message', '')}")
        yield "Kubelet", text((status.get("nodeInfo") or {}).get("kubeletVersion", ""))
    source = fleet.reports.source(name)
    known_by = "the API server alone" if source is None else source.problem or source.via
    yield "Known by", text(known_by)
    yield "Cells", f'<a href="{url("/", q=name)}">in the fleet</a>'
