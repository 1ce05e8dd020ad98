"""A version of the file that is refused is visible wherever an operator or a program looks."""

import asyncio
import hashlib
import json
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.cli.processes import Node, Running, configuration, running
from tests.config.test_families import install
from tests.observed_kubelet import ObservedKubelet

from plugwright.system.inotify import Directory

GOOD = configuration(gpu={"count": 2})
BAD = "resources:\n  - {name: mock/gpu, mock: {}, cuont: 1}\n"
ERROR = "plugwright.yaml:2: resources[0]: unknown key 'cuont'"
MOODY = """
from plugwright import Device, Plugin
from plugwright.sdk.device_family import DeviceFamily, FamilySettings

class Settings(FamilySettings, frozen=True):
    mood: str

class Moody(Plugin):
    async def discover(self):
        yield [Device("one")]

class MoodyFamily(DeviceFamily):
    settings = Settings

    def plugin(self, entry, context):
        plugin = Moody()
        plugin.mood = entry.settings.mood
        plugin.resource = entry.name if plugin.mood != "another" else "mock/gpu"
        return plugin

    def join(self, plugins, serving):
        if any(isinstance(plugin, Moody) and plugin.mood == "bad" for plugin in plugins):
            raise LookupError("in a bad mood")

FAMILY = MoodyFamily()
"""


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:12]


@asynccontextmanager
async def serving_a_file(kubelet: ObservedKubelet) -> AsyncIterator[tuple[Node, Running]]:
    node = Node(kubelet.paths.root)
    node.config.parent.mkdir()
    node.config.write_text(GOOD)
    async with node.daemon("--listen", "127.0.0.1:0") as daemon:
        await kubelet.endpoint("mock/gpu", 2)
        await daemon.err.until("registered")
        yield node, daemon


async def page(daemon: Running, path: str) -> tuple[int, str]:
    address = (await daemon.err.until("answering probes")).rpartition("address=")[2]
    host, _, port = address.strip('"').rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(f"GET {path} HTTP/1.0\r\n\r\n".encode())
    head, _, body = (await reader.read()).decode().partition("\r\n\r\n")
    writer.close()
    return int(head.split()[1]), body


async def metrics(daemon: Running) -> dict[str, Any]:
    """The metrics of the configuration: values by their names, and the labels of the info."""
    _, text = await page(daemon, "/metrics")
    samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    prefix = "plugwright_config_"
    return {
        sample.name.removeprefix(prefix): sample.labels or sample.value
        for sample in samples
        if sample.name.startswith(prefix)
    }


async def shown(node: Node) -> dict[str, Any]:
    done = await node.ask("status", "-o", "json")
    assert done.code == 0, done.err
    config: dict[str, Any] = json.loads(done.out)["daemon"]["config"]
    return config


def seconds(time: str) -> float:
    return datetime.fromisoformat(time).timestamp()


async def test_a_refused_file_is_in_status_readyz_and_metrics_until_it_is_good_again(kubelet: ObservedKubelet) -> None:
    async with serving_a_file(kubelet) as (node, daemon):
        before = await shown(node)
        loaded = pytest.approx(seconds(before["loadedAt"]), abs=0.001)
        assert before | {"loadedAt": 0} == {
            "path": str(node.config), "sha256": digest(GOOD), "loadedAt": 0, "failures": 0,
            "refused": None, "refusedResources": {}, "unnamed": [], "restored": False,
        }  # fmt: skip
        assert await page(daemon, "/readyz") == (200, "ok\n")
        assert await metrics(daemon) == {
            "last_reload_successful": 1, "last_reload_timestamp_seconds": loaded, "refused_names": 0,
            "restored": 0, "reload_failures_total": 0, "info": {"sha256": digest(GOOD), "refused_sha256": ""},
        }  # fmt: skip

        node.config.write_text(BAD)
        await daemon.err.until("new configuration rejected")
        refused = await shown(node)
        assert refused["refused"].pop("since") >= before["loadedAt"]
        assert refused == before | {"failures": 1, "refused": {"sha256": digest(BAD), "error": ERROR}}
        text = (await node.ask("status")).out.splitlines()
        assert text[0].startswith(f"configuration {node.config}  {digest(GOOD)}, read ")
        assert text[1].startswith(f"  {digest(BAD)} refused ")
        assert text[1].endswith(f" ago: {ERROR}")
        assert await page(daemon, "/readyz") == (200, f"ok\nnew configuration refused, {digest(GOOD)} stays: {ERROR}\n")
        assert await metrics(daemon) == {
            "last_reload_successful": 0, "last_reload_timestamp_seconds": loaded, "refused_names": 0,
            "restored": 0, "reload_failures_total": 1, "info": {"sha256": digest(GOOD), "refused_sha256": digest(BAD)},
        }  # fmt: skip

        node.configure(gpu={"count": 3})
        await kubelet.endpoint("mock/gpu", 3)
        await daemon.err.until("configuration reloaded")
        assert (await metrics(daemon))["last_reload_successful"] == 1
        assert (await shown(node))["sha256"] == digest(node.config.read_text())
        assert await page(daemon, "/readyz") == (200, "ok\n")


async def test_a_watcher_of_status_gets_the_refusal(kubelet: ObservedKubelet) -> None:
    async with serving_a_file(kubelet) as (node, _), node.watch("-o", "json") as watch:
        await watch.out.until(digest(GOOD))
        node.config.write_text(BAD)
        await watch.out.until(digest(BAD))


async def test_a_start_with_a_bad_file_serves_its_last_good_version_and_says_so(kubelet: ObservedKubelet) -> None:
    async with serving_a_file(kubelet) as (node, daemon):
        state = Directory(node.state / "releases" / "plugwright")
        async with state.watching():
            await state.appears("last-good-config.json")
        before = await shown(node)
    node.config.write_text(BAD)
    async with node.daemon("--listen", "127.0.0.1:0") as daemon:
        line = await daemon.err.until("configuration rejected, the last valid one is active")
        assert f'error="{ERROR}" sha256={digest(BAD)} last_good={digest(GOOD)}' in line
        await daemon.err.until("registered")
        restored = await shown(node)
        assert restored["refused"].pop("since") > before["loadedAt"]
        refused = {"sha256": digest(BAD), "error": ERROR}
        assert restored == before | {"failures": 1, "refused": refused, "restored": True}
        text = (await node.ask("status")).out.splitlines()
        assert text[0].startswith(f"configuration {node.config}  {digest(GOOD)}, last good version, read ")
        assert text[1].endswith(f" ago: {ERROR}")
        said = f"configuration rejected, the last valid one, {digest(GOOD)}, is active: {ERROR}"
        assert await page(daemon, "/readyz") == (503, f"{said}\n")
        assert (await metrics(daemon))["restored"] == 1
        assert (await metrics(daemon))["last_reload_successful"] == 0

        node.configure(gpu={"count": 3})
        await kubelet.endpoint("mock/gpu", 3)
        await daemon.err.until("configuration reloaded")
        assert await page(daemon, "/readyz") == (200, "ok\n")
        assert (await metrics(daemon))["restored"] == 0


@pytest.fixture
def packages(tmp_path: Path) -> Path:
    """A directory for PYTHONPATH with a family that finds fault late."""
    install(tmp_path, "moody_family", "[plugwright.families]\nmoody = moody:FAMILY\n")
    tmp_path.joinpath("moody.py").write_text(MOODY)
    return tmp_path


def with_mood(mood: str) -> str:
    return f"resources: [{{name: mock/gpu, mock: {{count: 2}}}}, {{name: mock/moody, moody: {{mood: {mood}}}}}]"


@pytest.mark.parametrize(
    ("mood", "error", "traceback"),
    [
        ("another", "two plugins serve mock/gpu: each must have a resource of its own", False),
        ("bad", "LookupError: in a bad mood", True),
    ],
)
async def test_a_file_that_fails_while_it_is_applied_changes_nothing(
    kubelet: ObservedKubelet, packages: Path, mood: str, error: str, traceback: bool
) -> None:
    node = Node(kubelet.paths.root)
    node.config.parent.mkdir()
    node.config.write_text(with_mood("good"))
    async with running(node.command(), {"PYTHONPATH": str(packages)}) as daemon:
        endpoints = [await kubelet.endpoint("mock/gpu", 2), await kubelet.endpoint("mock/moody", 1)]
        node.config.write_text(with_mood(mood))
        await daemon.err.until("new configuration rejected, the previous one stays")
        assert (await shown(node))["refused"]["error"] == error
        daemon.signal(signal.SIGHUP)
        node.config.write_text(with_mood("good, fpga: 1"))
        await daemon.err.until("unknown key 'fpga'")
        assert [kubelet.endpoints["mock/gpu"], kubelet.endpoints["mock/moody"]] == endpoints
        assert not any(endpoint.ended for endpoint in endpoints)
        node.config.write_text(with_mood("fine"))
        await daemon.err.until("configuration reloaded")
    assert ("Traceback" in "\n".join(daemon.err.all)) == traceback
