"""The view of one node: its devices by their positions on the board, with their links and holders."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from plugwright.fleet.claim_users import text_of
from plugwright.fleet.fleet_devices import STATE_LETTERS, FleetDevice, reading_text
from plugwright.model import natural_order, some
from plugwright.web.live_fleet import LiveFleet
from plugwright.web.markup import Html, attribute, command, device_link, holder_link, moment, table, text, url
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
        facts = _Board(report, devices)
        columns = ["Device", "Resource", "Index", "State", "Holder", "Since", "NUMA", "PCIe root"]
        rows = [[*_row(device), text(facts.pcie_root(device) or "-")] for device in devices]
        counts = [
            [text(count.resource), text(count.capacity), text(count.allocatable), text(_requested(count.requested))]
            for count in (part.unnamed if part is not None else ())
        ]
        unnamed = table("Devices without ids", ["Resource", "Capacity", "Allocatable", "Requested"], counts, "")
        return Rendering(
            f"{title}{_facts(stored, fleet, self.name)}<h2>Topology</h2>{facts.drawn(devices)}"
            f"{table('Devices of the node', columns, rows, 'No device of this node has an id.')}"
            f"{unnamed if counts else ''}{add_forms(self.name, report)}"
            f'<h2>Commands</h2><ul class="commands">'
            f"<li>{command('kubectl', 'describe', 'node', self.name)}</li>"
            f"<li>{command('kubectl', 'plugwright', 'devices', self.name, '-o', 'wide')}</li>"
            f"<li>{command('kubectl', 'plugwright', 'status', '--node', self.name)}</li></ul>"
        )


def state_badge(device: FleetDevice) -> Html:
    letter = STATE_LETTERS[device.state]
    return f'<span class="state s-{device.state}"><span aria-hidden="true">{letter}</span> {device.state}</span>'


class _Board:
    """The positions of devices: NUMA nodes and PCIe roots from the NodeReport, and the links between devices."""

    def __init__(self, report: Mapping[str, Any], devices: Iterable[FleetDevice]) -> None:
        self._numbers = {(device.resource, device.id): f"#{device.index}" for device in devices if device.index}
        self._counts = Counter(device.resource for device in devices)
        self._known: dict[tuple[str, str], Mapping[str, Any]] = {}
        for resource in report.get("resources") or ():
            for device in resource.get("devices") or ():
                self._known[text_of(resource.get("name")), text_of(device.get("id"))] = device

    def pcie_root(self, device: FleetDevice) -> str:
        return text_of((self._of(device).get("attributes") or {}).get(_PCIE_ROOT))

    def _links(self, device: FleetDevice) -> Html:
        """`NV18 to #1, #2`: one line for each kind of link."""
        kinds: dict[str, list[str]] = {}
        for other, link in (self._of(device).get("links") or {}).items():
            kinds.setdefault(_link(link), []).append(self._numbers.get((device.resource, other), other[:20]))
        return "<br>".join(
            text(f"{kind} to {self._named(others, self._counts[device.resource] - 1)}")
            for kind, others in sorted(kinds.items())
        )

    def _named(self, others: list[str], most: int) -> str:
        return f"all {most} others" if len(others) == most > 1 else some(sorted(others, key=natural_order), 16)

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
        for root, devices in roots.items():  # in the order of their first devices
            board = f'<div class="board">{"".join(map(self._box, devices))}</div>'
            boxes.append(f'<div class="pcie"><h4>PCIe root {text(root)}</h4>{board}</div>' if root else board)
        return f'<div class="board">{"".join(boxes)}</div>'

    def _box(self, device: FleetDevice) -> Html:
        holders = "<br>".join(map(holder_link, device.holders))
        index = f" <b>{text(f'#{device.index}')}</b>" if device.index else ""
        lines = [device_link(device), text(device.model) if device.model else "", holders]
        lines += [text(device.reason) if device.reason else "", self._links(device)]
        body = "".join(f"<p>{line}</p>" for line in lines if line)
        resource = f'<span class="of">{text(device.resource)}</span>'
        return f'<div class="device">{state_badge(device)}{index} {resource}{body}</div>'

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
    since = "<br>".join(moment(holder.since) for holder in device.holders) or "-"
    index = text(device.index or "-")
    return [device_link(device), text(device.resource), index, state_badge(device), holders, since, text(numa)]


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
    known_by = "the API server alone" if source is None else source.problem or f"NodeReport {reading_text(source.via)}"
    yield "Known by", text(known_by)
    yield "Cells", f'<a href="{url("/", q=name)}">in the fleet</a>'
