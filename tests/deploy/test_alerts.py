"""The chart's alerts, evaluated by `promtool`: each fires for its fault, and none fires for planned states."""

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.deploy.rendered import one
from tests.requirements import unavailable

NODE = 'node="worker-17"'
GPU = f'{NODE},resource="nvidia.com/gpu"'
UP = 'up{job="plugwright",namespace="plugwright",node="worker-17"}'
DAEMON_SET = '{namespace="plugwright",daemonset="plugwright"}'
UNAVAILABLE = f"kube_daemonset_status_number_unavailable{DAEMON_SET}"
UPDATED = f"kube_daemonset_status_updated_number_scheduled{DAEMON_SET}"
Series = dict[str, str]

# One line per minute. By alert: series with which it fires after an hour, and with which it is silent.
CASES: dict[str, tuple[Series, Series]] = {
    "PlugwrightDaemonDown": ({UP: "1x10 0x60"}, {UP: "1x20 0x3 1x60"}),  # a restart
    "PlugwrightAbsent": ({"other": "1x70"}, {UP: "1x70"}),
    "PlugwrightRolloutStuck": (
        {UP: "1x70", UNAVAILABLE: "0x5 1x65", UPDATED: "0+1x10 10x60"},
        {UP: "1x70", UNAVAILABLE: "1x70", UPDATED: "0+1x70"},  # a rollout node by node
    ),
    "PlugwrightDevicesMissing": (
        {f"plugwright_devices_missing{{{GPU}}}": "0x10 2x60"},
        {f"plugwright_devices_missing{{{GPU}}}": "0x10 2x3 0x60"},  # found while the node boots
    ),
    "PlugwrightDriverMissing": (
        {f'plugwright_devices_shortfall{{{GPU},code="driver-missing"}}': "1x70"},
        {f"plugwright_resource_idle{{{GPU}}}": "1x70"},  # a node without GPUs
    ),
    "PlugwrightDevicesUnexpected": (
        {f'plugwright_devices_shortfall{{{GPU},code="other-model"}}': "1x70"},
        {f'plugwright_devices_shortfall{{{GPU},code="fewer-than-before"}}': "1x70"},
    ),
    "PlugwrightDeviceUnhealthy": (
        {f'plugwright_unhealthy_devices{{{GPU},code="xid-79"}}': "1x70"},
        {f'plugwright_unhealthy_devices{{{GPU},code="{code}"}}': "8x70" for code in ("held", "cordoned", "gone")},
    ),
    "PlugwrightDiscoveryFails": (
        {f"plugwright_discovery_failing{{{GPU}}}": "0x10 1x60"},
        {  # a driver that is loaded again
            f"plugwright_discovery_failing{{{GPU}}}": "0x10 1x1 0x60",
            f"plugwright_discovery_failures_total{{{GPU}}}": "0x60 3x10",
        },
    ),
    "PlugwrightListRefused": (
        {f"plugwright_list_refused{{{GPU}}}": "1x70", f"plugwright_lists_refused_total{{{GPU}}}": "1x70"},
        {f"plugwright_list_refused{{{GPU}}}": "0x70", f"plugwright_lists_refused_total{{{GPU}}}": "0x10 1x60"},
    ),
    "PlugwrightNotWatched": (
        {f"plugwright_seconds_without_stream{{{GPU}}}": "0+60x70"},
        {f"plugwright_seconds_without_stream{{{GPU}}}": "0x10 30 0x60"},  # a kubelet's restart
    ),
    "PlugwrightRegistrationRefused": (
        {f'plugwright_registrations_total{{{GPU},outcome="failed"}}': "0+1x70"},
        {f'plugwright_registrations_total{{{GPU},outcome="failed"}}': "0x10 1x60"},
    ),
    "PlugwrightDraDriverNotReady": (
        {f'plugwright_dra_driver_ready{{{GPU},driver="gpu.nvidia.com"}}': "1x10 0x60"},
        {f'plugwright_dra_driver_ready{{{GPU},driver="gpu.nvidia.com"}}': "1x10 0x2 1x60"},
    ),
    "PlugwrightEvictionsHeldBack": (
        {f'plugwright_dra_evictions_held_back{{{GPU},driver="gpu.nvidia.com"}}': "0x10 2x60"},
        {f'plugwright_dra_evictions_held_back{{{GPU},driver="gpu.nvidia.com"}}': "0x70"},
    ),
    "PlugwrightRival": (
        {f"plugwright_resource_rival{{{GPU}}}": "1x70"},
        {f"plugwright_resource_rival{{{GPU}}}": "0x10 1x2 0x60"},  # a migration
    ),
    "PlugwrightWaitsForOwner": (
        {f"plugwright_resource_waits_for_owner{{{GPU}}}": "1x70"},
        {f"plugwright_resource_waits_for_owner{{{GPU}}}": "0x10 1x4 0x60"},  # an overlapping update
    ),
    "PlugwrightCallsFailed": (
        {f'plugwright_calls_total{{{GPU},method="Allocate",outcome="failed"}}': "0x60 1x10"},
        {f'plugwright_calls_total{{{GPU},method="Allocate",outcome="refused"}}': "0+1x70"},
    ),
    "PlugwrightConfigurationRefused": (
        {f"plugwright_config_last_reload_successful{{{NODE}}}": "1x10 0x60"},
        {f"plugwright_config_last_reload_successful{{{NODE}}}": "1x70"},
    ),
    "PlugwrightConfigurationRestored": (
        {f"plugwright_config_restored{{{NODE}}}": "1x70"},
        {f"plugwright_config_restored{{{NODE}}}": "1x10 0x60"},
    ),
    "PlugwrightResourceNameRefused": (
        {f"plugwright_config_refused_names{{{NODE}}}": "1x70"},
        {f"plugwright_config_refused_names{{{NODE}}}": "0x70"},
    ),
    "PlugwrightShareExceeded": (
        {f"plugwright_share_incidents_total{{{GPU}}}": "0x20 1x50"},
        {f"plugwright_share_exceeded{{{GPU}}}": "0x70", f"plugwright_share_incidents_total{{{GPU}}}": "2x70"},
    ),
    "PlugwrightStuckThreads": (
        {f'plugwright_stuck_threads{{{GPU},method="allocate"}}': "1x70"},
        {f'plugwright_stuck_threads{{{GPU},method="allocate"}}': "0x70"},
    ),
    "PlugwrightEventLoopStalled": (
        {f"plugwright_stalls_total{{{NODE}}}": "0x60 1x10"},
        {f"plugwright_stalls_total{{{NODE}}}": "0x10 1x60"},  # an hour ago
    ),
    "PlugwrightResourceRestarted": (
        {f"plugwright_resource_restarts_total{{{GPU}}}": "0x60 1x10"},
        {f"plugwright_resource_restarts_total{{{GPU}}}": "0x10 1x60"},
    ),
    "PlugwrightLogLinesDropped": (
        {f"plugwright_log_lines_dropped_total{{{NODE}}}": "0x60 9x10"},
        {f"plugwright_log_lines_dropped_total{{{NODE}}}": "0x10 9x60"},
    ),
}  # fmt: skip

# A fleet on which planned work is under way for over an hour.
PLANNED: Series = {
    UP: "1x70",
    UNAVAILABLE: "1x70",
    UPDATED: "0+1x70",
    **{
        f'plugwright_unhealthy_devices{{{GPU},code="{code}"}}': "4x70"
        for code in ("cordoned", "dra", "gone", "held", "unconfigured")
    },
    f'plugwright_devices{{{GPU},health="Unhealthy"}}': "8x70",
    f'plugwright_devices{{{GPU},health="Cordoned"}}': "4x70",
    f"plugwright_devices_missing{{{GPU}}}": "0x70",
    f"plugwright_resource_idle{{{GPU}}}": "1x70",
    f"plugwright_discovery_failing{{{GPU}}}": "0x70",
    f"plugwright_list_refused{{{GPU}}}": "0x70",
    f"plugwright_seconds_without_stream{{{GPU}}}": "0x70",
    f'plugwright_dra_driver_ready{{{GPU},driver="gpu.nvidia.com"}}': "1x70",
    f'plugwright_device_failures_total{{{GPU},device="GPU-1",code="xid-79"}}': "5x70",
}


def rules() -> list[dict[str, Any]]:
    (group,) = one("everything", "PrometheusRule")["spec"]["groups"]
    found: list[dict[str, Any]] = group["rules"]
    return found


def promtool_test(directory: Path, series: Series, expr: str, value: float | None) -> None:
    """`expr` must be `value` after 70 minutes with these series, or have no sample."""
    program = shutil.which("promtool")
    if program is None:
        unavailable("prometheus", "needs promtool: `make prometheus`")
    (directory / "rules.yaml").write_text(yaml.safe_dump({"groups": [{"name": "plugwright", "rules": rules()}]}))
    samples = [] if value is None else [{"labels": "{}", "value": value}]
    test = {
        "interval": "1m",
        "input_series": [{"series": name, "values": values} for name, values in series.items()],
        "promql_expr_test": [{"expr": expr, "eval_time": "65m", "exp_samples": samples}],
    }
    document = {"rule_files": ["rules.yaml"], "evaluation_interval": "1m", "tests": [test]}
    (directory / "test.yaml").write_text(json.dumps(document))
    done = subprocess.run(
        [program, "test", "rules", "test.yaml"], cwd=directory, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_alert_has_its_cases() -> None:
    assert [rule["alert"] for rule in rules()] == list(CASES)


@pytest.mark.parametrize("alert", CASES)
def test_an_alert_fires_for_its_fault(alert: str, tmp_path: Path) -> None:
    promtool_test(tmp_path, CASES[alert][0], f'count(ALERTS{{alertname="{alert}",alertstate="firing"}})', 1)


@pytest.mark.parametrize("alert", CASES)
def test_an_alert_is_silent_without_its_fault(alert: str, tmp_path: Path) -> None:
    promtool_test(tmp_path, CASES[alert][1], f'count(ALERTS{{alertname="{alert}",alertstate="firing"}})', None)


@pytest.mark.parametrize(
    ("alert", "series"),
    [
        ("PlugwrightDiscoveryFails", f"plugwright_discovery_failures_total{{{GPU}}}"),
        ("PlugwrightListRefused", f"plugwright_lists_refused_total{{{GPU}}}"),
    ],
)
def test_faults_between_two_scrapes_raise_an_alert(alert: str, series: str, tmp_path: Path) -> None:
    """The gauge is 0 at each scrape; the counter increases."""
    promtool_test(tmp_path, {series: "0+1x70"}, f'count(ALERTS{{alertname="{alert}",alertstate="firing"}})', 1)


def test_planned_states_raise_no_alert(tmp_path: Path) -> None:
    promtool_test(tmp_path, PLANNED, 'count(ALERTS{alertstate="firing"})', None)


@pytest.mark.parametrize(
    ("alert", "labels"),
    [
        ("PlugwrightDeviceUnhealthy", 'node="worker-17",resource="nvidia.com/gpu",code="xid-79",severity="warning"'),
        ("PlugwrightDevicesMissing", 'node="worker-17",resource="nvidia.com/gpu",severity="critical"'),
        ("PlugwrightDaemonDown", 'node="worker-17",severity="critical"'),
        ("PlugwrightDraDriverNotReady", 'node="worker-17",driver="gpu.nvidia.com",severity="critical"'),
    ],
)
def test_an_alert_names_node_and_cause(alert: str, labels: str, tmp_path: Path) -> None:
    selector = f'ALERTS{{alertname="{alert}",alertstate="firing",{labels}}}'
    promtool_test(tmp_path, CASES[alert][0], f"count({selector})", 1)


@pytest.mark.parametrize("title", ["Errors that hardware reported, per hour", "Failures by code, per hour"])
@pytest.mark.parametrize(("values", "expected"), [("_x50 1x20", 1), ("2x20 5x50", 3), ("2x70", 0)])
def test_the_dashboard_counts_the_events_of_an_hour_from_the_first_one_on(
    title: str, values: str, expected: float, tmp_path: Path
) -> None:
    dashboard = json.loads(one("everything", "ConfigMap", "plugwright-dashboard")["data"]["plugwright.json"])
    (panel,) = [panel for panel in dashboard["panels"] if panel["title"] == title]
    query = panel["targets"][0]["expr"].replace("$node", ".*").replace("$resource", ".*")
    kind = "events" if "events" in query else "failures"
    series = {f'plugwright_device_{kind}_total{{{GPU},device="0",UUID="GPU-1",code="xid-79"}}': values}
    promtool_test(tmp_path, series, f"sum({query})", expected)


def joined(query: str) -> str:
    """The number of series of a query that counts the pods which hold GPU-1."""
    return f'count(({query}) and on (UUID) plugwright_device_holder{{UUID="GPU-1"}})'


def documented_joins() -> list[str]:
    page = (Path(__file__).parents[2] / "docs" / "run.md").read_text()
    return [query for query in re.findall(r"```promql\n(.*?)```", page, re.DOTALL) if "DCGM_FI_DEV_GPU_UTIL" in query]


@pytest.mark.parametrize("query", documented_joins(), ids=["used", "idle"])
def test_a_documented_query_joins_dcgm_exporters_metrics_with_the_holders(query: str, tmp_path: Path) -> None:
    holder = f'plugwright_device_holder{{{GPU},device="0",UUID="GPU-1",api="device-plugin",namespace="ml",'
    series = {
        # One GPU that two pods share: dcgm-exporter has a series for each of them.
        **{f'DCGM_FI_DEV_GPU_UTIL{{UUID="GPU-1",Hostname="w",pod="{pod}"}}': "0x70" for pod in ("a", "b")},
        'DCGM_FI_DEV_GPU_UTIL{UUID="GPU-2",Hostname="w"}': "90x70",
        **{f'{holder}pod="{pod}",container="main"}}': "1x70" for pod in ("a", "b")},
    }
    promtool_test(tmp_path, series, joined(query), 2)
