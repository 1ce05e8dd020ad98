"""The reference pages that `make docs` generates have everything that the code has."""

import json
import re
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from tests.cli.test_help import commands
from tests.sdk.test_device_metrics import Drives

import plugwright
from plugwright import Device, Settings, errors, serving, testing
from plugwright.cli.main import cli
from plugwright.config import schema
from plugwright.sdk import prometheus

ROOT = Path(__file__).parent.parent
CHART = ROOT / "deploy" / "helm" / "plugwright"


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    directory = tmp_path_factory.mktemp("pages") / "reference"
    command = [sys.executable, str(ROOT / "deploy" / "site" / "reference.py"), str(directory)]
    subprocess.run(command, check=True, timeout=60)
    return {path.stem: path.read_text() for path in directory.glob("*.md")}


def test_the_index_lists_each_generated_page(pages: dict[str, str]) -> None:
    listed = re.findall(r"^\.\./reference/(.*)$", (ROOT / "docs" / "index.md").read_text(), re.MULTILINE)
    assert sorted(listed) == sorted(pages)


def test_every_command_has_its_help(pages: dict[str, str]) -> None:
    found = re.findall(r"^#+ plugwright ?(.*)$", pages["commands"], re.MULTILINE)
    hidden = {"node clean-up"}  # the chart's clean-up job runs it
    assert sorted(found) == sorted(["", *({" ".join(path) for path in commands(cli)} - hidden)])
    assert pages["commands"].count("Usage: ") == len(found)


def test_every_key_of_the_configuration_is_listed(pages: dict[str, str]) -> None:
    _, parts = msgspec.json.schema_components([schema.file_type()])
    keys = {key for part in parts.values() for key in part.get("properties", {})}
    assert keys == set(re.findall(r"^\| `([^`]+)` \|", pages["configuration"], re.MULTILINE))


async def test_every_metric_of_a_daemon_and_of_the_alerts_is_listed(pages: dict[str, str], settings: Settings) -> None:
    async with serving(Drives(Device("st0")), settings=settings) as daemon:
        live = set(re.findall(r"^# TYPE (\S+)", prometheus.page(daemon)()[1].decode(), re.MULTILINE))
    listed = set(re.findall(r"^\| `([^`]+)` \|", pages["metrics"], re.MULTILINE))
    assert len(live) > 20
    assert live <= listed
    used = {
        name.removesuffix("_bucket")
        for file in ("alerts.yaml", "dashboard.json")
        for name in re.findall(r"plugwright_[a-z_]+[a-z]", (CHART / file).read_text())
    }
    assert used <= listed


def test_every_metric_has_an_alert_or_the_runbook_says_why_not(pages: dict[str, str]) -> None:
    listed = set(re.findall(r"^\| `(plugwright_[^`]+)` \|", pages["metrics"], re.MULTILINE))
    watched = set(re.findall(r"plugwright_[a-z_]+[a-z]", (CHART / "alerts.yaml").read_text()))
    runbook = (ROOT / "docs" / "operations.md").read_text().partition("### Other metrics")[2]
    rows = "".join(re.findall(r"^\| (`plugwright_.*?) \| \S", runbook, re.MULTILINE))
    assert listed - watched == set(re.findall(r"`([^`]+)`", rows))


def test_every_public_name_and_error_is_documented(pages: dict[str, str]) -> None:
    for module in (plugwright, testing):
        names = {f"{module.__name__}.{name}" for name in module.__all__ if not name.startswith("__")}
        assert names <= set(re.findall(r"^### (\S+)$", pages["python"], re.MULTILINE))
    assert set(errors.__all__) == set(re.findall(r"^\| `(\w+)` \|", pages["errors"], re.MULTILINE))


@pytest.mark.parametrize("path", sorted((ROOT / "docs").glob("*.schema.json")), ids=lambda path: path.name)
def test_every_key_of_a_schema_is_listed(path: Path, pages: dict[str, str]) -> None:
    document = json.loads(path.read_text())
    listed = set(re.findall(r"^\| `([^`]+)` \|", pages["schemas"], re.MULTILINE))
    parts = [document, *document["$defs"].values()]
    assert {key for part in parts for key in part.get("properties", {})} <= listed
