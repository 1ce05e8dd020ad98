"""The NodeReport: a document that programs can rely on, and that its page and its schema describe."""

import json
import os
import re
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from plugwright import Device, Plugin, Settings, serving
from plugwright.sdk import daemon_status
from plugwright.sdk.daemon import Daemon
from plugwright.sdk.holdings.holding import DeviceKey, Holding, Holdings, HoldingSource, UnknownSource
from plugwright.sdk.node_report import KubeletReport, NodeReport, timestamp
from plugwright.sdk.node_reporting import kubelet_report, node_report
from plugwright.sdk.serve_settings import ServeMode

DOCS = Path(__file__).parents[2] / "docs"
SCHEMA, PAGE = DOCS / "node-report.schema.json", DOCS / "node-report.md"
KUBELET = KubeletReport(registration="direct", directory="/x")
HELD = Holding(
    key=DeviceKey(ServeMode.DEVICE_PLUGIN, "example.com/tape", "tape-0"),
    namespace="default",
    pod="backup",
    pod_uid="1-2",
    container="main",
    since=1_000_000_000.0,
    source=HoldingSource.CHECKPOINT,
)


class Tape(Plugin):
    resource = "example.com/tape"

    async def discover(self) -> AsyncIterator[list[Device]]:
        yield [
            Device("tape-0", numa=[1], physical=["0000:01:00.0"], attributes={"links": {"tape-1": {"pcie": "pix"}}}),
            Device("tape-1", "Unhealthy", "no cleaning tape", code="dirty", sharing="lto", physical=["0000:02:00.0"]),
        ]


@pytest.fixture
async def daemon(settings: Settings) -> AsyncIterator[Daemon]:
    async with serving(Tape(), settings=settings) as daemon:
        await daemon.resource(Tape.resource).inventory.latest.until(lambda snapshot: snapshot is not None)
        yield daemon


def made(daemon: Daemon, holdings: Holdings = Holdings()) -> Any:  # noqa: B008  a frozen value
    return json.loads(json.dumps(node_report(daemon, daemon_status.report(daemon), holdings, KUBELET, ())))


def keys(schema: dict[str, Any]) -> set[str]:
    return {key for part in schema["$defs"].values() for key in part.get("properties", {})}


def test_the_schema_beside_the_page_is_the_documents_own() -> None:
    schema = msgspec.json.schema(NodeReport)
    text = json.dumps(schema, indent=2, sort_keys=True) + "\n"
    if not SCHEMA.exists() or SCHEMA.read_text() != text:
        SCHEMA.write_text(text)
        pytest.fail(f"{SCHEMA.name} was not the schema of NodeReport; it is written again, look at the difference")


def test_the_page_has_every_key() -> None:
    documented = set(re.findall(r"`(\w+)`", PAGE.read_text()))
    assert keys(msgspec.json.schema(NodeReport)) - documented == set()


async def test_a_report_is_its_schemas_document(daemon: Daemon) -> None:
    report = made(daemon, Holdings((HELD,), {HoldingSource.CDI: UnknownSource("no such directory", 1_000_000_000.0)}))
    assert (report["apiVersion"], report["kind"]) == ("plugwright.dev/v1alpha1", "NodeReport")
    assert json.loads(msgspec.json.encode(msgspec.convert(report, NodeReport))) == report


async def test_each_device_has_its_facts_and_holders(daemon: Daemon) -> None:
    [resource] = made(daemon, Holdings((HELD,)))["resources"]
    first, second = resource["devices"]
    assert first["holders"] == [
        {
            "api": "device-plugin", "namespace": "default", "pod": "backup", "podUid": "1-2", "container": "main",
            "claim": "", "claimUid": "", "shareId": "", "adminAccess": False,
            "since": "2001-09-09T01:46:40Z", "source": "checkpoint", "usage": None,
        }
    ]  # fmt: skip
    assert (first["physical"], first["links"], first["numa"]) == (["0000:01:00.0"], {"tape-1": {"pcie": "pix"}}, [1])
    assert "links" not in first["attributes"]
    assert (second["health"], second["reason"], second["code"]) == ("Unhealthy", "no cleaning tape", "dirty")
    assert second["share"] == {"by": "count", "of": "0000:02:00.0", "memory": None, "percent": None}
    assert second["holders"] == []


async def test_an_unreadable_source_makes_the_holdings_incomplete(daemon: Daemon) -> None:
    unknown = {HoldingSource.POD_RESOURCES: UnknownSource("connection refused", 1_000_000_000.0)}
    assert made(daemon)["holdings"] == {"complete": True, "unknown": []}
    assert made(daemon, Holdings((), unknown))["holdings"] == {
        "complete": False,
        "unknown": [{"source": "pod-resources", "reason": "connection refused", "since": "2001-09-09T01:46:40Z"}],
    }


async def test_a_driver_has_its_claims_and_slices(daemon: Daemon) -> None:
    status = daemon_status.report(daemon)
    held = {"uid": "u-1", "namespace": "default", "name": "common", "state": "done", "devices": ["tape-0"]}
    status["resources"][0]["driver"] = {
        "name": "tape.example.com", "ready": True, "state": "registered", "reason": "", "claims": [held],
        "slices": {"left_out": 1}, "leaving": ["example.com/old"],
    }  # fmt: skip
    report = json.loads(json.dumps(node_report(daemon, status, Holdings(), KUBELET, ())))
    driver = report["resources"][0]["driver"]
    assert driver["claims"] == [held]
    assert driver["slices"] == {"leftOut": 1}
    assert driver["leaving"] == ["example.com/old"]


async def test_a_closed_device_has_the_reason(daemon: Daemon) -> None:
    key = DeviceKey(ServeMode.DEVICE_PLUGIN, Tape.resource, "tape-0")
    [resource] = made(daemon, Holdings(closed={key: "held as half-0 by default/a"}))["resources"]
    assert [device["closed"] for device in resource["devices"]] == ["held as half-0 by default/a", ""]


@pytest.mark.parametrize(
    ("text", "policy", "scope"),
    [
        ("topologyManagerPolicy: single-numa-node\ntopologyManagerScope: pod\n", "single-numa-node", "pod"),
        ('kind: KubeletConfiguration\r\ntopologyManagerPolicy: "best-effort"\r\n', "best-effort", None),
        ("# topologyManagerPolicy: restricted\n", None, None),
        ("nested:\n  topologyManagerPolicy: restricted\n", None, None),
        ("topologyManagerPolicy: [a, b]\n", None, None),
        ("", None, None),
    ],
)
def test_the_topology_policy_is_the_kubelets_own_setting(
    settings: Settings, text: str, policy: str | None, scope: str | None
) -> None:
    (settings.paths.root / "config.yaml").write_text(text)
    report = kubelet_report(settings, settings.paths.device_plugins)
    assert (report.topology_manager_policy, report.topology_manager_scope) == (policy, scope)


@pytest.mark.parametrize("make", [Path.mkdir, os.mkfifo, lambda path: None])
def test_without_a_readable_kubelet_configuration_the_policy_is_unknown(settings: Settings, make: Any) -> None:
    make(settings.paths.root / "config.yaml")
    assert kubelet_report(settings, settings.paths.device_plugins).topology_manager_policy is None


@given(st.floats() | st.none())
def test_any_number_is_a_time_or_unknown(seconds: float | None) -> None:
    time = timestamp(seconds)
    assert time is None or time.tzinfo is UTC
    assert timestamp(1.0) == datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)
