"""A real Prometheus with the chart's alerts scrapes a real daemon: faults raise their alerts, and cures end them."""

import asyncio
import json
import math
import shutil
import socket
import threading
import urllib.request
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
import yaml
from tests.cli.processes import Node, running
from tests.deploy.rendered import one
from tests.deploy.test_alerts import rules
from tests.observed_kubelet import ObservedKubelet
from tests.requirements import unavailable

from plugwright.plugins.nvidia import simulated_machines
from plugwright.testing import pod_requesting

_LIMIT = 120.0  # seconds
_CONFIG = {"resources": [{"name": "mock/gpu", "mock": {"count": 8}, "expect": 8}]}


class Prometheus:
    """Asks the server at `address` which of its alerts fire."""

    def __init__(self, address: str) -> None:
        self._address = address

    async def fires(self, alert: str, **labels: str) -> dict[str, str]:
        """The labels of an alert, once it fires with these."""

        def chosen(alerts: Iterable[dict[str, str]]) -> dict[str, str] | None:
            wanted = {"alertname": alert, **labels}.items()
            return next((found for found in alerts if wanted <= found.items()), None)

        found: dict[str, str] = await self._until(chosen)
        return found

    async def is_silent(self, *, at_all: str) -> None:
        """Returns once the alert does not fire, and `up` has been scraped."""

        def is_over(alerts: list[dict[str, str]]) -> bool | None:
            return None if any(found["alertname"] == at_all for found in alerts) else True

        await self._until(is_over)

    async def value(self, query: str) -> float | None:
        found = (await self._get(f"query?query={quote(query)}"))["result"]
        return float(found[0]["value"][1]) if found else None

    async def until_any(self, query: str) -> None:
        """Returns once the query has a number."""
        async with asyncio.timeout(_LIMIT):
            while (found := await self.value(query)) is None or math.isnan(found):
                await asyncio.sleep(0.2)

    async def until_value(self, query: str, expected: float) -> None:
        async with asyncio.timeout(_LIMIT):
            while await self.value(query) != expected:
                await asyncio.sleep(0.2)

    async def _until(self, accept: Callable[[list[dict[str, str]]], Any]) -> Any:
        async with asyncio.timeout(_LIMIT):
            while True:
                alerts = (await self._get("alerts"))["alerts"]
                found = accept([each["labels"] for each in alerts if each["state"] == "firing"])
                if found is not None:
                    return found
                await asyncio.sleep(0.2)

    async def _get(self, path: str) -> dict[str, Any]:
        def get() -> dict[str, Any]:
            with urllib.request.urlopen(f"http://{self._address}/api/v1/{path}", timeout=30) as answer:
                data: dict[str, Any] = json.load(answer)["data"]
                return data

        while True:
            try:
                return await asyncio.to_thread(get)
            except OSError:  # it is starting
                await asyncio.sleep(0.1)


def free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        port: int = listening.getsockname()[1]
        return port


def configure(directory: Path, *targets: str) -> Path:
    """The chart's rules as they are, but for their `for`: no test waits for minutes."""
    quick = [{**rule, "for": "0s"} for rule in rules()]
    (directory / "rules.yaml").write_text(yaml.safe_dump({"groups": [{"name": "plugwright", "rules": quick}]}))
    labels = {"job": "plugwright", "namespace": "plugwright"}
    scraped = {"job_name": "plugwright", "honor_labels": True}
    configuration = {
        "global": {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"},
        "rule_files": ["rules.yaml"],
        "scrape_configs": [{**scraped, "static_configs": [{"targets": list(targets), "labels": labels}]}],
    }
    path = directory / "prometheus.yaml"
    path.write_text(yaml.safe_dump(configuration))
    return path


def command(path: Path, port: int) -> list[str]:
    program = shutil.which("prometheus")
    if program is None:
        unavailable("prometheus", "needs Prometheus: `make prometheus`")
    storage = f"--storage.tsdb.path={path.parent / 'data'}"
    return [program, f"--config.file={path}", storage, f"--web.listen-address=127.0.0.1:{port}"]


@pytest.mark.timeout(600)
async def test_a_failing_device_raises_an_alert_that_ends_when_it_recovers(
    kubelet: ObservedKubelet, tmp_path: Path
) -> None:
    node, port = Node(kubelet.paths.root), free_port()
    node.config.parent.mkdir()
    node.config.write_text(json.dumps(_CONFIG))
    address = f"127.0.0.1:{free_port()}"
    prometheus = Prometheus(f"127.0.0.1:{port}")
    flags = ("--listen", address, "--node-name", "worker-17")
    async with running(command(configure(tmp_path, address), port)):
        async with node.daemon(*flags) as daemon:
            first, second, *_ = (await kubelet.endpoint("mock/gpu", 8)).devices
            await daemon.err.until("registered")
            await prometheus.until_value('sum(plugwright_devices{node="worker-17",health="Healthy"})', 8)
            assert (await node.ask("cordon", "mock/gpu", second, "--reason", "planned")).code == 0
            await prometheus.until_value("sum(plugwright_device_cordoned)", 1)

            assert (await node.ask("mock", "fail", first, "--code", "fan")).code == 0
            unhealthy = {"node": "worker-17", "resource": "mock/gpu", "severity": "warning"}
            assert (await prometheus.fires("PlugwrightDeviceUnhealthy", **unhealthy))["code"] == "fan"
            assert await prometheus.value('count(ALERTS{code="cordoned"})') is None
            await prometheus.until_value(f'plugwright_device_failures_total{{device="{first}",code="fan"}}', 1)
            assert (await node.ask("mock", "recover", first)).code == 0
            await prometheus.is_silent(at_all="PlugwrightDeviceUnhealthy")

            node.config.write_text(json.dumps({"resources": [{**_CONFIG["resources"][0], "mock": {"count": 6}}]}))
            await prometheus.fires("PlugwrightDevicesMissing", node="worker-17", severity="critical")
            node.config.write_text(json.dumps(_CONFIG))
            await prometheus.is_silent(at_all="PlugwrightDevicesMissing")

            node.config.write_text("resources: [{name: mock/gpu, mock: {cuont: 8}}]")
            await prometheus.fires("PlugwrightConfigurationRefused", node="worker-17")
            node.config.write_text(json.dumps(_CONFIG))
            await prometheus.is_silent(at_all="PlugwrightConfigurationRefused")
        await prometheus.fires("PlugwrightDaemonDown", severity="critical")


@contextmanager
def dcgm_exporter(uuid: str) -> Iterator[str]:
    """The address of a page with the metric of dcgm-exporter that the dashboard reads."""

    class Page(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(f'DCGM_FI_DEV_GPU_UTIL{{UUID="{uuid}",Hostname="worker-17"}} 42\n'.encode())

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Page) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def panel_queries() -> dict[str, str]:
    """By the title of each panel, with all nodes and resources chosen."""
    dashboard = json.loads(one("everything", "ConfigMap", "plugwright-dashboard")["data"]["plugwright.json"])
    return {
        panel["title"]: target["expr"].replace("$node", ".*").replace("$resource", ".*")
        for panel in dashboard["panels"]
        for target in panel.get("targets", ())
    }


@pytest.mark.timeout(600)
async def test_every_panel_of_the_dashboard_shows_data(kubelet: ObservedKubelet, tmp_path: Path) -> None:
    node, port = Node(kubelet.paths.root), free_port()
    node.config.parent.mkdir()
    gpus = {"name": "nvidia.com/gpu", "nvidia": {"simulate": "t4"}, "expect": 5}
    node.config.write_text(json.dumps({"resources": [gpus]}))
    address = f"127.0.0.1:{free_port()}"
    first, second, *_ = (gpu.uuid for gpu in simulated_machines.load("t4").gpus)
    queries = panel_queries()
    prometheus = Prometheus(f"127.0.0.1:{port}")
    with dcgm_exporter(first) as dcgm:
        async with running(command(configure(tmp_path, address, dcgm), port)):  # noqa: SIM117
            async with node.daemon("--listen", address, "--node-name", "worker-17") as daemon:
                await kubelet.endpoint("nvidia.com/gpu", 4)
                await daemon.err.until("registered")
                await kubelet.kubelet.admit(pod_requesting({"nvidia.com/gpu": 2}))
                await prometheus.until_any('plugwright_call_duration_seconds_count{method="Allocate"}')
                await kubelet.kubelet.admit(pod_requesting({"nvidia.com/gpu": 2}))  # a rate needs an increase
                assert (await node.ask("nvidia", "simulate", "xid", second, "xid=79")).code == 0
                for query in queries.values():
                    await prometheus.until_any(query)
    assert len(queries) >= 18
