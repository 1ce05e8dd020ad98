"""Generates the chart's Grafana dashboard, dashboard.json: the fleet, one node, and its devices.

python deploy/helm/dashboard.py            # writes the file
python deploy/helm/dashboard.py --check    # fails if it is stale
"""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

__all__ = ["dashboard"]

_FILE = Path(__file__).parent / "plugwright" / "dashboard.json"
_Panel = dict[str, Any]
_SOURCE = {"type": "prometheus", "uid": "${datasource}"}
_OF_NODE = 'node=~"$node",resource=~"$resource"'
_WIDTH = 24


def dashboard() -> str:
    """As the file that Grafana provisions."""
    return json.dumps(
        {
            "title": "plugwright",
            "uid": "plugwright",
            "tags": ["plugwright", "devices"],
            "schemaVersion": 39,
            "timezone": "browser",
            "refresh": "1m",
            "time": {"from": "now-6h", "to": "now"},
            "templating": {"list": [_datasource(), _variable("node"), _variable("resource")]},
            "panels": _placed(_fleet(), _node(), _device()),
        },
        indent=1,
        sort_keys=True,
    )


def _fleet() -> tuple[str, Sequence[_Panel]]:
    return "Fleet", (
        _stat("Nodes", "count(plugwright_build_info)"),
        _stat("Devices", "sum(plugwright_devices)"),
        _stat(
            "Unhealthy", 'sum(plugwright_unhealthy_devices{code!~"cordoned|dra|gone|held|unconfigured"}) or vector(0)'
        ),
        _stat("Missing", "sum(plugwright_devices_missing)"),
        _stat("Cordoned", 'sum(plugwright_devices{health="Cordoned"})'),
        _stat("Held", "count(count by (node, resource, device) (plugwright_device_holder)) or vector(0)"),
        _graph("Unhealthy devices by code", "sum by (code) (plugwright_unhealthy_devices)", "{{code}}"),
        _graph(
            "Errors that hardware reported, per hour",
            f"sum by (code) ({_in_an_hour('plugwright_device_events_total')})",
            "{{code}}",
        ),
        _table(
            "Devices that are not Healthy",
            "plugwright_device_healthy == 0",
            ["node", "resource", "device", "UUID", "code"],
        ),
        _table(
            "Nodes with other devices than expected",
            "plugwright_devices_shortfall == 1",
            ["node", "resource", "code"],
        ),
        _table("Configurations", "count by (sha256) (plugwright_config_info)", ["sha256", "Value"]),
    )


def _node() -> tuple[str, Sequence[_Panel]]:
    return "Node", (
        _graph("Devices by health", f"sum by (health) (plugwright_devices{{{_OF_NODE}}})", "{{health}}"),
        _graph(
            "Calls of the kubelet per minute",
            f"sum by (method, outcome) (rate(plugwright_calls_total{{{_OF_NODE}}}[5m])) * 60",
            "{{method}} {{outcome}}",
        ),
        _graph(
            "Duration of calls, 99 %",
            "histogram_quantile(0.99, sum by (method, le) "
            f"(rate(plugwright_call_duration_seconds_bucket{{{_OF_NODE}}}[15m])))",
            "{{method}}",
            unit="s",
        ),
        _graph(
            "Memory of the daemon", 'process_resident_memory_bytes{node=~"$node"} and on (node) plugwright_build_info',
            "{{node}}", unit="bytes",
        ),
    )  # fmt: skip


def _device() -> tuple[str, Sequence[_Panel]]:
    held = f"plugwright_device_holder{{{_OF_NODE}}}"
    return "Device", (
        _table(
            "Devices",
            f"plugwright_device_info{{{_OF_NODE}}}",
            ["node", "resource", "device", "model", "pci_bus_id", "UUID"],
        ),
        _table("Holders", held, ["node", "device", "api", "namespace", "pod", "container", "dra_claim_name"]),
        _graph(
            "Utilisation of held GPUs (dcgm-exporter)",
            "max by (UUID) (DCGM_FI_DEV_GPU_UTIL) * on (UUID) group_right () "
            f"max by (UUID, namespace, pod, node) ({held})",
            "{{node}} {{namespace}}/{{pod}}",
            unit="percent",
        ),
        _graph(
            "Failures by code, per hour",
            f"sum by (device, code) ({_in_an_hour(f'plugwright_device_failures_total{{{_OF_NODE}}}')})",
            "{{device}} {{code}}",
        ),
    )  # fmt: skip


def _in_an_hour(counter: str) -> str:
    """The events of the last hour; `increase` leaves out the first one, with which a counter begins."""
    return f"clamp_min({counter} - {counter} offset 1h or {counter}, 0)"


def _placed(*rows: tuple[str, Sequence[_Panel]]) -> list[_Panel]:
    placed: list[_Panel] = []
    top = 0
    for title, panels in rows:
        placed.append({"type": "row", "title": title, "gridPos": {"x": 0, "y": top, "w": _WIDTH, "h": 1}, "panels": []})
        left, top, height = 0, top + 1, 0
        for panel in panels:
            size = panel["gridPos"]
            if left + size["w"] > _WIDTH:
                left, top, height = 0, top + height, 0
            placed.append({**panel, "gridPos": {**size, "x": left, "y": top}})
            left, height = left + size["w"], max(height, size["h"])
        top += height
    return [{**panel, "id": number} for number, panel in enumerate(placed, 1)]


def _stat(title: str, expr: str) -> _Panel:
    return _panel("stat", title, expr, (4, 4))


def _graph(title: str, expr: str, legend: str, unit: str = "short") -> _Panel:
    panel = _panel("timeseries", title, expr, (12, 8))
    panel["targets"][0]["legendFormat"] = legend
    return {**panel, "fieldConfig": {"defaults": {"unit": unit, "min": 0}, "overrides": []}}


def _table(title: str, expr: str, columns: Sequence[str]) -> _Panel:
    panel = _panel("table", title, expr, (12, 8))
    panel["targets"][0] |= {"format": "table", "instant": True}
    shown = {"include": {"names": list(columns)}}
    return {**panel, "transformations": [{"id": "filterFieldsByName", "options": shown}]}


def _panel(kind: str, title: str, expr: str, size: tuple[int, int]) -> _Panel:
    width, height = size
    target = {"refId": "A", "expr": expr, "datasource": _SOURCE}
    return {
        "type": kind,
        "title": title,
        "datasource": _SOURCE,
        "gridPos": {"w": width, "h": height},
        "targets": [target],
    }


def _datasource() -> _Panel:
    return {"name": "datasource", "type": "datasource", "query": "prometheus", "label": "Prometheus"}


def _variable(label: str) -> _Panel:
    return {
        "name": label,
        "type": "query",
        "datasource": _SOURCE,
        "query": f"label_values(plugwright_devices, {label})",
        "refresh": 2,
        "includeAll": True,
        "multi": True,
        "allValue": ".*",
        "current": {"text": "All", "value": "$__all"},
    }


def main() -> None:
    text = dashboard() + "\n"
    if sys.argv[1:] != ["--check"]:
        _FILE.write_text(text)
    elif not _FILE.exists() or _FILE.read_text() != text:
        sys.exit(f"{_FILE.name} is stale: run `make chart`")


if __name__ == "__main__":
    main()
