"""A node with other devices than it should have says so: in `status`, `/readyz`, the log and the metrics."""

import asyncio
import json
from pathlib import Path
from typing import Any

from prometheus_client.parser import text_string_to_metric_families
from tests.cli.processes import Node, Running, python, running
from tests.cli.test_refused_config import page
from tests.observed_kubelet import ObservedKubelet

SHELF = """
from pathlib import Path
from plugwright import Device, Plugin

class Shelf(Plugin):
    resource = "example.com/tape"

    async def discover(self):
        yield [Device(path.name) for path in Path({directory!r}).iterdir()]
"""


def node_with(kubelet: ObservedKubelet, resource: dict[str, object]) -> Node:
    node = Node(kubelet.paths.root)
    node.config.parent.mkdir()
    node.config.write_text(json.dumps({"resources": [{"name": "mock/gpu", **resource}]}))
    return node


async def samples(daemon: Running, name: str) -> list[tuple[dict[str, str], float]]:
    _, text = await page(daemon, "/metrics")
    families = text_string_to_metric_families(text)
    return [(sample.labels, sample.value) for family in families for sample in family.samples if sample.name == name]


async def reported(node: Node) -> dict[str, Any]:
    done = await node.ask("status", "-o", "json")
    assert done.code == 0, done.err
    resource: dict[str, Any] = json.loads(done.out)["resources"][0]
    return resource


async def is_remembered(node: Node, devices: int) -> None:
    """Returns when the state file has so many devices."""
    path = node.state / "releases" / "plugwright" / "found-devices.json"
    async with asyncio.timeout(60):
        while (
            not path.exists()
            or len(next(iter(json.loads(path.read_text())["resources"].values()))["devices"]) != devices
        ):
            await asyncio.sleep(0.01)


async def test_fewer_devices_than_expected_are_reported_everywhere(kubelet: ObservedKubelet) -> None:
    node = node_with(kubelet, {"mock": {"count": 6}, "expect": 8})
    async with node.daemon("--listen", "127.0.0.1:0") as daemon:
        await kubelet.endpoint("mock/gpu", 6)
        line = await daemon.err.until("not the expected devices")
        assert "code=missing" in line
        await daemon.err.until("registered")
        assert await page(daemon, "/readyz") == (200, "ok\nmock/gpu: expected 8, found 6\n")
        assert await samples(daemon, "plugwright_devices_expected") == [({"resource": "mock/gpu"}, 8)]
        assert await samples(daemon, "plugwright_devices_missing") == [({"resource": "mock/gpu"}, 2)]
        shortfall = {"resource": "mock/gpu", "code": "missing"}
        assert await samples(daemon, "plugwright_devices_shortfall") == [(shortfall, 1)]
        assert "  devices: expected 8, found 6" in (await node.ask("status")).out
        report = await reported(node)
        keys = "expected", "shortfall", "shortfallCode"
        assert [report[key] for key in keys] == ["8", "expected 8, found 6", "missing"]


async def test_a_node_may_be_unready_until_it_has_the_expected_model(kubelet: ObservedKubelet) -> None:
    expect = {"min": 1, "max": 4, "model": "H100*", "notReady": True}
    node = node_with(kubelet, {"mock": {"count": 1, "model": "A100"}, "expect": expect})
    async with node.daemon("--listen", "127.0.0.1:0") as daemon:
        (device,) = (await kubelet.endpoint("mock/gpu", 1)).devices
        await daemon.err.until("not the expected devices")
        await daemon.err.until("registered  resource=mock/gpu")
        status, text = await page(daemon, "/readyz")
        assert (status, text) == (503, f"mock/gpu: 1 devices are no 'H100*': {device}\n")
        right = {"mock": {"count": 2, "model": "H100 PCIe"}, "expect": expect}
        node.config.write_text(json.dumps({"resources": [{"name": "mock/gpu", **right}]}))
        await daemon.err.until("the expected devices are found")
        assert await page(daemon, "/readyz") == (200, "ok\n")
        assert await samples(daemon, "plugwright_devices_shortfall") == []


async def test_a_start_with_fewer_devices_is_unready_once_and_reported_until_they_are_back(
    kubelet: ObservedKubelet, tmp_path: Path
) -> None:
    shelf, program, node = tmp_path / "shelf", tmp_path / "shelf.py", Node(kubelet.paths.root)
    program.write_text(SHELF.format(directory=str(shelf)))
    shelf.mkdir()
    for name in ("t0", "t1"):
        (shelf / name).touch()
    places = ("--kubelet-dir", node.root, "--state-dir", node.state, "--control-socket", node.control)
    command = python("-m", "plugwright", "run", f"{program}:Shelf", *places, "--listen", "127.0.0.1:0")
    said = "1 of 2 devices found before {} start are missing: t1"

    async def answers(*, devices: int) -> tuple[int, str]:
        """Of /readyz, when a daemon has started and remembers its devices."""
        async with running(command) as daemon:
            await kubelet.endpoint("example.com/tape", devices)
            await daemon.err.until("registered")
            if devices == 1:
                await daemon.err.until("not the expected devices")
            await is_remembered(node, devices)
            return await page(daemon, "/readyz")

    assert await answers(devices=2) == (200, "ok\n")
    (shelf / "t1").unlink()
    assert await answers(devices=1) == (503, f"example.com/tape: {said.format('the last')}\n")
    assert await answers(devices=1) == (200, f"ok\nexample.com/tape: {said.format('an earlier')}\n")
    (shelf / "t1").touch()
    assert await answers(devices=2) == (200, "ok\n")
